//! Locks across sessions: waiting, leases, restarts, and what arrives late.

use super::*;
use crate::rpc::locks::{AssertedLock, LockKind, LockMode, LockRange};
use LockAnswer::*;
use LockKind::*;
use LockMode::*;

const INO: Ino = Ino(9);

fn bytes(first: u64, last: u64) -> LockRange {
    LockRange::new(first, last).expect("a range")
}

fn lock(attempt: u64, owner: u64, range: LockRange, mode: Option<LockMode>) -> Lock {
    Lock { ino: INO, kind: Record, owner, range, mode, pid: 5, attempt, call: attempt, wait: false }
}

fn waiting(attempt: u64, owner: u64, range: LockRange, mode: LockMode) -> Lock {
    Lock { wait: true, ..lock(attempt, owner, range, Some(mode)) }
}

fn asserted(owner: u64, range: LockRange) -> AssertedLock {
    AssertedLock { ino: INO, kind: Record, owner, range, mode: Exclusive, pid: 5 }
}

impl Rig {
    fn lock(&self, peer: Peer, ask: &Lock) -> LockAnswer {
        self.ask(peer, ask).expect("no fault")
    }

    fn assert(&self, peer: Peer, attempt: u64, locks: Vec<AssertedLock>) -> bool {
        self.ask(peer, &AssertLocks { locks, attempt, last: true }).expect("no fault")
    }

    /// What waited and is answered now.
    fn answers(&self) -> Vec<(Token, LockAnswer)> {
        let mut answers = Vec::new();
        for event in self.poll() {
            if let Event::Reply { token, reply, .. } = event {
                let answer = client::reply::<Lock>(&reply.body).expect("an answer").answer.expect("no fault");
                answers.push((token, answer.value));
            }
        }
        answers
    }
}

#[test]
fn a_lock_in_the_way_is_told_and_waited_for() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    assert_eq!(rig.lock(a, &lock(1, 1, bytes(0, 9), Some(Exclusive))), Granted);
    assert_eq!(rig.lock(b, &lock(1, 1, bytes(9, 20), Some(Shared))), Busy);
    assert_eq!(rig.lock(b, &lock(2, 1, bytes(10, 20), Some(Shared))), Granted);
    let test =
        |peer, owner| rig.ask(peer, &TestLock { ino: INO, kind: Record, owner, range: bytes(0, 5), mode: Shared });
    let held = |pid| LockTest::Held(LockInTheWay { range: bytes(0, 9), mode: Exclusive, pid });
    assert_eq!(test(b, 1).expect("told"), held(0), "a process of another host is nobody here");
    assert_eq!(test(a, 2).expect("told"), held(5));
    assert_eq!(test(a, 1).expect("told"), LockTest::Free);
    let first = token(&rig.send(b, &waiting(3, 2, bytes(0, 3), Exclusive)));
    let second = token(&rig.send(b, &waiting(4, 3, bytes(2, 5), Exclusive)));
    assert_eq!(rig.lock(a, &lock(2, 1, bytes(5, 9), None)), Granted);
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.lock(a, &lock(3, 1, LockRange::WHOLE, None)), Granted);
    assert_eq!(rig.answers(), [(first, Granted)]);
    assert_eq!(rig.lock(b, &lock(5, 2, LockRange::WHOLE, None)), Granted);
    assert_eq!(rig.answers(), [(second, Granted)]);
}

#[test]
fn who_asks_again_keeps_his_place() {
    let rig = Rig::new();
    let (a, b, c) = (rig.begin("a"), rig.begin("b"), rig.begin("c"));
    assert_eq!(rig.lock(a, &lock(1, 1, bytes(0, 9), Some(Exclusive))), Granted);
    let ask = |attempt| Lock { call: 77, ..waiting(attempt, 1, bytes(0, 9), Exclusive) };
    let before = token(&rig.send(b, &ask(1)));
    let other = token(&rig.send(c, &waiting(1, 1, bytes(0, 9), Exclusive)));
    let again = token(&rig.send(b, &ask(2)));
    assert_eq!(rig.answers(), [(before, Overtaken)]);
    assert_eq!(rig.lock(a, &lock(2, 1, LockRange::WHOLE, None)), Granted);
    assert_eq!(rig.answers(), [(again, Granted)]);
    // Asked once more by who did not hear of it.
    assert_eq!(rig.lock(b, &ask(3)), Granted);
    assert_eq!(rig.lock(b, &lock(4, 1, LockRange::WHOLE, None)), Granted);
    assert_eq!(rig.answers(), [(other, Granted)]);
}

#[test]
fn flock_and_record_locks_know_nothing_of_each_other() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let flock = |attempt, mode| Lock { kind: Flock, ..lock(attempt, 1, LockRange::WHOLE, Some(mode)) };
    assert_eq!(rig.lock(a, &lock(1, 1, LockRange::WHOLE, Some(Exclusive))), Granted);
    assert_eq!(rig.lock(a, &flock(2, Shared)), Granted);
    assert_eq!(rig.lock(b, &flock(1, Shared)), Granted);
    assert_eq!(rig.lock(b, &flock(2, Exclusive)), Busy);
    assert_eq!(rig.lock(a, &flock(3, Exclusive)), Granted, "a conversion that failed lost what it began with");
    assert_eq!(rig.lock(b, &flock(3, Shared)), Busy);
}

#[test]
fn whoever_waits_for_each_other_is_told() {
    let rig = Rig::new();
    let (a, b, c) = (rig.begin("a"), rig.begin("b"), rig.begin("c"));
    for (peer, byte) in [(a, 0), (b, 1), (c, 2)] {
        assert_eq!(rig.lock(peer, &lock(1, 7, bytes(byte, byte), Some(Exclusive))), Granted);
    }
    token(&rig.send(a, &waiting(2, 7, bytes(1, 1), Exclusive)));
    let last = token(&rig.send(b, &waiting(2, 7, bytes(2, 2), Shared)));
    assert_eq!(rig.lock(c, &waiting(2, 7, bytes(0, 0), Exclusive)), Deadlock);
    assert_eq!(rig.lock(c, &lock(3, 7, bytes(2, 2), None)), Granted);
    assert_eq!(rig.answers(), [(last, Granted)]);
}

#[test]
fn what_is_sent_again_or_withdrawn_waits_once() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    assert_eq!(rig.lock(a, &lock(1, 1, bytes(0, 0), Some(Exclusive))), Granted);
    let ask = Lock { call: 50, ..waiting(1, 1, bytes(0, 0), Exclusive) };
    let first = token(&rig.send(b, &ask));
    let second = token(&rig.send(b, &Lock { attempt: 2, ..ask.clone() }));
    assert_eq!(rig.answers(), [(first, Overtaken)]);
    assert_eq!(rig.lock(b, &ask), Overtaken, "a copy that comes late");
    assert_eq!(rig.lock(b, &Lock { attempt: 3, wait: false, ..ask.clone() }), Busy);
    assert_eq!(rig.answers(), [(second, Overtaken)]);
    assert_eq!(rig.lock(b, &Lock { attempt: 2, ..ask }), Overtaken);
    assert_eq!(rig.lock(a, &lock(2, 1, bytes(0, 0), None)), Granted);
    assert_eq!(rig.lock(a, &lock(1, 1, bytes(0, 0), Some(Exclusive))), Overtaken);
    assert_eq!(rig.lock(a, &lock(3, 2, bytes(0, 0), Some(Exclusive))), Granted, "nobody holds it");
}

#[test]
fn waiters_are_bounded() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    assert_eq!(rig.lock(a, &lock(1, 1, bytes(0, 0), Some(Exclusive))), Granted);
    for attempt in 1..=32 {
        token(&rig.send(b, &waiting(attempt, attempt, bytes(0, 0), Exclusive)));
    }
    assert_eq!(rig.lock(b, &waiting(33, 33, bytes(0, 0), Exclusive)), Busy);
    rig.ask(b, &End {}).expect("ended");
    assert_eq!(rig.answers().len(), 32);
}

#[test]
fn a_lease_that_ends_frees_and_is_told() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    assert_eq!(rig.lock(a, &lock(1, 1, bytes(0, 9), Some(Exclusive))), Granted);
    let held = token(&rig.send(b, &waiting(1, 1, bytes(5, 5), Shared)));
    rig.advance(14);
    rig.ask(b, &Renew {}).expect("alive");
    assert_eq!(rig.answers(), []);
    rig.advance(1);
    assert_eq!(rig.answers(), [(held, Granted)]);
    assert!(!rig.resume(a, false, &[]).expect("resumed").kept);
    assert_eq!(rig.lock(a, &lock(2, 1, bytes(0, 0), Some(Exclusive))), Overtaken, "it does not know yet");
    assert!(!rig.assert(a, 3, vec![asserted(1, bytes(0, 9))]));
    assert!(!rig.assert(a, 4, vec![asserted(1, bytes(0, 9))]), "asked again, the answer was lost");
    assert_eq!(rig.lock(a, &lock(2, 1, bytes(0, 0), Some(Exclusive))), Overtaken);
    assert_eq!(rig.lock(a, &lock(5, 1, bytes(0, 9), Some(Exclusive))), Busy);
    assert_eq!(rig.lock(a, &lock(6, 1, bytes(0, 4), Some(Exclusive))), Granted);
}

#[test]
fn a_taken_over_or_ended_session_holds_nothing() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    let whole = |attempt| lock(attempt, 1, LockRange::WHOLE, Some(Exclusive));
    assert_eq!(rig.lock(a, &whole(7)), Granted);
    let epoch = rig.resume(a, true, &[]).expect("taken over").epoch;
    let a = Peer { epoch, ..a };
    assert_eq!(rig.lock(b, &whole(1)), Granted);
    rig.ask(b, &End {}).expect("ended");
    assert_eq!(rig.lock(a, &whole(1)), Granted, "another process counts from 1");
}

#[test]
fn after_a_restart_what_was_held_is_held_before_anybody_gets_more() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    assert_eq!(rig.lock(a, &lock(1, 1, bytes(0, 9), Some(Exclusive))), Granted);
    let rig = rig.restart();
    let new = rig.begin("new");
    assert_eq!(rig.lock(new, &lock(1, 1, bytes(50, 50), Some(Exclusive))), Grace);
    let test = TestLock { ino: INO, kind: Record, owner: 1, range: bytes(0, 9), mode: Shared };
    assert_eq!(rig.ask(new, &test).expect("told"), LockTest::Grace);
    rig.resume(b, false, &[]).expect("resumed");
    assert!(rig.assert(b, 9, Vec::new()));
    assert_eq!(rig.lock(b, &lock(10, 1, bytes(0, 0), Some(Shared))), Grace, "a has not come back");
    rig.resume(a, false, &[]).expect("resumed");
    assert_eq!(rig.lock(a, &lock(2, 1, bytes(70, 70), Some(Shared))), Grace, "nor said what it holds");
    assert!(rig.assert(a, 3, vec![asserted(1, bytes(0, 9))]));
    assert!(rig.assert(a, 4, vec![asserted(1, bytes(0, 9))]), "asked again, the answer was lost");
    assert_eq!(rig.lock(new, &lock(2, 1, bytes(9, 9), Some(Shared))), Busy);
    assert_eq!(rig.lock(new, &lock(3, 1, bytes(10, 10), Some(Shared))), Granted);
}

#[test]
fn whoever_stays_away_after_a_restart_has_lost_its_locks() {
    let rig = Rig::new();
    let (a, b) = (rig.begin("a"), rig.begin("b"));
    assert_eq!(rig.lock(a, &lock(1, 1, bytes(0, 9), Some(Exclusive))), Granted);
    let rig = rig.restart();
    rig.resume(b, false, &[]).expect("resumed");
    assert!(rig.assert(b, 1, Vec::new()));
    rig.advance(14);
    rig.ask(b, &Renew {}).expect("alive");
    assert_eq!(rig.lock(b, &lock(2, 1, bytes(0, 0), Some(Shared))), Grace);
    rig.advance(1);
    assert_eq!(rig.lock(b, &lock(3, 1, bytes(0, 0), Some(Shared))), Granted);
    rig.resume(a, false, &[]).expect("resumed");
    assert!(!rig.assert(a, 2, vec![asserted(1, bytes(0, 9))]));
    // One that is back and says nothing about locks is not waited for either.
    let rig = rig.restart();
    rig.resume(a, false, &[]).expect("resumed");
    rig.resume(b, false, &[]).expect("resumed");
    assert!(rig.assert(b, 4, Vec::new()));
    for _ in 0..3 {
        rig.advance(10);
        rig.ask(a, &Renew {}).expect("alive");
        rig.ask(b, &Renew {}).expect("alive");
        rig.poll();
    }
    assert_eq!(rig.lock(b, &lock(5, 1, bytes(0, 0), Some(Shared))), Granted);
    assert!(!rig.assert(a, 5, vec![asserted(1, bytes(0, 9))]));
}
