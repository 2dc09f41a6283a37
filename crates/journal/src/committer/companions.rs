//! Threads that sync what accompanies the journal, beside the journal's own sync.

use super::Syncable;
use sluice_run::lock::{Condvar, Mutex};
use sluice_run::thread::{self, JoinHandle};
use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// One thread for each thing to sync.
pub(super) struct Companions(Vec<Companion>);

struct Companion {
    what: Arc<dyn Syncable>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Asked,
    Done(io::Result<()>),
    Quit,
}

impl Companions {
    pub(super) fn start(what: Vec<Arc<dyn Syncable>>) -> Self {
        Self(what.into_iter().map(Companion::start).collect())
    }

    /// Starts a sync of everything that has something to sync, and returns what waits for those.
    pub(super) fn begin(&self) -> impl FnOnce() -> io::Result<()> + '_ {
        let due: Vec<_> = self.0.iter().filter(|companion| companion.what.is_due()).collect();
        due.iter().for_each(|companion| companion.shared.set(State::Asked));
        move || {
            let results: Vec<_> = due.iter().map(|companion| companion.shared.take_result()).collect();
            results.into_iter().collect()
        }
    }
}

impl Companion {
    fn start(what: Arc<dyn Syncable>) -> Self {
        let shared = Arc::new(Shared::default());
        let (worker, its) = (shared.clone(), what.clone());
        let thread = thread::Builder::new().name("journal-also".into()).spawn(move || worker.run(&*its));
        Self { what, shared, thread: Some(thread.expect("a thread starts")) }
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.shared.set(State::Quit);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn set(&self, to: State) {
        *self.state.lock() = to;
        self.changed.notify_all();
    }

    fn take_result(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        loop {
            match std::mem::take(&mut *state) {
                State::Done(result) => return result,
                other => *state = other,
            }
            self.changed.wait(&mut state);
        }
    }

    fn run(&self, what: &dyn Syncable) {
        loop {
            let mut state = self.state.lock();
            while !matches!(*state, State::Asked | State::Quit) {
                self.changed.wait(&mut state);
            }
            if matches!(*state, State::Quit) {
                return;
            }
            drop(state);
            // A panic must reach the waiters as an error: otherwise they wait for ever.
            let result = catch_unwind(AssertUnwindSafe(|| what.sync()));
            self.set(State::Done(result.unwrap_or_else(|_| Err(io::Error::other("the sync panicked")))));
        }
    }
}
