//! A mount ends although its server is gone, and loses nothing.

use std::{
    fs::{self, File},
    io::Write,
};

use rustix::{
    fs::{Mode, mkdirat},
    process::{Pid, Signal, kill_process},
};
use sluice_tests::{Mount, Server, in_background, skipped_in_local_mode, wait_for};

use crate::noise;

/// Some megabytes that no server has heard of, in a file that stays open.
fn write_unpublished(mount: &Mount) -> File {
    let mut open = File::create(mount.path("open")).unwrap();
    open.write_all(&noise(1, 3_000_000)).unwrap();
    open
}

#[track_caller]
fn is_all_there(server: &Server, again: impl Fn() -> Mount) {
    let mount = again();
    let other = server.mount("other");
    for mount in [&mount, &other] {
        assert!(fs::read(mount.path("closed")).unwrap() == noise(2, 200_000));
        assert!(fs::read(mount.path("open")).unwrap() == noise(1, 3_000_000));
    }
    mount.umount();
    other.umount();
}

/// To be survived: `sluice umount` of what is not stored yet while the server is gone.
#[test]
fn umount_without_the_server() {
    if skipped_in_local_mode("umount_without_the_server") {
        return;
    }
    let mut server = Server::new();
    let mount = server.try_mount("a", &["--upload-delay", "1h"]).unwrap();
    fs::write(mount.path("closed"), noise(2, 200_000)).unwrap();
    drop(write_unpublished(&mount));
    server.kill9();
    let again = mount.again();
    let umount = mount.try_umount();
    umount.refused_with(&["has not answered", "mount again", "a.journal"]);
    let (code, log) = mount.wait_for_the_end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("has not answered"), "{log}");
    server.start();
    is_all_there(&server, again);
    server.stop();
    server.volume().fsck_is_clean();
}

/// To be survived: SIGTERM while the server is gone and a program waits for it.
#[test]
fn sigterm_without_the_server() {
    if skipped_in_local_mode("sigterm_without_the_server") {
        return;
    }
    let mut server = Server::new();
    let mount = server.mount("a");
    fs::write(mount.path("closed"), noise(2, 200_000)).unwrap();
    let open = write_unpublished(&mount);
    // By way of it also when the mount point is taken away.
    let root = File::open(mount.root()).unwrap();
    server.kill9();
    let again = mount.again();
    let waiting = in_background(move || mkdirat(root, "directory", Mode::RWXU));
    let pid = Pid::from_raw(mount.pid() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let (code, log) = mount.wait_for_the_end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("has not answered") && log.contains("a.journal"), "{log}");
    wait_for("the program to go on", std::time::Duration::from_secs(60), || waiting.is_finished());
    waiting.join().unwrap().unwrap_err();
    // Its close has nobody to publish to.
    drop(open);
    server.start();
    is_all_there(&server, again);
    server.stop();
    server.volume().fsck_is_clean();
}
