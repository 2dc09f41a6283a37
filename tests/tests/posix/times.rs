//! Times: which operation changes which, how far they reach, relatime.

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, CWD, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat},
    io::Errno,
};
use sluice_tests::{NOBODY, Place, as_user, wait_for};

use crate::{chmod, stat};

const fn at(tv_sec: i64, tv_nsec: i64) -> Timespec {
    Timespec { tv_sec, tv_nsec }
}

fn set_times(path: &Path, atime: Timespec, mtime: Timespec) -> rustix::io::Result<()> {
    let times = Timestamps { last_access: atime, last_modification: mtime };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn mtime(s: &Stat) -> (i64, i64) {
    (s.st_mtime, s.st_mtime_nsec as i64)
}

fn ctime(s: &Stat) -> (i64, i64) {
    (s.st_ctime, s.st_ctime_nsec as i64)
}

fn atime(s: &Stat) -> (i64, i64) {
    (s.st_atime, s.st_atime_nsec as i64)
}

#[test]
fn nanoseconds_from_before_1970_to_past_2106() {
    let mut place = Place::new();
    // 1901 (all but the oldest second that 32 bits hold), one second before 1970, 2038, 2106 (the end of unsigned 32 bits), 2400.
    // A local ext4 ends in 2446.
    let seconds = [1 - (1 << 31), -1, 0, 1, (1 << 31) - 1, 1 << 31, (1_i64 << 32) - 1, 1 << 32, 13_569_465_600];
    for (i, second) in seconds.into_iter().enumerate() {
        let path = place.path(format!("{i}"));
        fs::write(&path, b"").unwrap();
        set_times(&path, at(second, 123_456_789), at(second, 999_999_999)).unwrap();
    }
    for _ in 0..2 {
        for (i, second) in seconds.into_iter().enumerate() {
            let stat = stat(place.path(format!("{i}")));
            assert_eq!((atime(&stat), mtime(&stat)), ((second, 123_456_789), (second, 999_999_999)));
        }
        place.remount();
    }
}

#[test]
fn now_and_omit() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"").unwrap();
    set_times(&path, at(1000, 1), at(2000, 2)).unwrap();
    set_times(&path, at(0, UTIME_OMIT), at(3000, 3)).unwrap();
    assert_eq!((atime(&stat(&path)), mtime(&stat(&path))), ((1000, 1), (3000, 3)));
    set_times(&path, at(0, UTIME_NOW), at(0, UTIME_OMIT)).unwrap();
    let after = stat(&path);
    assert!(atime(&after).0 > 1_600_000_000 && mtime(&after) == (3000, 3));
    assert_eq!(set_times(&path, at(0, 1_000_000_000), at(0, 0)).unwrap_err(), Errno::INVAL);
    chmod(&path, 0o666);
    as_user(NOBODY, NOBODY, &[], || {
        // Who may write may set the times to now, and only to now.
        set_times(&path, at(0, UTIME_NOW), at(0, UTIME_NOW)).unwrap();
        assert_eq!(set_times(&path, at(1, 0), at(1, 0)).unwrap_err(), Errno::PERM);
    });
}

#[test]
fn a_link_has_times_of_its_own() {
    let place = Place::new();
    fs::write(place.path("f"), b"").unwrap();
    std::os::unix::fs::symlink("f", place.path("s")).unwrap();
    set_times(&place.path("s"), at(5, 0), at(6, 0)).unwrap();
    assert_eq!(mtime(&stat(place.path("s"))), (6, 0));
    assert_ne!(mtime(&stat(place.path("f"))), (6, 0));
}

/// Which of (mtime, ctime) of `path` an operation changed. The clock of a kernel ticks in milliseconds: the operation
/// starts only when it has moved on.
fn changed(path: &Path, operation: impl FnOnce()) -> (bool, bool) {
    let before = stat(path);
    let probe = path.parent().unwrap().join(".clock");
    wait_for("the clock to move on", Duration::from_secs(2), || {
        fs::write(&probe, b"x").unwrap();
        ctime(&stat(&probe)) > ctime(&before) && mtime(&stat(&probe)) > mtime(&before)
    });
    fs::remove_file(&probe).unwrap();
    let before = stat(path);
    wait_for("the clock to move on", Duration::from_secs(2), || {
        fs::write(path.parent().unwrap().parent().unwrap().join(".clock"), b"x").unwrap();
        ctime(&stat(path.parent().unwrap().parent().unwrap().join(".clock"))) > ctime(&before)
    });
    operation();
    let after = stat(path);
    (mtime(&after) != mtime(&before), ctime(&after) != ctime(&before))
}

#[test]
fn which_operation_changes_which_time() {
    let place = Place::new();
    let dir = place.path("d");
    fs::create_dir(&dir).unwrap();
    let (f, sub) = (dir.join("f"), dir.join("sub"));
    fs::write(&f, b"0123456789").unwrap();
    fs::create_dir(&sub).unwrap();
    const BOTH: (bool, bool) = (true, true);
    const CTIME: (bool, bool) = (false, true);
    const NONE: (bool, bool) = (false, false);
    let file = File::options().read(true).write(true).open(&f).unwrap();
    let write = |at| std::os::unix::fs::FileExt::write_all_at(&file, b"x", at).unwrap();
    assert_eq!(changed(&f, || write(3)), BOTH, "write");
    assert_eq!(changed(&f, || file.set_len(5).unwrap()), BOTH, "truncate");
    assert_eq!(changed(&f, || file.set_len(50).unwrap()), BOTH, "growing");
    assert_eq!(changed(&f, || chmod(&f, 0o600)), CTIME, "chmod");
    assert_eq!(changed(&f, || fs::hard_link(&f, dir.join("g")).unwrap()), CTIME, "link");
    assert_eq!(changed(&f, || fs::remove_file(dir.join("g")).unwrap()), CTIME, "unlink of one name");
    assert_eq!(
        changed(&f, || fs::rename(&f, dir.join("h")).and_then(|()| fs::rename(dir.join("h"), &f)).unwrap()),
        CTIME
    );
    let set_xattr = || rustix::fs::setxattr(&f, "user.a", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(changed(&f, set_xattr), CTIME, "setxattr");
    assert_eq!(changed(&f, || drop(fs::read(&f).unwrap())), NONE, "read");
    assert_eq!(changed(&sub, || fs::write(sub.join("x"), b"").unwrap()), BOTH, "create in it");
    assert_eq!(changed(&sub, || fs::write(sub.join("x"), b"yy").unwrap()), NONE, "write below it");
    assert_eq!(changed(&sub, || fs::rename(sub.join("x"), sub.join("y")).unwrap()), BOTH, "rename in it");
    assert_eq!(changed(&sub, || fs::remove_file(sub.join("y")).unwrap()), BOTH, "unlink in it");
    assert_eq!(changed(&sub, || fs::create_dir(sub.join("z")).unwrap()), BOTH, "mkdir in it");
    assert_eq!(changed(&sub, || fs::remove_dir(sub.join("z")).unwrap()), BOTH, "rmdir in it");
}

#[test]
fn relatime() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"bytes").unwrap();
    let read = || {
        let mut text = String::new();
        File::open(&path).unwrap().read_to_string(&mut text).unwrap();
    };
    // Older than the last change: a read moves it.
    set_times(&path, at(1000, 0), at(2000, 0)).unwrap();
    read();
    let first = atime(&stat(&path));
    assert!(first.0 > 1_600_000_000, "{first:?}");
    // Newer than every change and less than a day old: it stays.
    read();
    assert_eq!(atime(&stat(&path)), first);
}

#[test]
fn access_times_last() {
    let mut place = Place::new();
    let (read, set, gone) = (place.path("read"), place.path("set"), place.path("gone"));
    for path in [&read, &set, &gone] {
        fs::write(path, b"bytes").unwrap();
        set_times(path, at(1000, 0), at(2000, 0)).unwrap();
        drop(fs::read(path).unwrap());
        assert!(atime(&stat(path)).0 > 1_600_000_000);
    }
    // Of a time that waits and one that is set, the later word stands; a listing with attributes shows the same as a stat.
    set_times(&set, at(3000, 0), at(0, UTIME_OMIT)).unwrap();
    fs::remove_file(&gone).unwrap();
    let before = (atime(&stat(&read)), atime(&stat(&set)));
    assert_eq!(before.1, (3000, 0));
    place.remount();
    assert_eq!((atime(&stat(&read)), atime(&stat(&set))), before);
}
