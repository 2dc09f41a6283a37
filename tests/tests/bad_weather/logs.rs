//! Standard output and standard error that cannot be written to.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::{
    fs::FallocateFlags,
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount},
};
use sluice_tests::{Scratch, Volume, eventually, run, sluice, sluice_binary, wait_for};

use crate::{detached::Detached, needs_binary, noise};

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// A small disk, unmounted at the end.
struct Disk(PathBuf);

impl Disk {
    fn new(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), c"size=80m").expect("mount tmpfs");
        Self(path)
    }

    fn grow(&self) {
        mount_remount(&self.0, MountFlags::empty(), c"size=400m").expect("a larger tmpfs");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Writes files of 10 MiB, far more than fit, until one fails for want of room or `enough` is set; returns how many are whole.
/// Without room a write may wait.
fn fill(mnt: &Path, enough: &AtomicBool) -> u64 {
    for i in 0..30 {
        if enough.load(Ordering::Acquire) {
            return i;
        }
        if let Err(error) = fs::write(mnt.join(format!("{i}")), noise(i, 10 * MIB)) {
            assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC), "file {i}: {error}");
            return i;
        }
    }
    panic!("300 MiB on a disk of 80");
}

fn upload_errors(dir: &Path) -> u64 {
    let status = sluice(["status".as_ref(), dir.as_os_str(), "--json".as_ref()]).ok().json();
    status["numbers"]["upload_errors"].as_u64().expect("a number")
}

fn verify(mnt: &Path, count: u64) {
    for i in 0..count {
        assert!(fs::read(mnt.join(format!("{i}"))).unwrap() == noise(i, 10 * MIB), "file {i} of {count} differs");
    }
}

const SMALL: [&str; 6] = ["--cache-size", "1G", "--journal-size", "16M", "--upload-delay", "0s"];

/// To be survived: the disk with everything of a volume, its log included, is full. Writers wait or get ENOSPC, nobody
/// ENOTCONN; with room all is well again.
#[test]
fn the_disk_of_the_whole_volume_is_full_log_included() {
    needs_binary!();
    let scratch = Scratch::new();
    let disk = Disk::new(scratch.path().join("disk"));
    let mut mount = Detached::new(&scratch, &disk.0.join("volume"));
    mount.up(&SMALL);
    let enough = AtomicBool::new(false);
    let whole = std::thread::scope(|scope| {
        let writer = scope.spawn(|| fill(&mount.mnt, &enough));
        // Each of them is a line in the log.
        let failing = eventually(LIMIT, || upload_errors(&mount.dir) > 20);
        let (alive, state) = (mount.is_alive(), mount.state());
        let first = fs::read(mount.mnt.join("0"));
        enough.store(true, Ordering::Release);
        disk.grow();
        assert!(failing && alive && state == "mounted", "failing: {failing}, alive: {alive}, {state}");
        assert!(first.unwrap() == noise(0, 10 * MIB));
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert!(whole >= 2, "full after {whole} files");
    wait_for("writes to work again", LIMIT, || fs::write(mount.mnt.join("more"), noise(99, 10 * MIB)).is_ok());
    assert!(fs::read(mount.mnt.join("more")).unwrap() == noise(99, 10 * MIB));
    mount.umount(&[]).ok();
    mount.fsck_is_clean();
    mount.up(&[]);
    verify(&mount.mnt, whole);
    mount.umount(&[]).ok();
}

/// To be survived: the same, and the mount is ended before there is room. It goes on storing, says so to whoever asks by
/// the mount point, and ends once there is room.
#[test]
fn a_drain_that_takes_long_can_be_waited_for_again() {
    needs_binary!();
    let scratch = Scratch::new();
    let disk = Disk::new(scratch.path().join("disk"));
    let mut mount = Detached::new(&scratch, &disk.0.join("volume"));
    mount.up(&SMALL);
    // Room in the cache for what is written, and in the store for half of it.
    let free = rustix::fs::statvfs(&disk.0).unwrap();
    let ballast = File::create(disk.0.join("ballast")).unwrap();
    rustix::fs::fallocate(&ballast, FallocateFlags::empty(), 0, free.f_bavail * free.f_bsize - 30 * MIB as u64)
        .unwrap();
    for i in 0..2 {
        fs::write(mount.mnt.join(format!("{i}")), noise(i, 10 * MIB)).unwrap();
    }
    let first = run(Command::new(sluice_binary()).arg("umount").arg(&mount.mnt), Duration::from_secs(6));
    assert_eq!(first.code, None, "everything was stored on a full disk: {first:#?}");
    assert!(first.stderr.contains("nothing was stored"), "{first:#?}");
    assert_eq!(mount.state(), "draining");
    let status = sluice(["status".as_ref(), mount.mnt.as_os_str()]).ok();
    assert!(status.stdout.contains("draining"), "{status:#?}");
    let lazy = Command::new(sluice_binary())
        .args(["umount".as_ref(), "--lazy".as_ref(), mount.mnt.as_os_str()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    disk.grow();
    let lazy = lazy.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&lazy.stderr).into_owned();
    assert!(lazy.status.success(), "{said}");
    assert!(said.contains("draining") && said.contains(&mount.pid().to_string()), "{said}");
    assert!(!mount.is_alive(), "umount returned before the process ended");
    mount.fsck_is_clean();
    mount.up(&[]);
    verify(&mount.mnt, 2);
    mount.umount(&[]).ok();
}

/// Makes uploads fail for a while, each of which is a line in the log; then everything is stored.
fn fails_and_recovers(dir: &Path, mnt: &Path) {
    let (objects, away) = (dir.join("objects"), dir.join("objects-away"));
    fs::write(mnt.join("before"), noise(1, MIB)).unwrap();
    fs::rename(&objects, &away).unwrap();
    // A file in its place: nothing can be stored there.
    fs::write(&objects, b"").unwrap();
    fs::write(mnt.join("during"), noise(2, MIB)).unwrap();
    wait_for("uploads to fail", LIMIT, || upload_errors(dir) > 1);
    fs::remove_file(&objects).unwrap();
    fs::rename(&away, &objects).unwrap();
    assert!(fs::read(mnt.join("before")).unwrap() == noise(1, MIB));
    assert!(fs::read(mnt.join("during")).unwrap() == noise(2, MIB));
}

/// To be survived: standard error is a full device, or a pipe that nobody reads or that is closed.
#[test]
fn standard_error_of_a_mount_takes_nothing() {
    needs_binary!();
    let (unread, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let (closed, broken) = rustix::pipe::pipe().unwrap();
    drop(closed);
    let full = File::options().write(true).open("/dev/full").unwrap();
    for stderr in [Stdio::from(full), Stdio::from(writer), Stdio::from(broken)] {
        let volume = Volume::new();
        let mut mount = Detached::new(&Scratch::new(), &volume.dir());
        mount.mnt = volume.mountpoint();
        let mut child = Command::new(sluice_binary())
            .args(["up".as_ref(), mount.dir.as_os_str(), mount.mnt.as_os_str()])
            .args(["--upload-delay", "0s"])
            .stderr(stderr)
            .spawn()
            .unwrap();
        let is_mounted = || sluice(["status".as_ref(), mount.mnt.as_os_str()]).stdout.contains("mounted at");
        let came = eventually(LIMIT, is_mounted);
        if came {
            fails_and_recovers(&mount.dir, &mount.mnt);
            mount.umount(&[]).ok();
        } else {
            child.kill().unwrap();
        }
        assert!(came && child.wait().unwrap().success());
        mount.fsck_is_clean();
    }
    drop(unread);
}

#[test]
fn a_reader_that_has_seen_enough() {
    needs_binary!();
    let volume = Volume::new();
    volume.up().umount();
    for command in [&["status"][..], &["status", "--json"], &["fsck"], &["gc", "-v"]] {
        let (closed, broken) = rustix::pipe::pipe().unwrap();
        drop(closed);
        let mut run = Command::new(sluice_binary());
        run.arg(command[0]).arg(volume.dir()).args(&command[1..]).stderr(Stdio::piped());
        let ended = run.stdout(broken).spawn().unwrap().wait_with_output().unwrap();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{command:?}: {ended:?}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = run.stdout(full).spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.code() == Some(1) && said.contains("output"), "{command:?}: {said}");
    }
}
