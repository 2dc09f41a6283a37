//! Requests that change the volume: in a transaction with their result, then told to all whom they concern.

use super::{Outcome, Reply, Server, numbers::Admitted, ready, settling::Deferred, state::*};
use crate::{
    Attr, DataChange, Error, Moved, Namespace, NewNode,
    extent::FileExtents,
    namespace::{Effects, InSession, Once},
    records::{Inode, ObjectState, mode},
    rpc::{
        codec::Wire,
        fault::Fault,
        holds::Token,
        interest::{ATTR, DATA, ENTRIES, Grant, Noted},
        message::*,
        sessions::Peer,
        values::encode,
    },
    store::Txn,
};
use sluice_base::{Ino, ObjectId, Seq, SessionId};
use sluice_run::lock::Mutex;
use std::{collections::BTreeSet, time::Duration};

/// A change under way.
struct Running<'r> {
    now: Duration,
    peer: Peer,
    renewed: bool,
    /// Its number, if it has one.
    number: Option<u64>,
    /// It was answered before.
    again: bool,
    token: Token,
    since: u64,
    request: &'r Request<'r>,
}

/// Inodes that a change is about to remove, kept from being noted until it is over.
#[derive(Default)]
struct Doomed(Mutex<BTreeSet<Ino>>);

impl Server {
    /// Answers a request of [`Effect::Change`] or [`Effect::Touch`].
    /// `waited` is its token when it waited.
    pub(super) fn change(
        &self,
        now: Duration,
        peer: Peer,
        parsed: &Parsed<'_>,
        body: &[u8],
        waited: Option<Token>,
    ) -> Result<Outcome, Fault> {
        let numbered = parsed.request.method().effect() == Effect::Change;
        let mut state = self.state.lock();
        let renewed = state.admit(now, peer)?;
        let opens = matches!(parsed.request, Request::Create(_) | Request::CreateUnnamed(_));
        // A number that was asked for before may have its answer, which needs no room.
        let again = parsed.number.again;
        let is_new = again.is_none() && parsed.number.number > state.highest_number(peer.session);
        if opens && is_new && state.interest.counts(peer.session).1 >= state.settings.inodes_max {
            return Err(Fault::TooManyOpen);
        }
        let admitted = if numbered {
            state.admit_change(peer.session, parsed.number, waited)?
        } else {
            Admitted::Run { token: waited.unwrap_or_else(|| state.token()), since: state.interest.now(), forget: 0..0 }
        };
        let (token, since, forget) = match admitted {
            Admitted::Run { token, since, forget } => (token, since, forget),
            Admitted::Wait(token) => return Ok(Outcome::Wait(token)),
            Admitted::Refused(fault) => {
                let head = state.head(peer.session, false, renewed);
                return Ok(ready(head.encode(Err(&fault))));
            }
        };
        let is_locked = matches!(&parsed.request, Request::Publish(publish) if publish.locked);
        // What is sent again was done while the lock was held.
        let barred = is_locked && again.is_none() && state.locks.is_lost(peer.session);
        drop(state);
        let number = numbered.then_some(parsed.number.number);
        let made = again.filter(|ino| *ino != Ino(0));
        let (session, epoch) = (peer.session, peer.epoch);
        let view = self.names.in_session(Once { session, epoch, number, forget, again: made, barred });
        let doomed = Doomed::default();
        let result = self.apply(&view, peer, &parsed.request, &doomed);
        let effects = view.effects();
        let dirs = if result.is_ok() && !effects.replayed { self.dirs(&parsed.request) } else { Vec::new() };
        let again = again.is_some();
        let running = Running { now, peer, renewed, number, again, token, since, request: &parsed.request };
        let mut state = self.state.lock();
        self.spare(&mut state, &doomed.0.into_inner().into_iter().collect::<Vec<_>>());
        Ok(match result {
            Ok(attr) if !effects.fenced => state.done(&running, effects, attr, dirs),
            Ok(_) => state.failed(&running, &Fault::Fenced),
            Err(_) if effects.fenced => state.failed(&running, &Fault::Fenced),
            Err(_) if effects.barred => state.failed(&running, &Fault::LocksLost),
            Err(_) if running.again && state.may_come_later(peer.session) => {
                state.wait_again(Deferred::new(token, peer, parsed, body));
                Outcome::Wait(token)
            }
            Err(fault) => state.failed(&running, &fault),
        })
    }

    /// Whether an inode must outlive its last name.
    fn in_use(&self, doomed: &Doomed, ino: Ino) -> bool {
        let mut state = self.state.lock();
        let held = state.recovering_until.is_some() || state.interest.is_held(ino);
        if !held && doomed.0.lock().insert(ino) {
            *state.removing.entry(ino).or_default() += 1;
        }
        held
    }

    /// Inodes that were to be removed are gone, or stay.
    pub(super) fn spare(&self, state: &mut State, inos: &[Ino]) {
        for ino in inos {
            if let Some(count) = state.removing.get_mut(ino) {
                *count -= 1;
                if *count == 0 {
                    state.removing.remove(ino);
                }
            }
        }
        if !inos.is_empty() {
            self.removed.notify_all();
        }
    }

    /// Runs the operation; tells the attributes that its answer has, and whether they are of something new.
    fn apply(
        &self,
        names: &InSession,
        peer: Peer,
        request: &Request<'_>,
        doomed: &Doomed,
    ) -> Result<Option<Attr>, Fault> {
        let in_use = |ino| self.in_use(doomed, ino);
        let some = |attr: crate::store::Committed<Attr>| Some(attr.value);
        Ok(match request {
            Request::Create(Create { dir, name, mode, rdev, target, caller }) => {
                some(names.create(*dir, name.bytes(), NewNode { mode: *mode, rdev: *rdev, target }, *caller)?)
            }
            Request::CreateUnnamed(CreateUnnamed { dir, mode, caller }) => {
                if mode & mode::TYPE != mode::REGULAR {
                    return Err(Error::Invalid("only a regular file has no name").into());
                }
                some(names.create_unnamed(*dir, *mode, *caller)?)
            }
            Request::Link(Link { ino, dir, name }) => some(names.link(*ino, *dir, name.bytes())?),
            Request::Unlink(Unlink { dir, name }) => names.unlink(*dir, name.bytes(), &in_use).map(|_| None)?,
            Request::Rmdir(Rmdir { dir, name }) => names.rmdir(*dir, name.bytes(), &in_use).map(|_| None)?,
            Request::Rename(Rename { from_dir, from, to_dir, to, how }) => {
                let (from, to) = ((*from_dir, from.bytes()), (*to_dir, to.bytes()));
                names.rename(from, to, *how, &in_use).map(|_| None)?
            }
            Request::Setattr(Setattr { ino, set }) => some(names.setattr(*ino, set)?),
            Request::UpdateAtime(UpdateAtime { ino, at }) => names.update_atime(*ino, *at).map(|()| None)?,
            Request::Setxattr(Setxattr { ino, name, value, how }) => {
                names.setxattr(*ino, name, value, *how).map(|_| None)?
            }
            Request::Removexattr(Removexattr { ino, name }) => names.removexattr(*ino, name).map(|_| None)?,
            Request::Publish(publish) => Some(self.publish(names, peer, publish)?.attr),
            Request::ObjectStored(ObjectStored { id, segments, bytes }) => {
                names.object_stored(*id, *segments, *bytes).map(|_| None)?
            }
            Request::ForgetObject(ForgetObject { id }) => names.forget_object(*id).map(|_| None)?,
            // The others change nothing, and are not brought here.
            _ => return Err(Fault::Malformed),
        })
    }

    fn publish(&self, names: &InSession, peer: Peer, publish: &Publish<'_>) -> Result<Published, Fault> {
        // Extents are planned outside the transaction, against what is loaded: one publish of a file at a time.
        let _one = self.stripe(publish.ino).lock();
        let mut extents = FileExtents::default();
        for extent in publish.extents.list() {
            names.load_extents(publish.ino, &mut extents, extent.offset..extent.offset + extent.len)?;
        }
        let needed = self.needed(publish)?;
        let change = DataChange {
            needed,
            extents: publish.extents.list().to_vec(),
            body: publish.body.map(|body| body.map(|body| body.bytes())),
            size: publish.size,
            new_objects: publish.new_objects.iter().map(|id| (*id, peer.session)).collect(),
            kill_suidgid: publish.kill_suidgid,
            touch: publish.mtime.is_some(),
            ..DataChange::default()
        };
        let tell = |txn: &mut Txn<'_>, inode: &Inode| Namespace::published(txn, publish.ino, inode);
        Ok(names.change_data_at(publish.ino, &mut extents, &change, publish.mtime, tell)?.value)
    }

    /// Objects that a publish, which may be of long ago, needs and that are deleted, or may be at any moment. The transaction asks again, which
    /// others' changes of them then delay.
    fn needed(&self, publish: &Publish<'_>) -> Result<Vec<ObjectId>, Error> {
        let new: BTreeSet<_> = publish.new_objects.iter().collect();
        let used: BTreeSet<_> = publish.extents.list().iter().filter_map(|extent| Some(extent.place?.object)).collect();
        let mut needed = Vec::new();
        for object in used.into_iter().filter(|object| !new.contains(object)) {
            if self.names.object(object)?.is_none_or(|record| record.state == ObjectState::Tombstone) {
                needed.push(object);
            }
        }
        Ok(needed)
    }

    /// Lets the bytes `moved` of a file be found where they were moved to, and tells who may have cached where they were; nobody is waited for, as
    /// the bytes are in both places. Returns those that moved.
    pub fn relocate(&self, now: Duration, ino: Ino, moved: &[Moved]) -> Result<u64, Error> {
        let _one = self.stripe(ino).lock();
        let bytes = self.names.relocate(ino, &mut FileExtents::default(), moved)?;
        if bytes > 0 {
            self.state.lock().invalidate(SessionId(0), &[Invalidation::Extents(ino)], now);
        }
        Ok(bytes)
    }

    /// The directories whose entries a request changed, as they are now.
    fn dirs(&self, request: &Request<'_>) -> Vec<Attr> {
        let dirs = match request {
            Request::Create(Create { dir, .. })
            | Request::Link(Link { dir, .. })
            | Request::Unlink(Unlink { dir, .. })
            | Request::Rmdir(Rmdir { dir, .. }) => vec![*dir],
            Request::Rename(Rename { from_dir, to_dir, .. }) if from_dir == to_dir => vec![*from_dir],
            Request::Rename(Rename { from_dir, to_dir, .. }) => vec![*from_dir, *to_dir],
            _ => Vec::new(),
        };
        let found: Result<Vec<Attr>, Error> = dirs.into_iter().map(|dir| self.names.getattr(dir)).collect();
        found.unwrap_or_default()
    }
}

impl State {
    fn failed(&mut self, running: &Running<'_>, fault: &Fault) -> Outcome {
        let (peer, fault) = (running.peer, encode(fault));
        let body = self.head(peer.session, false, running.renewed).encode(Err(&fault));
        let reply = Reply { body, durable: Seq(0), stored: false, bind: None };
        if let Some(number) = running.number {
            self.refused(peer.session, number, fault);
            self.answered(peer, number, &reply);
        }
        Outcome::Reply(reply)
    }

    /// The change is committed: tells whom it concerns, and answers now or when they have taken it.
    fn done(
        &mut self,
        running: &Running<'_>,
        mut effects: Effects,
        attr: Option<Attr>,
        mut dirs: Vec<Attr>,
    ) -> Outcome {
        let (peer, now) = (running.peer, running.now);
        let mut grants = grants(running.request, attr.as_ref());
        // Another change of the same inode since this one began: which came first is not known here.
        let stale = effects.replayed || self.interest.is_stale(&grants, running.since);
        let of_dirs: Vec<Grant> =
            dirs.iter().map(|dir| Grant { ino: dir.ino, cached: ATTR | ENTRIES, used: false }).collect();
        if stale || self.interest.is_stale(&of_dirs, running.since) {
            dirs.clear();
        }
        let mut waits = self.invalidate(peer.session, &effects.touched, now);
        if running.again {
            // It was so before for everybody.
            waits.clear();
        }
        // The session drops what it touched, as it is told with the answer, and then caches the answer.
        if stale {
            grants.iter_mut().for_each(|grant| grant.cached = 0);
        }
        if !dirs.is_empty() {
            grants.extend(of_dirs);
        }
        let mut noted = false;
        if self.sessions.check(peer).is_ok()
            && let Noted::Yes(fallen) = self.interest.note(peer.session, &grants, u64::MAX)
        {
            noted = true;
            for ino in fallen {
                self.push(peer.session, Invalidation::Inode(ino), now);
            }
        }
        self.reclaim_unheld(effects.touched.iter().filter_map(Invalidation::ino).collect());
        let cacheable = noted && !stale && !grants.is_empty();
        dirs.put(&mut effects.answer);
        let record = if running.number.is_some() { effects.seq.0 } else { 0 };
        let head = ReplyHead { record, ..self.head(peer.session, cacheable, running.renewed) };
        let durable = if is_kept(running.request) { Seq(0) } else { effects.seq };
        let reply = Reply { body: head.encode(Ok(&effects.answer)), durable, stored: false, bind: None };
        if !waits.is_empty() {
            self.holds.hold(running.token, &waits, Held { peer, number: running.number, reply });
            return Outcome::Wait(running.token);
        }
        if let Some(number) = running.number {
            self.answered(peer, number, &reply);
        }
        Outcome::Reply(reply)
    }
}

/// Whether nothing is lost when the power goes after the answer: the session sends it again, or it is an access time.
fn is_kept(request: &Request<'_>) -> bool {
    request.method().effect() == Effect::Change || matches!(request, Request::UpdateAtime(_))
}

/// What the session caches with the answer to its own change, but for the directories.
fn grants(request: &Request<'_>, attr: Option<&Attr>) -> Vec<Grant> {
    let Some(attr) = attr else { return Vec::new() };
    // Of what is new everything is known: that it is empty.
    let is_new = matches!(request, Request::Create(_) | Request::CreateUnnamed(_));
    let cached = match request {
        Request::Publish(_) => ATTR | DATA,
        _ if is_new && attr.is_file() => ATTR | DATA,
        _ if is_new && attr.is_dir() => ATTR | ENTRIES,
        _ => ATTR,
    };
    // A new file is open, as far as is known here.
    vec![Grant { ino: attr.ino, cached, used: is_new && attr.is_file() }]
}
