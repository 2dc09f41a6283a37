//! Misses: one request, to the group or to the store, for all who wait for the same segments.

use crate::{
    Piece, Vfs,
    ahead::{Claim, Fetched, Part, Room, Turn},
    away::on_thread,
    direct::Lanes,
    error::errno,
    read::segments,
};
use bytes::Bytes;
use futures::future::{BoxFuture, try_join_all};
use sluice_base::{Errno, ObjectId, SessionId, limits::SEGMENT_BYTES};
use sluice_meta::{
    extent::Place,
    records::{ObjectRecord, ObjectState},
};
use sluice_object::{StoreError, StoredObject};
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// An object of which that many segments were missed, each for a read of its own, within this time...
const MISSES_WITHIN: Duration = Duration::from_secs(60);
/// ... is read all over: the rest of it is fetched too. A quarter, so that what is fetched is at most four times what was asked for: of
/// 4 MiB 128 KiB for each of those reads.
const MISSED_SHARE: u32 = 4;
/// Objects whose misses are remembered.
const MISSES_MAX: usize = 1024;

/// Stored objects whose size is remembered, 32 bytes each: 64 GiB of data.
const STORED_MAX: usize = 16 << 10;

/// The hosts that pool their cache disks for this volume.
pub trait Group: Send + Sync {
    /// Segments of a stored object, in their order, each one sound; one without stored bytes is empty. `None` where the store is
    /// to be asked.
    fn segments(&self, object: StoredObject, range: Range<u32>) -> BoxFuture<'_, Option<Vec<Piece>>>;

    /// Has a host keep the whole of a stored object; resolves when it is there, with the bytes that had to be fetched for it.
    fn fill(&self, object: StoredObject) -> BoxFuture<'_, Result<u64, String>>;

    /// What each host has of these objects, at most 1024: its name, and for each object the set of its segments. A host that does not
    /// answer is left out.
    fn held<'a>(&'a self, objects: &'a [ObjectId]) -> BoxFuture<'a, Vec<(String, Vec<u128>)>>;

    /// For a thread that asks by itself; `None` where none can.
    fn lanes(&self) -> Option<Box<dyn Lanes>> {
        None
    }
}

/// What is remembered of former fetches.
#[derive(Default)]
pub(crate) struct Fetches {
    misses: Mutex<HashMap<ObjectId, Misses>>,
    /// Objects that are stored: what the metadata says of them does not change any more, but for their end.
    stored: Mutex<HashMap<ObjectId, StoredObject>>,
    /// Readers that wait for a fetch: those who warm make way.
    pub(crate) waiting: AtomicUsize,
}

/// Segments of an object that were missed, a bit each.
struct Misses {
    since: Duration,
    segments: u128,
}

impl Fetches {
    fn remember(&self, stored: StoredObject) {
        let mut known = self.stored.lock();
        if known.len() >= STORED_MAX {
            known.clear();
        }
        known.insert(stored.id(), stored);
    }

    /// An object that is stored, as far as that was asked lately.
    pub(crate) fn known(&self, object: ObjectId) -> Option<StoredObject> {
        self.stored.lock().get(&object).copied()
    }

    /// Notes a miss; true when so much of the object was missed that the rest will be, once.
    fn is_read_all_over(&self, stored: &StoredObject, missed: &Range<u32>, now: Duration) -> bool {
        let mut misses = self.misses.lock();
        let recent = |found: &Misses| now.saturating_sub(found.since) < MISSES_WITHIN;
        if misses.len() >= MISSES_MAX {
            misses.retain(|_, found| recent(found));
        }
        if misses.len() >= MISSES_MAX {
            misses.clear();
        }
        let found = misses.entry(stored.id()).or_insert(Misses { since: now, segments: 0 });
        if !recent(found) {
            *found = Misses { since: now, segments: 0 };
        }
        let before = found.segments.count_ones();
        found.segments |= missed.clone().fold(0, |set, index| set | 1 << index);
        let enough = stored.segment_count().div_ceil(MISSED_SHARE);
        before < enough && found.segments.count_ones() >= enough
    }
}

/// Counted for as long as it lives.
pub(crate) struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    pub fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Who has an object's bytes, if not this mount.
pub(crate) enum Holder {
    Stored(StoredObject),
    Writer(SessionId),
}

impl Vfs {
    /// Bytes of an object from elsewhere, in pieces; its segments come into the cache. `ENOENT` when the object is gone.
    pub(crate) async fn fetched(self: &Arc<Self>, place: Place, len: usize) -> Result<Vec<Bytes>, Errno> {
        let _waiting = Waiting::new(&self.fetches.waiting);
        let result = match self.holder(place.object).await? {
            Holder::Stored(stored) => self.fetch_stored(&stored, place, len).await,
            Holder::Writer(session) => self.fetch_unstored(place, session, len).await,
        };
        if result == Err(Errno::ENOENT) {
            self.fetches.stored.lock().remove(&place.object);
        }
        result
    }

    /// Bytes of a stored object from elsewhere, which nobody will ask for again: nothing keeps them.
    pub(crate) async fn read_once(self: &Arc<Self>, place: Place, len: usize) -> Result<Vec<Bytes>, Errno> {
        let Holder::Stored(stored) = self.holder(place.object).await? else { return Err(Errno::ENOENT) };
        let wanted = segments(place.offset, len);
        if wanted.end > stored.segment_count() {
            return Err(Errno::EIO);
        }
        let pieces = self.ask_store(&stored, wanted.clone()).await?;
        let found: Vec<Bytes> = pieces.into_iter().map(|piece| piece.bytes).collect();
        cut(&found, wanted.start, place.offset, len).ok_or(Errno::EIO)
    }

    async fn fetch_stored(
        self: &Arc<Self>,
        stored: &StoredObject,
        place: Place,
        len: usize,
    ) -> Result<Vec<Bytes>, Errno> {
        let object = place.object;
        let wanted = segments(place.offset, len);
        if wanted.end > stored.segment_count() {
            tracing::error!(%object, "an extent lies past the end of its object");
            return Err(Errno::EIO);
        }
        let now = self.parts.clock.monotonic();
        let claims = self.ahead.pool.claim(&Part { object, offset: place.offset, len }, None, now);
        // Somebody may have brought them since they were missed.
        if let Some(bytes) = self.cached(place, len) {
            return Ok(vec![bytes]);
        }
        // Without a cache nothing would keep the rest.
        if self.parts.cache.is_some() && self.fetches.is_read_all_over(stored, &wanted, now) {
            self.fetch_rest(*stored);
        }
        let found = try_join_all(claims.into_iter().map(|claim| self.claimed(stored, claim))).await?.concat();
        if let Some(bytes) = cut(&found, wanted.start, place.offset, len) {
            return Ok(bytes);
        }
        // What was overwritten before it was stored is not there: then the extent is an old one, and the file has others by now.
        tracing::warn!(%object, "a segment that an extent needs is absent");
        if self.parts.group.is_none() {
            return Err(Errno::ENOENT);
        }
        // That a segment is absent has no checksum: a node may be wrong about it, the store is not.
        let pieces = self.ask_store(stored, wanted.clone()).await?;
        let found = self.keep(object, pieces).await?;
        cut(&found, wanted.start, place.offset, len).ok_or(Errno::ENOENT)
    }

    /// Where the metadata says that an object's bytes are.
    pub(crate) async fn holder(self: &Arc<Self>, object: ObjectId) -> Result<Holder, Errno> {
        if let Some(stored) = self.fetches.stored.lock().get(&object) {
            return Ok(Holder::Stored(*stored));
        }
        let vfs = self.clone();
        let told = on_thread(move || vfs.namespace().object(object)).await.ok_or(Errno::EIO)?;
        let record: ObjectRecord = told.map_err(|error| errno(&error))?.ok_or(Errno::ENOENT)?;
        if matches!(record.state, ObjectState::Open | ObjectState::Sealed) {
            return Ok(Holder::Writer(record.session));
        }
        let stored = StoredObject::new(object, record.segments, record.stored_bytes).map_err(|error| {
            tracing::error!(%object, %error, "an object's record makes no sense");
            Errno::EIO
        })?;
        self.fetches.remember(stored);
        Ok(Holder::Stored(stored))
    }

    /// From the mount that wrote them: this one, where its slot is bad, or another. Nothing is cached: the last segment may still grow.
    async fn fetch_unstored(
        self: &Arc<Self>,
        place: Place,
        session: SessionId,
        len: usize,
    ) -> Result<Vec<Bytes>, Errno> {
        let object = place.object;
        let wanted = segments(place.offset, len);
        let is_dirty = self.dirty.get(object).is_some();
        let is_own = session == self.parts.session || is_dirty;
        let pieces = match self.parts.others.as_ref().filter(|_| !is_own) {
            Some(others) => others.segments(session, object, wanted.clone()).await?,
            None => {
                let (vfs, range) = (self.clone(), wanted.clone());
                let read = on_thread(move || vfs.unstored_segments(object, range)).await.ok_or(Errno::EIO)?;
                read.map_err(|errno| match errno {
                    // It was stored meanwhile.
                    Errno::ENOENT if is_dirty => errno,
                    _ => {
                        tracing::error!(%object, %session, "bytes that were never stored are damaged or gone");
                        Errno::EIO
                    }
                })?
            }
        };
        let mut found = vec![Bytes::new(); wanted.len()];
        for piece in pieces {
            if !piece.is_sound(object) {
                tracing::error!(%object, %session, "a segment from its writer is damaged");
                return Err(Errno::EIO);
            }
            if let Some(place) = piece.index.checked_sub(wanted.start).and_then(|at| found.get_mut(at as usize)) {
                *place = piece.bytes;
            }
        }
        cut(&found, wanted.start, place.offset, len).ok_or_else(|| {
            tracing::error!(%object, %session, "the writer of an object lacks bytes that an extent needs");
            Errno::EIO
        })
    }

    /// Segments that this one has to fetch, or somebody else does.
    async fn claimed(self: &Arc<Self>, stored: &StoredObject, claim: Claim) -> Fetched {
        let Claim { segments, fetch, turn } = claim;
        if let Some(turn) = turn {
            return self.bring(stored, segments, turn, None).await;
        }
        match fetch.wait(&segments).await {
            // His trouble may be none of ours.
            Err(error) if error != Errno::ENOENT => {
                let pieces = self.fetch(stored, segments).await?;
                self.keep(stored.id(), pieces).await
            }
            done => done,
        }
    }

    /// Fetches a run of segments, hands them out to all who wait for them, and fills the cache. They stay in memory if they were
    /// read ahead, with `room` or what there is.
    pub(crate) async fn bring(
        self: &Arc<Self>,
        stored: &StoredObject,
        segments: Range<u32>,
        mut turn: Turn,
        room: Option<Room>,
    ) -> Fetched {
        let pieces = self.fetch(stored, segments).await;
        let bytes = |pieces: &Vec<Piece>| pieces.iter().map(|piece| piece.bytes.clone()).collect::<Vec<_>>();
        let found = pieces.as_ref().map(bytes).map_err(|error| *error);
        turn.settle(found.clone());
        let Ok(pieces) = pieces else { return found };
        // Of more than what is waited for only what there is room for outlives the answer.
        let has_cache = self.parts.cache.is_some();
        let room = match room {
            None if has_cache || turn.is_ahead() => self.ahead.room_to_keep(pieces.len() * SEGMENT_BYTES),
            room => room,
        };
        let (has_room, object) = (room.is_some(), stored.id());
        room.into_iter().for_each(|room| turn.keep(room));
        match (has_cache, has_room) {
            (true, true) => {
                let vfs = self.clone();
                self.parts.runtime.spawn(async move {
                    let _ = vfs.keep(object, pieces).await;
                    drop(turn);
                });
            }
            (true, false) => drop(self.keep(object, pieces).await),
            (false, _) => {}
        }
        found
    }

    /// Brings a run of segments into the cache; resolves when they are there, as far as it keeps them.
    pub(crate) async fn fetch_into_cache(
        self: &Arc<Self>,
        stored: &StoredObject,
        range: Range<u32>,
    ) -> Result<(), Errno> {
        let part = Part::of(stored.id(), &range);
        let claims = self.ahead.pool.claim(&part, None, self.parts.clock.monotonic());
        // What somebody else fetches may be in the cache later than he has it: so it is fetched here as well.
        let one = |Claim { segments, turn, .. }| async move {
            let pieces = self.fetch(stored, segments).await?;
            if let Some(mut turn) = turn {
                turn.settle(Ok(pieces.iter().map(|piece| piece.bytes.clone()).collect()));
                return self.keep(stored.id(), pieces).await.map(|_| drop(turn));
            }
            self.keep(stored.id(), pieces).await.map(drop)
        };
        try_join_all(claims.into_iter().map(one)).await.map(drop)
    }

    /// Fetches a run of segments.
    async fn fetch(&self, stored: &StoredObject, range: Range<u32>) -> Result<Vec<Piece>, Errno> {
        match self.ask_group(*stored, range.clone()).await {
            Some(pieces) => Ok(pieces),
            None => self.ask_store(stored, range).await,
        }
    }

    /// Fills the cache with segments; returns their bytes.
    async fn keep(self: &Arc<Self>, object: ObjectId, pieces: Vec<Piece>) -> Result<Vec<Bytes>, Errno> {
        let found = pieces.iter().map(|piece| piece.bytes.clone()).collect();
        if self.parts.cache.is_some() {
            let vfs = self.clone();
            let _turn = self.filling.acquire().await;
            // Whoever has the turn next looks there.
            on_thread(move || vfs.fill(object, &pieces)).await.ok_or(Errno::EIO)?;
        }
        Ok(found)
    }

    fn fill(&self, object: ObjectId, pieces: &[Piece]) {
        let Some(cache) = &self.parts.cache else { return };
        for piece in pieces.iter().filter(|piece| !piece.bytes.is_empty()) {
            if let Err(error) = cache.fill(object, piece.index, &piece.bytes, piece.crc) {
                tracing::debug!(%object, %error, "not cached");
                break;
            }
        }
    }

    async fn ask_group(&self, stored: StoredObject, range: Range<u32>) -> Option<Vec<Piece>> {
        let found = self.parts.group.as_ref()?.segments(stored, range.clone()).await?;
        if !found.iter().map(|piece| piece.index).eq(range) {
            return None;
        }
        self.counters.group_fetches.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    async fn ask_store(&self, stored: &StoredObject, range: Range<u32>) -> Result<Vec<Piece>, Errno> {
        let object = stored.id();
        let fetched =
            self.parts.store.read_segments(stored, None, range.clone()).await.map_err(|error| match error {
                StoreError::NotFound { .. } => Errno::ENOENT,
                other => {
                    tracing::error!(%object, error = %other, "a read from the store failed");
                    if other.is_retryable() { Errno::ETIMEDOUT } else { Errno::EIO }
                }
            })?;
        self.counters.fetches.fetch_add(1, Ordering::Relaxed);
        let crc = |index: u32| fetched.table.segments()[index as usize].crc;
        Ok(range.zip(fetched.segments).map(|(index, bytes)| Piece { index, bytes, crc: crc(index) }).collect())
    }

    /// What is known of an object that is stored, else what the metadata says.
    pub(crate) async fn stored(self: &Arc<Self>, object: ObjectId) -> Option<StoredObject> {
        match self.holder(object).await {
            Ok(Holder::Stored(stored)) => Some(stored),
            _ => None,
        }
    }

    /// Whether all these segments are in the cache.
    pub(crate) fn is_cached(&self, object: ObjectId, segments: &Range<u32>) -> bool {
        let pin = self.parts.cache.as_ref().and_then(|cache| cache.pin(object));
        pin.is_some_and(|pin| pin.has(segments.start, segments.len() as u32))
    }
}

/// [offset, offset + len) of an object out of its segments from `first` on.
pub(crate) fn cut(segments: &[Bytes], first: u32, offset: u32, len: usize) -> Option<Vec<Bytes>> {
    let (mut pieces, mut done) = (Vec::new(), 0);
    while done < len {
        let at = offset as usize + done;
        let segment = segments.get(at / SEGMENT_BYTES - first as usize)?;
        let from = at % SEGMENT_BYTES;
        let n = (len - done).min(SEGMENT_BYTES - from);
        if from + n > segment.len() {
            return None;
        }
        pieces.push(segment.slice(from..from + n));
        done += n;
    }
    Some(pieces)
}
