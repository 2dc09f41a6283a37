//! The server as its sessions see it.

mod leases;
mod locks;
mod model;
mod once;
mod orphans;
mod power;
mod threads;

use super::*;
use crate::{
    Attr, Caller,
    records::mode,
    rpc::{
        client::{self, Answer},
        message::*,
        values::Name,
    },
    store::{MemoryLog, MemoryTables, MetaStore, Options, replay},
};
use sluice_base::ManualClock;
use std::cell::{Cell, RefCell};

const CALLER: Caller = Caller { uid: 0, gid: 0 };

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).expect("a name")
}

fn at(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A server over memory, with a clock that stands until it is moved.
struct Rig {
    server: Server,
    log: Arc<MemoryLog>,
    clock: Arc<ManualClock>,
    now: Cell<Duration>,
    numbers: RefCell<std::collections::HashMap<SessionId, u64>>,
}

impl Rig {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let (log, clock) = (Arc::new(MemoryLog::default()), Arc::new(ManualClock::default()));
        let store = MetaStore::new(Arc::new(MemoryTables::default()), log.clone(), Seq(0), Options::default());
        let names = Namespace::new(Arc::new(store), clock.clone());
        names.format(CALLER).expect("a root");
        let server = Server::open(Arc::new(names), settings, at(0)).expect("opened");
        server.poll(at(0));
        Self { server, log, clock, now: Cell::new(at(0)), numbers: RefCell::default() }
    }

    /// The server is killed, and another one starts from the log.
    fn restart(self) -> Self {
        let tables = MemoryTables::default();
        for (seq, _, record) in self.log.records() {
            replay(&tables, seq, &record, &mut |_, _, _| {}).expect("replayed");
        }
        let store = MetaStore::new(Arc::new(tables), self.log.clone(), self.log.last(), Options::default());
        let names = Namespace::new(Arc::new(store), self.clock.clone());
        let server = Server::open(Arc::new(names), Settings::default(), self.now.get()).expect("opened");
        Self { server, ..self }
    }

    /// The server's host loses its power, and another server starts from what is left of the log.
    fn lose_power(self) -> Self {
        self.log.lose_power();
        self.restart()
    }

    fn advance(&self, secs: u64) {
        self.now.set(self.now.get() + at(secs));
    }

    fn begin(&self, name: &str) -> Peer {
        let body = client::request(&Begin { name: name.as_bytes() });
        match self.server.handle(self.now.get(), None, Method::Begin.number(), &body) {
            Outcome::Reply(reply) => reply.bind.expect("a session"),
            Outcome::Wait(_) => panic!("nobody to wait for"),
        }
    }

    /// Resumes a session that has nothing to send again.
    fn resume(&self, peer: Peer, take_over: bool, uses: &[Ino]) -> std::result::Result<Resumed, Fault> {
        let resumed = self.resume_only(peer, take_over, uses)?;
        self.ask(Peer { epoch: resumed.epoch, ..peer }, &Resent { barred: 0 })?;
        Ok(resumed)
    }

    fn resume_only(&self, peer: Peer, take_over: bool, uses: &[Ino]) -> std::result::Result<Resumed, Fault> {
        let claim = Claim { epoch: peer.epoch + 1, secret: 7 };
        self.resume_as(peer, take_over.then_some(claim), uses)
    }

    fn resume_as(&self, peer: Peer, take_over: Option<Claim>, uses: &[Ino]) -> std::result::Result<Resumed, Fault> {
        let Peer { session, epoch } = peer;
        let call = Resume { session, epoch, take_over, uses: uses.to_vec() };
        let outcome = self.server.handle(self.now.get(), None, Method::Resume.number(), &client::request(&call));
        if let Outcome::Reply(Reply { bind: Some(peer), .. }) = &outcome {
            self.server.connected(*peer);
        }
        answer::<Resume>(&outcome).answer.map(|changed| changed.value)
    }

    fn send<'a, C: Call<'a>>(&self, peer: Peer, call: &C) -> Outcome {
        if C::METHOD.effect() == Effect::Change {
            *self.numbers.borrow_mut().entry(peer.session).or_default() += 1;
        }
        self.send_same(peer, call)
    }

    /// Sends under the last number.
    fn send_same<'a, C: Call<'a>>(&self, peer: Peer, call: &C) -> Outcome {
        let number = self.numbers.borrow().get(&peer.session).copied().unwrap_or(0);
        let body = client::change(call, Number { number, seen_up_to: number.saturating_sub(1), again: None });
        self.server.handle(self.now.get(), Some(peer), C::METHOD.number(), &body)
    }

    /// Asks and is answered at once.
    fn ask<'a, C: Call<'a>>(&self, peer: Peer, call: &C) -> std::result::Result<C::Reply, Fault> {
        answer::<C>(&self.send(peer, call)).answer.map(|changed| changed.value)
    }

    fn create(&self, peer: Peer, path: &str) -> Attr {
        self.ask(peer, &self.creation(path, mode::REGULAR)).expect("created")
    }

    fn creation<'n>(&self, path: &'n str, kind: u32) -> Create<'n> {
        Create { dir: Ino::ROOT, name: name(path), mode: kind | 0o644, rdev: 0, target: b"", caller: CALLER }
    }

    fn lookup(&self, peer: Peer, path: &str) -> std::result::Result<Attr, Fault> {
        self.ask(peer, &Lookup { dir: Ino::ROOT, name: name(path) })
    }

    /// Whoever asks only when something is due misses nothing but what time brings.
    fn poll(&self) -> Vec<Event> {
        let now = self.now.get();
        self.server.sessions(now);
        let due = self.server.is_due();
        let events = self.server.poll(now);
        assert!(due || events.is_empty(), "{events:?} would have waited");
        events
    }

    /// What is pushed to `peer` now, acked.
    fn pushed(&self, peer: Peer) -> Vec<Invalidation> {
        let (mut items, mut up_to) = (Vec::new(), 0);
        for event in self.poll() {
            match event {
                Event::Push { peer: to, body } if to == peer => {
                    let (push, ack) = client::push(&body).expect("a push");
                    items.extend(push.items);
                    up_to = ack.up_to;
                }
                other => panic!("not expected: {other:?}"),
            }
        }
        self.server.acked(self.now.get(), peer, up_to);
        items
    }

    /// Tokens of the answers that go now.
    fn released(&self) -> Vec<Token> {
        self.poll()
            .into_iter()
            .filter_map(|event| if let Event::Reply { token, .. } = event { Some(token) } else { None })
            .collect()
    }
}

fn answer<'a, C: Call<'a>>(outcome: &Outcome) -> Answer<C::Reply> {
    match outcome {
        Outcome::Reply(reply) => client::reply::<C>(&reply.body).expect("an answer that parses"),
        Outcome::Wait(token) => panic!("waits as {token:?}"),
    }
}

fn token(outcome: &Outcome) -> Token {
    match outcome {
        Outcome::Wait(token) => *token,
        Outcome::Reply(reply) => panic!("answered at once: {reply:?}"),
    }
}
