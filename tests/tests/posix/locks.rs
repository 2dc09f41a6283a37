//! flock and fcntl locks, within a process and between processes.

use std::{
    fs::{self, File},
    path::Path,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use sluice_tests::{LockKind, Locker, Place, set_range_lock, told, would_block_on};

use crate::errno;

fn refused() -> String {
    told(Errno::AGAIN)
}

fn read_write(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn flock_between_processes() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"").unwrap();
    let mut other = Locker::new(&path);
    let mine = read_write(&path);
    flock(&mine, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(other.ask("flock(SH)"), refused());
    flock(&mine, FlockOperation::NonBlockingLockShared).unwrap();
    assert_eq!(other.ask("flock(SH)"), "ok");
    // A conversion that fails loses the lock it started from, flock(2) says: mine is gone after this, theirs stays.
    assert_eq!(flock(&mine, FlockOperation::NonBlockingLockExclusive).unwrap_err(), Errno::AGAIN);
    assert_eq!(other.ask("flock(EX)"), "ok");
    drop(other);
    sluice_tests::wait_for("the lock of the ended process", std::time::Duration::from_secs(5), || {
        flock(&mine, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
}

#[test]
fn flock_belongs_to_the_open_file() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"").unwrap();
    let (a, b) = (read_write(&path), read_write(&path));
    let same_as_a = a.try_clone().unwrap();
    flock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
    flock(&same_as_a, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(flock(&b, FlockOperation::NonBlockingLockShared).unwrap_err(), Errno::AGAIN);
    drop(a);
    assert_eq!(flock(&b, FlockOperation::NonBlockingLockShared).unwrap_err(), Errno::AGAIN);
    drop(same_as_a);
    flock(&b, FlockOperation::NonBlockingLockShared).unwrap();
}

#[test]
fn record_locks_between_processes() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, vec![0; 1000]).unwrap();
    let mut other = Locker::new(&path);
    let mine = read_write(&path);
    set_range_lock(&mine, LockKind::Write, 100, 100).unwrap();
    assert_eq!(other.ask("record(EX, 150, 10)"), refused());
    assert_eq!(other.ask("record(SH, 0, 101)"), refused());
    assert_eq!(other.ask("record(EX, 200, 50)"), "ok");
    assert_eq!(other.ask("record(SH, 0, 100)"), "ok");
    let holder = would_block_on(&mine, LockKind::Write, 0, 300).unwrap();
    assert_eq!(holder, Some(other.pid() as i32), "F_GETLK names the process in the way");
    assert_eq!(would_block_on(&mine, LockKind::Read, 0, 200).unwrap(), None);
    // Cutting a piece out of the middle leaves the two ends locked.
    set_range_lock(&mine, LockKind::Unlock, 140, 20).unwrap();
    assert_eq!(other.ask("record(EX, 140, 20)"), "ok");
    assert_eq!(other.ask("record(EX, 139, 1)"), refused());
    assert_eq!(other.ask("record(EX, 160, 1)"), refused());
    assert_eq!(errno(set_range_lock(&mine, LockKind::Write, 145, 1)), Errno::AGAIN);
}

#[test]
fn a_waiting_lock_is_granted() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, vec![0; 10]).unwrap();
    let mut other = Locker::new(&path);
    let mine = read_write(&path);
    set_range_lock(&mine, LockKind::Write, 0, 10).unwrap();
    other.tell("wait(EX, 0, 10)");
    set_range_lock(&mine, LockKind::Unlock, 0, 10).unwrap();
    assert_eq!(other.answer(), "ok");
    assert_eq!(errno(set_range_lock(&mine, LockKind::Write, 0, 10)), Errno::AGAIN);
}

#[test]
fn closing_any_descriptor_drops_the_record_locks_of_the_process() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, vec![0; 10]).unwrap();
    let mut other = Locker::new(&path);
    let mine = read_write(&path);
    set_range_lock(&mine, LockKind::Write, 0, 10).unwrap();
    assert_eq!(other.ask("record(EX, 0, 10)"), refused());
    drop(read_write(&path));
    assert_eq!(other.ask("record(EX, 0, 10)"), "ok", "POSIX: any close by the process drops its locks on the file");
}
