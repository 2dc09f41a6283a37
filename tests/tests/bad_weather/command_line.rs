//! Paths and places that a command cannot work with, or has to be told how to.

use std::{
    ffi::OsStr,
    fs::{self, File},
    os::unix::{ffi::OsStrExt, fs::symlink, process::CommandExt},
    path::Path,
    process::Command,
    time::Duration,
};

use sluice_tests::{NOBODY, Ran, Scratch, Volume, as_user, run, sluice, sluice_binary};

use crate::{detached::Detached, needs_binary};

const LIMIT: Duration = Duration::from_secs(30);

fn up(dir: &Path, mountpoint: &Path) -> Ran {
    sluice(["up".as_ref(), dir.as_os_str(), mountpoint.as_os_str(), "-d".as_ref()])
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn a_mount_point_apart_from_the_volume() {
    needs_binary!();
    let scratch = Scratch::new();
    let mnt = scratch.path().join("mnt");
    fs::create_dir_all(&mnt).unwrap();
    up(&mnt, &mnt).refused_with(&["is the volume's directory"]);
    up(&mnt.join("volume"), &mnt).refused_with(&["contains"]);
    assert!(names(&mnt).is_empty(), "something was made: {:?}", names(&mnt));
    let volume = Volume::new();
    volume.up().umount();
    let inside = volume.dir().join("inside");
    fs::create_dir(&inside).unwrap();
    up(&volume.dir(), &inside).refused_with(&["lies in"]);
    let new = scratch.path().join("new");
    let store = format!("file:{}", mnt.join("objects").display());
    sluice(["up".as_ref(), new.as_os_str(), mnt.as_os_str(), "--store".as_ref(), store.as_ref()])
        .refused_with(&["object store", "contains"]);
    assert!(!new.exists() && names(&mnt).is_empty());
}

#[test]
fn a_start_that_cannot_listen_leaves_no_mount() {
    needs_binary!();
    let volume = Volume::new();
    volume.up().umount();
    fs::create_dir_all(volume.dir().join("control.sock/in-the-way")).unwrap();
    volume.try_up().expect_err("mounted without a control socket").refused_with(&["control.sock"]);
    fs::remove_dir_all(volume.dir().join("control.sock")).unwrap();
    volume.up().umount();
}

/// To be survived: who asked for the mount is gone before it is there.
#[test]
fn a_start_that_nobody_waits_for_leaves_no_mount() {
    needs_binary!();
    let volume = Volume::new();
    let (closed, broken) = rustix::pipe::pipe().unwrap();
    drop(closed);
    let mut command = Command::new(sluice_binary());
    command.args(["up".as_ref(), volume.dir().as_os_str(), volume.mountpoint().as_os_str(), "-d".as_ref()]);
    command.env("SLUICE_DETACHED_LOG", volume.dir().join("log")).stdout(broken);
    let mut child = command.spawn().unwrap();
    let mut status = None;
    sluice_tests::wait_for("the start to give up", LIMIT, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(1));
    volume.up().umount();
}

#[test]
fn symbolic_links_to_a_mount_point() {
    needs_binary!();
    let volume = Volume::new();
    let elsewhere = Scratch::new();
    let link = elsewhere.path().join("link");
    symlink(volume.mountpoint(), &link).unwrap();
    let mount = volume.up();
    let status = sluice(["status".as_ref(), link.as_os_str(), "--json".as_ref()]).ok().json();
    assert_eq!(status["state"], "mounted");
    sluice(["umount".as_ref(), link.as_os_str()]).ok();
    mount_is_gone(&volume);
    drop(mount);
    volume.up().kill9_and_leave_the_mount_point();
    let status = sluice(["status".as_ref(), link.as_os_str(), "--json".as_ref()]).ok().json();
    assert_eq!(status["state"], "killed");
    sluice(["umount".as_ref(), link.as_os_str()]).refused_with(&["is unmounted", "perhaps the latest changes"]);
    mount_is_gone(&volume);
    // And where the link leads to a dead mount, a new one takes its place.
    volume.up().kill9_and_leave_the_mount_point();
    let mut mount = Detached::new(&elsewhere, &volume.dir());
    mount.mnt = link;
    mount.up(&[]);
    mount.umount(&[]).ok();
}

/// Each command says whose directory it is that this user may not enter, and makes nothing.
#[test]
fn a_volume_of_another_user_is_told_as_such() {
    needs_binary!();
    let volume = Volume::new();
    let mount = volume.up();
    let (dir, store) = (volume.dir(), format!("file:{}", volume.dir().join("objects").display()));
    let dir = dir.to_str().unwrap();
    let said = ["permission denied", dir, "run it as the owner of the directory or as root"];
    let refused = |args: &[&str]| as_user(NOBODY, NOBODY, &[], || sluice(args)).refused_with(&said);
    let root = volume.mountpoint();
    let root = root.to_str().unwrap();
    for args in [["umount", root], ["flush", root], ["status", root], ["scrub", root]] {
        refused(&args);
    }
    mount.umount();
    for args in [["status", dir], ["fsck", dir], ["gc", dir], ["dump", dir], ["flush", dir]] {
        refused(&args);
    }
    refused(&["up", dir, root]);
    refused(&["serve", dir, "--listen", "127.0.0.1:0"]);
    refused(&["recover", "--from-store", &store, dir]);
}

fn mount_is_gone(volume: &Volume) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(volume.mountpoint().to_str().unwrap()), "still mounted");
}

#[test]
fn a_volume_in_memory_is_refused() {
    needs_binary!();
    let scratch = Scratch::new();
    let (dir, mnt) = (scratch.path().join("volume"), scratch.path().join("mnt"));
    fs::create_dir(&mnt).unwrap();
    sluice(["format".as_ref(), dir.as_os_str(), "--store".as_ref(), "memory:".as_ref()])
        .refused_with(&["memory:", "file:"]);
    let ran = sluice(["up".as_ref(), dir.as_os_str(), mnt.as_os_str(), "--store".as_ref(), "memory:".as_ref()]);
    ran.refused_with(&["memory:", "file:"]);
    assert_eq!(names(scratch.path()), ["mnt"]);
}

#[test]
fn a_format_that_fails_leaves_nothing() {
    needs_binary!();
    let scratch = Scratch::new();
    let file = scratch.path().join("file");
    fs::write(&file, b"in the way").unwrap();
    let dir = scratch.path().join("deep/volume");
    let in_the_way = format!("file:{}/objects", file.display());
    let nobody = "s3://bucket/p?endpoint=http://127.0.0.1:1&region=us-east-1";
    for store in ["nonsense", "s3://b/p", "memory:", "file:", &in_the_way, "file:/proc/objects", nobody] {
        let mut format = Command::new(sluice_binary());
        format.args(["format".as_ref(), dir.as_os_str(), "--store".as_ref(), store.as_ref()]);
        format.env("AWS_ACCESS_KEY_ID", "x").env("AWS_SECRET_ACCESS_KEY", "y");
        run(&mut format, LIMIT).refused_with(&[]);
        assert_eq!(names(scratch.path()), ["file"], "after --store {store}");
    }
    sluice(["format".as_ref(), dir.as_os_str(), "--store".as_ref(), "file:objects".as_ref()]).ok();
}

#[test]
fn checks_of_a_mount_name_the_volume() {
    needs_binary!();
    let volume = Volume::new();
    let mount = volume.up();
    for command in ["fsck", "gc"] {
        let ran = sluice([command.as_ref(), mount.root().as_os_str()]);
        let next = format!("sluice {command} {}", volume.dir().display());
        ran.refused_with(&["sluice umount", volume.dir().to_str().unwrap(), &next]);
    }
}

#[test]
fn suggested_commands_can_be_pasted() {
    needs_binary!();
    let scratch = Scratch::new();
    let dir = scratch.path().join("my volume's $HOME");
    let mut mount = Detached::new(&scratch, &dir);
    mount.mnt = scratch.path().join("my mount");
    fs::create_dir(&mount.mnt).unwrap();
    let made = sluice(["format".as_ref(), dir.as_os_str(), "--store".as_ref(), "file:objects".as_ref()]).ok();
    let quoted = format!("sluice up '{}'", dir.display().to_string().replace('\'', r"'\''"));
    assert!(made.stdout.contains(&quoted), "{made:#?}");
    mount.up(&[]);
    let held = File::create(mount.mnt.join("held")).unwrap();
    mount.umount(&[]).refused_with(&["busy", &format!("sluice umount --lazy '{}'", mount.mnt.display())]);
    assert_eq!(mount.state(), "mounted");
    drop(held);
    mount.umount(&[]).ok();
    mount.fsck_is_clean();
}

#[test]
fn names_that_are_not_utf8() {
    needs_binary!();
    let scratch = Scratch::new();
    let dir = scratch.path().join(OsStr::from_bytes(b"vol\xff"));
    let mut mount = Detached::new(&scratch, &scratch.path().join("volume"));
    up(&dir, &mount.mnt).refused_with(&["UTF-8"]);
    sluice(["format".as_ref(), dir.as_os_str(), "--store".as_ref(), "file:objects".as_ref()]).refused_with(&["UTF-8"]);
    assert!(!dir.exists());
    // A mount point may be called anything.
    mount.mnt = scratch.path().join(OsStr::from_bytes(b"mnt\xff"));
    fs::create_dir(&mount.mnt).unwrap();
    mount.up(&[]);
    fs::write(mount.mnt.join("f"), b"x").unwrap();
    assert_eq!(mount.state(), "mounted");
    mount.umount(&[]).ok();
    mount.fsck_is_clean();
}

#[test]
fn what_the_user_may_not_do_is_explained() {
    needs_binary!();
    let scratch = Scratch::new();
    let mnt = scratch.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    let closed = scratch.path().join("closed");
    fs::create_dir(&closed).unwrap();
    let as_nobody = |args: &[&OsStr]| {
        let mut command = Command::new(sluice_binary());
        run(command.args(args).uid(NOBODY).gid(NOBODY), LIMIT)
    };
    let format = [OsStr::new("format"), closed.as_os_str(), "--store".as_ref(), "file:objects".as_ref()];
    as_nobody(&format).refused_with(&["closed", "root"]);
    if rustix::fs::stat("/dev/fuse").is_ok_and(|device| device.st_mode & 0o6 == 0) {
        let dir = scratch.path().join("volume");
        let ran = as_nobody(&["up".as_ref(), dir.as_os_str(), mnt.as_os_str()]);
        ran.refused_with(&["/dev/fuse", "chmod"]);
    }
    let disk = scratch.path().join("disk");
    fs::create_dir(&disk).unwrap();
    sluice_tests::shell(&disk, "mount -t tmpfs -o ro none .");
    let ran = up(&disk, &mnt);
    sluice_tests::shell(scratch.path(), "umount disk");
    ran.refused_with(&["read-only", "writable"]);
}

/// To be survived: one of the two copies of the volume's configuration is damaged, or the one on this host is gone.
#[test]
fn a_damaged_configuration_is_restored_from_its_copy() {
    needs_binary!();
    let volume = Volume::new();
    let mount = volume.up();
    fs::write(mount.path("f"), b"still here").unwrap();
    mount.umount();
    let (local, stored) = (volume.dir().join("meta/volume.json"), volume.dir().join("objects/sluice-volume.json"));
    let fsck = |options: &[&str]| {
        let mut args = vec![std::ffi::OsString::from("fsck"), volume.dir().into_os_string()];
        args.extend(options.iter().map(Into::into));
        sluice(args)
    };
    let text = fs::read(&local).unwrap();
    for (copy, bytes) in [(&local, &b"{\"format_vers"[..]), (&local, &[0xff; 20]), (&stored, b""), (&stored, b"null")] {
        fs::write(copy, bytes).unwrap();
        let ran = volume.try_up().expect_err("mounted a damaged volume");
        ran.refused_with(&["damaged", "sluice fsck --repair", copy.file_name().unwrap().to_str().unwrap()]);
        let ran = fsck(&[]);
        assert!(ran.code == Some(1) && ran.stdout.contains("--repair"), "{ran:#?}");
        assert!(fs::read(copy).unwrap() == bytes, "changed without --repair");
        fsck(&["--repair"]).ok();
        assert!(fs::read(copy).unwrap() == text, "not restored");
    }
    // Gone, the volume must not be taken for none: making one anew would forget every file.
    fs::remove_file(&local).unwrap();
    volume.try_up().expect_err("made a volume over a volume").refused_with(&["sluice fsck --repair"]);
    fsck(&["--repair", "--store", "file:nowhere"]).refused_with(&["nowhere", "--store"]);
    fsck(&["--repair"]).ok();
    let mount = volume.up();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"still here");
    mount.umount();
    volume.fsck_is_clean();
}

/// To be survived: two people start the same thing at the same time. One wins, the other is told who.
#[test]
fn two_starts_at_once() {
    needs_binary!();
    for round in 0..6 {
        let scratch = Scratch::new();
        let path = |name: &str| scratch.path().join(name);
        let (same_dir, dirs) = (round % 2 == 0, [path("volume"), path("other")]);
        let mounts = [path("a"), path("b")];
        mounts.iter().for_each(|mnt| fs::create_dir(mnt).unwrap());
        let pairs = match same_dir {
            true => [(&dirs[0], &mounts[0]), (&dirs[0], &mounts[1])],
            false => [(&dirs[0], &mounts[0]), (&dirs[1], &mounts[0])],
        };
        let both = std::thread::scope(|scope| {
            let started = pairs.map(|(dir, mnt)| scope.spawn(move || up(dir, mnt)));
            started.map(|thread| thread.join().unwrap())
        });
        let won = both.iter().position(|ran| ran.code == Some(0)).unwrap_or_else(|| panic!("nobody won: {both:#?}"));
        let [first, second] = both;
        let (winner, loser) = if won == 0 { (first, second) } else { (second, first) };
        let (dir, mnt) = pairs[won];
        let pid = fs::read_to_string(dir.join("lock")).unwrap().split(':').next().unwrap().to_owned();
        loser.refused_with(&["in use by|is mounted already", &pid]);
        winner.ok();
        fs::write(mnt.join("f"), b"won").unwrap();
        sluice(["umount".as_ref(), mnt.as_os_str()]).ok();
        assert!(!mnt.join("f").exists(), "a second mount was below");
        sluice(["fsck".as_ref(), dir.as_os_str(), "--data".as_ref()]).ok();
    }
}
