//! Group commit.

use super::*;
use parking_lot::{Condvar, Mutex};
use sluice_base::{
    Errno,
    disk::{FaultPlan, FaultyDisk, Operation},
};
use sluice_journal::{Committer, SyncError, Syncable};
use std::{
    future::Future,
    io,
    pin::pin,
    sync::Barrier,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

const LONG: Duration = Duration::from_secs(3600);

struct Unpark(Thread);
impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(thread::current()))));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn journal() -> (MemoryDisk, Arc<FaultPlan>, Arc<Journal>) {
    let (memory, plan) = (MemoryDisk::default(), Arc::new(FaultPlan::default()));
    let disk = FaultyDisk::new(Arc::new(memory.clone()), plan.clone());
    let roomy = JournalOptions { segment_bytes: 8 << 20, capacity_bytes: 64 << 20, ..options(1) };
    (memory, plan, Arc::new(open_on(Arc::new(disk), roomy).unwrap().0))
}

/// A companion whose syncs wait until they are let through, and can be told to fail.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, open: bool, fail: bool) {
        *self.state.lock() = (open, fail);
        self.changed.notify_all();
    }
}

impl Syncable for Gate {
    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.0);
        if state.1 { Err(io::Error::from_raw_os_error(Errno::EIO.0)) } else { Ok(()) }
    }
}

/// A companion as slow as a disk: its syncs last until every thread of a round has appended its record.
struct UntilRoundIsFull {
    journal: Arc<Journal>,
    threads: u64,
}

impl Syncable for UntilRoundIsFull {
    fn sync(&self) -> io::Result<()> {
        while !self.journal.written().0.is_multiple_of(self.threads) {
            thread::yield_now();
        }
        Ok(())
    }
}

#[test]
fn many_waiters_share_few_syncs() {
    let (memory, plan, journal) = journal();
    let (rounds, threads) = (20, 16);
    let slow = Arc::new(UntilRoundIsFull { journal: journal.clone(), threads });
    let committer = Committer::start(journal.clone(), vec![slow], LONG);
    let before = plan.count(Operation::Sync);
    let round_ends = Barrier::new(threads as usize);
    thread::scope(|scope| {
        for index in 0..threads {
            let (journal, committer, round_ends) = (&journal, &committer, &round_ends);
            let work = move || {
                for _ in 0..rounds {
                    let seq = journal.append(Class::Metadata, &[b"record"]).unwrap();
                    let waited = if index % 2 == 0 {
                        block_on(committer.wait_synced(seq))
                    } else {
                        committer.wait_synced_blocking(seq)
                    };
                    assert_eq!(waited, Ok(()));
                    assert!(journal.synced() >= seq);
                    round_ends.wait();
                }
            };
            thread::Builder::new().spawn_scoped(scope, work).unwrap();
        }
    });
    // One that was started by the first of a round, one for all who came meanwhile.
    let syncs = plan.count(Operation::Sync) - before;
    assert!(syncs <= 2 * rounds, "{syncs} syncs for {rounds} rounds of {threads} records");
    let large = JournalOptions { segment_bytes: 8 << 20, capacity_bytes: 64 << 20, ..options(2) };
    assert_eq!(open(&memory.power_loss(1), large).unwrap().1.last_seq, Seq(rounds * threads));
}

#[test]
fn nobody_is_woken_before_the_companions_are_durable() {
    let (_, _, journal) = journal();
    let gate = Arc::new(Gate::default());
    let committer = Committer::start(journal.clone(), vec![gate.clone()], LONG);
    let seq = append(&journal, 1, 10);
    let mut wait = pin!(committer.wait_synced(seq));
    let mut context = Context::from_waker(Waker::noop());
    assert!(wait.as_mut().poll(&mut context).is_pending());
    while journal.synced() < seq {
        thread::yield_now();
    }
    assert!(wait.as_mut().poll(&mut context).is_pending());
    gate.set(true, false);
    assert_eq!(block_on(wait), Ok(()));
}

#[test]
fn the_timer_syncs_what_nobody_waits_for() {
    let (_, _, journal) = journal();
    let _committer = Committer::start(journal.clone(), Vec::new(), Duration::from_millis(5));
    let seq = append(&journal, 3, 10);
    while journal.synced() < seq {
        thread::yield_now();
    }
}

#[test]
fn a_record_that_is_not_appended_yet_can_be_waited_for() {
    let (_, _, journal) = journal();
    let committer = Committer::start(journal.clone(), Vec::new(), Duration::from_millis(5));
    let mut early = pin!(committer.wait_synced(Seq(2)));
    assert!(early.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    append(&journal, 1, 10);
    assert_eq!(committer.wait_synced_blocking(Seq(1)), Ok(()));
    append(&journal, 1, 10);
    assert_eq!(block_on(early), Ok(()));
}

#[test]
fn a_failed_sync_reaches_every_waiter_now_and_later() {
    for companion_fails in [false, true] {
        let (_, plan, journal) = journal();
        let gate = Arc::new(Gate::default());
        let committer = Committer::start(journal.clone(), vec![gate.clone()], LONG);
        let seq = append(&journal, 4, 10);
        if !companion_fails {
            plan.fail_under(Operation::Sync, Path::new(DIR), Errno::EIO);
        }
        thread::scope(|scope| {
            for seq in 1..=seq.0 {
                let committer = &committer;
                let wait = move || {
                    let outcome = if seq % 2 == 0 {
                        block_on(committer.wait_synced(Seq(seq)))
                    } else {
                        committer.wait_synced_blocking(Seq(seq))
                    };
                    assert!(matches!(outcome, Err(SyncError::Failed(_))), "{outcome:?}");
                };
                thread::Builder::new().spawn_scoped(scope, wait).unwrap();
            }
            gate.set(true, companion_fails);
        });
        plan.heal();
        gate.set(true, false);
        assert!(matches!(committer.wait_synced_blocking(seq), Err(SyncError::Failed(_))));
        committer.shutdown();
    }
}

#[test]
fn shutdown_syncs_what_is_written_and_ends_all_waits() {
    let (memory, _, journal) = journal();
    let committer = Committer::start(journal.clone(), Vec::new(), LONG);
    let seq = append(&journal, 5, 10);
    committer.shutdown();
    assert_eq!(journal.synced(), seq);
    assert_eq!(committer.wait_synced_blocking(seq), Ok(()));
    assert_eq!(committer.wait_synced_blocking(Seq(6)), Err(SyncError::Stopped));
    assert_eq!(block_on(committer.wait_synced(Seq(6))), Err(SyncError::Stopped));
    committer.shutdown();
    let large = JournalOptions { segment_bytes: 8 << 20, capacity_bytes: 64 << 20, ..options(2) };
    assert_eq!(open(&memory.power_loss(5), large).unwrap().2.len(), 5);
}

#[test]
fn a_dropped_future_leaves_no_waiter() {
    let (_, _, journal) = journal();
    let gate = Arc::new(Gate::default());
    let committer = Committer::start(journal.clone(), vec![gate.clone()], LONG);
    let seq = append(&journal, 1, 10);
    let unpark = Arc::new(Unpark(thread::current()));
    let mut wait = Box::pin(committer.wait_synced(seq));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&Waker::from(unpark.clone()))).is_pending());
    assert_eq!(Arc::strong_count(&unpark), 2);
    drop(wait);
    assert_eq!(Arc::strong_count(&unpark), 1);
    gate.set(true, false);
    assert_eq!(committer.wait_synced_blocking(seq), Ok(()));
}
