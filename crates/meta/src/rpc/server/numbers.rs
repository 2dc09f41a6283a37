//! The numbers of a session's changes: which are under way, were refused, or may be forgotten.

use super::{Event, Reply, State};
use crate::rpc::{fault::Fault, holds::Token, message::Number, sessions::Peer};
use sluice_base::SessionId;
use sluice_run::collections::HashMap;
use std::{collections::BTreeMap, ops::Range};

/// Numbers of changes that may be without an answer that was seen: so many results are kept for a session.
pub const WINDOW: u64 = 1024;
/// Results are forgotten so many at a time.
const FORGET_AT_ONCE: u64 = 64;

/// A session's changes.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// All answers up to here were seen.
    pub seen: u64,
    /// The highest number that was asked for.
    pub highest: u64,
    /// Results below are forgotten.
    pub kept_from: u64,
    /// Changes that were refused. They did nothing, so nothing of them is stored; a copy that arrives late must not be done all
    /// the same, and such copies do not outlive the server.
    pub refused: BTreeMap<u64, Vec<u8>>,
    pub underway: HashMap<u64, Underway>,
}

/// A change that has no answer yet.
#[derive(Debug)]
pub(super) struct Underway {
    token: Token,
    /// Somebody else waits for the token.
    asked_again: bool,
}

/// How a change begins.
pub(super) enum Admitted {
    /// It runs; reads that began now are its own.
    Run { token: Token, since: u64, forget: Range<u64> },
    /// It was refused before, with these bytes of a fault.
    Refused(Vec<u8>),
    /// It is under way.
    Wait(Token),
}

impl State {
    /// Begins the change of a number.
    pub fn admit_change(
        &mut self,
        session: SessionId,
        number: Number,
        waited: Option<Token>,
    ) -> Result<Admitted, Fault> {
        let (token, since) = (waited.unwrap_or_else(|| self.token()), self.interest.now());
        let numbers = &mut self.clients.get_mut(&session).ok_or(Fault::Ended)?.numbers;
        let Number { number, seen_up_to, again: _ } = number;
        numbers.seen = numbers.seen.max(seen_up_to.min(number - 1));
        numbers.refused = numbers.refused.split_off(&(numbers.seen + 1));
        if number <= numbers.seen {
            return Err(Fault::Forgotten);
        }
        if number > numbers.seen + WINDOW {
            return Err(Fault::Window);
        }
        if let Some(fault) = numbers.refused.get(&number) {
            return Ok(Admitted::Refused(fault.clone()));
        }
        if let Some(underway) = numbers.underway.get_mut(&number) {
            underway.asked_again = true;
            return Ok(Admitted::Wait(underway.token));
        }
        numbers.underway.insert(number, Underway { token, asked_again: false });
        numbers.highest = numbers.highest.max(number);
        // The last one that was seen stays, so that a restart knows where the numbers stand.
        let due = numbers.seen >= numbers.kept_from + FORGET_AT_ONCE;
        let end = if due { numbers.seen.min(numbers.kept_from + WINDOW) } else { numbers.kept_from };
        let forget = std::mem::replace(&mut numbers.kept_from, end)..end;
        Ok(Admitted::Run { token, since, forget })
    }

    pub fn refused(&mut self, session: SessionId, number: u64, fault: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&session) {
            client.numbers.refused.insert(number, fault);
        }
    }

    /// A change has its answer; whoever asked for it again gets it as an event.
    pub fn answered(&mut self, peer: Peer, number: u64, reply: &Reply) {
        let Some(client) = self.clients.get_mut(&peer.session) else { return };
        if let Some(Underway { token, asked_again: true }) = client.numbers.underway.remove(&number) {
            self.events.push(Event::Reply { token, peer, reply: reply.clone() });
        }
    }

    /// The highest number that this session asked for, as far as it is known.
    pub fn highest_number(&self, session: SessionId) -> u64 {
        self.clients.get(&session).map_or(0, |client| client.numbers.highest.max(client.numbers.seen))
    }
}
