//! The tables of a server, under their one lock.

use super::{Event, Reply, Settings, locks::Locks, numbers::Numbers, settling::Deferred};
use crate::{
    records::SessionRecord,
    rpc::{
        fault::Fault,
        holds::{Holds, Token},
        interest::{ATTR, DATA, ENTRIES, Interest},
        message::{Invalidation, Liveness, ReplyHead},
        outbox::Outbox,
        sessions::{Lapse, Peer, Sessions},
    },
    store::MetaStore,
};
use sluice_base::{Ino, SessionId};
use sluice_run::Bug;
use sluice_run::collections::{HashMap, HashSet};
use std::{sync::Arc, time::Duration};

/// What the server keeps for a session besides its interest.
#[derive(Debug)]
pub(super) struct Client {
    pub outbox: Outbox,
    pub connected: bool,
    pub numbers: Numbers,
    /// What an earlier run of the server answered, and may have lost, was sent again: see `settling.rs`.
    pub resent: bool,
}

/// What is to be done outside the lock.
#[derive(Debug)]
pub(super) enum Work {
    End(SessionId),
    /// It was in this epoch.
    Leave(SessionId, u32),
    Reclaim(Vec<Ino>),
}

/// A held answer, with the number that it is of.
#[derive(Debug)]
pub(super) struct Held {
    pub peer: Peer,
    pub number: Option<u64>,
    pub reply: Reply,
}

pub(super) struct State {
    pub settings: Settings,
    /// The run of the server.
    pub life: u32,
    /// Of the volume's changes.
    pub line: u64,
    store: Arc<MetaStore>,
    pub sessions: Sessions,
    pub interest: Interest,
    pub clients: HashMap<SessionId, Client>,
    pub holds: Holds<Held>,
    pub locks: Locks,
    /// Inodes without a name that somebody used when it went.
    pub orphans: HashSet<Ino>,
    /// Inodes that a transaction under way removes because nobody held them; nobody may begin to.
    pub removing: HashMap<Ino, usize>,
    /// Until then nobody knows what is open where, and all that is unlinked becomes an orphan.
    pub recovering_until: Option<Duration>,
    pub events: Vec<Event>,
    pub work: Vec<Work>,
    /// A push may wait to be sent.
    pushed: bool,
    /// Sessions of the earlier run may not have sent all again.
    pub settling: bool,
    pub deferred: Vec<Deferred>,
    next_token: u64,
}

impl State {
    pub fn new(settings: Settings, (life, line): (u32, u64), store: Arc<MetaStore>) -> Self {
        Self {
            settings,
            life,
            line,
            store,
            sessions: Sessions::new(settings.lease),
            interest: Interest::new(settings.inodes_max),
            clients: HashMap::default(),
            holds: Holds::default(),
            locks: Locks::default(),
            orphans: HashSet::default(),
            removing: HashMap::default(),
            recovering_until: None,
            events: Vec::new(),
            work: Vec::new(),
            pushed: false,
            settling: true,
            deferred: Vec::new(),
            next_token: 0,
        }
    }

    /// A session of an earlier run, with the numbers whose results are kept.
    pub fn load(&mut self, session: SessionId, record: SessionRecord, kept: Option<(u64, u64)>, now: Duration) {
        self.sessions.load(session, record.epoch, record.name, now);
        self.locks.load(session);
        let (low, highest) = kept.unwrap_or((1, 0));
        let numbers = Numbers { seen: low.saturating_sub(1), highest, kept_from: low, ..Numbers::default() };
        self.add_client(session, numbers, false);
    }

    pub fn begin(&mut self, session: SessionId, name: &[u8], now: Duration) {
        self.sessions.begin(session, name.to_vec(), now);
        self.add_client(session, Numbers { kept_from: 1, ..Numbers::default() }, true);
        self.connected(session);
    }

    fn add_client(&mut self, session: SessionId, numbers: Numbers, resent: bool) {
        let outbox = Outbox::new(self.settings.pushes_max);
        self.clients.insert(session, Client { outbox, connected: false, numbers, resent });
    }

    pub fn connected(&mut self, session: SessionId) {
        if let Some(client) = self.clients.get_mut(&session) {
            // What could not be sent without a connection.
            self.pushed |= !client.connected;
            client.connected = true;
        }
    }

    /// Whether something waits for [`super::Server::poll`] that is not a matter of time alone.
    pub fn is_due(&self) -> bool {
        self.pushed || !self.events.is_empty() || !self.work.is_empty() || !self.deferred.is_empty()
    }

    /// The pushes that may be sent now.
    pub fn take_pushes(&mut self, events: &mut Vec<Event>) {
        self.pushed = false;
        let sessions: Vec<_> = self.sessions.all().map(|(id, session)| (id, session.epoch)).collect();
        for (session, epoch) in sessions {
            let Some(client) = self.clients.get_mut(&session).filter(|client| client.connected) else { continue };
            while let Some(push) = client.outbox.next_push() {
                events.push(Event::Push { peer: Peer { session, epoch }, body: push.encode() });
            }
        }
    }

    /// Tells time.
    pub fn lapse(&mut self, now: Duration) {
        for lapse in self.sessions.lapse(now) {
            match lapse {
                Lapse::Expired(session) => {
                    self.forget_cached(session);
                    self.locks.lapsed(session);
                    self.answer_locks();
                    self.events.push(Event::Expired(session));
                }
                Lapse::Ended(session, epoch) => {
                    self.give_back(session);
                    self.work.push(Work::Leave(session, epoch));
                }
            }
        }
    }

    /// The session serves nothing from its cache any more.
    pub fn forget_cached(&mut self, session: SessionId) {
        self.interest.drop_cached(session);
        if let Some(client) = self.clients.get_mut(&session) {
            client.outbox.overtake();
        }
        let free = self.holds.gone(session);
        self.release_holds(free);
    }

    /// The session has ended itself: nothing is left to ask for.
    pub fn ended(&mut self, session: SessionId) {
        self.give_back(session);
        self.work.push(Work::End(session));
    }

    /// What a session held that has ended.
    fn give_back(&mut self, session: SessionId) {
        self.forget_cached(session);
        self.locks.ended(session);
        self.answer_locks();
        self.sessions.end(session);
        let held = self.interest.end(session);
        self.clients.remove(&session);
        self.events.push(Event::Ended(session));
        self.reclaim_unheld(held);
    }

    /// Of these inodes, orphans that nobody holds go.
    pub fn reclaim_unheld(&mut self, inos: Vec<Ino>) {
        if self.recovering_until.is_some() {
            return;
        }
        let unheld: Vec<Ino> =
            inos.into_iter().filter(|ino| !self.interest.is_held(*ino) && self.orphans.remove(ino)).collect();
        if !unheld.is_empty() {
            self.work.push(Work::Reclaim(unheld));
        }
    }

    /// Time passes, the peer is who it says, and its lease goes on: tells whether it does.
    pub fn admit(&mut self, now: Duration, peer: Peer) -> Result<bool, Fault> {
        self.lapse(now);
        self.sessions.check(peer)?;
        self.connected(peer.session);
        Ok(self.renew(now, peer.session))
    }

    /// Renews the lease, unless the session owes an ack for so long that others should not wait another lease for it.
    pub fn renew(&mut self, now: Duration, session: SessionId) -> bool {
        let oldest = self.clients.get(&session).and_then(|client| client.outbox.oldest());
        let behind = oldest.is_some_and(|since| now >= since + self.settings.lease / 3);
        if !behind {
            self.sessions.renew(session, now);
        }
        !behind
    }

    pub fn head(&self, session: SessionId, cacheable: bool, renewed: bool) -> ReplyHead {
        let stamp = self.clients.get(&session).map_or(0, |client| client.outbox.stamp());
        let (life, synced) = (self.life, self.store.synced().0);
        ReplyHead { cacheable, renewed, stamp, life, synced, record: 0 }
    }

    pub fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// What changes touched: tells the other sessions that may have cached it, and what to wait for.
    pub fn invalidate(&mut self, by: SessionId, touched: &[Invalidation], now: Duration) -> Vec<(SessionId, u64)> {
        let mut waits = Vec::new();
        if Bug::PushNotSent.is_planted() {
            return waits;
        }
        for item in touched {
            let Some(ino) = item.ino() else { continue };
            self.interest.stamp(ino);
            let concerned = match item {
                Invalidation::Attr(_) => self.interest.cachers(ino, ATTR, true, by),
                Invalidation::Data(_) => self.interest.cachers(ino, ATTR | DATA, true, by),
                Invalidation::Extents(_) => self.interest.cachers(ino, DATA, false, by),
                Invalidation::Entry(..) => self.interest.cachers(ino, ENTRIES, false, by),
                Invalidation::Inode(_) => self.interest.cachers(ino, ATTR | DATA | ENTRIES, true, by),
                Invalidation::Unlinked(_) => {
                    self.orphans.insert(ino);
                    self.interest.keep(ino, by)
                }
                Invalidation::Everything => Vec::new(),
            };
            for session in concerned {
                if self.sessions.state(session) == Some(Liveness::Live) {
                    self.push(session, item.clone(), now);
                }
            }
            // Whoever was told before, and has not said that it heard, may believe what was there before that.
            let pending = |(id, client): (&SessionId, &Client)| Some((*id, client.outbox.pending(item)?));
            waits.extend(self.clients.iter().filter(|(id, _)| **id != by).filter_map(pending));
        }
        waits
    }

    /// Pushes to one session; beyond its bound, everything.
    pub fn push(&mut self, session: SessionId, item: Invalidation, now: Duration) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        let (_, everything) = client.outbox.push(item, now);
        self.pushed = true;
        if everything {
            self.interest.drop_cached(session);
        }
    }

    pub fn acked(&mut self, session: SessionId, number: u64) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        let taken = client.outbox.ack(number);
        // There is room for more.
        self.pushed = true;
        let free = self.holds.acked(session, taken);
        self.release_holds(free);
    }

    fn release_holds(&mut self, free: Vec<(Token, Held)>) {
        for (token, Held { peer, number, reply }) in free {
            let client = self.clients.get_mut(&peer.session);
            if let (Some(number), Some(client)) = (number, client) {
                client.numbers.underway.remove(&number);
            }
            self.events.push(Event::Reply { token, peer, reply });
        }
    }
}
