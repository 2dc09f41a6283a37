//! A mount that hears nothing and is not heard.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::FileExt,
    time::Duration,
};

use rustix::{fs::statvfs, io::Errno};
use sluice_tests::{in_background, skipped_in_local_mode, wait_for};

use crate::Net;

const SOON: Duration = Duration::from_secs(60);
/// Ten leases of 2 s, and what a loaded machine takes.
const GIVEN_UP: Duration = Duration::from_secs(120);

/// To be survived: a mount is parted for longer than its lease. Others go on after that lease, and what the mount opens afterwards is
/// what they closed, however late it gets the answer.
#[test]
fn a_parted_mount_opens_nothing_old() {
    if skipped_in_local_mode("a_parted_mount_opens_nothing_old") {
        return;
    }
    let net = Net::new("2s");
    fs::write(net.behind.path("f"), b"old").unwrap();
    for round in 0..3 {
        assert!(fs::read(net.behind.path("f")).is_ok());
        let parted = net.proxy.part();
        let new = format!("new {round}").into_bytes();
        fs::write(net.beside.path("f"), &new).unwrap();
        let path = net.behind.path("f");
        let reading = in_background(move || {
            let mut found = Vec::new();
            File::open(path).unwrap().read_to_end(&mut found).unwrap();
            found
        });
        fs::write(net.beside.path("g"), &new).unwrap();
        drop(parted);
        wait_for("the read to end", SOON, || reading.is_finished());
        assert_eq!(reading.join().unwrap(), new, "round {round}");
        assert_eq!(fs::read(net.behind.path("g")).unwrap(), new);
        // And the other way round: it is heard again.
        fs::write(net.behind.path("g"), b"heard").unwrap();
        assert_eq!(fs::read(net.beside.path("g")).unwrap(), b"heard");
    }
}

/// To be survived: a mount is parted for so long that its session ends. What it has open fails, it says why, and it ends.
#[test]
fn a_mount_that_was_given_up_fails() {
    if skipped_in_local_mode("a_mount_that_was_given_up_fails") {
        return;
    }
    let net = Net::new("2s");
    fs::write(net.behind.path("f"), vec![7; 100_000]).unwrap();
    let open = File::options().read(true).write(true).open(net.behind.path("f")).unwrap();
    fs::remove_file(net.beside.path("f")).unwrap();
    // Acked, and most likely not published.
    let unpublished = File::create(net.behind.path("unpublished")).unwrap();
    unpublished.write_all_at(&[9; 300_000], 0).unwrap();
    // The server keeps the file for the open handle until it gives the session up.
    let inodes = || statvfs(net.beside.root()).map(|found| found.f_files).unwrap();
    let with_it = inodes();
    let parted = net.proxy.part();
    wait_for("the session to be given up", GIVEN_UP, || inodes() < with_it);
    drop(parted);
    let eio = Some(Errno::IO.raw_os_error());
    wait_for("the mount to hear of it", SOON, || fs::create_dir(net.behind.path("d")).is_err());
    assert_eq!(open.write_at(b"late", 0).unwrap_err().raw_os_error(), eio);
    assert_eq!(fs::read(net.behind.path("f")).unwrap_err().raw_os_error(), eio);
    assert!(net.behind.log().contains("the session has ended"), "{}", net.behind.log());
    assert!(!net.beside.path("d").exists());
    drop((open, unpublished));
    net.behind.try_umount().refused_with(&["has ended the session", "mount again"]);
    let again = net.behind.again();
    net.behind.wait_for_the_end();
    // Another session begins, and publishes what the journal holds.
    let back = again();
    assert!(fs::read(net.beside.path("unpublished")).unwrap() == [9; 300_000]);
    fs::write(back.path("g"), b"back").unwrap();
    assert_eq!(fs::read(net.beside.path("g")).unwrap(), b"back");
    drop((back, net.server));
}
