//! Locks of files across sessions. docs/metadata-rpc.md, "Locks", has the rules.
//!
//! They are kept in memory alone: after a restart each session asserts again what it holds, within its grace, and until the last
//! one has, nobody gets a new lock. A session whose lease ends has lost its locks, and must have been told so before it gets others.

mod waits;

use super::{Event, Outcome, Reply, Server, State, ready};
use crate::rpc::{
    fault::Fault,
    holds::Token,
    locks::{LockKind, LockMode, LockRange, RangeLocks},
    message::*,
    sessions::Peer,
    values::encode,
};
use sluice_base::{Ino, Seq, SessionId};
use sluice_run::collections::{HashMap, HashSet};
use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

/// Locks of one session: some 50 bytes each.
const LOCKS_MAX: usize = 64 << 10;
/// Answers of one session that wait for a lock: each keeps one of the 64 requests of a connection under way. Beyond, it has to ask
/// now and then.
const WAITERS_MAX: usize = 32;
/// Owners are told apart so far by the highest attempt: one that finds a stranger's counts as overtaken, and is sent again.
const STRIPES: usize = 64;

/// Who holds a lock.
type Owner = (SessionId, u64);

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Locks {
    files: HashMap<Ino, FileLocks>,
    /// Files that somebody waits for.
    waited: BTreeSet<Ino>,
    clients: HashMap<SessionId, Client>,
    /// Sessions of an earlier run that have not said yet what they hold.
    owing: HashSet<SessionId>,
    /// Answers that need not wait any longer.
    due: Vec<(Waiter, LockAnswer)>,
}

#[derive(Debug, Default)]
struct FileLocks {
    record: RangeLocks<Owner>,
    flock: RangeLocks<Owner>,
    waiters: VecDeque<Waiter>,
}

/// An answer that waits.
#[derive(Clone, Debug)]
struct Waiter {
    peer: Peer,
    token: Token,
    renewed: bool,
    ask: Lock,
    mode: LockMode,
}

impl Waiter {
    fn owner(&self) -> Owner {
        (self.peer.session, self.ask.owner)
    }
}

/// A session that has, or had, locks.
#[derive(Debug)]
struct Client {
    /// Its lease ended; true once it was told.
    lost: Option<bool>,
    /// Nothing up to here is done any more, whatever its owner.
    floor: u64,
    attempts: [u64; STRIPES],
    locks: usize,
    waiters: usize,
}

impl Default for Client {
    fn default() -> Self {
        Self { lost: None, floor: 0, attempts: [0; STRIPES], locks: 0, waiters: 0 }
    }
}

impl FileLocks {
    fn of(&self, kind: LockKind) -> &RangeLocks<Owner> {
        match kind {
            LockKind::Record => &self.record,
            LockKind::Flock => &self.flock,
        }
    }

    fn of_mut(&mut self, kind: LockKind) -> &mut RangeLocks<Owner> {
        match kind {
            LockKind::Record => &mut self.record,
            LockKind::Flock => &mut self.flock,
        }
    }

    fn is_empty(&self) -> bool {
        self.record.is_empty() && self.flock.is_empty() && self.waiters.is_empty()
    }
}

impl Client {
    /// Whether this attempt may be done: nothing that was sent behind it has been.
    fn admit(&mut self, ask: &Lock) -> bool {
        match self.lost {
            Some(false) => return false,
            Some(true) if ask.attempt > self.floor => self.lost = None,
            _ => {}
        }
        let stripe = &mut self.attempts[(ask.ino.0 ^ ask.owner) as usize % STRIPES];
        let is_next = ask.attempt > self.floor && ask.attempt > *stripe;
        if is_next {
            *stripe = ask.attempt;
        }
        is_next
    }
}

impl Locks {
    /// A session of an earlier run: it may hold anything until it says so.
    pub fn load(&mut self, session: SessionId) {
        self.owing.insert(session);
    }

    /// Those that have not said what they hold by now hold nothing.
    pub fn end_grace(&mut self) {
        for session in std::mem::take(&mut self.owing) {
            self.clients.entry(session).or_default().lost = Some(false);
        }
    }

    /// A session's lease ended.
    pub fn lapsed(&mut self, session: SessionId) {
        if self.owing.remove(&session) {
            self.clients.entry(session).or_default();
        }
        // One that never asked for a lock has none to lose.
        if self.clients.contains_key(&session) {
            self.drop_all(session);
            self.clients.entry(session).or_default().lost = Some(false);
        }
    }

    /// Whether a session has lost its locks and does not know yet.
    pub fn is_lost(&self, session: SessionId) -> bool {
        self.clients.get(&session).is_some_and(|client| client.lost == Some(false))
    }

    /// A session ended, or begins anew.
    pub fn ended(&mut self, session: SessionId) {
        self.owing.remove(&session);
        if self.clients.contains_key(&session) {
            self.drop_all(session);
            self.clients.remove(&session);
        }
    }

    fn drop_all(&mut self, session: SessionId) {
        let mut freed = Vec::new();
        for (ino, file) in &mut self.files {
            let before = file.record.len() + file.flock.len() + file.waiters.len();
            file.record.retain(|lock| lock.owner.0 != session);
            file.flock.retain(|lock| lock.owner.0 != session);
            let (gone, left): (VecDeque<Waiter>, VecDeque<Waiter>) =
                file.waiters.drain(..).partition(|waiter| waiter.peer.session == session);
            file.waiters = left;
            self.due.extend(gone.into_iter().map(|waiter| (waiter, LockAnswer::Overtaken)));
            if file.record.len() + file.flock.len() + file.waiters.len() < before {
                freed.push(*ino);
            }
        }
        if let Some(client) = self.clients.get_mut(&session) {
            (client.locks, client.waiters) = (0, 0);
        }
        freed.into_iter().for_each(|ino| self.wake(ino));
    }

    /// Does what is asked; `None` when the answer has to wait, as `token`.
    fn lock(&mut self, peer: Peer, token: Token, renewed: bool, ask: &Lock) -> Option<LockAnswer> {
        let session = peer.session;
        if self.owing.contains(&session) {
            return Some(LockAnswer::Grace);
        }
        if !self.clients.entry(session).or_default().admit(ask) {
            return Some(LockAnswer::Overtaken);
        }
        let place = self.withdraw(session, ask.ino, ask.call);
        let owner = (session, ask.owner);
        let Some(mode) = ask.mode else {
            self.set(owner, ask, None);
            return Some(LockAnswer::Granted);
        };
        if !self.owing.is_empty() {
            return Some(LockAnswer::Grace);
        }
        let file = self.files.entry(ask.ino).or_default();
        if ask.kind == LockKind::Flock && file.flock.holds_otherwise(owner, ask.range, mode) {
            // flock(2): to convert a lock is to drop it and to take another.
            self.set(owner, ask, None);
        }
        if self.is_free(owner, ask, mode) {
            if self.clients.get(&session).is_some_and(|client| client.locks >= LOCKS_MAX) {
                return Some(LockAnswer::TooMany);
            }
            self.set(owner, ask, Some(mode));
            return Some(LockAnswer::Granted);
        }
        if !ask.wait {
            return Some(LockAnswer::Busy);
        }
        if ask.kind == LockKind::Record && self.would_deadlock(owner, ask, mode) {
            return Some(LockAnswer::Deadlock);
        }
        let client = self.clients.entry(session).or_default();
        if client.waiters >= WAITERS_MAX {
            return Some(LockAnswer::Busy);
        }
        client.waiters += 1;
        let file = self.files.entry(ask.ino).or_default();
        // Who asks again, over another connection, comes no later for it.
        let place = place.map_or(file.waiters.len(), |place| place.min(file.waiters.len()));
        file.waiters.insert(place, Waiter { peer, token, renewed, ask: ask.clone(), mode });
        self.waited.insert(ask.ino);
        None
    }

    fn is_free(&self, owner: Owner, ask: &Lock, mode: LockMode) -> bool {
        let file = self.files.get(&ask.ino);
        file.is_none_or(|file| file.of(ask.kind).in_the_way(owner, ask.range, mode).is_none())
    }

    /// Sets what an owner holds, and lets those go on who waited for it.
    fn set(&mut self, owner: Owner, ask: &Lock, mode: Option<LockMode>) {
        let range = if ask.kind == LockKind::Flock { LockRange::WHOLE } else { ask.range };
        let locks = self.files.entry(ask.ino).or_default().of_mut(ask.kind);
        let before = locks.len();
        locks.set(owner, range, mode, ask.pid);
        let after = locks.len();
        let client = self.clients.entry(owner.0).or_default();
        client.locks = (client.locks + after).saturating_sub(before);
        self.wake(ask.ino);
    }

    /// An earlier attempt of this call waits no longer; tells its place.
    fn withdraw(&mut self, session: SessionId, ino: Ino, call: u64) -> Option<usize> {
        let file = self.files.get_mut(&ino)?;
        let mine = |waiter: &Waiter| waiter.peer.session == session && waiter.ask.call == call;
        let place = file.waiters.iter().position(mine)?;
        let waiter = file.waiters.remove(place)?;
        self.due.push((waiter, LockAnswer::Overtaken));
        if let Some(client) = self.clients.get_mut(&session) {
            client.waiters -= 1;
        }
        self.tidy(ino);
        Some(place)
    }

    /// Gives waiters what is free now, in the order in which they came.
    fn wake(&mut self, ino: Ino) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let mut at = 0;
        while let Some(waiter) = file.waiters.get(at) {
            let (kind, range) = (waiter.ask.kind, waiter.ask.range);
            if file.of(kind).in_the_way(waiter.owner(), range, waiter.mode).is_some() {
                at += 1;
                continue;
            }
            let Some(waiter) = file.waiters.remove(at) else { break };
            let client = self.clients.entry(waiter.peer.session).or_default();
            client.waiters -= 1;
            let answer = if client.locks >= LOCKS_MAX {
                LockAnswer::TooMany
            } else {
                let locks = file.of_mut(kind);
                let before = locks.len();
                locks.set(waiter.owner(), range, Some(waiter.mode), waiter.ask.pid);
                client.locks = (client.locks + locks.len()).saturating_sub(before);
                // What it held of this in another way may be what somebody before it waits for.
                at = 0;
                LockAnswer::Granted
            };
            self.due.push((waiter, answer));
        }
        self.tidy(ino);
    }

    fn tidy(&mut self, ino: Ino) {
        let Some(file) = self.files.get(&ino) else { return };
        if file.waiters.is_empty() {
            self.waited.remove(&ino);
        }
        if file.is_empty() {
            self.files.remove(&ino);
        }
    }

    fn test(&self, session: SessionId, ask: &TestLock) -> LockTest {
        if !self.owing.is_empty() {
            return LockTest::Grace;
        }
        let owner = (session, ask.owner);
        let found = self.files.get(&ask.ino).and_then(|file| file.of(ask.kind).in_the_way(owner, ask.range, ask.mode));
        found.map_or(LockTest::Free, |lock| {
            // A process of another host means nothing here.
            let pid = if lock.owner.0 == session { lock.pid } else { 0 };
            LockTest::Held(LockInTheWay { range: lock.range, mode: lock.mode, pid })
        })
    }

    /// A session says what it holds; whether it still does.
    fn assert(&mut self, session: SessionId, ask: &AssertLocks) -> bool {
        let client = self.clients.entry(session).or_default();
        if ask.attempt <= client.floor {
            return false;
        }
        client.floor = ask.attempt;
        if client.lost.is_some() {
            client.lost = Some(true);
            return false;
        }
        for lock in &ask.locks {
            let owner = (session, lock.owner);
            let file = self.files.entry(lock.ino).or_default();
            let is_free = file.of(lock.kind).in_the_way(owner, lock.range, lock.mode).is_none();
            let client = self.clients.entry(session).or_default();
            if !is_free || client.locks >= LOCKS_MAX {
                tracing::error!(%session, ino = lock.ino.0, "a lock that was held before belongs to somebody else");
                self.drop_all(session);
                self.owing.remove(&session);
                self.clients.entry(session).or_default().lost = Some(true);
                return false;
            }
            let locks = file.of_mut(lock.kind);
            let before = locks.len();
            locks.set(owner, lock.range, Some(lock.mode), lock.pid);
            client.locks = (client.locks + locks.len()).saturating_sub(before);
        }
        if ask.last {
            self.owing.remove(&session);
        }
        true
    }
}

impl Server {
    /// Answers a request about locks.
    pub(super) fn of_locks(&self, now: Duration, peer: Peer, request: &Request<'_>) -> Result<Outcome, Fault> {
        let mut state = self.state.lock();
        let renewed = state.admit(now, peer)?;
        let answer = match request {
            Request::Lock(ask) => {
                let token = state.token();
                let answer = state.locks.lock(peer, token, renewed, ask);
                state.answer_locks();
                let Some(answer) = answer else { return Ok(Outcome::Wait(token)) };
                encode(&answer)
            }
            Request::TestLock(ask) => encode(&state.locks.test(peer.session, ask)),
            Request::AssertLocks(ask) => {
                let held = state.locks.assert(peer.session, ask);
                state.answer_locks();
                encode(&held)
            }
            _ => return Err(Fault::Malformed),
        };
        Ok(ready(state.head(peer.session, false, renewed).encode(Ok(&answer))))
    }
}

impl State {
    /// Sends the answers that waited for locks and do so no longer.
    pub fn answer_locks(&mut self) {
        for (waiter, answer) in std::mem::take(&mut self.locks.due) {
            let body = self.head(waiter.peer.session, false, waiter.renewed).encode(Ok(&encode(&answer)));
            let reply = Reply { body, durable: Seq(0), stored: false, bind: None };
            self.events.push(Event::Reply { token: waiter.token, peer: waiter.peer, reply });
        }
    }
}
