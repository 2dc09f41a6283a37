//! What cannot be taken over is refused with what to do, and goes on as if nothing had been asked.

use rustix::{
    fs::{Mode, OFlags},
    mount::UnmountFlags,
};
use sluice_tests::{
    Gateway, Locker, Mount, NOBODY, Ran, Server, UringConsent, Volume, in_background, needs_binary, noise, run,
    sluice_binary,
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    time::Duration,
};

/// Requests under way are waited for; the rest is done at once.
const LIMIT: Duration = Duration::from_secs(60);

fn take_over(dir: &Path, mountpoint: &Path, options: &[&str]) -> Ran {
    let arguments = [OsStr::new("up"), dir.as_os_str(), mountpoint.as_os_str(), "--takeover".as_ref()];
    run(Command::new(sluice_binary()).args(arguments).args(options), LIMIT)
}

#[track_caller]
fn works(mount: &Mount) {
    fs::write(mount.path("f"), "still").unwrap();
    assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "still");
    assert_eq!(mount.status()["pid"], mount.pid());
}

#[test]
fn what_is_not_there_or_not_this_volumes_mount() {
    needs_binary!();
    let (volume, other) = (Volume::new(), Volume::new());
    take_over(&volume.dir(), &volume.mountpoint(), &[]).refused_with(&["nothing", "leave --takeover out"]);
    assert!(!volume.dir().exists());
    let (mount, of_other) = (volume.up(), other.up());
    take_over(&other.dir(), &volume.mountpoint(), &[]).refused_with(&["is a mount of the volume", "not of"]);
    take_over(&volume.dir(), &other.mountpoint(), &[]).refused_with(&["is a mount of the volume", "not of"]);
    take_over(&volume.dir(), &volume.mountpoint(), &["--cache-size", "0"]).refused_with(&["--cache-size"]);
    take_over(&volume.dir(), &volume.mountpoint(), &["--passthrough", "1M", "--verify", "off"])
        .refused_with(&["--passthrough", "umount"]);
    take_over(&volume.dir(), &volume.mountpoint(), &["--fuse-transport", "uring"]).refused_with(&["uring", "umount"]);
    works(&mount);
    works(&of_other);
}

/// Not refused: the volume's directory named by another path than the one that the mount began with.
#[test]
fn a_volume_by_another_path() {
    needs_binary!();
    let volume = Volume::new();
    let mount = volume.up();
    fs::write(mount.path("f"), "still").unwrap();
    let link = volume.dir().with_file_name("link");
    std::os::unix::fs::symlink(volume.dir(), &link).unwrap();
    for dir in [&link, &volume.dir()] {
        take_over(dir, &volume.mountpoint(), &["-d"]).ok();
        assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "still");
    }
    run(Command::new(sluice_binary()).arg("umount").arg(volume.mountpoint()), LIMIT).ok();
    assert!(!mount.path("f").exists());
}

/// A mount that was left behind is not taken for the one that the volume has now.
#[test]
fn a_dead_mount_of_a_volume_that_is_mounted_elsewhere() {
    needs_binary!();
    let volume = Volume::new();
    volume.up().kill9_and_leave_the_mount_point();
    let elsewhere = volume.dir().with_file_name("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let sluice = |arguments: &[&OsStr]| run(Command::new(sluice_binary()).args(arguments), LIMIT);
    sluice(&["up".as_ref(), volume.dir().as_os_str(), elsewhere.as_os_str(), "-d".as_ref()]).ok();
    let ran = take_over(&volume.dir(), &volume.mountpoint(), &[]);
    let written = fs::write(elsewhere.join("f"), "still");
    let umounted = sluice(&["umount".as_ref(), elsewhere.as_os_str()]);
    rustix::mount::unmount(volume.mountpoint(), UnmountFlags::DETACH).unwrap();
    ran.refused_with(&["is mounted at", "umount -l"]);
    written.unwrap();
    umounted.ok();
}

#[test]
fn a_dead_mount() {
    needs_binary!();
    let volume = Volume::new();
    volume.up().kill9_and_leave_the_mount_point();
    let ran = take_over(&volume.dir(), &volume.mountpoint(), &[]);
    ran.refused_with(&["is gone", "without --takeover"]);
    rustix::mount::unmount(volume.mountpoint(), UnmountFlags::DETACH).unwrap();
    works(&volume.up());
}

#[test]
fn another_user() {
    needs_binary!();
    let volume = Volume::new();
    let mount = volume.up();
    let mut command = Command::new(sluice_binary());
    command.args([OsStr::new("up"), volume.dir().as_os_str(), mount.root().as_os_str(), "--takeover".as_ref()]);
    run(command.uid(NOBODY).gid(NOBODY), LIMIT).refused_with(&["another user", "as the user who mounted it"]);
    works(&mount);
}

#[test]
fn passthrough_and_rings() {
    needs_binary!();
    let volume = Volume::new().option("--verify", "off").option("--passthrough", "64M");
    let mount = volume.up();
    take_over(&volume.dir(), mount.root(), &[]).refused_with(&["--passthrough", "umount"]);
    works(&mount);
    let volume = Volume::new().option("--fuse-transport", "uring");
    let consent = UringConsent::set(true);
    let mount = volume.up_without_consent();
    take_over(&volume.dir(), mount.root(), &[]).refused_with(&["uring", "umount"]);
    drop(consent);
    works(&mount);
}

/// Each of the two commands names the other one.
#[test]
fn the_other_kind_of_mount() {
    needs_binary!();
    let (server, volume) = (Server::new(), Volume::new());
    let (served, local) = (server.mount("a"), volume.up());
    take_over(&volume.dir(), served.root(), &[]).refused_with(&["sluice mount sluice://", "--takeover"]);
    take_served_over(&server.meta(), local.root(), &[]).refused_with(&["of this host", "sluice up", "--takeover"]);
    works(&served);
    works(&local);
}

fn take_served_over(meta: &str, mountpoint: &Path, options: &[&str]) -> Ran {
    let arguments = ["mount".as_ref(), meta.as_ref(), mountpoint.as_os_str(), "--takeover".as_ref()];
    run(Command::new(sluice_binary()).args(arguments).args(options), LIMIT)
}

#[test]
fn what_is_not_this_servers_mount_or_has_its_bytes_elsewhere() {
    needs_binary!();
    let server = Server::new();
    let empty = server.volume().mountpoint();
    take_served_over(&server.meta(), &empty, &[]).refused_with(&["nothing", "leave --takeover out"]);
    let mount = server.mount("a");
    let own = format!("{}:64M", mount.root().with_file_name("a.journal").display());
    let other = format!("{}:64M", mount.root().with_file_name("other").display());
    let with = |options: &[&str]| take_served_over(&server.meta(), mount.root(), options);
    take_served_over("sluice://127.0.0.1:1", mount.root(), &["--journal", &own])
        .refused_with(&["is a mount of", "not of"]);
    with(&["--journal", &other]).refused_with(&["has its journal in", "--journal"]);
    with(&["--journal", &own, "--cache", &other]).refused_with(&["in the cache", "say --cache"]);
    with(&["--journal", &own, "--cache", "none"]).refused_with(&["in the cache", "--cache none"]);
    with(&["--journal", &own, "--fuse-transport", "uring"]).refused_with(&["uring", "umount"]);
    let mut command = Command::new(sluice_binary());
    let meta = server.meta();
    command.args([
        "mount".as_ref(),
        meta.as_ref(),
        mount.root().as_os_str(),
        "--takeover".as_ref(),
        "--journal".as_ref(),
    ]);
    run(command.arg(&own).uid(NOBODY).gid(NOBODY), LIMIT).refused_with(&["another user", "as the user who mounted it"]);
    works(&mount);
    // The same place by another path is no other place, and the mount is known by the first one.
    let link = mount.root().with_file_name("a.link");
    std::os::unix::fs::symlink(mount.root().with_file_name("a.journal"), &link).unwrap();
    with(&["--journal", &format!("{}:64M", link.display()), "-d"]).ok();
    assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "still");
    run(Command::new(sluice_binary()).arg("umount").arg(mount.root()), LIMIT).ok();
}

#[test]
fn a_dead_mount_of_a_served_volume() {
    needs_binary!();
    let server = Server::new();
    let mount = server.mount("a");
    let (place, again) = (mount.root().to_path_buf(), mount.again());
    let own = format!("{}:64M", place.with_file_name("a.journal").display());
    mount.kill9_and_leave_the_mount_point();
    let ran = take_served_over(&server.meta(), &place, &["--journal", &own]);
    ran.refused_with(&["is gone", "without --takeover"]);
    rustix::mount::unmount(&place, UnmountFlags::DETACH).unwrap();
    works(&again());
}

/// Without its server the mount stays where it is, and can be taken over when the server is back. This process has nothing of the mount open: what
/// it starts would close that first, and wait for the server.
#[test]
fn a_server_that_does_not_answer() {
    needs_binary!();
    let server = Server::new();
    let mut mount = server.mount("a");
    fs::write(mount.path("f"), "------").unwrap();
    let mut program = Locker::new(mount.path("f"));
    assert_eq!(program.ask("write('before')"), "6");
    server.freeze();
    let (code, log) = mount.successor(&[]).ended();
    server.thaw();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("does not answer"), "{log}");
    assert_eq!(program.ask("read(6)"), "before");
    mount.take_over();
    assert_eq!(program.ask("write('and so')"), "6");
    drop(program);
    assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "and so");
}

/// A read that waits for the store is not given up: after its time the hand-over is.
#[test]
fn requests_that_do_not_end() {
    needs_binary!();
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let volume = gateway.credentials(Volume::new().option("--store", gateway.url("bucket", "v")));
    let volume = volume.option("--cache-size", "0");
    let mount = volume.up();
    let path = mount.path("f");
    fs::write(&path, noise(5, 2 << 20)).unwrap();
    let mount = mount.remount();
    gateway.stop();
    let opened = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty());
    let mut file: File = opened.unwrap().into();
    let reader = in_background(move || {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map(|_| bytes)
    });
    let (log, pid) = (mount.successor(&[]).ended(), mount.pid());
    assert_eq!(log.0, Some(1), "{}", log.1);
    assert!(log.1.contains("under way") && log.1.contains("try again"), "{}", log.1);
    assert!(!reader.is_finished());
    gateway.start();
    assert!(reader.join().unwrap().expect("a read across the outage") == noise(5, 2 << 20));
    assert_eq!(mount.status()["pid"], pid);
    let mut mount = mount;
    mount.take_over();
    assert!(fs::read(&path).unwrap() == noise(5, 2 << 20));
}
