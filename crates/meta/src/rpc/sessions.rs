//! Sessions and leases: a state machine without I/O. Time is an argument: since some fixed start, never going back.
//!
//! A session is **live** while its lease lasts, from the last request that renewed it. When the lease ends it is **expired**:
//! nothing that it cached counts any more and its requests are refused, but what it holds open is kept, and it may be resumed.
//! When it stays away for [`GIVE_UP_LEASES`] it **ends** and gives everything back; only a take-over brings it back then. After a restart of the server each session
//! is in **grace** for one lease: nobody knows what it caches, so whatever others change waits until it was resumed or until
//! the grace is over, when it is expired like any other.
//!
//! A client counts its lease from when it *sent* the request, so it always ends there before it ends here.

use super::{fault::Fault, message::Liveness};
use sluice_base::SessionId;
use std::{collections::BTreeMap, time::Duration};

/// How long a session may believe what it caches. Tuned for a conflict with a mount that vanished: that long one waits.
pub const LEASE: Duration = Duration::from_secs(15);
/// An expired session ends after so many leases: 150 s, time for a host to be restarted and to resume.
pub const GIVE_UP_LEASES: u32 = 10;

/// A session, and the incarnation that a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The session.
    pub session: SessionId,
    /// The epoch that the peer was given.
    pub epoch: u32,
}

/// A session as the server knows it.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its newest epoch.
    pub epoch: u32,
    /// Its name, for people.
    pub name: Vec<u8>,
    /// How it is.
    pub state: Liveness,
    /// When that ends.
    pub until: Duration,
}

/// What time has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapse {
    /// Its lease or its grace is over: forget what it caches.
    Expired(SessionId),
    /// It stayed away too long, in this epoch: give back what it holds.
    Ended(SessionId, u32),
}

/// All sessions that have not ended.
#[derive(Debug)]
pub struct Sessions {
    lease: Duration,
    sessions: BTreeMap<SessionId, Session>,
    /// Nothing lapses before.
    next: Duration,
}

impl Sessions {
    /// None, with this lease.
    pub fn new(lease: Duration) -> Self {
        Self { lease, sessions: BTreeMap::new(), next: Duration::MAX }
    }

    /// The lease.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    fn put(&mut self, session: SessionId, epoch: u32, name: Vec<u8>, state: Liveness, until: Duration) {
        self.next = self.next.min(until);
        self.sessions.insert(session, Session { epoch, name, state, until });
    }

    /// A session of an earlier run of the server.
    pub fn load(&mut self, session: SessionId, epoch: u32, name: Vec<u8>, now: Duration) {
        self.put(session, epoch, name, Liveness::Grace, now + self.lease);
    }

    /// A new session.
    pub fn begin(&mut self, session: SessionId, name: Vec<u8>, now: Duration) {
        self.put(session, 1, name, Liveness::Live, now + self.lease);
    }

    /// Whether `peer` may ask for something. Time must have been told ([`Sessions::lapse`]).
    pub fn check(&self, peer: Peer) -> Result<(), Fault> {
        let session = self.known(peer)?;
        match session.state {
            Liveness::Live => Ok(()),
            Liveness::Grace => Err(Fault::NotResumed),
            Liveness::Expired => Err(Fault::Expired),
        }
    }

    /// The session of a peer of the newest epoch, whatever its state.
    pub fn known(&self, peer: Peer) -> Result<&Session, Fault> {
        let session = self.sessions.get(&peer.session).ok_or(Fault::Ended)?;
        if session.epoch == peer.epoch { Ok(session) } else { Err(Fault::Fenced) }
    }

    /// Whether the session has not ended. Time must have been told.
    pub fn exists(&self, session: SessionId) -> Result<(), Fault> {
        self.sessions.get(&session).map(drop).ok_or(Fault::Ended)
    }

    /// The lease goes on from now.
    pub fn renew(&mut self, session: SessionId, now: Duration) {
        let until = now + self.lease;
        if let Some(session) = self.sessions.get_mut(&session)
            && session.state == Liveness::Live
        {
            session.until = session.until.max(until);
        }
    }

    /// The session is live again; tells how it was before.
    pub fn resume(&mut self, peer: Peer, now: Duration) -> Result<Liveness, Fault> {
        let before = self.known(peer)?.state;
        let until = now + self.lease;
        let session = self.sessions.get_mut(&peer.session).expect("it is known");
        (session.state, session.until) = (Liveness::Live, until.max(session.until));
        if before != Liveness::Live {
            session.until = until;
        }
        self.next = self.next.min(session.until);
        Ok(before)
    }

    /// Another incarnation has the session from now on, in `epoch`.
    pub fn take_over(&mut self, session: SessionId, epoch: u32) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.epoch = session.epoch.max(epoch);
        }
    }

    /// The session has ended.
    pub fn end(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Tells time; each change is told once. A session that ended stays known until [`Sessions::end`], but as expired.
    pub fn lapse(&mut self, now: Duration) -> Vec<Lapse> {
        let mut lapses = Vec::new();
        if now < self.next {
            return lapses;
        }
        let give_up = self.lease * GIVE_UP_LEASES;
        for (id, session) in &mut self.sessions {
            if now >= session.until && session.state != Liveness::Expired {
                (session.state, session.until) = (Liveness::Expired, session.until + give_up);
                lapses.push(Lapse::Expired(*id));
            }
            if now >= session.until && session.state == Liveness::Expired {
                lapses.push(Lapse::Ended(*id, session.epoch));
            }
        }
        for lapse in &lapses {
            if let Lapse::Ended(id, _) = lapse {
                self.sessions.remove(id);
            }
        }
        self.next = self.sessions.values().map(|session| session.until).min().unwrap_or(Duration::MAX);
        lapses
    }

    /// When [`Sessions::lapse`] has something to do again, at the earliest.
    pub fn next_lapse(&self) -> Option<Duration> {
        (self.next < Duration::MAX).then_some(self.next)
    }

    /// Sessions whose caches nobody knows.
    pub fn in_grace(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.sessions.iter().filter(|(_, session)| session.state == Liveness::Grace).map(|(id, _)| *id)
    }

    /// How a session is; `None` when it has ended.
    pub fn state(&self, session: SessionId) -> Option<Liveness> {
        self.sessions.get(&session).map(|session| session.state)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionId = SessionId(1);
    const PEER: Peer = Peer { session: ONE, epoch: 1 };

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn begun() -> Sessions {
        let mut sessions = Sessions::new(secs(15));
        sessions.begin(ONE, b"one".to_vec(), secs(0));
        sessions
    }

    #[test]
    fn a_lease_ends_unless_it_is_renewed() {
        let mut sessions = begun();
        assert_eq!(sessions.lapse(secs(14)), []);
        sessions.renew(ONE, secs(14));
        assert_eq!(sessions.lapse(secs(28)), []);
        assert!(sessions.check(PEER).is_ok());
        assert_eq!(sessions.lapse(secs(29)), [Lapse::Expired(ONE)]);
        assert!(matches!(sessions.check(PEER), Err(Fault::Expired)));
        sessions.renew(ONE, secs(30));
        assert!(matches!(sessions.check(PEER), Err(Fault::Expired)));
        assert_eq!(sessions.lapse(secs(30)), []);
    }

    #[test]
    fn an_expired_session_may_be_resumed_until_it_ends() {
        let mut sessions = begun();
        sessions.lapse(secs(15));
        assert!(matches!(sessions.resume(PEER, secs(100)), Ok(Liveness::Expired)));
        assert!(sessions.check(PEER).is_ok());
        assert_eq!(sessions.lapse(secs(115)), [Lapse::Expired(ONE)]);
        assert_eq!(sessions.next_lapse(), Some(secs(265)));
        assert_eq!(sessions.lapse(secs(265)), [Lapse::Ended(ONE, 1)]);
        assert!(matches!(sessions.resume(PEER, secs(266)), Err(Fault::Ended)));
        assert_eq!(sessions.next_lapse(), None);
    }

    #[test]
    fn an_older_epoch_is_fenced() {
        let mut sessions = begun();
        sessions.take_over(ONE, 2);
        assert!(matches!(sessions.check(PEER), Err(Fault::Fenced)));
        assert!(matches!(sessions.resume(PEER, secs(1)), Err(Fault::Fenced)));
        let newer = Peer { epoch: 2, ..PEER };
        assert!(matches!(sessions.resume(newer, secs(1)), Ok(Liveness::Live)));
    }

    #[test]
    fn a_session_of_an_earlier_run_has_one_lease_to_come_back() {
        let mut sessions = Sessions::new(secs(15));
        sessions.load(ONE, 1, Vec::new(), secs(100));
        assert!(matches!(sessions.check(PEER), Err(Fault::NotResumed)));
        assert_eq!(sessions.in_grace().collect::<Vec<_>>(), [ONE]);
        assert!(matches!(sessions.resume(PEER, secs(110)), Ok(Liveness::Grace)));
        assert_eq!(sessions.in_grace().count(), 0);
        assert_eq!(sessions.lapse(secs(125)), [Lapse::Expired(ONE)]);
        sessions.load(ONE, 1, Vec::new(), secs(200));
        assert_eq!(sessions.lapse(secs(215)), [Lapse::Expired(ONE)]);
    }

    #[test]
    fn a_clock_that_leapt_expires_and_ends_at_once() {
        let mut sessions = begun();
        assert_eq!(sessions.lapse(secs(1000)), [Lapse::Expired(ONE), Lapse::Ended(ONE, 1)]);
    }
}
