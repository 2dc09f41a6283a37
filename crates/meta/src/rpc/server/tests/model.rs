//! Three sessions with caches that hold what grants allow and drop what pushes name, over random operations and random delays
//! of answers, pushes and acks.
//!
//! Oracle: once the answer to a change was let go, no live session's cache holds what was there before; when nothing is under
//! way any more, every cache says what the namespace says.

use super::*;
use crate::{RenameMode, SetAttributes};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Lookup(usize, usize),
    Getattr(usize, usize),
    Create(usize, usize),
    Unlink(usize, usize),
    Rename(usize, usize, usize),
    Chmod(usize, usize, u32),
    /// A session takes the oldest or the newest answer that is on its way to it.
    Arrive(usize, bool),
    /// Everything that is due is sent.
    Poll,
    /// A session takes the next push, and its ack arrives.
    Take(usize),
    Reconnect(usize),
    /// A session gives back an inode.
    Release(usize, usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (who, what) = (0..3usize, 0..5usize);
    prop_oneof![
        6 => (who.clone(), what.clone()).prop_map(|(a, b)| Step::Lookup(a, b)),
        4 => (who.clone(), what.clone()).prop_map(|(a, b)| Step::Getattr(a, b)),
        4 => (who.clone(), what.clone()).prop_map(|(a, b)| Step::Create(a, b)),
        2 => (who.clone(), what.clone()).prop_map(|(a, b)| Step::Unlink(a, b)),
        2 => (who.clone(), what.clone(), what.clone()).prop_map(|(a, b, c)| Step::Rename(a, b, c)),
        4 => (who.clone(), what.clone(), 0..0o777u32).prop_map(|(a, b, c)| Step::Chmod(a, b, c)),
        12 => (who.clone(), any::<bool>()).prop_map(|(a, b)| Step::Arrive(a, b)),
        8 => Just(Step::Poll),
        8 => who.clone().prop_map(Step::Take),
        1 => who.clone().prop_map(Step::Reconnect),
        1 => (who, what).prop_map(|(a, b)| Step::Release(a, b)),
        1 => (0..9u64).prop_map(Step::Wait),
    ]
}

/// An answer on its way.
#[derive(Clone, Debug)]
struct Answered {
    body: Vec<u8>,
    asked: Asked,
    /// The session's own changes when it asked, this one included; `None` when others of them were under way.
    own: Option<u64>,
}

#[derive(Clone, Debug)]
enum Asked {
    Lookup(String),
    Getattr,
    Create(String),
    Unlink(String),
    Rename,
    Setattr,
}

/// A session that caches as docs/metadata-rpc.md says.
struct Client {
    peer: Peer,
    attrs: BTreeMap<Ino, Attr>,
    names: BTreeMap<String, Option<Ino>>,
    /// The last push taken.
    taken: u64,
    /// Own changes asked for and answered.
    own_asked: u64,
    own_answered: u64,
    answers: VecDeque<Answered>,
    pushes: VecDeque<Vec<u8>>,
    held: BTreeMap<Token, Answered>,
    lease_until: Duration,
}

impl Client {
    fn drop_item(&mut self, item: &Invalidation) {
        match item {
            Invalidation::Attr(ino) | Invalidation::Data(ino) | Invalidation::Unlinked(ino) => {
                self.attrs.remove(ino);
            }
            Invalidation::Entry(_, name) => {
                self.names.remove(std::str::from_utf8(name).expect("our names"));
            }
            Invalidation::Inode(ino) => {
                self.attrs.remove(ino);
                if *ino == Ino::ROOT {
                    self.names.clear();
                }
            }
            Invalidation::Extents(_) => {}
            Invalidation::Everything => self.drop_all(),
        }
    }

    fn drop_all(&mut self) {
        self.attrs.clear();
        self.names.clear();
    }

    /// Takes an answer as the rules say.
    fn take(&mut self, Answered { body, asked, own }: Answered) {
        match asked {
            Asked::Lookup(name) => self.take_lookup(&body, name, own),
            Asked::Getattr => {
                let Answer { head, answer } = client::reply::<Getattr>(&body).expect("parses");
                if let (Ok(changed), true) = (answer, self.may_cache(head, own)) {
                    self.attrs.insert(changed.value.ino, changed.value);
                }
            }
            Asked::Create(name) => {
                if let Some((attr, cached)) = self.take_change::<Create<'_>>(&body, own) {
                    if cached.entries {
                        self.names.insert(name, Some(attr.ino));
                    }
                    if cached.value {
                        self.attrs.insert(attr.ino, attr);
                    }
                }
            }
            Asked::Unlink(name) => {
                if let Some((_, Cached { entries: true, .. })) = self.take_change::<Unlink<'_>>(&body, own) {
                    self.names.insert(name, None);
                }
            }
            Asked::Rename => drop(self.take_change::<Rename<'_>>(&body, own)),
            Asked::Setattr => {
                if let Some((attr, Cached { value: true, .. })) = self.take_change::<Setattr>(&body, own) {
                    self.attrs.insert(attr.ino, attr);
                }
            }
        }
    }

    fn take_lookup(&mut self, body: &[u8], name: String, own: Option<u64>) {
        let Answer { head, answer } = client::reply::<Lookup<'_>>(body).expect("parses");
        if !self.may_cache(head, own) {
            return;
        }
        match answer {
            Ok(changed) => {
                self.names.insert(name, Some(changed.value.ino));
                self.attrs.insert(changed.value.ino, changed.value);
            }
            Err(Fault::Meta(crate::Error::NotFound)) => drop(self.names.insert(name, None)),
            Err(_) => {}
        }
    }

    /// An answer is not cached when a push behind its stamp was taken, or when another change of the session's own was under way
    /// between its question and now.
    fn may_cache(&self, head: ReplyHead, own: Option<u64>) -> bool {
        head.cacheable && self.taken <= head.stamp && own == Some(self.own_asked) && own == Some(self.own_answered)
    }

    /// A change drops what it touched, and then is cached like a read, its directories too.
    fn take_change<'a, C: Call<'a>>(&mut self, body: &[u8], own: Option<u64>) -> Option<(C::Reply, Cached)> {
        self.own_answered += 1;
        let Answer { head, answer } = client::reply::<C>(body).expect("parses");
        let changed = answer.ok()?;
        changed.touched.iter().for_each(|item| self.drop_item(item));
        let value = self.may_cache(head, own);
        let entries = value && !changed.dirs.is_empty();
        if value {
            self.attrs.extend(changed.dirs.into_iter().map(|dir| (dir.ino, dir)));
        }
        Some((changed.value, Cached { value, entries }))
    }
}

/// What of the answer to a change may be cached.
struct Cached {
    value: bool,
    entries: bool,
}

struct World {
    rig: Rig,
    clients: Vec<Client>,
    inos: Vec<Ino>,
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

impl World {
    fn new(settings: Settings) -> Self {
        let rig = Rig::with(settings);
        let clients = (0..3)
            .map(|i| Client {
                peer: rig.begin(&i.to_string()),
                attrs: BTreeMap::new(),
                names: BTreeMap::new(),
                taken: 0,
                own_asked: 0,
                own_answered: 0,
                answers: VecDeque::new(),
                pushes: VecDeque::new(),
                held: BTreeMap::new(),
                lease_until: at(15),
            })
            .collect();
        Self { rig, clients, inos: vec![Ino::ROOT] }
    }

    fn ask<'a, C: Call<'a>>(&mut self, who: usize, call: &C, asked: Asked) {
        let now = self.rig.now.get();
        let outcome = self.rig.send(self.clients[who].peer, call);
        let client = &mut self.clients[who];
        let alone = client.own_asked == client.own_answered;
        if C::METHOD.effect() == Effect::Change {
            client.own_asked += 1;
        }
        let own = alone.then_some(client.own_asked);
        match outcome {
            Outcome::Reply(Reply { body, .. }) => {
                let head = client::reply::<C>(&body).expect("parses").head;
                if head.renewed {
                    client.lease_until = now + at(15);
                }
                client.answers.push_back(Answered { body, asked, own });
            }
            Outcome::Wait(token) => {
                client.held.insert(token, Answered { body: Vec::new(), asked, own });
            }
        }
    }

    fn ino(&self, what: usize) -> Ino {
        self.inos[self.inos.len().saturating_sub(1 + what)]
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Lookup(who, what) => {
                let call = Lookup { dir: Ino::ROOT, name: name(NAMES[what]) };
                self.ask(who, &call, Asked::Lookup(NAMES[what].into()));
            }
            Step::Getattr(who, what) => {
                let ino = self.ino(what);
                self.ask(who, &Getattr { ino }, Asked::Getattr);
            }
            Step::Create(who, what) => {
                let call = self.rig.creation(NAMES[what], mode::REGULAR);
                self.ask(who, &call, Asked::Create(NAMES[what].into()));
                self.inos.extend(self.rig.server.namespace().find(Ino::ROOT, NAMES[what].as_bytes()).expect("read"));
            }
            Step::Unlink(who, what) => {
                self.ask(who, &Unlink { dir: Ino::ROOT, name: name(NAMES[what]) }, Asked::Unlink(NAMES[what].into()));
            }
            Step::Rename(who, from, to) => {
                let (from, to, how) = (name(NAMES[from]), name(NAMES[to]), RenameMode::Replace);
                let call = Rename { from_dir: Ino::ROOT, from, to_dir: Ino::ROOT, to, how };
                self.ask(who, &call, Asked::Rename);
            }
            Step::Chmod(who, what, bits) => {
                let set = SetAttributes { mode: Some(bits), ..SetAttributes::default() };
                let ino = self.ino(what);
                self.ask(who, &Setattr { ino, set }, Asked::Setattr);
            }
            Step::Arrive(who, newest) => self.arrive(who, newest),
            Step::Poll => self.poll(),
            Step::Take(who) => self.take_push(who),
            Step::Reconnect(who) => self.reconnect(who),
            Step::Release(who, what) => {
                let ino = self.ino(what);
                self.clients[who].attrs.remove(&ino);
                if ino != Ino::ROOT {
                    drop(self.rig.send(self.clients[who].peer, &Release { inos: vec![ino], cached: false }));
                    // An answer that is still on its way was noted before.
                    self.clients[who].own_answered += 1;
                    self.clients[who].own_asked += 1;
                }
            }
            Step::Wait(secs) => {
                self.rig.advance(secs);
                self.lapse();
            }
        }
    }

    /// A session whose lease has ended by its own clock serves nothing from its cache.
    fn lapse(&mut self) {
        for client in &mut self.clients {
            if self.rig.now.get() >= client.lease_until {
                client.drop_all();
                client.own_asked += 1;
                client.own_answered += 1;
            }
        }
    }

    fn arrive(&mut self, who: usize, newest: bool) {
        let client = &mut self.clients[who];
        let answered = if newest { client.answers.pop_back() } else { client.answers.pop_front() };
        if let Some(answered) = answered {
            let live = self.rig.now.get() < client.lease_until;
            client.take(answered);
            if !live {
                client.drop_all();
            }
        }
    }

    fn poll(&mut self) {
        for event in self.rig.poll() {
            match event {
                Event::Push { peer, body } => self.client(peer).pushes.push_back(body),
                Event::Reply { token, peer, reply } => {
                    let client = self.client(peer);
                    let held = client.held.remove(&token).expect("it was held");
                    client.answers.push_back(Answered { body: reply.body.clone(), ..held });
                    self.check_release(peer, &reply.body);
                }
                Event::Expired(_) | Event::Ended(_) | Event::Fenced(_) => {}
            }
        }
    }

    fn client(&mut self, peer: Peer) -> &mut Client {
        self.clients.iter_mut().find(|client| client.peer.session == peer.session).expect("one of us")
    }

    fn take_push(&mut self, who: usize) {
        let client = &mut self.clients[who];
        if let Some(body) = client.pushes.pop_front() {
            let (push, ack) = client::push(&body).expect("a push");
            if push.number > client.taken {
                push.items.iter().for_each(|item| client.drop_item(item));
                client.taken = push.number;
            }
            self.rig.server.acked(self.rig.now.get(), client.peer, ack.up_to);
        }
    }

    fn reconnect(&mut self, who: usize) {
        let client = &mut self.clients[who];
        // Nothing that was on its way arrives.
        client.answers.retain(|answer| !matches!(answer.asked, Asked::Lookup(_) | Asked::Getattr));
        client.pushes.clear();
        self.rig.server.disconnected(client.peer);
        if let Ok(resumed) = self.rig.resume(client.peer, false, &[])
            && !resumed.kept
        {
            client.drop_all();
            client.taken = client.taken.max(resumed.pushes);
        }
        client.lease_until = self.rig.now.get() + at(15);
    }

    /// The answer to a change is let go: what it touched is not cached as it was, by anybody else who has a lease.
    fn check_release(&self, by: Peer, body: &[u8]) {
        let touched = client::reply::<Setxattr<'_>>(body).ok().and_then(|a| a.answer.ok()).map(|c| c.touched);
        let touched = touched.or_else(|| client::reply::<Setattr>(body).ok()?.answer.ok().map(|c| c.touched));
        for item in touched.unwrap_or_default() {
            for other in self.clients.iter().filter(|other| other.peer != by) {
                self.check_item(other, &item);
            }
        }
    }

    fn check_item(&self, client: &Client, item: &Invalidation) {
        // What is held is committed, but nobody was told so yet; nor was a session of its own change.
        let held = self.clients.iter().any(|client| !client.held.is_empty());
        let unanswered = client.own_asked != client.own_answered;
        if held || unanswered || self.rig.now.get() >= client.lease_until {
            return;
        }
        if let Invalidation::Attr(ino) = item
            && let Some(cached) = client.attrs.get(ino)
        {
            assert_eq!(Some(cached), self.rig.server.namespace().getattr(*ino).ok().as_ref(), "stale attributes");
        }
    }

    /// Lets everything arrive, and compares the caches with the truth.
    fn settle(&mut self) {
        for _ in 0..100 {
            self.poll();
            for who in 0..3 {
                while !self.clients[who].pushes.is_empty() {
                    self.take_push(who);
                }
                while !self.clients[who].answers.is_empty() {
                    self.arrive(who, false);
                }
            }
            // What is polled must be delivered: a push that nobody takes is waited for.
            if self.clients.iter().all(|client| client.held.is_empty()) && !self.rig.server.is_due() {
                break;
            }
        }
        self.lapse();
        let names = self.rig.server.namespace();
        for client in &self.clients {
            assert!(client.held.is_empty(), "an answer is held for ever");
            for (ino, cached) in &client.attrs {
                assert_eq!(
                    Some(cached),
                    names.getattr(*ino).ok().as_ref(),
                    "{}: stale attributes",
                    client.peer.session
                );
            }
            for (name, cached) in &client.names {
                let found = names.find(Ino::ROOT, name.as_bytes()).expect("read");
                assert_eq!(cached, &found, "{}: stale entry {name}", client.peer.session);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_cache_is_older_than_an_answer(
        rounds in prop::collection::vec(prop::collection::vec(step(), 1..40), 1..8),
        small: bool,
    ) {
        let bounds = if small { (3, 4) } else { (1000, 1000) };
        let mut world = World::new(Settings { inodes_max: bounds.0, pushes_max: bounds.1, ..Settings::default() });
        for round in &rounds {
            round.iter().for_each(|step| world.apply(step));
            world.settle();
        }
    }
}
