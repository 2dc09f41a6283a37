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
    /// What is patient is to be put aside.
    parking: bool,
}

enum Known {
    /// A task answers, which is told.
    Task(oneshot::Sender<()>),
    /// A task answers that may wait for ever: it is told, or told that it is put aside, which is nothing once that was done.
    Patient { interrupted: oneshot::Sender<()>, parked: Option<oneshot::Sender<()>> },
    /// A thread answers, which cannot be told. Somebody else may by then, this way.
    Thread { way: Way, interrupted: bool },
}

impl Interrupts {
    fn take_early(&mut self, unique: u64) -> bool {
        let found = self.early.iter().position(|&early| early == unique);
        found.and_then(|index| self.early.remove(index)).is_some()
    }

    fn add_early(&mut self, unique: u64) {
        if self.early.len() == EARLY_MAX {
            self.early.pop_front();
        }
        self.early.push_back(unique);
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

    /// A task answers `unique` that may wait for ever; the receivers tell when it was interrupted, and that somebody else will answer: not
    /// both.
    pub(crate) fn enter_patient(&self, unique: u64) -> (oneshot::Receiver<()>, oneshot::Receiver<()>) {
        let ((interrupted, is_interrupted), (parked, is_parked)) = (oneshot::channel(), oneshot::channel());
        let mut interrupts = self.0.lock();
        if interrupts.take_early(unique) {
            let _ = interrupted.send(());
        } else if interrupts.parking {
            let _ = parked.send(());
            interrupts.known.insert(unique, Known::Patient { interrupted, parked: None });
        } else {
            interrupts.known.insert(unique, Known::Patient { interrupted, parked: Some(parked) });
        }
        (is_interrupted, is_parked)
    }

    /// From now on what is patient is put aside, unless it was interrupted; or no longer.
    pub(crate) fn park(&self, parking: bool) {
        let mut interrupts = self.0.lock();
        interrupts.parking = parking;
        for known in interrupts.known.values_mut().filter(|_| parking) {
            if let Known::Patient { parked, .. } = known
                && let Some(parked) = parked.take()
            {
                let _ = parked.send(());
            }
        }
    }

    /// Whether an INTERRUPT came for a request that was put aside. It counts for the next one who answers it.
    pub(crate) fn has_early(&self, unique: u64) -> bool {
        self.0.lock().early.contains(&unique)
    }

    /// An INTERRUPT came before the request is known.
    pub(crate) fn add_early(&self, unique: u64) {
        self.0.lock().add_early(unique);
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
            task @ (Known::Task(_) | Known::Patient { .. }) => {
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
                // Whoever is told may have the outcome by now, and leave.
                drop(interrupts);
                let _ = sender.send(());
                false
            }
            Some(Known::Thread { way, interrupted }) => {
                interrupts.known.insert(unique, Known::Thread { way, interrupted: true });
                !interrupted
            }
            Some(Known::Patient { interrupted, parked: Some(_) }) => {
                let _ = interrupted.send(());
                false
            }
            // It has been put aside by its task, or is about to be.
            Some(Known::Patient { .. }) | None => {
                interrupts.add_early(unique);
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
    fn what_is_patient_is_interrupted_or_put_aside() {
        let waiting = Waiting::default();
        let (mut interrupted, mut parked) = waiting.enter_patient(2);
        waiting.interrupt(2);
        waiting.park(true);
        assert!(interrupted.try_recv().is_ok() && parked.try_recv().is_err());
        let (mut interrupted, mut parked) = waiting.enter_patient(4);
        waiting.interrupt(4);
        assert!(interrupted.try_recv().is_err() && parked.try_recv().is_ok());
        // It counts for whoever answers it next.
        waiting.leave(4);
        waiting.park(false);
        let (mut interrupted, mut parked) = waiting.enter_patient(4);
        assert!(interrupted.try_recv().is_ok() && parked.try_recv().is_err());
    }

    #[test]
    fn early_interrupts_are_bounded() {
        let waiting = Waiting::default();
        (0..3000).for_each(|unique| assert!(!waiting.interrupt(unique)));
        assert_eq!(waiting.0.lock().early.len(), EARLY_MAX);
    }
}
