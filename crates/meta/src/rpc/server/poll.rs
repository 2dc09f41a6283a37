//! What is due: pushes, held answers that may go, time, and the transactions that follow from sessions' ends.

use super::{Event, Server, state::Work};
use sluice_base::Ino;
use std::time::Duration;

/// Sessions that ended because nobody came for them, and whose results are kept: hosts that are away for long.
pub(super) const LEFT_MAX: usize = 256;
/// Orphans that one transaction reclaims.
const RECLAIM_AT_ONCE: usize = 64;

impl Server {
    /// Everything that is due now.
    pub fn poll(&self, now: Duration) -> Vec<Event> {
        self.settle(now);
        let (events, work, recovered) = {
            let mut state = self.state.lock();
            state.lapse(now);
            let recovered = state.recovering_until.is_some_and(|until| now >= until);
            if recovered {
                state.recovering_until = None;
                state.locks.end_grace();
            }
            let mut events = std::mem::take(&mut state.events);
            state.take_pushes(&mut events);
            (events, std::mem::take(&mut state.work), recovered)
        };
        if recovered {
            self.sweep();
        }
        work.into_iter().for_each(|work| self.work(work));
        events
    }

    /// Whether [`Server::poll`] has something to do now, but for what [`Server::poll_at`] tells.
    pub fn is_due(&self) -> bool {
        self.state.lock().is_due()
    }

    /// When [`Server::poll`] has something to do even if nobody asks for anything, at the earliest.
    pub fn poll_at(&self) -> Option<Duration> {
        let state = self.state.lock();
        [state.sessions.next_lapse(), state.recovering_until].into_iter().flatten().min()
    }

    /// All sessions that came back have said what they hold open: what has no name and is not held goes.
    fn sweep(&self) {
        match self.names.orphans() {
            Ok(orphans) => {
                let mut state = self.state.lock();
                state.orphans.extend(&orphans);
                state.reclaim_unheld(orphans);
                let work = std::mem::take(&mut state.work);
                drop(state);
                work.into_iter().for_each(|work| self.work(work));
            }
            Err(error) => tracing::error!(%error, "orphans were not found; they will be at the next start"),
        }
    }

    fn work(&self, work: Work) {
        match work {
            Work::End(session) => {
                if let Err(error) = self.names.end_session(session) {
                    tracing::error!(%error, %session, "the session's record stays until the next start");
                }
            }
            Work::Leave(session, epoch) => {
                if let Err(error) = self.names.leave_session(session, epoch, LEFT_MAX) {
                    tracing::error!(%error, %session, "the session's record stays as it is until the next start");
                }
            }
            Work::Reclaim(orphans) => orphans.chunks(RECLAIM_AT_ONCE).for_each(|some| self.reclaim(some)),
        }
    }

    fn reclaim(&self, orphans: &[Ino]) {
        let unheld = self.state.lock().doom(orphans);
        if let Err(error) = self.names.reclaim(&unheld) {
            tracing::error!(%error, "orphans were not reclaimed; they will be at the next start");
        }
        self.spare(&mut self.state.lock(), &unheld);
    }
}

impl super::State {
    /// Those that still nobody holds; nobody begins to until they are removed. The others stay as they are.
    fn doom(&mut self, orphans: &[Ino]) -> Vec<Ino> {
        let mut unheld = Vec::new();
        for ino in orphans {
            if !self.interest.is_held(*ino) {
                self.interest.stamp(*ino);
                *self.removing.entry(*ino).or_default() += 1;
                unheld.push(*ino);
            } else {
                self.orphans.insert(*ino);
                self.interest.use_on(*ino);
            }
        }
        unheld
    }
}
