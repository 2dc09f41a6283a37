//! The server of a volume's metadata: [`Namespace`], sessions, interest and pushes in one, without sockets.
//!
//! Whoever carries the bytes calls [`Server::handle`] for each request, [`Server::acked`] for each ack,
//! [`Server::disconnected`] when a peer's last connection goes, and [`Server::poll`] when [`Server::is_due`] says so after one of
//! them and at [`Server::poll_at`]. `handle` and `poll` run transactions, so they wait for local disks, never for a peer.
//!
//! # Locks
//! One lock guards the tables of this module and is never held across a transaction. It may be taken inside one (to ask whether
//! an inode is in use), so it ranks below the commit lock. Publishes of one file are put in order by a stripe of locks, which
//! ranks above.

mod changes;
mod locks;
mod numbers;
mod poll;
mod reads;
mod sessions;
mod settling;
mod state;

use super::{
    fault::Fault,
    holds::Token,
    interest,
    message::{self, Effect, Parsed, ReplyHead, Request},
    outbox,
    sessions::{LEASE, Peer},
};
use crate::{Namespace, Result};
use sluice_base::{Ino, Seq, SessionId};
use sluice_run::lock::{Condvar, Mutex};
use state::State;
use std::{sync::Arc, time::Duration};

/// Bounds and times of a server.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a session may believe what it caches.
    pub lease: Duration,
    /// Inodes that one session may cache; as many again it may hold open.
    pub inodes_max: usize,
    /// Pushes that may wait for one session.
    pub pushes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { lease: LEASE, inodes_max: interest::INODES_MAX, pushes_max: outbox::PUSHES_MAX }
    }
}

/// The body of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What goes to the peer.
    pub body: Vec<u8>,
    /// It goes only when the log is synced up to here ([`crate::store::Log::ensure_synced`]). Numbered changes do not wait: the
    /// session keeps them until the head of an answer says that they are durable.
    pub durable: Seq,
    /// It goes only when the store has the log up to there too.
    pub stored: bool,
    /// The connection is this peer's from now on.
    pub bind: Option<Peer>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The answer.
    Reply(Reply),
    /// The answer comes as [`Event::Reply`] with this token. A retry of the same change gets the same token, and the answer is
    /// for whoever asked last.
    Wait(Token),
}

/// Something to be done for, or known of, a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Send a push ([`message::Push`], method [`message::PUSH_METHOD`]).
    Push {
        /// To whom.
        peer: Peer,
        /// Its body.
        body: Vec<u8>,
    },
    /// A held answer may go.
    Reply {
        /// What [`Outcome::Wait`] named.
        token: Token,
        /// To whom.
        peer: Peer,
        /// The answer.
        reply: Reply,
    },
    /// A session's lease ended.
    Expired(SessionId),
    /// A session ended.
    Ended(SessionId),
    /// An incarnation was replaced: its connections are to be closed.
    Fenced(Peer),
}

/// Stripes of locks for publishes: two files meet in one now and then, which costs a wait.
const STRIPES: usize = 256;

/// A run of the server as sessions know it, which compare it with that of before: another one also where the directory of another line has been
/// served as often.
fn told_life(life: u32, line: u64) -> u32 {
    life ^ (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// Serves a volume to its sessions.
pub struct Server {
    names: Arc<Namespace>,
    state: Mutex<State>,
    /// An inode is no longer about to be removed.
    removed: Condvar,
    publishing: Box<[Mutex<()>]>,
}

impl Server {
    /// A server of a volume that nobody else serves or mounts. Sessions of an earlier run are in grace from `now` on.
    pub fn open(names: Arc<Namespace>, settings: Settings, now: Duration) -> Result<Self> {
        // A volume without one was never opened to be shipped.
        let (life, line) = (names.begin_life()?, names.known_line()?.unwrap_or(0));
        let mut state = State::new(settings, (told_life(life, line), line), names.store().clone());
        for (session, record) in names.sessions()?.into_iter().filter(|(_, record)| !record.left) {
            let kept = names.kept_numbers(session)?;
            state.load(session, record, kept, now);
        }
        // Those that come back have another lease to say what they hold open.
        let recovered = if state.sessions.in_grace().next().is_some() { now + 2 * settings.lease } else { now };
        state.recovering_until = Some(recovered);
        let publishing = (0..STRIPES).map(|_| Mutex::new(())).collect();
        Ok(Self { names, state: Mutex::new(state), removed: Condvar::new(), publishing })
    }

    /// How long a session may believe what it caches.
    pub fn lease(&self) -> Duration {
        self.state.lock().settings.lease
    }

    /// The namespace below.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.names
    }

    /// Does what a peer asks for. Only [`message::Begin`], [`message::Resume`] and [`message::ListSessions`] are answered without
    /// a peer.
    pub fn handle(&self, now: Duration, peer: Option<Peer>, method: u16, body: &[u8]) -> Outcome {
        match message::parse(method, body) {
            Ok(parsed) => self.run(now, peer, parsed, body).unwrap_or_else(|fault| refuse(&fault)),
            Err(fault) => refuse(&fault),
        }
    }

    fn run(
        &self,
        now: Duration,
        peer: Option<Peer>,
        parsed: Parsed<'_>,
        body: &[u8],
    ) -> std::result::Result<Outcome, Fault> {
        match &parsed.request {
            Request::Begin(begin) => return self.begin(now, begin),
            Request::Resume(resume) => return self.resume(now, resume),
            Request::ListSessions(_) => return Ok(self.list(now)),
            _ => {}
        }
        let peer = peer.ok_or(Fault::Ended)?;
        if let Request::Lock(_) | Request::TestLock(_) | Request::AssertLocks(_) = &parsed.request {
            return self.of_locks(now, peer, &parsed.request);
        }
        match parsed.request.method().effect() {
            Effect::Read => self.read(now, peer, &parsed.request),
            Effect::Change | Effect::Touch => match self.defer(now, peer, &parsed, body)? {
                Some(token) => Ok(Outcome::Wait(token)),
                None => self.change(now, peer, &parsed, body, None),
            },
            Effect::Session => self.of_session(now, peer, &parsed.request),
        }
    }

    /// A session has taken all pushes up to `number`. As good as a request for its lease.
    pub fn acked(&self, now: Duration, peer: Peer, number: u64) {
        let mut state = self.state.lock();
        state.lapse(now);
        if state.sessions.check(peer).is_ok() {
            state.acked(peer.session, number);
            state.renew(now, peer.session);
        }
    }

    /// A peer has the connection that its resumption came by, and pushes may go there. Not before: one that goes nowhere would count as taken by the
    /// ack of a later one.
    pub fn connected(&self, peer: Peer) {
        let mut state = self.state.lock();
        if state.sessions.known(peer).is_ok() {
            state.connected(peer.session);
        }
    }

    /// A peer's last connection is gone. Its lease goes on; what was pushed is pushed again when it is back.
    pub fn disconnected(&self, peer: Peer) {
        let mut state = self.state.lock();
        if state.sessions.known(peer).is_ok()
            && let Some(client) = state.clients.get_mut(&peer.session)
        {
            client.connected = false;
            client.outbox.disconnected();
        }
    }

    fn stripe(&self, ino: Ino) -> &Mutex<()> {
        &self.publishing[ino.0 as usize % STRIPES]
    }
}

/// An answer that is ready.
fn ready(body: Vec<u8>) -> Outcome {
    Outcome::Reply(Reply { body, durable: Seq(0), stored: false, bind: None })
}

fn refuse(fault: &Fault) -> Outcome {
    ready(refusal(fault))
}

/// The body of an answer that is a fault.
pub fn refusal(fault: &Fault) -> Vec<u8> {
    ReplyHead::default().encode(Err(&super::values::encode(fault)))
}

#[cfg(test)]
mod tests;
