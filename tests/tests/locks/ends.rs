//! Locks end with their programs, their mounts and their leases, not with the server.

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};
use sluice_tests::{Locker, Mount, skipped_in_local_mode, told};

use crate::{Pair, refused};

/// To be survived: a program that holds locks is killed.
#[test]
fn a_killed_program_holds_nothing() {
    if skipped_in_local_mode("a_killed_program_holds_nothing") {
        return;
    }
    let pair = Pair::new();
    let (mut a, mut b) = pair.lockers();
    for take in ["record(EX, 0, 10)", "flock(EX)", "ofd(EX, 20, 5)"] {
        assert_eq!(a.ask(take), "ok");
    }
    b.tell("[wait(EX, 0, 10), flock_wait(EX), wait(EX, 20, 5)]");
    drop(a);
    assert_eq!(b.answer(), "['ok', 'ok', 'ok']");
    // One that is killed while it waits gets nothing later.
    let mut waiting = Locker::new(pair.a.path("f"));
    waiting.tell("wait(EX, 0, 1)");
    let mut third = Locker::new(pair.a.path("f"));
    assert_eq!(third.ask("wait_a_second(EX, 0, 1)"), "interrupted");
    drop(waiting);
    assert_eq!(b.ask("record(UN, 0, 0)"), "ok");
    assert_eq!(third.ask("wait(EX, 0, 0)"), "ok");
}

/// To be survived: a mount is killed. Its locks go with its lease.
#[test]
fn a_killed_mount_holds_nothing_after_its_lease() {
    if skipped_in_local_mode("a_killed_mount_holds_nothing_after_its_lease") {
        return;
    }
    let pair = Pair::new();
    let (mut a, mut b) = pair.lockers();
    assert_eq!(a.ask("record(EX, 0, 10)"), "ok");
    assert_eq!(a.ask("flock(EX)"), "ok");
    let again = pair.a.again();
    pair.a.kill9();
    drop(a);
    assert_eq!(b.ask("wait(EX, 0, 10)"), "ok");
    assert_eq!(b.ask("flock_wait(EX)"), "ok");
    let back = again();
    let mut a = Locker::new(back.path("f"));
    assert_eq!(a.ask("record(EX, 0, 10)"), refused());
    drop(b);
    assert_eq!(a.ask("wait(EX, 0, 10)"), "ok");
    drop((a, back));
}

/// To be survived: the server is killed and started again while locks are held and waited for.
#[test]
fn locks_outlive_the_server() {
    if skipped_in_local_mode("locks_outlive_the_server") {
        return;
    }
    let mut pair = Pair::new();
    let (mut a, mut b) = pair.lockers();
    assert_eq!(a.ask("record(EX, 0, 10)"), "ok");
    assert_eq!(b.ask("record(SH, 50, 10)"), "ok");
    assert_eq!(b.ask("flock(EX)"), "ok");
    for _ in 0..3 {
        let mut waiting = Locker::new(pair.b.path("f"));
        waiting.tell("wait(SH, 5, 1)");
        pair.server.kill9();
        pair.server.start();
        assert_eq!(b.ask("record(EX, 9, 1)"), refused());
        assert_eq!(a.ask("record(EX, 50, 1)"), refused());
        assert_eq!(a.ask("flock(SH)"), refused());
        assert_eq!(a.ask("record(SH, 50, 1)"), "ok");
        assert_eq!(a.ask("record(UN, 5, 5)"), "ok");
        assert_eq!(waiting.answer(), "ok");
        drop(waiting);
        assert_eq!(a.ask("wait(EX, 5, 5)"), "ok");
        assert_eq!(a.ask("write('still mine')"), "10");
        assert_eq!(a.ask("record(UN, 50, 1)"), "ok");
    }
}

/// A mount that stands still until this is dropped, on failure too: who uses it cannot even be killed before.
struct Stopped(Pid);

impl Stopped {
    fn new(mount: &Mount) -> Self {
        let pid = Pid::from_raw(mount.pid() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// To be survived: a mount stands still for longer than its lease. Somebody else gets its locks, and it may no longer act as if it had
/// them: the open file fails, another does not.
#[test]
fn a_lease_that_ended_takes_the_locks() {
    if skipped_in_local_mode("a_lease_that_ended_takes_the_locks") {
        return;
    }
    let pair = Pair::new();
    let (mut a, mut b) = pair.lockers();
    let mut bystander = Locker::new(pair.a.path("f"));
    assert_eq!(a.ask("record(EX, 0, 10)"), "ok");
    assert_eq!(a.ask("write('before')"), "6");
    let stopped = Stopped::new(&pair.a);
    b.tell("wait(EX, 0, 10)");
    assert_eq!(b.answer(), "ok");
    // Nothing of it is there, unless it was published in the moment before.
    let published = b.ask("read(6)") == "before";
    assert_eq!(b.ask("write('theirs')"), "6");
    assert_eq!(b.ask("record(UN, 0, 10)"), "ok");
    drop(stopped);
    let eio = told(Errno::IO);
    assert_eq!(a.ask("write('too late')"), eio);
    assert_eq!(a.ask("read(6)"), eio);
    assert_eq!(a.ask("record(EX, 0, 10)"), eio);
    assert_eq!(bystander.ask("record(EX, 0, 10)"), "ok");
    assert_eq!(bystander.ask("record(UN, 0, 10)"), "ok");
    // What was written under the lock and not published is lost, which the close tells, once.
    assert_eq!(a.ask("reopen()"), if published { "ok".into() } else { eio });
    assert_eq!(a.ask("reopen()"), "ok");
    assert_eq!(a.ask("record(EX, 0, 10)"), "ok");
    assert_eq!(a.ask("read(6)"), "theirs");
    assert_eq!(a.ask("write('once more')"), "9");
    assert!(pair.a.log().contains("lost their locks"), "the log says so");
}
