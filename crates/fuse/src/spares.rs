//! Reactors that look after the device only while others wait for somebody else (`away.rs`).
//!
//! More threads than cores take requests from one another: each request wakes another one, whose lanes and caches are cold, and what two
//! of them could have sent together goes in two pieces. But as long as some wait for the server, others have to take their place.

use crate::session::Shared;
use parking_lot::Mutex;
use sluice_base::{Clock, SystemClock};
use std::time::Duration;

/// So long after the last wait spares are still there: who asks the server asks it again soon.
const AFTER: Duration = Duration::from_millis(20);

/// When the spares are needed.
pub(crate) struct Spares {
    first: usize,
    clock: SystemClock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Some do not look after the device.
    resting: bool,
    /// Reactors that wait.
    absent: usize,
    /// The last time that one began or ended to.
    waited: Option<Duration>,
}

impl Spares {
    /// All reactors from `first` on.
    pub(crate) fn new(first: usize) -> Self {
        Self { first, clock: SystemClock::default(), state: Mutex::default() }
    }

    /// The first of them.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Whether a spare looks after the device now. If not, it is woken when it has to.
    pub(crate) fn are_needed(&self) -> bool {
        let mut state = self.state.lock();
        let needed = state.absent > 0 || state.waited.is_some_and(|at| self.clock.monotonic() < at + AFTER);
        state.resting |= !needed;
        needed
    }

    /// A reactor waits.
    pub(crate) fn begin(&self, shared: &Shared) {
        let mut state = self.state.lock();
        state.absent += 1;
        state.waited = Some(self.clock.monotonic());
        if std::mem::take(&mut state.resting) {
            shared.peers.iter().skip(self.first).for_each(|peer| peer.inbox.wake());
        }
    }

    /// It is back.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.absent -= 1;
        state.waited = Some(self.clock.monotonic());
    }
}
