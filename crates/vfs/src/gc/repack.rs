//! Bytes that are still alive leave objects that are mostly dead.

use super::{Gc, GcError};
use crate::Vfs;
use bytes::Bytes;
use sluice_base::{
    Errno, Ino, ObjectId,
    crc::segment_crc,
    limits::{OBJECT_BYTES, SEGMENT_BYTES, SPAN_BYTES},
};
use sluice_meta::{
    FileSpan, Moved,
    extent::{Extent, FileExtents, Place},
};
use sluice_run::collections::HashSet;
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Acquire},
    time::Duration,
};

/// Extent records that are looked through in one go.
const KEYS_AT_ONCE: usize = 4096;
/// Longest piece that is read at once.
const PIECE_BYTES: u32 = 1 << 20;
/// Objects that are remembered as damaged.
const UNREAD_MAX: usize = 4096;
/// Most pieces of one object, whose places go into few records of the log.
const PIECES_MAX: usize = 4096;
/// Pieces that are remembered, so that what two files share they go on sharing: 6 MiB.
const SHARED_MAX: usize = 64 << 10;
/// How long somebody who waits for the store is given way.
const WAY: Duration = Duration::from_millis(50);

/// Where pieces went: by object and offset, with their length.
#[derive(Default)]
struct Shared(BTreeMap<(ObjectId, u32), (u32, Place)>);

impl Shared {
    fn note(&mut self, from: Place, len: u32, to: Place) {
        if self.0.len() >= SHARED_MAX {
            self.0.clear();
        }
        self.0.insert((from.object, from.offset), (len, to));
    }

    /// Where a piece is, if it is a part of one that went somewhere.
    fn find(&self, from: Place, len: u32) -> Option<Place> {
        let (&(object, offset), &(whole, to)) = self.0.range(..=(from.object, from.offset)).next_back()?;
        let skipped =
            from.offset.checked_sub(offset).filter(|skipped| object == from.object && skipped + len <= whole)?;
        Some(Place { offset: to.offset + skipped, ..to })
    }
}

/// An object in the making.
struct Batch {
    id: ObjectId,
    payload: Vec<u8>,
    /// By span: each change is of one.
    moved: BTreeMap<FileSpan, Vec<Moved>>,
    /// Of all files.
    pieces: usize,
    bytes: u64,
    /// Of them, those that were in the cache.
    cached: u64,
}

impl Batch {
    /// Where a piece of `len` bytes would go, if it fits.
    fn place(&self, len: u32) -> Option<Place> {
        let end = self.payload.len();
        let offset = if len as usize >= SEGMENT_BYTES { end.next_multiple_of(SEGMENT_BYTES) } else { end };
        let fits = offset + len as usize <= OBJECT_BYTES;
        fits.then_some(Place { object: self.id, offset: offset as u32 })
    }
}

/// One look for the users of worn objects.
struct Repack<'a> {
    gc: &'a Arc<Gc>,
    worn: Arc<HashSet<ObjectId>>,
    batch: Batch,
    shared: Shared,
}

impl Gc {
    /// Rewrites what is alive of `worn`.
    pub(super) async fn repack(self: &Arc<Self>, worn: Vec<ObjectId>) -> Result<(), GcError> {
        let batch = self.new_batch();
        let mut repack =
            Repack { gc: self, worn: Arc::new(worn.into_iter().collect()), batch, shared: Shared::default() };
        let mut from = Some((Ino(0), 0));
        while let Some(start) = from {
            let worn = repack.worn.clone();
            let look = move |gc: &Gc| gc.parts.namespace.spans_of(&|id| worn.contains(&id), start, KEYS_AT_ONCE);
            let (spans, next) = self.on_thread(look).await??;
            for (ino, span) in spans {
                repack.span(ino, span).await?;
            }
            if self.is_stopping() {
                return Err(GcError::Stopping);
            }
            from = next;
        }
        repack.flush().await
    }

    fn new_batch(&self) -> Batch {
        let id = ObjectId::random(&*self.parts.vfs.parts.entropy);
        Batch { id, payload: Vec::new(), moved: BTreeMap::new(), pieces: 0, bytes: 0, cached: 0 }
    }
}

impl Repack<'_> {
    /// What a span of a file has in worn objects.
    async fn span(&mut self, ino: Ino, span: u64) -> Result<(), GcError> {
        let range = span * SPAN_BYTES..(span + 1) * SPAN_BYTES;
        let look = move |gc: &Gc| {
            let mut extents = FileExtents::default();
            gc.parts.namespace.load_extents(ino, &mut extents, range.clone()).map(|()| extents.map(range))
        };
        let found = self.gc.on_thread(look).await?.unwrap_or_else(|error| {
            tracing::warn!(%ino, span, %error, "extents that are not looked at");
            Vec::new()
        });
        for extent in found {
            let Some(place) = extent.place.filter(|place| self.worn.contains(&place.object)) else { continue };
            let mut done = 0;
            while done < extent.len {
                let len = (extent.len - done).min(PIECE_BYTES.into()) as u32;
                let from = Place { offset: place.offset + done as u32, ..place };
                match self.piece(ino, Extent { offset: extent.offset + done, len: len.into(), place: Some(from) }).await
                {
                    // Damaged, or gone: it stays where it is, for whoever asks for it.
                    Err(GcError::Unread(object, error @ (Errno::EIO | Errno::ENOENT))) => {
                        tracing::warn!(%object, %error, "an object with few users is not rewritten: its bytes are not there");
                        let mut unread = self.gc.unread.lock();
                        if unread.len() < UNREAD_MAX {
                            unread.insert(object);
                        }
                        Arc::make_mut(&mut self.worn).remove(&object);
                        break;
                    }
                    other => other?,
                }
                done += u64::from(len);
            }
        }
        Ok(())
    }

    async fn piece(&mut self, ino: Ino, extent: Extent) -> Result<(), GcError> {
        let (Some(from), len) = (extent.place, extent.len as u32) else { return Ok(()) };
        let to = match self.shared.find(from, len) {
            Some(to) => to,
            None => self.copy(from, len).await?,
        };
        let moved = Moved { offset: extent.offset, len, from, to };
        if to.object != self.batch.id {
            // Stored already.
            return self.relocate(ino, vec![moved]).await;
        }
        self.batch.moved.entry((ino, extent.offset / SPAN_BYTES)).or_default().push(moved);
        self.batch.pieces += 1;
        if self.batch.pieces >= PIECES_MAX { self.flush().await } else { Ok(()) }
    }

    /// Copies a piece into the object in the making.
    async fn copy(&mut self, from: Place, len: u32) -> Result<Place, GcError> {
        let vfs = self.gc.parts.vfs.clone();
        let cached = vfs.cached(from, len as usize);
        let is_cached = cached.is_some();
        let bytes = match cached {
            Some(bytes) => vec![bytes],
            None => vfs.read_once(from, len as usize).await.map_err(|errno| GcError::Unread(from.object, errno))?,
        };
        let to = match self.batch.place(len) {
            Some(to) => to,
            None => {
                self.flush().await?;
                self.batch.place(len).expect("it is empty")
            }
        };
        self.batch.payload.resize(to.offset as usize, 0);
        bytes.iter().for_each(|piece| self.batch.payload.extend_from_slice(piece));
        self.batch.bytes += u64::from(len);
        self.batch.cached += if is_cached { len.into() } else { 0 };
        self.shared.note(from, len, to);
        Ok(to)
    }

    /// Stores the object in the making, and lets files find their bytes there.
    async fn flush(&mut self) -> Result<(), GcError> {
        let new = self.gc.new_batch();
        let Batch { id, payload, moved, bytes, cached, .. } = std::mem::replace(&mut self.batch, new);
        if payload.is_empty() {
            return Ok(());
        }
        let gc = self.gc;
        let Vfs { parts, ahead, .. } = &*gc.parts.vfs;
        let began = parts.clock.monotonic();
        let len = payload.len();
        let room = ahead.room_to_upload(len).await;
        let payload = Bytes::from(payload);
        let of = |at: usize| Some(payload.slice(at..len.min(at + SEGMENT_BYTES)));
        let all: Vec<Option<Bytes>> = (0..len).step_by(SEGMENT_BYTES).map(of).collect();
        let session = parts.session;
        gc.on_thread(move |gc| gc.parts.namespace.begin_object(id, session)).await??;
        let stored = parts.store.put_object(id, &all).await?;
        // What was hot stays so.
        let is_hot = cached * 2 > bytes;
        gc.on_thread(move |gc| {
            gc.parts.namespace.object_stored(id, stored.segment_count(), stored.stored_bytes())?;
            for (index, segment) in all.iter().flatten().enumerate().filter(|_| is_hot) {
                let Some(cache) = &gc.parts.vfs.parts.cache else { break };
                if cache.fill(id, index as u32, segment, segment_crc(id, index as u32, segment)).is_err() {
                    break;
                }
            }
            Ok::<_, GcError>(())
        })
        .await??;
        for ((ino, _), moved) in moved {
            self.relocate(ino, moved).await?;
        }
        drop(room);
        gc.status.lock().repacked_objects += 1;
        self.make_way(began, bytes).await
    }

    async fn relocate(&self, ino: Ino, moved: Vec<Moved>) -> Result<(), GcError> {
        let bytes = self.gc.on_thread(move |gc| match (gc.parts.relocate)(ino, &moved) {
            // The file is gone.
            Err(sluice_meta::Error::Stale | sluice_meta::Error::NotFound) => Ok(0),
            other => other,
        });
        let bytes = bytes.await??;
        self.gc.status.lock().repacked_bytes += bytes;
        Ok(())
    }

    /// Waits until `bytes` may have been written since `began`, and as long as others wait for the store, within reason.
    async fn make_way(&self, began: Duration, bytes: u64) -> Result<(), GcError> {
        let vfs = &self.gc.parts.vfs;
        let due = began + Duration::from_micros(bytes * 1_000_000 / self.gc.settings.bytes_per_second.max(1));
        let latest = due + 20 * WAY;
        loop {
            if self.gc.is_stopping() {
                return Err(GcError::Stopping);
            }
            let now = vfs.parts.clock.monotonic();
            if now >= latest || (now >= due && vfs.fetches.waiting.load(Acquire) == 0) {
                return Ok(());
            }
            sluice_run::time::sleep(if now < due { due - now } else { WAY }).await;
        }
    }
}
