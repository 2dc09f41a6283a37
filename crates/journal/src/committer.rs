//! Group commit: one sync for all who wait.
//!
//! A named thread syncs whenever someone waits for more than is durable. Whoever comes while a sync runs is served by the next
//! one, together with everybody else who came meanwhile: under load the group grows with the latency of the disk. A timer bounds
//! how long a record stays unsynced when nobody waits. What accompanies the journal (slabs) is synced in parallel, each on its own
//! thread. The list of waiters has one entry for each waiting future, so whoever bounds those bounds it.

use crate::Journal;
use companions::Companions;
use sluice_base::Seq;
use sluice_run::lock::{Condvar, Mutex, MutexGuard};
use sluice_run::thread::{self, JoinHandle};
use sluice_run::time::now;
use std::{
    collections::BTreeMap,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

mod companions;

/// The next sync waits for those whom the last one has served at most this part of what the last one took...
const GATHER_SHARE: u32 = 4;
/// ... and at most so long: a slow disk's writers are late for other reasons.
const GATHER_MAX: Duration = Duration::from_millis(1);

/// Something that must be durable before a record that speaks of it counts as durable.
pub trait Syncable: Send + Sync {
    /// Whether [`Syncable::sync`] would do more than return at once: otherwise its thread is left alone.
    fn is_due(&self) -> bool {
        true
    }
    /// Everything written before this call survives power loss.
    fn sync(&self) -> io::Result<()>;
}

/// Why a record is not known to be durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// A sync failed; none is tried again, as the kernel may have marked lost pages clean.
    #[error("what was written may not be durable: {0}")]
    Failed(Arc<str>),
    /// The committer was shut down before it got to this record.
    #[error("the journal was closed")]
    Stopped,
}

/// The thread that syncs a journal.
pub struct Committer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Committer {
    /// Starts the thread. Records of `journal` and what was handed to `also_sync` before them become durable at the latest
    /// `interval` and one sync after they were written.
    ///
    /// # Panics
    /// When the host has no thread left.
    pub fn start(journal: Arc<Journal>, also_sync: Vec<Arc<dyn Syncable>>, interval: Duration) -> Arc<Committer> {
        let covered = AtomicU64::new(journal.synced().0);
        let (state, work, done) = Default::default();
        let shared = Arc::new(Shared { journal, interval, covered, state, work, done });
        let (worker, companions) = (shared.clone(), Companions::start(also_sync));
        let thread = thread::Builder::new().name("journal-commit".into()).spawn(move || worker.run(&companions));
        Arc::new(Committer { shared, thread: Mutex::new(Some(thread.expect("a thread starts"))) })
    }

    /// Everything up to here is durable.
    pub fn synced(&self) -> Seq {
        self.shared.covered()
    }

    /// Resolves once everything up to `seq` is durable. Needs no particular runtime; dropping it stops waiting.
    pub fn wait_synced(&self, seq: Seq) -> WaitSynced {
        WaitSynced { shared: self.shared.clone(), seq, waiter: None }
    }

    /// Returns once everything up to `seq` is durable.
    pub fn wait_synced_blocking(&self, seq: Seq) -> Result<(), SyncError> {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(outcome) = self.shared.outcome(&state, seq) {
                return outcome;
            }
            self.shared.want(&mut state, seq);
            self.shared.done.wait(&mut state);
        }
    }

    /// Syncs what is written and ends the thread. Whoever waits for more gets [`SyncError::Stopped`].
    pub fn shutdown(&self) {
        self.shared.state.lock().stopping = true;
        self.shared.work.notify_one();
        let mut thread = self.thread.lock();
        // A waker may drop the last handle on the thread itself, which then ends without being waited for.
        if let Some(thread) = thread.take().filter(|thread| thread.thread().id() != thread::current().id()) {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// A future that waits for a sync; see [`Committer::wait_synced`].
pub struct WaitSynced {
    shared: Arc<Shared>,
    seq: Seq,
    waiter: Option<u64>,
}

impl Future for WaitSynced {
    type Output = Result<(), SyncError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.shared.covered() >= this.seq {
            return Poll::Ready(Ok(()));
        }
        let state = &mut *this.shared.state.lock();
        if let Some(outcome) = this.shared.outcome(state, this.seq) {
            return Poll::Ready(outcome);
        }
        let id = *this.waiter.get_or_insert_with(|| {
            state.next_waiter += 1;
            state.next_waiter
        });
        state.waiters.insert(id, (this.seq, context.waker().clone()));
        this.shared.want(state, this.seq);
        Poll::Pending
    }
}

impl Drop for WaitSynced {
    fn drop(&mut self) {
        if let Some(id) = self.waiter {
            // The waker is dropped outside the lock: it may run code of its own.
            let _waker = self.shared.state.lock().waiters.remove(&id);
        }
    }
}

struct Shared {
    journal: Arc<Journal>,
    interval: Duration,
    /// Records and companions are durable up to here. Changes under `state` only.
    covered: AtomicU64,
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// Highest seq that someone waits for.
    wanted: Seq,
    next_waiter: u64,
    waiters: BTreeMap<u64, (Seq, Waker)>,
    /// How many are expected to wait before the next sync begins, while it waits for them.
    gathers: usize,
    /// How many the last sync has served, and how long it took.
    served: usize,
    took: Duration,
    stopping: bool,
    /// Set once the thread will sync no more.
    ended: Option<SyncError>,
}

impl Shared {
    fn covered(&self) -> Seq {
        Seq(self.covered.load(Ordering::Acquire))
    }

    fn outcome(&self, state: &State, seq: Seq) -> Option<Result<(), SyncError>> {
        if self.covered() >= seq { Some(Ok(())) } else { state.ended.clone().map(Err) }
    }

    fn want(&self, state: &mut State, seq: Seq) {
        // A record that is not appended yet must neither keep the thread spinning nor hide later requests for earlier ones; the
        // timer serves whoever waits for it.
        let seq = seq.min(self.journal.written());
        let is_new = state.wanted < seq;
        state.wanted = state.wanted.max(seq);
        let (waiting, gathers) = (state.waiters.len(), state.gathers);
        if waiting >= gathers && (is_new || gathers > 0) {
            self.work.notify_one();
        }
    }

    fn run(&self, companions: &Companions) {
        // Also when a waker panics: nobody may wait for a thread that is gone.
        let _end = EndOnDrop(self);
        loop {
            let (stopping, idle) = self.await_work();
            let written = self.journal.written();
            if written > self.covered() {
                let began = now();
                let outcome = self.commit(companions);
                let failed = outcome.is_err();
                let outcome = outcome.map(|()| written).map_err(|why| SyncError::Failed(why.into()));
                self.publish(outcome, now().duration_since(began));
                if failed {
                    return;
                }
            } else if idle || stopping {
                // Only evidence for a later recovery; a disk that refuses it says so at the next append or sync.
                let _ = self.journal.note_synced();
            }
            if stopping {
                return;
            }
        }
    }

    /// Returns when there is something to do: whether to stop, and whether a whole interval passed without a request.
    fn await_work(&self) -> (bool, bool) {
        let mut state = self.state.lock();
        let mut idle = false;
        if state.wanted <= self.covered() && !state.stopping {
            idle = self.work.wait_for(&mut state, self.interval).timed_out();
        }
        self.gather(&mut state);
        (state.stopping, idle)
    }

    /// Waits a moment for as many as the last sync has served, if one of them is there already.
    fn gather(&self, state: &mut MutexGuard<'_, State>) {
        let moment = (state.took / GATHER_SHARE).min(GATHER_MAX);
        if state.waiters.is_empty() || state.waiters.len() >= state.served || state.stopping {
            return;
        }
        state.gathers = state.served;
        let _ = self.work.wait_for(state, moment);
        state.gathers = 0;
    }

    fn commit(&self, companions: &Companions) -> Result<(), String> {
        let finish = companions.begin();
        let journal = self.journal.sync();
        // Always collected, also after a failure: a companion must not be left in the middle of a sync.
        let others = finish();
        journal.map_err(|error| error.to_string())?;
        others.map_err(|error| format!("cannot sync file data: {error}"))
    }

    fn publish(&self, outcome: Result<Seq, SyncError>, took: Duration) {
        let mut state = self.state.lock();
        match outcome {
            Ok(seq) => self.covered.store(seq.0, Ordering::Release),
            Err(error) => state.ended = state.ended.take().or(Some(error)),
        }
        let (covered, ended) = (self.covered(), state.ended.is_some());
        let woken: Vec<_> = state.waiters.extract_if(.., |_, (seq, _)| ended || *seq <= covered).collect();
        (state.served, state.took) = (woken.len(), took);
        drop(state);
        self.done.notify_all();
        woken.into_iter().for_each(|(_, (_, waker))| waker.wake());
    }
}

struct EndOnDrop<'a>(&'a Shared);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.publish(Err(SyncError::Stopped), Duration::ZERO);
    }
}
