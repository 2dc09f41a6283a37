//! Where INTERRUPT finds the requests that are not answered yet.

use crate::channel::Way;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use tokio::sync::oneshot;

/// INTERRUPTs remembered that came for no known request. The kernel may send one before the reactor with the request
/// itself has come to [`Waiting::enter`], and reads that a reactor has begun come there only when their time is up, hundreds of them if a
/// node falls silent; the numbers are never used again, so old ones do no harm.
const EARLY_MAX: usize = 1024;

/// All requests of a session that wait for their answer, by number.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<Interrupts>);

#[derive(Default)]
struct Interrupts {
    known: HashMap<u64, Known>,
    early: VecDeque<u64>,
}

enum Known {
    /// A task answers, which is told.
    Task(oneshot::Sender<()>),
    /// A thread answers, which cannot be told. Somebody else may by then, this way.
    Thread { way: Way, interrupted: bool },
}

impl Interrupts {
    fn take_early(&mut self, unique: u64) -> bool {
        let found = self.early.iter().position(|&early| early == unique);
        found.and_then(|index| self.early.remove(index)).is_some()
    }
}

impl Waiting {
    /// A task answers `unique`; the receiver tells when it was interrupted.
    pub(crate) fn enter(&self, unique: u64) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut interrupts = self.0.lock();
        if interrupts.take_early(unique) {
            let _ = sender.send(());
        } else {
            interrupts.known.insert(unique, Known::Task(sender));
        }
        receiver
    }

    /// The task has its outcome.
    pub(crate) fn leave(&self, unique: u64) {
        self.0.lock().known.remove(&unique);
    }

    /// A thread answers `unique` and goes this `way`, unless somebody else has by then. True when it is interrupted already.
    pub(crate) fn enter_thread(&self, unique: u64, way: Way) -> bool {
        let mut interrupts = self.0.lock();
        let interrupted = interrupts.take_early(unique);
        interrupts.known.insert(unique, Known::Thread { way, interrupted });
        interrupted
    }

    /// Whoever gets `Some` answers; the flag tells whether it was interrupted.
    pub(crate) fn take_thread(&self, unique: u64) -> Option<(Way, bool)> {
        let mut interrupts = self.0.lock();
        match interrupts.known.remove(&unique)? {
            Known::Thread { way, interrupted } => Some((way, interrupted)),
            task @ Known::Task(_) => {
                interrupts.known.insert(unique, task);
                None
            }
        }
    }

    /// The caller of `unique` got a signal. True when a thread answers, which should have an end now.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let mut interrupts = self.0.lock();
        match interrupts.known.remove(&unique) {
            Some(Known::Task(sender)) => {
                let _ = sender.send(());
                false
            }
            Some(Known::Thread { way, interrupted }) => {
                interrupts.known.insert(unique, Known::Thread { way, interrupted: true });
                !interrupted
            }
            None => {
                if interrupts.early.len() == EARLY_MAX {
                    interrupts.early.pop_front();
                }
                interrupts.early.push_back(unique);
                false
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_interrupts_are_bounded() {
        let waiting = Waiting::default();
        (0..3000).for_each(|unique| assert!(!waiting.interrupt(unique)));
        assert_eq!(waiting.0.lock().early.len(), EARLY_MAX);
    }
}
