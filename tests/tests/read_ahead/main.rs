//! What a mount reads ahead of its programs: nobody sees what a file was.

use sluice_tests::{Mount, Server, noise, skipped_in_local_mode, wait_for};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    time::Duration,
};

const MIB: usize = 1 << 20;

fn memory(mount: &Mount, name: &str) -> u64 {
    mount.status()["numbers"]["memory"][name].as_u64().expect("a number")
}

/// In order, in pieces; the bytes are those of `expected`.
fn read_in_order(path: &std::path::Path, expected: &[u8]) {
    let file = File::open(path).unwrap();
    let mut buf = vec![0; 256 << 10];
    for (n, piece) in expected.chunks(buf.len()).enumerate() {
        file.read_exact_at(&mut buf[..piece.len()], (n * (256 << 10)) as u64).unwrap();
        assert!(buf[..piece.len()] == *piece, "at piece {n}");
    }
}

/// To be survived: another mount replaces a file whose next bytes this one has read ahead. Once that is closed there nobody reads the
/// old ones here, neither by a handle that was open all the time nor by a new one.
#[test]
fn a_file_that_another_mount_replaces_while_it_is_read_ahead() {
    if skipped_in_local_mode("a_file_that_another_mount_replaces_while_it_is_read_ahead") {
        return;
    }
    let server = Server::new();
    let (old, new) = (noise(1, 24 * MIB), noise(2, 24 * MIB));
    let first = server.mount("first");
    fs::write(first.path("file"), &old).unwrap();
    first.umount();
    let (writer, reader) = (server.mount("writer"), server.try_mount("reader", &["--cache", "none"]).expect("mounted"));
    let file = File::open(reader.path("file")).unwrap();
    let mut buf = vec![0; MIB];
    // How far it reads ahead is up to how long its own reads wait: where they hardly do, it is about two of them.
    let mut read = 0;
    let unread = || {
        wait_for("what is read ahead to be here", Duration::from_secs(10), || memory(&reader, "pace_used_bytes") == 0);
        memory(&reader, "ahead_bytes").saturating_sub(memory(&reader, "ahead_used_bytes"))
    };
    while read < 4 || unread() == 0 {
        assert!(read < 16, "nothing was read ahead of {read} MiB");
        file.read_exact_at(&mut buf, (read * MIB) as u64).unwrap();
        assert!(buf == old[read * MIB..(read + 1) * MIB]);
        read += 1;
    }
    fs::write(writer.path("file"), &new).unwrap();
    for at in read..24 {
        file.read_exact_at(&mut buf, (at * MIB) as u64).unwrap();
        assert!(buf == new[at * MIB..(at + 1) * MIB], "MiB {at} of the open file");
    }
    drop(file);
    read_in_order(&reader.path("file"), &new);
    reader.umount();
    writer.umount();
}
