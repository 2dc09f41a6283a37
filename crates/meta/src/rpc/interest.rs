//! Which session may have cached what, in bounded memory; no I/O.
//!
//! A **holder** is a session that was told about an inode. It lasts until the session releases the inode, until it falls out of
//! the session's bound, or until the session ends; while there is one, the inode outlives its last name. What the holder may
//! have **cached** is a set of bits, which an invalidation takes away. A **use** (an open file, an orphan) never falls out.
//!
//! # Reads that meet a change
//! A read looks at the tables first and is noted here second, so a change that committed in between would go unnoticed. Each
//! invalidation therefore stamps its inode with a number that grows, and a read is noted only if no inode of its answer was
//! stamped since it began. The stamps are a table of fixed size by hash: a collision costs a second read.

use sluice_base::{Ino, SessionId};
use sluice_run::collections::{HashMap, HashSet};
use std::collections::VecDeque;

/// Attributes, target, parent.
pub const ATTR: u8 = 1;
/// Body and extents.
pub const DATA: u8 = 2;
/// Entries of a directory, and names that it lacks.
pub const ENTRIES: u8 = 4;

/// Holders of one session: 1 Mi inodes, some 64 MiB here; a mount that walks through more is told to forget the first ones.
pub const INODES_MAX: usize = 1 << 20;
/// Stamps: 16 Ki of 8 bytes.
const STAMPS: usize = 1 << 14;
/// Places of holders that are gone, in a queue that is not worth tidying up.
const QUEUE_SLACK: usize = 1024;

/// One session's part in an inode.
#[derive(Clone, Copy, Debug)]
struct Holder {
    session: SessionId,
    cached: u8,
    used: bool,
    /// Noted again since it was last looked at for room.
    fresh: bool,
    /// In its session's queue.
    queued: bool,
}

#[derive(Debug, Default)]
struct Holding {
    /// Every holder that may fall out, oldest first, and places of holders that are gone.
    queue: VecDeque<Ino>,
    /// Holders that are in the queue.
    queued: usize,
    used: HashSet<Ino>,
}

/// An answer's claim: what of which inode the session may cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The inode.
    pub ino: Ino,
    /// Bits of what.
    pub cached: u8,
    /// It is held open.
    pub used: bool,
}

/// What became of a claim.
#[derive(Debug, PartialEq, Eq)]
pub enum Noted {
    /// Noted. These inodes fell out, with something that may be cached.
    Yes(Vec<Ino>),
    /// Something changed since the read began.
    Stale,
    /// The session holds too many inodes open.
    Full,
}

/// The table.
#[derive(Debug)]
pub struct Interest {
    inodes: HashMap<Ino, Vec<Holder>>,
    sessions: HashMap<SessionId, Holding>,
    stamps: Box<[u64]>,
    clock: u64,
    inodes_max: usize,
}

impl Interest {
    /// An empty table, with this bound for each session.
    pub fn new(inodes_max: usize) -> Self {
        let stamps = vec![0; STAMPS].into_boxed_slice();
        Self { inodes: HashMap::default(), sessions: HashMap::default(), stamps, clock: 0, inodes_max }
    }

    /// The time of a read that begins now.
    pub fn now(&self) -> u64 {
        self.clock
    }

    /// Whether something that the grants are about changed after `since`.
    pub fn is_stale(&self, grants: &[Grant], since: u64) -> bool {
        grants.iter().any(|grant| self.stamps[slot(grant.ino)] > since)
    }

    /// Notes what an answer, read from `since` on, lets `session` cache.
    pub fn note(&mut self, session: SessionId, grants: &[Grant], since: u64) -> Noted {
        if self.is_stale(grants, since) {
            return Noted::Stale;
        }
        let holding = self.sessions.entry(session).or_default();
        let more = grants.iter().filter(|grant| grant.used && !holding.used.contains(&grant.ino)).count();
        if more > 0 && holding.used.len() + more > self.inodes_max {
            return Noted::Full;
        }
        for grant in grants {
            let holders = self.inodes.entry(grant.ino).or_default();
            let holder = holder_of(holders, session);
            holder.cached |= grant.cached;
            holder.fresh = true;
            holder.used |= grant.used;
            if holder.used {
                holding.used.insert(grant.ino);
            } else if !holder.queued {
                holder.queued = true;
                holding.queued += 1;
                holding.queue.push_back(grant.ino);
            }
        }
        Noted::Yes(self.make_room(session))
    }

    /// Lets the oldest holders of a session fall out that were not noted again.
    fn make_room(&mut self, session: SessionId) -> Vec<Ino> {
        let mut fallen = Vec::new();
        let Some(holding) = self.sessions.get_mut(&session) else { return fallen };
        while holding.queued > self.inodes_max {
            let Some(ino) = holding.queue.pop_front() else { break };
            let Some(holders) = self.inodes.get_mut(&ino) else { continue };
            let Some(place) = holders.iter().position(|h| h.session == session && h.queued) else { continue };
            let holder = &mut holders[place];
            if holder.fresh && !holder.used {
                holder.fresh = false;
                holding.queue.push_back(ino);
                continue;
            }
            holder.queued = false;
            holding.queued -= 1;
            if !holder.used {
                if holder.cached != 0 {
                    fallen.push(ino);
                }
                holders.swap_remove(place);
                if holders.is_empty() {
                    self.inodes.remove(&ino);
                }
            }
        }
        if holding.queue.len() > 2 * holding.queued + QUEUE_SLACK {
            holding.compact(session, &self.inodes);
        }
        fallen
    }

    /// Reads that began before now and touch `ino` are stale.
    pub fn stamp(&mut self, ino: Ino) {
        self.clock += 1;
        self.stamps[slot(ino)] = self.clock;
    }

    /// The sessions but `by` that may have cached one of the bits of `ino`. With `take`, they have it no more. `by` itself may
    /// believe the old until the answer to its change arrives: for the next change of another it still counts.
    pub fn cachers(&mut self, ino: Ino, bits: u8, take: bool, by: SessionId) -> Vec<SessionId> {
        let holders = self.inodes.get_mut(&ino).map(Vec::as_mut_slice).unwrap_or_default();
        let concerned = holders.iter_mut().filter(|holder| holder.session != by && holder.cached & bits != 0);
        concerned
            .map(|holder| {
                holder.cached &= if take { !bits } else { u8::MAX };
                holder.session
            })
            .collect()
    }

    /// Whether any session was told about `ino` and has not given it back.
    pub fn is_held(&self, ino: Ino) -> bool {
        self.inodes.contains_key(&ino)
    }

    /// All holders of `ino`, which has no name, use it until they release it.
    pub fn use_on(&mut self, ino: Ino) {
        for holder in self.inodes.get_mut(&ino).map(Vec::as_mut_slice).unwrap_or_default() {
            holder.used = true;
            self.sessions.entry(holder.session).or_default().used.insert(ino);
        }
    }

    /// `ino` lost its last name by an act of `by`: all holders use it until they release it. Tells who the others are.
    pub fn keep(&mut self, ino: Ino, by: SessionId) -> Vec<SessionId> {
        self.use_on(ino);
        self.cachers(ino, ATTR, true, by);
        let holders = self.inodes.get(&ino).map(Vec::as_slice).unwrap_or_default();
        holders.iter().map(|holder| holder.session).filter(|session| *session != by).collect()
    }

    /// The session neither caches nor uses `ino` any more.
    pub fn release(&mut self, session: SessionId, ino: Ino) {
        let Some(holders) = self.inodes.get_mut(&ino) else { return };
        if let Some(place) = holders.iter().position(|holder| holder.session == session) {
            let holding = self.sessions.entry(session).or_default();
            holding.used.remove(&ino);
            holding.queued -= usize::from(holders.swap_remove(place).queued);
        }
        if holders.is_empty() {
            self.inodes.remove(&ino);
        }
    }

    /// The session no longer has `ino` open, but goes on caching it.
    pub fn close(&mut self, session: SessionId, ino: Ino) {
        let Some(holding) = self.sessions.get_mut(&session) else { return };
        let Some(holders) = self.inodes.get_mut(&ino) else { return };
        if holding.used.remove(&ino) {
            let holder = holder_of(holders, session);
            holder.used = false;
            if !std::mem::replace(&mut holder.queued, true) {
                holding.queued += 1;
                holding.queue.push_back(ino);
            }
        }
    }

    /// The session has dropped everything that it cached; what it uses stays.
    pub fn drop_cached(&mut self, session: SessionId) {
        let Some(holding) = self.sessions.get_mut(&session) else { return };
        let queue = std::mem::take(&mut holding.queue);
        holding.queued = 0;
        for ino in queue.iter().chain(&holding.used) {
            let Some(holders) = self.inodes.get_mut(ino) else { continue };
            holders.retain_mut(|holder| {
                if holder.session == session {
                    (holder.cached, holder.queued) = (0, false);
                }
                holder.session != session || holder.used
            });
            if holders.is_empty() {
                self.inodes.remove(ino);
            }
        }
    }

    /// The session has ended; tells what it held.
    pub fn end(&mut self, session: SessionId) -> Vec<Ino> {
        let held: Vec<Ino> = self.sessions.get(&session).map(|h| h.used.iter().copied().collect()).unwrap_or_default();
        self.drop_cached(session);
        held.iter().for_each(|ino| self.release(session, *ino));
        self.sessions.remove(&session);
        held
    }

    /// Inodes that a session may have cached or holds, and those that it uses.
    pub fn counts(&self, session: SessionId) -> (usize, usize) {
        let Some(holding) = self.sessions.get(&session) else { return (0, 0) };
        (holding.queued + holding.used.len(), holding.used.len())
    }
}

impl Holding {
    /// Rids the queue of places of holders that are gone.
    fn compact(&mut self, session: SessionId, inodes: &HashMap<Ino, Vec<Holder>>) {
        let mut seen = HashSet::<Ino>::default();
        self.queue.retain(|ino| {
            let queued = |holders: &Vec<Holder>| holders.iter().any(|h| h.session == session && h.queued);
            inodes.get(ino).is_some_and(queued) && seen.insert(*ino)
        });
    }
}

/// The holder of `session`, made if there is none.
fn holder_of(holders: &mut Vec<Holder>, session: SessionId) -> &mut Holder {
    let place = holders.iter().position(|holder| holder.session == session).unwrap_or_else(|| {
        holders.push(Holder { session, cached: 0, used: false, fresh: false, queued: false });
        holders.len() - 1
    });
    &mut holders[place]
}

fn slot(ino: Ino) -> usize {
    (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & (STAMPS - 1)
}

#[cfg(test)]
mod tests;
