//! flock and fcntl locks between two mounts of one volume, and what becomes of them when a part goes.

mod ends;
mod sqlite;

use std::{
    fs::{self, File},
    io::Write,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use sluice_tests::{Locker, Mount, Server, skipped_in_local_mode, told};

/// A served volume with a file, and two mounts of it.
struct Pair {
    a: Mount,
    b: Mount,
    server: Server,
}

impl Pair {
    /// With a lease that tests can wait for.
    fn new() -> Self {
        let server = Server::with(&["--lease", "3s"]);
        let (a, b) = (server.mount("a"), server.mount("b"));
        fs::write(a.path("f"), vec![b'-'; 1000]).unwrap();
        Self { a, b, server }
    }

    fn lockers(&self) -> (Locker, Locker) {
        (Locker::new(self.a.path("f")), Locker::new(self.b.path("f")))
    }
}

fn refused() -> String {
    told(Errno::AGAIN)
}

#[test]
fn record_locks_between_mounts() {
    if skipped_in_local_mode("record_locks_between_mounts") {
        return;
    }
    let pair = Pair::new();
    let (mut a, mut b) = pair.lockers();
    assert_eq!(a.ask("record(EX, 100, 100)"), "ok");
    assert_eq!(b.ask("record(EX, 150, 10)"), refused());
    assert_eq!(b.ask("record(SH, 0, 101)"), refused());
    assert_eq!(b.ask("record(SH, 0, 100)"), "ok");
    assert_eq!(b.ask("in_the_way(SH, 0, 1000)"), "EX 100 100");
    assert_eq!(a.ask("in_the_way(EX, 0, 0)"), "SH 0 100");
    assert_eq!(a.ask("in_the_way(SH, 0, 0)"), "free");
    // Cut in the middle, and joined again.
    assert_eq!(a.ask("record(UN, 140, 20)"), "ok");
    assert_eq!(b.ask("record(EX, 140, 20)"), "ok");
    assert_eq!(b.ask("record(EX, 139, 1)"), refused());
    assert_eq!(b.ask("record(UN, 140, 20)"), "ok");
    assert_eq!(a.ask("record(EX, 140, 20)"), "ok");
    assert_eq!(b.ask("in_the_way(SH, 0, 0)"), "EX 100 100");
    // Locks of open files are of the same kind, flock is not.
    assert_eq!(b.ask("ofd(EX, 120, 1)"), refused());
    assert_eq!(b.ask("flock(EX)"), "ok");
    assert_eq!(a.ask("flock(SH)"), refused());
    assert_eq!(a.ask("record(UN, 0, 0)"), "ok");
    assert_eq!(b.ask("ofd(EX, 120, 1)"), "ok");
    assert_eq!(b.ask("reopen()"), "ok");
    assert_eq!(a.ask("wait(EX, 0, 0)"), "ok", "closed, so free");
    assert_eq!(a.ask("flock_wait(EX)"), "ok");
}

/// What was written under a lock is read under the next one, also through a file that was open all the time.
#[test]
fn a_lock_orders_reads_and_writes() {
    if skipped_in_local_mode("a_lock_orders_reads_and_writes") {
        return;
    }
    let pair = Pair::new();
    let (mut a, mut b) = pair.lockers();
    for round in 0..30 {
        let (from, to) = if round % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        assert_eq!(from.ask("wait(EX, 0, 1)"), "ok");
        to.tell("wait(EX, 0, 1)");
        assert_eq!(from.ask(&format!("write('round {round:04}')")), "10");
        assert_eq!(from.ask("record(UN, 0, 1)"), "ok");
        assert_eq!(to.answer(), "ok");
        assert_eq!(to.ask("read(10)"), format!("round {round:04}"));
        assert_eq!(to.ask("record(UN, 0, 1)"), "ok");
    }
}

/// O_APPEND under a lock: each record behind those of the other mount, and at the start after the other's truncation, in files that
/// are open all the time. The writers ask for nothing but the lock: no stat tells their kernel how long the file is.
#[test]
fn a_lock_orders_appends() {
    if skipped_in_local_mode("a_lock_orders_appends") {
        return;
    }
    let pair = Pair::new();
    let open = |mount: &Mount| File::options().append(true).create(true).open(mount.path("log")).unwrap();
    let mounts = [&pair.a, &pair.b];
    let files = mounts.map(open);
    let mut expected = Vec::new();
    for round in 0..40 {
        let mut file = &files[round % 2];
        flock(file, FlockOperation::LockExclusive).unwrap();
        if round == 21 {
            file.set_len(0).unwrap();
            expected.clear();
        }
        let record = vec![b'a' + (round % 26) as u8; 10 + 300 * round];
        file.write_all(&record).unwrap();
        expected.extend(record);
        flock(file, FlockOperation::Unlock).unwrap();
    }
    for mount in mounts {
        assert!(fs::read(mount.path("log")).unwrap() == expected);
    }
}

#[test]
fn whoever_waits_is_woken_or_interrupted() {
    if skipped_in_local_mode("whoever_waits_is_woken_or_interrupted") {
        return;
    }
    let pair = Pair::new();
    let (mut a, mut b) = pair.lockers();
    assert_eq!(a.ask("record(EX, 0, 10)"), "ok");
    assert_eq!(b.ask("wait_a_second(EX, 5, 1)"), "interrupted");
    b.tell("wait(SH, 5, 1)");
    assert_eq!(a.ask("record(UN, 5, 5)"), "ok");
    assert_eq!(b.answer(), "ok");
    // Nothing is left of the call that was interrupted.
    assert_eq!(a.ask("record(SH, 5, 1)"), "ok");
    assert_eq!(b.ask("record(UN, 0, 0)"), "ok");
    assert_eq!(a.ask("record(EX, 0, 0)"), "ok");
    assert_eq!(a.ask("record(UN, 0, 0)"), "ok");
    // Each waits for the other.
    assert_eq!(a.ask("record(EX, 0, 1)"), "ok");
    assert_eq!(b.ask("record(EX, 1, 1)"), "ok");
    a.tell("wait_or_give_way(EX, 1, 1)");
    b.tell("wait_or_give_way(EX, 0, 1)");
    let mut answers = [a.answer(), b.answer()];
    answers.sort();
    assert_eq!(answers, [told(Errno::DEADLK), "ok".into()], "one of them is told, and then the other gets it");
}

/// To be survived: more programs wait for locks than a connection takes requests.
#[test]
fn many_wait_and_the_mount_goes_on() {
    if skipped_in_local_mode("many_wait_and_the_mount_goes_on") {
        return;
    }
    let pair = Pair::new();
    let (mut a, mut b) = pair.lockers();
    assert_eq!(a.ask("flock(EX)"), "ok");
    assert_eq!(b.ask("many(100)"), "ok");
    for i in 0..50 {
        fs::write(pair.b.path(format!("{i}")), b"goes on").unwrap();
    }
    assert_eq!(a.ask("flock(UN)"), "ok");
    assert_eq!(b.ask("joined()"), "100");
}
