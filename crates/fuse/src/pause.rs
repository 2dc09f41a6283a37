//! Reactors that rest: they take no request and have none under way, so that another process can go on where they are.

use crate::reactor::Peer;
use parking_lot::{Condvar, Mutex};
use sluice_base::{Clock, SystemClock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Whether the reactors of a session are to rest, and how many do.
#[derive(Default)]
pub(crate) struct Pause {
    wanted: AtomicBool,
    resting: Mutex<usize>,
    changed: Condvar,
}

impl Pause {
    /// No further request is to be taken.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(SeqCst)
    }

    /// Called by a reactor that has nothing under way: returns when it is wanted again.
    pub(crate) fn rest(&self) {
        let mut resting = self.resting.lock();
        *resting += 1;
        self.changed.notify_all();
        while self.is_wanted() {
            self.changed.wait(&mut resting);
        }
        *resting -= 1;
    }

    /// Has the reactors of `peers` rest; whether all do within `limit`. To be followed by [`Pause::end`] either way.
    pub(crate) fn begin(&self, peers: &[Arc<Peer>], limit: Duration) -> bool {
        self.wanted.store(true, SeqCst);
        peers.iter().for_each(|peer| peer.inbox.wake());
        let clock = SystemClock::default();
        let until = clock.monotonic() + limit;
        let mut resting = self.resting.lock();
        // Nobody rests for a session that has ended meanwhile.
        while *resting < peers.len() && self.is_wanted() {
            let left = until.saturating_sub(clock.monotonic());
            if left.is_zero() || self.changed.wait_for(&mut resting, left).timed_out() {
                break;
            }
        }
        *resting == peers.len()
    }

    /// The reactors go on.
    pub(crate) fn end(&self) {
        // Under the lock, or one that has just looked would sleep.
        let _resting = self.resting.lock();
        self.wanted.store(false, SeqCst);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::later::Inbox;
    use std::thread;

    fn peers(count: usize) -> Vec<Arc<Peer>> {
        (0..count).map(|_| Arc::new(Peer::new(Inbox::new().unwrap(), 1))).collect()
    }

    #[test]
    fn ends_when_all_rest_and_gives_up_when_one_does_not() {
        let (pause, peers) = (Pause::default(), peers(2));
        thread::scope(|scope| {
            let rest = || {
                while !pause.is_wanted() {
                    thread::yield_now();
                }
                pause.rest();
            };
            let reactor = |name: &str| thread::Builder::new().name(name.into()).spawn_scoped(scope, rest).unwrap();
            let first = reactor("first");
            assert!(!pause.begin(&peers, Duration::from_millis(50)), "one is at work");
            pause.end();
            first.join().unwrap();
            let both = [reactor("first"), reactor("second")];
            assert!(pause.begin(&peers, Duration::from_secs(60)));
            pause.end();
            both.into_iter().for_each(|reactor| reactor.join().unwrap());
        });
        assert_eq!(*pause.resting.lock(), 0);
    }
}
