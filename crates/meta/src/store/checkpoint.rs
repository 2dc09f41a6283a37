//! Moving applied batches from memory to the tables, so that memory stays bounded and the log can drop its beginning.

use super::{MetaError, MetaStore};
use sluice_base::Seq;
use sluice_run::lock::{Condvar, Mutex};
use sluice_run::thread::{Builder, JoinHandle};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A failed checkpoint is tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What writers and the checkpointer tell each other.
#[derive(Default)]
pub(super) struct Pressure {
    state: Mutex<State>,
    /// The checkpointer waits here.
    work: Condvar,
    /// Writers wait here.
    relief: Condvar,
    /// `state.wanted`, for the hot path to look at.
    wanted: AtomicBool,
    /// Held during a checkpoint; holds the sequence that a failed one has sealed but not flushed.
    sealed: Mutex<Option<Seq>>,
}

#[derive(Default)]
struct State {
    /// A [`Checkpointer`] runs.
    attached: bool,
    wanted: bool,
    stop: bool,
    /// Why the last checkpoint failed.
    error: Option<String>,
}

impl MetaStore {
    /// Persists everything that is committed now; returns what the tables cover, which the log may drop.
    pub fn checkpoint(&self) -> Result<Seq, MetaError> {
        let mut sealed = self.pressure.sealed.lock();
        let result = self.checkpoint_locked(&mut sealed);
        let error = result.as_ref().err().map(ToString::to_string);
        self.pressure.state.lock().error = error;
        self.pressure.relief.notify_all();
        result
    }

    /// After a failure only what was sealed then is tried: sealing more each second would empty the memtable without freeing
    /// memory, and writers would never be held back.
    fn checkpoint_locked(&self, sealed: &mut Option<Seq>) -> Result<Seq, MetaError> {
        if let Some(seq) = *sealed {
            self.flush(seq)?;
        }
        let seq = {
            let _commit = self.commit.lock();
            self.shared.tables.rotate();
            self.visible()
        };
        *sealed = Some(seq);
        // Under the lock: a writer that saw a large memtable is either waiting by now or will look again.
        drop(self.pressure.state.lock());
        self.pressure.relief.notify_all();
        let persisted = self.flush(seq)?;
        *sealed = None;
        Ok(persisted)
    }

    /// The tables must never be ahead of the log: after power loss, its numbers would be given out twice.
    fn flush(&self, seq: Seq) -> Result<Seq, MetaError> {
        self.log.ensure_synced(seq)?;
        Ok(self.shared.tables.flush(self.shared.snapshots.oldest(|| self.visible()))?)
    }

    /// Asks the [`Checkpointer`] for a checkpoint soon.
    pub fn request_checkpoint(&self) {
        if !self.pressure.wanted.swap(true, Ordering::SeqCst) {
            self.pressure.state.lock().wanted = true;
            self.pressure.work.notify_all();
        }
    }

    /// The reason why checkpoints fail, if the last one did.
    pub fn health(&self) -> Result<(), MetaError> {
        self.pressure.state.lock().error.clone().map_or(Ok(()), |error| Err(MetaError::Checkpoint(error)))
    }

    pub(super) fn poke(&self) {
        if self.shared.tables.memtable_bytes() > self.options.memtable_bytes {
            self.request_checkpoint();
        }
    }

    /// Holds a writer back while the memtable is twice its size, which is when a flush of the one before is under way.
    pub(super) fn admit(&self) -> Result<(), MetaError> {
        let full = || self.shared.tables.memtable_bytes() > self.options.memtable_bytes * 2;
        if !full() {
            return Ok(());
        }
        self.request_checkpoint();
        let mut state = self.pressure.state.lock();
        while state.attached && full() {
            if let Some(error) = &state.error {
                return Err(MetaError::Checkpoint(error.clone()));
            }
            self.pressure.relief.wait(&mut state);
        }
        Ok(())
    }

    /// Waits for work; false is the end.
    fn next_checkpoint(&self) -> bool {
        let mut state = self.pressure.state.lock();
        if state.error.is_some() {
            // Whoever asks meanwhile, the disk gets its pause.
            while !state.stop && !self.pressure.work.wait_for(&mut state, RETRY_AFTER).timed_out() {}
        } else {
            while !state.stop && !state.wanted {
                self.pressure.work.wait(&mut state);
            }
        }
        state.wanted = false;
        self.pressure.wanted.store(false, Ordering::SeqCst);
        !state.stop
    }
}

/// The thread that persists batches in the background.
pub struct Checkpointer {
    store: Arc<MetaStore>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread; `on_persisted` is called there after each checkpoint.
    pub fn start(store: Arc<MetaStore>, on_persisted: Box<dyn Fn(Seq) + Send + Sync>) -> io::Result<Self> {
        store.pressure.state.lock().attached = true;
        let worker = Arc::clone(&store);
        let thread = Builder::new().name("meta-checkpoint".into()).spawn(move || {
            while worker.next_checkpoint() {
                match worker.checkpoint() {
                    Ok(seq) => on_persisted(seq),
                    Err(error) => tracing::error!(%error, "checkpoint of the metadata failed; trying again"),
                }
            }
        })?;
        Ok(Self { store, thread: Some(thread) })
    }

    /// Ends the thread, then does a last checkpoint.
    pub fn shutdown(mut self) -> Result<Seq, MetaError> {
        self.stop();
        self.store.checkpoint()
    }

    fn stop(&mut self) {
        self.store.pressure.state.lock().stop = true;
        self.store.pressure.work.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported on stderr; what it left undone is still in the log.
            let _ = thread.join();
        }
        let mut state = self.store.pressure.state.lock();
        (state.attached, state.stop) = (false, false);
        self.store.pressure.relief.notify_all();
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}
