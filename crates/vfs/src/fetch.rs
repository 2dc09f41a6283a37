//! Misses: one request, to the group or to the store, for all who wait for the same object.

use crate::{Piece, Vfs, away::on_thread, error::errno, read::segments};
use bytes::Bytes;
use futures::future::BoxFuture;
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
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, Semaphore};

/// A second miss on an object within this time fetches the rest of it.
const SECOND_MISS: Duration = Duration::from_secs(10);
/// Objects whose last miss is remembered.
const MISSES_MAX: usize = 1024;

/// Stored objects whose size is remembered, 32 bytes each: 64 GiB of data.
const STORED_MAX: usize = 16 << 10;

/// The hosts that pool their cache disks for this volume.
pub trait Group: Send + Sync {
    /// Segments of a stored object, in their order, each one sound; one without stored bytes is empty. `None` where the store is
    /// to be asked.
    fn segments(&self, object: StoredObject, range: Range<u32>) -> BoxFuture<'_, Option<Vec<Piece>>>;
}

/// Fetches under way, and what is remembered of former ones.
pub(crate) struct Fetches {
    gates: Mutex<HashMap<ObjectId, Arc<AsyncMutex<()>>>>,
    misses: Mutex<HashMap<ObjectId, Duration>>,
    /// Objects that are stored: what the metadata says of them does not change any more, but for their end.
    stored: Mutex<HashMap<ObjectId, StoredObject>>,
    ahead: Arc<Semaphore>,
}

/// Fetching one object is somebody's turn until this is dropped.
struct Turn<'a> {
    fetches: &'a Fetches,
    object: ObjectId,
    gate: Arc<AsyncMutex<()>>,
    held: Option<OwnedMutexGuard<()>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.held.take());
        let mut gates = self.fetches.gates.lock();
        // Two: ours and the map's.
        if Arc::strong_count(&self.gate) <= 2 {
            gates.remove(&self.object);
        }
    }
}

impl Fetches {
    pub(crate) fn new(prefetches: usize) -> Self {
        Self {
            gates: Mutex::default(),
            misses: Mutex::default(),
            stored: Mutex::default(),
            ahead: Arc::new(Semaphore::new(prefetches)),
        }
    }

    /// Waits until nobody else fetches the object.
    async fn turn(&self, object: ObjectId) -> Turn<'_> {
        let gate = self.gates.lock().entry(object).or_default().clone();
        let mut turn = Turn { fetches: self, object, gate, held: None };
        turn.held = Some(turn.gate.clone().lock_owned().await);
        turn
    }

    fn remember(&self, stored: StoredObject) {
        let mut known = self.stored.lock();
        if known.len() >= STORED_MAX {
            known.clear();
        }
        known.insert(stored.id(), stored);
    }

    /// Notes a miss; true when it is the second one in a short time.
    fn missed_again(&self, object: ObjectId, now: Duration) -> bool {
        let mut misses = self.misses.lock();
        if misses.len() >= MISSES_MAX {
            misses.retain(|_, at| now.saturating_sub(*at) < SECOND_MISS);
        }
        if misses.len() >= MISSES_MAX {
            misses.clear();
        }
        misses.insert(object, now).is_some_and(|before| now.saturating_sub(before) < SECOND_MISS)
    }
}

/// Who has an object's bytes, if not this mount.
enum Holder {
    Stored(StoredObject),
    Writer(SessionId),
}

impl Vfs {
    /// Bytes of an object from elsewhere, in pieces; its segments come into the cache. `ENOENT` when the object is gone.
    pub(crate) async fn fetched(self: &Arc<Self>, place: Place, len: usize, whole: bool) -> Result<Vec<Bytes>, Errno> {
        // Without a cache nobody finds what another one brought.
        let turn = match &self.parts.cache {
            Some(_) => Some(self.fetches.turn(place.object).await),
            None => None,
        };
        if turn.is_some()
            && let Some(bytes) = self.cached(place, len)
        {
            return Ok(vec![bytes]);
        }
        let result = match self.holder(place.object).await? {
            Holder::Stored(stored) => self.fetch_stored(&stored, place, len, whole).await,
            Holder::Writer(session) => self.fetch_unstored(place, session, len).await,
        };
        if result == Err(Errno::ENOENT) {
            self.fetches.stored.lock().remove(&place.object);
        }
        result
    }

    async fn fetch_stored(
        self: &Arc<Self>,
        stored: &StoredObject,
        place: Place,
        len: usize,
        whole: bool,
    ) -> Result<Vec<Bytes>, Errno> {
        let (object, count) = (place.object, stored.segment_count());
        let wanted = segments(place.offset, len);
        if wanted.end > count {
            tracing::error!(%object, "an extent lies past the end of its object");
            return Err(Errno::EIO);
        }
        // Without a cache nothing would keep the rest.
        let more =
            self.parts.cache.is_some() && (self.fetches.missed_again(object, self.parts.clock.monotonic()) || whole);
        let range = if more { 0..count } else { wanted.clone() };
        let (found, range) = match self.fetch(stored, range.clone()).await {
            // A damaged segment that nobody asked for is no reason to fail.
            Err(Errno::EIO) if range != wanted => (self.fetch(stored, wanted.clone()).await?, wanted.clone()),
            other => (other?, range),
        };
        if let Some(bytes) = cut(&found, range.start, place.offset, len) {
            return Ok(bytes);
        }
        tracing::error!(%object, "a segment that an extent needs is absent");
        if self.parts.group.is_none() {
            return Err(Errno::EIO);
        }
        // That a segment is absent has no checksum: a node may be wrong about it, the store is not.
        let pieces = self.ask_store(stored, wanted.clone()).await?;
        let found = self.keep(object, pieces).await?;
        cut(&found, wanted.start, place.offset, len).ok_or(Errno::EIO)
    }

    /// Where the metadata says that an object's bytes are.
    async fn holder(self: &Arc<Self>, object: ObjectId) -> Result<Holder, Errno> {
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

    /// From the mount that wrote them. Nothing is cached: the last segment may still grow.
    async fn fetch_unstored(&self, place: Place, session: SessionId, len: usize) -> Result<Vec<Bytes>, Errno> {
        let object = place.object;
        let Some(others) = self.parts.others.as_ref().filter(|_| session != self.parts.session) else {
            tracing::error!(%object, %session, "bytes that were never stored are damaged or gone");
            return Err(Errno::EIO);
        };
        let wanted = segments(place.offset, len);
        let pieces = others.segments(session, object, wanted.clone()).await?;
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

    /// Fetches a run of segments and fills the cache with them.
    async fn fetch(self: &Arc<Self>, stored: &StoredObject, range: Range<u32>) -> Result<Vec<Bytes>, Errno> {
        let pieces = match self.ask_group(*stored, range.clone()).await {
            Some(pieces) => pieces,
            None => self.ask_store(stored, range).await?,
        };
        self.keep(stored.id(), pieces).await
    }

    /// Fills the cache with segments; returns their bytes.
    async fn keep(self: &Arc<Self>, object: ObjectId, pieces: Vec<Piece>) -> Result<Vec<Bytes>, Errno> {
        let found = pieces.iter().map(|piece| piece.bytes.clone()).collect();
        if self.parts.cache.is_some() {
            let vfs = self.clone();
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

    /// Brings a whole object into the cache in the background, unless it is there or the budget is spent.
    pub(crate) fn prefetch(self: &Arc<Self>, object: ObjectId) {
        if self.parts.cache.is_none() || self.fetches.gates.lock().contains_key(&object) {
            return;
        }
        let known = self.fetches.stored.lock().get(&object).copied();
        if known.is_some_and(|stored| self.has_all(&stored)) {
            return;
        }
        let Ok(permit) = self.fetches.ahead.clone().try_acquire_owned() else { return };
        // Taken before the task starts, so that a second call does not fetch the same object.
        let gate = self.fetches.gates.lock().entry(object).or_default().clone();
        let Ok(held) = gate.clone().try_lock_owned() else { return };
        let vfs = self.clone();
        self.parts.runtime.spawn(async move {
            let _turn = Turn { fetches: &vfs.fetches, object, gate, held: Some(held) };
            if let Ok(Holder::Stored(stored)) = vfs.holder(object).await
                && !vfs.has_all(&stored)
            {
                let _ = vfs.fetch(&stored, 0..stored.segment_count()).await;
            }
            drop(permit);
        });
    }

    fn has_all(&self, stored: &StoredObject) -> bool {
        let pin = self.parts.cache.as_ref().and_then(|cache| cache.pin(stored.id()));
        pin.is_some_and(|pin| pin.has(0, stored.segment_count()))
    }
}

/// [offset, offset + len) of an object out of its segments from `first` on.
fn cut(segments: &[Bytes], first: u32, offset: u32, len: usize) -> Option<Vec<Bytes>> {
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
