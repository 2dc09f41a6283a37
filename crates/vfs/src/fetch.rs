//! Misses: one request, to the group or to the store, for all who wait for the same object.

use crate::{Piece, Vfs, away::from_task, error::errno, read::segments};
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use sluice_base::{Errno, ObjectId, SessionId, limits::SEGMENT_BYTES};
use sluice_meta::{
    extent::Place,
    records::{ObjectRecord, ObjectState},
};
use sluice_object::{StoreError, StoredObject};
use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

/// A second miss on an object within this time fetches the rest of it.
const SECOND_MISS: Duration = Duration::from_secs(10);
/// Objects whose last miss is remembered.
const MISSES_MAX: usize = 1024;

/// The hosts that pool their cache disks for this volume.
pub trait Group: Send + Sync {
    /// Segments of a stored object, in their order, each one sound; one without stored bytes is empty. `None` where the store is
    /// to be asked.
    fn segments(&self, object: StoredObject, range: Range<u32>) -> BoxFuture<'_, Option<Vec<Piece>>>;
}

/// Fetches under way.
pub(crate) struct Fetches {
    gates: Mutex<HashMap<ObjectId, Arc<AsyncMutex<()>>>>,
    misses: Mutex<HashMap<ObjectId, Duration>>,
    ahead: Arc<Semaphore>,
}

impl Fetches {
    pub(crate) fn new(prefetches: usize) -> Self {
        Self { gates: Mutex::default(), misses: Mutex::default(), ahead: Arc::new(Semaphore::new(prefetches)) }
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

impl Vfs {
    /// Copies bytes of an object from the store into `part`, and its segments into the cache. `ENOENT` when the object is gone.
    pub(crate) async fn fetch_into(&self, place: Place, part: &mut [u8], whole: bool) -> Result<(), Errno> {
        let gate = self.fetches.gates.lock().entry(place.object).or_default().clone();
        let turn = gate.lock().await;
        let result = self.fetch_in_turn(place, part, whole).await;
        drop(turn);
        let mut gates = self.fetches.gates.lock();
        // Two: ours and the map's.
        if Arc::strong_count(&gate) <= 2 {
            gates.remove(&place.object);
        }
        result
    }

    async fn fetch_in_turn(&self, place: Place, part: &mut [u8], whole: bool) -> Result<(), Errno> {
        // Whoever had the turn before may have brought what we need.
        if let Some(pin) = self.parts.cache.as_ref().and_then(|cache| cache.pin(place.object))
            && pin.read_at(place.offset, part).is_ok()
        {
            return Ok(());
        }
        let record = self.record(place.object)?;
        if matches!(record.state, ObjectState::Open | ObjectState::Sealed) {
            return self.fetch_unstored(place, record.session, part).await;
        }
        let wanted = segments(place.offset, part.len());
        let again = self.fetches.missed_again(place.object, self.parts.clock.monotonic());
        // Without a cache nothing would keep the rest.
        let more = (whole || again) && self.parts.cache.is_some();
        let range = if more { 0..record.segments } else { wanted.clone() };
        if wanted.end > record.segments {
            tracing::error!(object = %place.object, "an extent lies past the end of its object");
            return Err(Errno::EIO);
        }
        let (segments, range) = match self.fetch(place.object, &record, range.clone()).await {
            // A damaged segment that nobody asked for is no reason to fail.
            Err(Errno::EIO) if range != wanted => (self.fetch(place.object, &record, wanted.clone()).await?, wanted),
            other => (other?, range),
        };
        copy_out(&segments, range.start, place.offset, part).ok_or_else(|| {
            tracing::error!(object = %place.object, "a segment that an extent needs is absent");
            Errno::EIO
        })
    }

    fn record(&self, object: ObjectId) -> Result<ObjectRecord, Errno> {
        from_task(|| self.namespace().object(object)).map_err(|error| errno(&error))?.ok_or(Errno::ENOENT)
    }

    /// From the mount that wrote them. Nothing is cached: the last segment may still grow.
    async fn fetch_unstored(&self, place: Place, session: SessionId, part: &mut [u8]) -> Result<(), Errno> {
        let object = place.object;
        let Some(others) = self.parts.others.as_ref().filter(|_| session != self.parts.session) else {
            tracing::error!(%object, %session, "bytes that were never stored are damaged or gone");
            return Err(Errno::EIO);
        };
        let wanted = segments(place.offset, part.len());
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
        copy_out(&found, wanted.start, place.offset, part).ok_or_else(|| {
            tracing::error!(%object, %session, "the writer of an object lacks bytes that an extent needs");
            Errno::EIO
        })
    }

    /// Fetches a run of segments and fills the cache with them.
    async fn fetch(&self, object: ObjectId, record: &ObjectRecord, range: Range<u32>) -> Result<Vec<Bytes>, Errno> {
        let stored = StoredObject::new(object, record.segments, record.stored_bytes).map_err(|error| {
            tracing::error!(%object, %error, "an object's record makes no sense");
            Errno::EIO
        })?;
        let pieces = match self.ask_group(stored, range.clone()).await {
            Some(pieces) => pieces,
            None => self.ask_store(&stored, range).await?,
        };
        if let Some(cache) = &self.parts.cache {
            for piece in pieces.iter().filter(|piece| !piece.bytes.is_empty()) {
                if let Err(error) = cache.fill(object, piece.index, &piece.bytes, piece.crc) {
                    tracing::debug!(%object, %error, "not cached");
                    break;
                }
            }
        }
        Ok(pieces.into_iter().map(|piece| piece.bytes).collect())
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
        let Some(cache) = &self.parts.cache else { return };
        if self.fetches.gates.lock().contains_key(&object) {
            return;
        }
        let Ok(Some(record)) = self.namespace().object(object) else { return };
        if record.state != ObjectState::Stored || cache.pin(object).is_some_and(|pin| pin.has(0, record.segments)) {
            return;
        }
        let Ok(permit) = self.fetches.ahead.clone().try_acquire_owned() else { return };
        let vfs = self.clone();
        // Taken before the task starts, so that a second call does not fetch the same object.
        let gate = self.fetches.gates.lock().entry(object).or_default().clone();
        let Ok(turn) = gate.clone().try_lock_owned() else { return };
        self.parts.runtime.spawn(async move {
            let _ = vfs.fetch(object, &record, 0..record.segments).await;
            drop((turn, permit));
            let mut gates = vfs.fetches.gates.lock();
            if Arc::strong_count(&gate) <= 2 {
                gates.remove(&object);
            }
        });
    }
}

/// Copies [offset, offset + part.len()) of an object out of its segments from `first` on.
fn copy_out(segments: &[Bytes], first: u32, offset: u32, part: &mut [u8]) -> Option<()> {
    let mut done = 0;
    while done < part.len() {
        let at = offset as usize + done;
        let segment = segments.get(at / SEGMENT_BYTES - first as usize)?;
        let from = at % SEGMENT_BYTES;
        let n = (part.len() - done).min(SEGMENT_BYTES - from);
        part[done..done + n].copy_from_slice(segment.get(from..from + n)?);
        done += n;
    }
    Some(())
}
