//! Bytes that are acked and not stored.

use std::{
    fs::{self, File},
    io::Write,
};

use rustix::io::Errno;
use sluice_tests::{Mount, Server, skipped_in_local_mode, sluice};

use crate::{noise, read};

const MIB: usize = 1 << 20;

/// The number of a mount's session.
fn session_of(server: &Server, mount: &Mount) -> u64 {
    let status = sluice(["status", &server.meta(), "--json"]).ok().json();
    let at = mount.root().to_str().unwrap();
    let sessions = status["sessions"].as_array().expect("a list");
    let found = sessions.iter().find(|session| session["name"].as_str().expect("a name").ends_with(at));
    found.expect("its session")["session"].as_u64().expect("a number")
}

/// To be survived: a mount is asked for what another one wrote and has not stored; the writer goes, and comes back.
#[test]
fn unstored_bytes_of_another_mount() {
    if skipped_in_local_mode("unstored_bytes_of_another_mount") {
        return;
    }
    let server = Server::new();
    let writer = server.try_mount("writer", &["--upload-delay", "1h"]).unwrap();
    let reader = server.try_mount("reader", &["--cache", "none"]).unwrap();
    let (large, packed) = (noise(1, 9 * MIB + 77), noise(2, 70_000));
    fs::write(writer.path("large"), &large).unwrap();
    fs::write(writer.path("packed"), &packed).unwrap();
    fs::write(writer.path("inline"), b"inline").unwrap();
    assert!(fs::read(reader.path("large")).unwrap() == large);
    assert!(fs::read(reader.path("packed")).unwrap() == packed);
    let again = writer.again();
    let session = session_of(&server, &writer);
    writer.kill9();
    // What no longer has a writer is an error: never zeros, never older bytes.
    fs::write(reader.path("drop"), b"caches").unwrap();
    let eio = Err(Some(Errno::IO.raw_os_error()));
    let fresh = server.try_mount("fresh", &["--cache", "none"]).unwrap();
    assert!(read(fresh.path("large")) == eio, "bytes without a writer");
    let told = format!("session {session}, which has not stored object");
    assert!(fresh.log().contains(&told), "`{told}` is not in the log:\n{}", fresh.log());
    assert_eq!(fs::read(fresh.path("inline")).unwrap(), b"inline", "it came with the metadata");
    let writer = again();
    assert!(fs::read(fresh.path("large")).unwrap() == large);
    assert!(fs::read(writer.path("packed")).unwrap() == packed);
    writer.umount();
    assert!(fs::read(fresh.path("packed")).unwrap() == packed);
    drop((reader, fresh));
}

/// To be survived: a mount is killed with changes that it acked and did not publish.
#[test]
fn a_killed_mount_loses_nothing_acked() {
    if skipped_in_local_mode("a_killed_mount_loses_nothing_acked") {
        return;
    }
    let mut server = Server::new();
    let other = server.mount("other");
    let mut writer = server.mount("writer");
    for round in 0..3u64 {
        let path = |name: &str| writer.path(format!("{name}-{round}"));
        let mut open = File::create(path("open")).unwrap();
        open.write_all(&noise(round, 3 * MIB)).unwrap();
        let mut small = File::create(path("small")).unwrap();
        small.write_all(b"few bytes").unwrap();
        let mut cut = File::create(path("cut")).unwrap();
        cut.write_all(&noise(9, 500_000)).unwrap();
        cut.set_len(1234).unwrap();
        fs::write(path("closed"), noise(round + 50, 40_000)).unwrap();
        let again = writer.again();
        writer.kill9();
        writer = again();
        for mount in [&writer, &other] {
            let read = |name: &str| fs::read(mount.path(format!("{name}-{round}"))).unwrap();
            assert!(read("open") == noise(round, 3 * MIB), "round {round}");
            assert_eq!(read("small"), b"few bytes");
            assert!(read("cut") == noise(9, 500_000)[..1234]);
            assert!(read("closed") == noise(round + 50, 40_000));
        }
    }
    writer.umount();
    other.umount();
    server.stop();
    server.volume().fsck_is_clean();
}
