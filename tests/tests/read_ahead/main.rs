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
    for at in 0..4 {
        file.read_exact_at(&mut buf, (at * MIB) as u64).unwrap();
        assert!(buf == old[at * MIB..(at + 1) * MIB]);
    }
    wait_for("bytes to be read ahead", Duration::from_secs(10), || memory(&reader, "used_bytes") >= 2 * MIB as u64);
    fs::write(writer.path("file"), &new).unwrap();
    for at in 4..24 {
        file.read_exact_at(&mut buf, (at * MIB) as u64).unwrap();
        assert!(buf == new[at * MIB..(at + 1) * MIB], "MiB {at} of the open file");
    }
    drop(file);
    read_in_order(&reader.path("file"), &new);
    reader.umount();
    writer.umount();
}
