//! What time does to a connection.

use super::{Connection, Phase};
use crate::{ConnectionError, Event, Kind, Payload, RequestId};
use std::time::Duration;

/// How long to wait for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// The whole handshake. 10 s: three lost SYNs or segments, with their doubling time-outs of 1, 2 and 4 s, fit in.
    pub handshake: Duration,
    /// After this without a frame a ping is sent, and again each time. 5 s: two pings may be lost before [`Self::silence`]; 200
    /// idle peers cost 40 frames a second.
    pub ping: Duration,
    /// After this without a byte the peer is dead. 15 s: the lease of a session, which then must be settled anyway.
    pub silence: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self { handshake: Duration::from_secs(10), ping: Duration::from_secs(5), silence: Duration::from_secs(15) }
    }
}

/// When what happened last.
pub(super) struct Times {
    started: Duration,
    /// A byte came; or, while this side does not listen, one went.
    alive: Duration,
    pinged: Duration,
}

impl Times {
    pub(super) fn new(now: Duration) -> Self {
        Self { started: now, alive: now, pinged: now }
    }

    pub(super) fn heard(&mut self, now: Duration) {
        self.alive = self.alive.max(now);
    }
}

impl Connection {
    /// When [`Self::handle_timeout`] is to be called, on the clock of `now`; `None` for never.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let timers = &self.options.timers;
        match self.phase {
            Phase::Closed => None,
            Phase::Securing | Phase::Greeting | Phase::Deciding { .. } => Some(self.clock.started + timers.handshake),
            Phase::Open => {
                let dead = self.clock.alive + timers.silence;
                let next = if self.wants_input() { dead.min(self.next_ping()) } else { dead };
                Some(self.asked.next_deadline().map_or(next, |deadline| deadline.min(next)))
            }
        }
    }

    /// Does what is due. Input that waits in the stream should be handled before, or a busy host takes a peer for dead.
    pub fn handle_timeout(&mut self, now: Duration) {
        let timers = self.options.timers;
        match self.phase {
            Phase::Closed => {}
            Phase::Securing | Phase::Greeting | Phase::Deciding { .. } => {
                if now >= self.clock.started + timers.handshake {
                    self.finish(ConnectionError::HandshakeTimeout);
                }
            }
            Phase::Open if now >= self.clock.alive + timers.silence => self.finish(ConnectionError::Silent),
            Phase::Open => {
                while let Some(id) = self.asked.take_expired(now) {
                    self.tell_abandoned(id);
                    self.events.push_back(Event::TimedOut { id: RequestId(id) });
                }
                if self.wants_input() && now >= self.next_ping() {
                    self.clock.pinged = now;
                    self.send(Kind::Ping, 0, &Payload::default());
                }
            }
        }
    }

    fn next_ping(&self) -> Duration {
        self.clock.alive.max(self.clock.pinged) + self.options.timers.ping
    }
}
