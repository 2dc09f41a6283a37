//! What cannot be taken over is refused with what to do, and goes on as if nothing had been asked.

use rustix::{
    fs::{Mode, OFlags},
    mount::UnmountFlags,
};
use sluice_tests::{
    Gateway, Mount, NOBODY, Ran, Server, UringConsent, Volume, in_background, needs_binary, noise, run, sluice_binary,
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

#[test]
fn a_mount_of_a_served_volume() {
    needs_binary!();
    let server = Server::new();
    let mount = server.mount("a");
    let dir = Volume::new().dir();
    take_over(&dir, mount.root(), &[]).refused_with(&["sluice://", "umount"]);
    fs::write(mount.path("f"), "still").unwrap();
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
