//! After a start of the server: what sessions had answers to, and a loss of power may have taken, is done again before anything
//! new.
//!
//! A session that resumes sends such changes again, under their numbers, and then [`message::Resent`]. Until then nothing else is
//! answered to it. What fails because it stands on a change of a session that is still missing waits for that. Changes of those
//! that have sent all, and of new sessions, wait until no session of the earlier run is missing: until each has done so too, or its
//! grace or lease is over. They are kept as bytes and run by [`Server::poll`].

use super::{Event, Outcome, Server, State};
use crate::rpc::{
    fault::Fault,
    holds::Token,
    message::{self, Liveness, Parsed},
    sessions::Peer,
};
use sluice_base::SessionId;
use std::time::Duration;

/// Changes that wait, over all sessions: more than mounts have threads to ask with.
const WAITING_MAX: usize = 16 << 10;

/// A change that waits.
#[derive(Debug)]
pub(super) struct Deferred {
    token: Token,
    peer: Peer,
    method: u16,
    /// 0 for what has none.
    number: u64,
    /// It was sent again, and what it stands on was not yet.
    again: bool,
    body: Vec<u8>,
}

impl Deferred {
    pub fn new(token: Token, peer: Peer, parsed: &Parsed<'_>, body: &[u8]) -> Self {
        let (number, again) = (parsed.number.number, parsed.number.again.is_some());
        Self { token, peer, method: parsed.request.method().number(), number, again, body: body.to_vec() }
    }
}

impl Server {
    /// Whether a change must wait, and as what. A copy of one that waits takes its place.
    pub(super) fn defer(
        &self,
        now: Duration,
        peer: Peer,
        parsed: &Parsed<'_>,
        body: &[u8],
    ) -> Result<Option<Token>, Fault> {
        let mut state = self.state.lock();
        state.admit(now, peer)?;
        let number = parsed.number.number;
        if parsed.number.again.is_some() {
            return Ok(None);
        }
        state.check_resent(peer.session)?;
        if !state.is_settling() {
            return Ok(None);
        }
        let same = |known: &&Deferred| known.peer == peer && known.number == number && number > 0;
        if let Some(known) = state.deferred.iter().find(same) {
            return Ok(Some(known.token));
        }
        if state.deferred.len() >= WAITING_MAX {
            return Err(Fault::Server("too many changes wait for other mounts".into()));
        }
        let token = state.token();
        state.deferred.push(Deferred::new(token, peer, parsed, body));
        Ok(Some(token))
    }

    /// Runs what waited, once it need not any more; what was sent again is tried each time.
    pub(super) fn settle(&self, now: Duration) {
        let due: Vec<Deferred> = {
            let mut state = self.state.lock();
            state.lapse(now);
            if state.deferred.is_empty() {
                return;
            }
            let all = !state.is_settling();
            state.deferred.extract_if(.., |waits| all || waits.again).collect()
        };
        for Deferred { token, peer, method, body, .. } in due {
            let parsed = message::parse(method, &body);
            let done = parsed.and_then(|parsed| self.change(now, peer, &parsed, &body, Some(token)));
            if let Outcome::Reply(reply) = done.unwrap_or_else(|fault| super::refuse(&fault)) {
                self.state.lock().events.push(Event::Reply { token, peer, reply });
            }
        }
    }
}

impl State {
    /// Whether changes of a session of the earlier run may still be missing.
    pub fn is_settling(&mut self) -> bool {
        if self.settling {
            let missing = |id| matches!(self.sessions.state(id), Some(Liveness::Live | Liveness::Grace));
            self.settling = self.clients.iter().any(|(id, client)| !client.resent && missing(*id));
        }
        self.settling
    }

    /// Nothing but changes sent again is done for a session that has not sent all of them.
    pub fn check_resent(&self, session: SessionId) -> Result<(), Fault> {
        match self.clients.get(&session) {
            Some(client) if client.resent => Ok(()),
            Some(_) => Err(Fault::NotResumed),
            None => Err(Fault::Ended),
        }
    }

    /// The session has sent all again. Numbers up to `barred` count as seen: what comes under them is late.
    pub fn resent(&mut self, session: SessionId, barred: u64) {
        if let Some(client) = self.clients.get_mut(&session) {
            client.resent = true;
            client.numbers.seen = client.numbers.seen.max(barred);
        }
    }

    /// Whether another session may still send again what a change of this one stands on: not when all of them wait themselves.
    pub fn may_come_later(&mut self, session: SessionId) -> bool {
        let waits = |id| self.deferred.iter().any(|waits| waits.again && waits.peer.session == id);
        let missing = |id| matches!(self.sessions.state(id), Some(Liveness::Live | Liveness::Grace));
        self.clients.iter().any(|(id, client)| *id != session && !client.resent && missing(*id) && !waits(*id))
    }

    /// A change that was sent again waits, instead of an earlier copy of it.
    pub fn wait_again(&mut self, change: Deferred) {
        if let Some(client) = self.clients.get_mut(&change.peer.session) {
            client.numbers.underway.remove(&change.number);
        }
        self.deferred.retain(|known| known.peer != change.peer || known.number != change.number);
        self.deferred.push(change);
    }
}
