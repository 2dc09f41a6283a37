//! Segments that are being fetched, and those that were fetched before anybody asked.
//!
//! They are kept by object and number, not by file and offset: the bytes of an object never change, so nothing in here becomes wrong
//! when a file does. A read finds out anew what the file is made of, and what it is no longer made of is not asked for again.
//!
//! A segment is fetched by one at a time: who claims some that are under way gets them when they come. What was fetched for a reader
//! alone goes when he has it; what was read ahead stays until every byte of it was read, until its reader's handle is closed, or
//! until the room is needed, oldest first.

use super::budget::Room;
use bytes::Bytes;
use sluice_base::{Errno, ObjectId, limits::SEGMENT_BYTES};
use sluice_run::lock::Mutex;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// Segments, in their order, each one checked; one without stored bytes is empty.
pub(crate) type Fetched = Result<Vec<Bytes>, Errno>;

/// Whoever reads ahead: a handle.
#[derive(Debug, Default)]
pub(crate) struct Owner {
    /// What it has in the pool, in fetches.
    fetches: AtomicUsize,
    /// Bytes of it were dropped before anybody asked for them.
    useless: AtomicBool,
    closed: AtomicBool,
    /// The last of it came at once.
    near: AtomicBool,
}

impl Owner {
    /// A fetch of it came at once, or did not.
    pub(crate) fn note_near(&self, is_near: bool) {
        self.near.store(is_near, Relaxed);
    }

    /// Whether the last fetch came at once.
    pub(crate) fn is_near(&self) -> bool {
        self.near.load(Relaxed)
    }

    /// Whether there is something of it in the pool.
    pub(crate) fn has_some(&self) -> bool {
        self.fetches.load(Relaxed) > 0
    }

    /// Whether bytes were read ahead in vain since this was asked last.
    pub(crate) fn take_useless(&self) -> bool {
        self.useless.load(Relaxed) && self.useless.swap(false, Relaxed)
    }
}

/// A fetch of a run of segments.
pub(crate) struct Fetch {
    id: u64,
    object: ObjectId,
    segments: Range<u32>,
    outcome: Mutex<Option<Fetched>>,
    /// Room of its bytes, if they are kept beyond its end.
    room: Mutex<Option<Room>>,
    done: Notify,
}

impl Fetch {
    /// Those of its segments, when they are there.
    pub(crate) async fn wait(&self, segments: &Range<u32>) -> Fetched {
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            if let Some(outcome) = self.some(segments) {
                return outcome;
            }
            done.await;
        }
    }

    fn some(&self, segments: &Range<u32>) -> Option<Fetched> {
        let at = |index: u32| (index - self.segments.start) as usize;
        let outcome = self.outcome.lock();
        let all = outcome.as_ref()?.as_ref();
        Some(all.map(|all| all[at(segments.start)..at(segments.end)].to_vec()).map_err(|error| *error))
    }
}

/// Segments, and who fetches them.
pub(crate) struct Claim {
    pub(crate) segments: Range<u32>,
    pub(crate) fetch: Arc<Fetch>,
    /// Whoever has this.
    pub(crate) turn: Option<Turn>,
}

/// The duty to fetch segments. Dropped without an outcome it makes those who wait fetch them themselves.
pub(crate) struct Turn {
    pool: Arc<Pool>,
    fetch: Arc<Fetch>,
    is_settled: bool,
}

impl Turn {
    /// Hands out what came. The turn lasts until others find it elsewhere too, or need not.
    pub(crate) fn settle(&mut self, outcome: Fetched) {
        self.is_settled = true;
        if let Ok(found) = &outcome {
            self.pool.came(&self.fetch, found);
        }
        *self.fetch.outcome.lock() = Some(outcome);
        self.fetch.done.notify_waiters();
    }

    /// The room of the bytes from now on. Without it they go with the turn.
    pub(crate) fn keep(&self, room: Room) {
        *self.fetch.room.lock() = Some(room);
    }

    /// Whether somebody reads ahead what this fetches.
    pub(crate) fn is_ahead(&self) -> bool {
        self.pool.inner.lock().fetches.get(&self.fetch.id).is_some_and(|kept| kept.stays.is_some())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_settled {
            self.settle(Err(Errno::EAGAIN));
        }
        self.pool.ended(&self.fetch);
    }
}

struct Kept {
    fetch: Arc<Fetch>,
    /// It stays after its end until it was read.
    stays: Option<Arc<Owner>>,
    /// It was fetched before anybody asked.
    is_ahead: bool,
    has_ended: bool,
    since: Duration,
    /// Bytes of each segment that somebody wanted and nobody has read.
    unread: Vec<u32>,
}

/// Bytes of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) object: ObjectId,
    pub(crate) offset: u32,
    pub(crate) len: usize,
}

impl Part {
    /// Whole segments.
    pub(crate) fn of(object: ObjectId, segments: &Range<u32>) -> Self {
        Self { object, offset: segments.start * SEGMENT_BYTES as u32, len: segments.len() * SEGMENT_BYTES }
    }

    pub(crate) fn segments(&self) -> Range<u32> {
        crate::read::segments(self.offset, self.len)
    }

    /// How many of them are of this segment.
    fn within(&self, index: u32) -> u32 {
        let (start, offset) = (index as usize * SEGMENT_BYTES, self.offset as usize);
        let end = (offset + self.len).min(start + SEGMENT_BYTES);
        end.saturating_sub(offset.max(start)) as u32
    }
}

#[derive(Default)]
struct Inner {
    segments: BTreeMap<(ObjectId, u32), u64>,
    fetches: BTreeMap<u64, Kept>,
    next: u64,
    owners: usize,
}

/// Counts since the start, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Read ahead.
    pub(crate) ahead: AtomicU64,
    /// Of these, asked for later.
    pub(crate) used: AtomicU64,
    /// Of these, dropped before anybody asked.
    pub(crate) useless: AtomicU64,
}

/// All of a mount.
#[derive(Default)]
pub(crate) struct Pool {
    inner: Mutex<Inner>,
    /// Fetches in it: most reads of what is hot need not look.
    len: AtomicUsize,
    pub(crate) counts: Counts,
}

impl Pool {
    /// Who fetches which segments of a part: those that nobody does are the caller's turn. With an owner they are read ahead, and stay.
    pub(crate) fn claim(self: &Arc<Self>, part: &Part, owner: Option<&Arc<Owner>>, now: Duration) -> Vec<Claim> {
        let (object, segments) = (part.object, part.segments());
        let mut claims: Vec<Claim> = Vec::new();
        let mut inner = self.inner.lock();
        let mut at = segments.start;
        while at < segments.end {
            let known = inner.segments.get(&(object, at)).copied();
            let is_same = |n: &u32| inner.segments.get(&(object, *n)).copied() == known;
            let end = (at..segments.end).find(|n| !is_same(n)).unwrap_or(segments.end);
            let fetch = match known {
                Some(id) => {
                    if let Some(owner) = owner {
                        inner.want(id, part, at..end, owner);
                    }
                    inner.fetches[&id].fetch.clone()
                }
                None => inner.begin(part, at..end, owner, now),
            };
            let turn = || Turn { pool: self.clone(), fetch: fetch.clone(), is_settled: false };
            claims.push(Claim { segments: at..end, turn: known.is_none().then(turn), fetch });
            at = end;
        }
        self.len.store(inner.fetches.len(), Relaxed);
        claims
    }

    /// Copies bytes of an object that are all here.
    pub(crate) fn copy(&self, object: ObjectId, offset: u32, part: &mut [u8]) -> bool {
        let Some(pieces) = self.pieces(object, offset, part.len()) else { return false };
        let mut at = 0;
        for piece in pieces {
            part[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
        true
    }

    /// Bytes of an object that are all here.
    pub(crate) fn pieces(&self, object: ObjectId, offset: u32, len: usize) -> Option<Vec<Bytes>> {
        if self.len.load(Relaxed) == 0 {
            return None;
        }
        let wanted = crate::read::segments(offset, len);
        let mut found = Vec::with_capacity(wanted.len());
        let inner = self.inner.lock();
        for index in wanted.clone() {
            let kept = &inner.fetches[inner.segments.get(&(object, index))?];
            found.extend(kept.fetch.some(&(index..index + 1))?.ok()?);
        }
        drop(inner);
        crate::fetch::cut(&found, wanted.start, offset, len)
    }

    /// These bytes of an object were read. Gives how many of them had been read ahead.
    pub(crate) fn read(&self, part: &Part) -> u64 {
        if self.len.load(Relaxed) == 0 || part.len == 0 {
            return 0;
        }
        let (mut used, mut over) = (0, Vec::new());
        let mut inner = self.inner.lock();
        for index in part.segments() {
            let Some(&id) = inner.segments.get(&(part.object, index)) else { continue };
            let kept = inner.fetches.get_mut(&id).expect("every segment's fetch is kept");
            let unread = &mut kept.unread[(index - kept.fetch.segments.start) as usize];
            let taken = part.within(index).min(*unread);
            *unread -= taken;
            used += if kept.is_ahead { u64::from(taken) } else { 0 };
            // What others wait for may not be read yet.
            if *unread == 0 && kept.has_ended {
                inner.segments.remove(&(part.object, index));
                if inner.fetches[&id].unread.iter().all(|&left| left == 0) {
                    over.extend(inner.remove(id));
                }
            }
        }
        self.len.store(inner.fetches.len(), Relaxed);
        drop(inner);
        self.counts.used.fetch_add(used, Relaxed);
        used
    }

    /// The bytes of a fetch have come: those of the last segment of an object may be fewer.
    fn came(&self, fetch: &Fetch, found: &[Bytes]) {
        let mut inner = self.inner.lock();
        let Some(kept) = inner.fetches.get_mut(&fetch.id) else { return };
        for (unread, segment) in kept.unread.iter_mut().zip(found) {
            *unread = (*unread).min(segment.len() as u32);
        }
        let came = if kept.is_ahead { found.iter().map(|segment| segment.len() as u64).sum() } else { 0 };
        self.counts.ahead.fetch_add(came, Relaxed);
    }

    /// A fetch has ended, and its bytes are where else they go.
    fn ended(&self, fetch: &Fetch) {
        let mut inner = self.inner.lock();
        let Some(kept) = inner.fetches.get_mut(&fetch.id) else { return };
        kept.has_ended = true;
        let mut over = None;
        match &*fetch.outcome.lock() {
            Some(Ok(_)) => {
                let stays = kept.stays.as_ref().is_some_and(|owner| !owner.closed.load(Relaxed));
                let stays = stays && fetch.room.lock().is_some();
                if !stays || kept.unread.iter().all(|&left| left == 0) {
                    over = inner.drop_unread(fetch.id, &self.counts);
                }
            }
            _ => over = inner.remove(fetch.id),
        }
        self.len.store(inner.fetches.len(), Relaxed);
        drop(inner);
        drop(over);
    }

    /// Nobody reads by this handle any more.
    pub(crate) fn close(&self, owner: &Arc<Owner>) {
        owner.closed.store(true, Relaxed);
        if owner.fetches.load(Relaxed) > 0 {
            let is_its = |kept: &Kept| kept.stays.as_ref().is_some_and(|its| Arc::ptr_eq(its, owner));
            self.drop_while(|kept| is_its(kept), |_| true);
        }
    }

    /// Drops what was read ahead before `before` and not read since.
    pub(crate) fn drop_older(&self, before: Duration) {
        if self.len.load(Relaxed) > 0 {
            self.drop_while(|_| true, |kept| kept.since < before);
        }
    }

    /// Drops what was read ahead, oldest first, as long as `more` says so.
    pub(crate) fn evict(&self, mut more: impl FnMut() -> bool) {
        self.drop_while(|_| true, |_| more());
    }

    /// Drops of the ended fetches that `may` go, oldest first, while `go_on` says so.
    fn drop_while(&self, may: impl Fn(&Kept) -> bool, mut go_on: impl FnMut(&Kept) -> bool) {
        let mut inner = self.inner.lock();
        let candidates: Vec<u64> =
            inner.fetches.iter().filter(|(_, kept)| kept.has_ended && may(kept)).map(|(id, _)| *id).collect();
        for id in candidates {
            if !go_on(&inner.fetches[&id]) {
                break;
            }
            drop(inner.drop_unread(id, &self.counts));
        }
        self.len.store(inner.fetches.len(), Relaxed);
    }

    /// Handles that have something read ahead.
    pub(crate) fn owners(&self) -> usize {
        self.inner.lock().owners
    }
}

impl Inner {
    fn begin(&mut self, part: &Part, segments: Range<u32>, owner: Option<&Arc<Owner>>, now: Duration) -> Arc<Fetch> {
        let (id, object) = (self.next, part.object);
        self.next += 1;
        self.segments.extend(segments.clone().map(|index| ((object, index), id)));
        let unread = segments.clone().map(|index| part.within(index)).collect();
        let (outcome, room, done) = Default::default();
        let fetch = Arc::new(Fetch { id, object, segments, outcome, room, done });
        if let Some(owner) = owner {
            self.owners += usize::from(owner.fetches.fetch_add(1, Relaxed) == 0);
        }
        let stays = owner.cloned();
        let is_ahead = stays.is_some();
        let kept = Kept { fetch: fetch.clone(), stays, is_ahead, has_ended: false, since: now, unread };
        self.fetches.insert(id, kept);
        fetch
    }

    /// Somebody reads ahead what is fetched already: the rest of what another one fetches for himself, or of a segment in which what
    /// was read ahead before ends.
    fn want(&mut self, id: u64, part: &Part, segments: Range<u32>, owner: &Arc<Owner>) {
        let kept = self.fetches.get_mut(&id).expect("every segment's fetch is kept");
        if kept.stays.is_none() && kept.has_ended {
            return;
        }
        for index in segments {
            let unread = &mut kept.unread[(index - kept.fetch.segments.start) as usize];
            *unread = (*unread + part.within(index)).min(SEGMENT_BYTES as u32);
        }
        if kept.stays.is_none() {
            kept.stays = Some(owner.clone());
            self.owners += usize::from(owner.fetches.fetch_add(1, Relaxed) == 0);
        }
    }

    /// Takes a fetch out; what it returns is best dropped without the lock.
    fn remove(&mut self, id: u64) -> Option<Kept> {
        let kept = self.fetches.remove(&id)?;
        for index in kept.fetch.segments.clone() {
            if self.segments.get(&(kept.fetch.object, index)) == Some(&id) {
                self.segments.remove(&(kept.fetch.object, index));
            }
        }
        if let Some(owner) = &kept.stays {
            self.owners -= usize::from(owner.fetches.fetch_sub(1, Relaxed) == 1);
        }
        Some(kept)
    }

    fn drop_unread(&mut self, id: u64, counts: &Counts) -> Option<Kept> {
        let kept = self.remove(id)?;
        let unread: u64 = kept.unread.iter().map(|&left| u64::from(left)).sum();
        if let (true, Some(owner), true) = (kept.is_ahead, &kept.stays, unread > 0) {
            counts.useless.fetch_add(unread, Relaxed);
            owner.useless.store(true, Relaxed);
        }
        Some(kept)
    }
}

#[cfg(test)]
mod tests;
