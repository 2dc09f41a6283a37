//! What one process of a mount tells the next one that goes on with it, beside what is in the mount's own log.
//!
//! The next process is the same session in the same epoch: to the server all this is a lost connection, after which the session is
//! resumed. So what only memory has must come along: under which numbers the session has spoken, what the server keeps for it, its locks, what was
//! lost and not told yet, and of which inodes and names the kernel may believe something. Everything else is settled first: what was written is
//! published and durable at the server, uses are given back, and no call is under way ([`Gate`]).

use super::{
    Remote,
    calls::{Link, Session},
    locks::BookState,
    lost::Losses,
    session,
};
use sluice_base::{Clock, Ino, SessionId};
use sluice_meta::{Error, Result, rpc::message::Renew, store::MetaStore};
use sluice_run::lock::{Condvar, Mutex};
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

/// A session, as its next process has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// Its number.
    pub session: SessionId,
    /// Its incarnation, which goes on.
    pub epoch: u32,
    /// The run of the server that has all that was answered.
    pub life: u32,
    /// The line of changes of that server.
    pub line: u64,
    /// The lease in milliseconds.
    pub lease_ms: u32,
    /// The last number that was given to a change.
    pub number: u64,
    /// The last push that was taken.
    pub pushes: u64,
    /// Inodes that the server keeps for the session, upwards.
    pub held: Vec<Ino>,
    /// Of these, uses that are to be given back; and those of inodes that were not held, upwards.
    pub released: Vec<Ino>,
    /// Files of which the server lost changes, to be told by the next sync.
    pub lost: Losses,
    /// Files of which writes were dropped with their locks.
    pub dropped: Losses,
    /// What programs have locked.
    pub locks: BookState,
    /// Inodes of which the kernel may believe something, upwards, and the names in them.
    pub known: Vec<KnownNames>,
}

/// An inode of which the kernel may believe something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownNames {
    /// The inode.
    pub ino: Ino,
    /// Names in it, in order.
    pub names: Vec<Box<[u8]>>,
}

/// Calls that are under way.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<Calls>,
    changed: Condvar,
}

#[derive(Default)]
struct Calls {
    under_way: usize,
    closed: bool,
}

/// A call under way.
pub(super) struct Passage<'a>(&'a Gate);

impl Gate {
    /// A call begins; `None` when none may.
    pub fn pass(&self) -> Option<Passage<'_>> {
        let mut calls = self.state.lock();
        if calls.closed {
            return None;
        }
        calls.under_way += 1;
        Some(Passage(self))
    }

    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Lets no further call begin and waits for those under way; false, and all is as before, when they take longer than `limit`.
    fn close(&self, clock: &dyn Clock, limit: Duration) -> bool {
        let until = clock.monotonic() + limit;
        let mut calls = self.state.lock();
        calls.closed = true;
        while calls.under_way > 0 {
            let left = until.saturating_sub(clock.monotonic());
            if left.is_zero() || self.changed.wait_for(&mut calls, left).timed_out() {
                break;
            }
        }
        calls.closed = calls.under_way == 0;
        calls.closed
    }

    fn open(&self) {
        self.state.lock().closed = false;
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        let mut calls = self.0.state.lock();
        calls.under_way -= 1;
        if calls.under_way == 0 {
            self.0.changed.notify_all();
        }
    }
}

/// A session that asks nothing, until this is dropped.
pub struct Silent<'a> {
    remote: &'a Remote,
    state: SessionState,
}

impl Silent<'_> {
    /// What the next process has to know.
    pub fn state(&self) -> &SessionState {
        &self.state
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        self.remote.gate.open();
    }
}

impl Remote {
    /// The metadata behind `link` for the session that an earlier process of this mount has told `state` of. As [`Remote::new`], but it is
    /// the same incarnation that goes on.
    pub fn inherit(
        link: Arc<dyn Link>,
        state: SessionState,
        own: Arc<MetaStore>,
        clock: Arc<dyn Clock>,
        boot: [u8; 16],
    ) -> Result<Self> {
        let SessionState { session, epoch, life, line, lease_ms, number, pushes, .. } = state;
        if !session::is_of(&own, session, epoch)? {
            return Err(Error::Corrupt("the mount's own log, which is of another session".into()));
        }
        let lease = Duration::from_millis(lease_ms.into());
        let remote = Self::of(link, Session::new(session, epoch, lease, number, pushes, (life, line)), own, clock);
        *remote.held.lock() = state.held.into_iter().collect();
        *remote.released.lock() = state.released;
        remote.session.retained.inherit_lost(state.lost);
        remote.dropped.lock().inherit(state.dropped);
        remote.locks.inherit(state.locks);
        remote.cache.remember(state.known);
        remote.recover(boot)?;
        Ok(remote)
    }

    /// Has all that was done told to the server, and durable there. To be called from a thread that may wait, which it does as long as the
    /// server does not answer.
    pub fn settle_all(&self) -> Result<()> {
        if self.session.refusal.is_on() {
            return Err(Error::Server(
                "it was recovered from an earlier state of the volume a moment ago; try again".into(),
            ));
        }
        self.catch_up()?;
        // The pause is to cost no lease: while a push of another mount's change is not acked, the server renews none for long.
        let (heard, _) = self.ask(&Renew {})?;
        let unacked = || Error::Server("another mount changes something that this one has not acked; try again".into());
        if heard.head.renewed { Ok(()) } else { Err(unacked()) }
    }

    /// Asks nothing any more, if that is possible within `limit` and nothing is left that the next process would not know: `None` otherwise.
    pub fn fall_silent(&self, limit: Duration) -> Option<Silent<'_>> {
        let is_closed = self.gate.close(&*self.clock, limit);
        if !is_closed {
            return None;
        }
        let state = self.state();
        let silent = Silent { remote: self, state };
        let has_left = self.session.retained.first().is_some() || !self.pending.files().is_empty();
        let is_unsettled = has_left || self.locks.is_unsettled() || self.is_over() || self.session.refusal.is_on();
        (!is_unsettled).then_some(silent)
    }

    fn state(&self) -> SessionState {
        let sorted = |mut inos: Vec<Ino>| {
            inos.sort_unstable();
            inos.dedup();
            inos
        };
        SessionState {
            session: self.session.id,
            epoch: self.session.epoch.load(SeqCst) as u32,
            life: self.session.life.load(SeqCst),
            line: self.session.line.load(SeqCst),
            lease_ms: u32::try_from(self.session.lease().as_millis()).unwrap_or(u32::MAX),
            number: self.session.last_number(),
            pushes: self.cache.taken(),
            held: sorted(self.held.lock().iter().copied().collect()),
            released: sorted(self.released.lock().clone()),
            lost: self.session.retained.lost(),
            dropped: self.dropped.lock().losses(),
            locks: self.locks.state(),
            known: self.cache.known(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_base::SystemClock;
    use std::thread;

    #[test]
    fn a_gate_waits_for_those_inside_and_keeps_others_out() {
        let (gate, clock) = (Gate::default(), SystemClock::default());
        let inside = gate.pass().unwrap();
        assert!(!gate.close(&clock, Duration::from_millis(20)), "one is inside");
        assert!(gate.pass().is_some(), "and others may go on");
        thread::scope(|scope| {
            let closing = || gate.close(&clock, Duration::from_secs(60));
            let closing = thread::Builder::new().name("closing".into()).spawn_scoped(scope, closing).unwrap();
            while !gate.is_closed() {
                thread::yield_now();
            }
            drop(inside);
            assert!(closing.join().unwrap());
        });
        assert!(gate.pass().is_none());
        gate.open();
        assert!(gate.pass().is_some());
    }
}
