//! Objects that are not stored yet: the ones that writers add to, and the ones that wait for the uploader.
//!
//! A write takes room in an open object, puts its bytes there and then commits the metadata that points to them. A
//! [`Reservation`] spans both steps, so that no object is judged unreferenced while a commit is under way.
//!
//! Lock order: a file's data, then `pool`, then `objects`, then one object's `state`.

use crate::error::Failure;
use bytes::Bytes;
use sluice_base::{
    Clock, Entropy, ObjectId, Seq,
    limits::{OBJECT_BYTES, SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use sluice_meta::extent::Place;
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use sluice_store::{Cache, CacheError, DirtySlot, SegmentSum, SlotLocation};
use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Most objects that are kept in memory when there is no usable cache disk, 64 MiB, if the memory of the mount has that...
const MEMORY_OBJECTS_MAX: usize = 16;
/// ... of which they get this part.
const MEMORY_SHARE: u64 = 4;
/// An object is stored with holes when more than this part of it is dead.
const HOLES_SHARE: usize = 8;
/// Most open objects that wait for another writer.
const POOL_MAX: usize = 16;

/// Where an object's bytes are until it is stored.
pub enum Body {
    /// In a slot of the cache disk.
    Slot(DirtySlot),
    /// In memory: the volume runs without a cache disk, and every byte is in the journal.
    Memory(Mutex<Memory>),
}

/// An object's bytes in memory.
#[derive(Default)]
pub struct Memory {
    /// All of them so far.
    pub bytes: Vec<u8>,
    /// Segments that replay did not find again: neither read nor stored.
    pub lost: BTreeSet<usize>,
}

impl Memory {
    /// Puts `bytes` at `offset`; what is skipped reads as zeros.
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
    }

    /// [offset, offset + len), if all of it is here.
    fn get(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let touched = offset / SEGMENT_BYTES..(offset + len).div_ceil(SEGMENT_BYTES);
        if self.lost.range(touched).next().is_some() { None } else { self.bytes.get(offset..offset + len) }
    }

    /// All segments; lost ones are absent.
    pub fn segments(&self) -> Vec<Option<Bytes>> {
        let all = self.bytes.chunks(SEGMENT_BYTES).enumerate();
        all.map(|(index, segment)| (!self.lost.contains(&index)).then(|| Bytes::copy_from_slice(segment))).collect()
    }
}

struct State {
    /// Of each segment, bytes that extents refer to, as far as that is known: never less than there are.
    live: [u32; SEGMENTS_PER_OBJECT],
    end: u32,
    sealed: bool,
    writers: u32,
    touched: Duration,
    /// The last record that may speak of it, as far as it was committed.
    last_seq: Seq,
    /// Segments that the journal does not have, a bit each; as far as this process wrote them.
    in_slot_alone: u128,
}

/// An object that is not stored yet.
pub struct DirtyObject {
    /// Its id.
    pub id: ObjectId,
    /// No record before this one speaks of it.
    pub first_seq: Seq,
    /// Its bytes.
    pub body: Body,
    state: Mutex<State>,
    /// Segments that are not uploaded, a bit each: what a retry sends is the same.
    dead: OnceLock<u128>,
}

/// Room taken in an object, filled, and not yet committed.
pub struct Reservation {
    /// The object.
    pub object: Arc<DirtyObject>,
    /// Where the bytes went.
    pub offset: u32,
    /// How many.
    pub len: u32,
    /// By how much the object became longer: a run may begin on the next segment.
    grown: u32,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.object.state.lock().writers -= 1;
    }
}

impl DirtyObject {
    /// An object found again by replay; it takes no more data.
    pub fn recovered(id: ObjectId, first_seq: Seq, body: Body) -> Self {
        let end = match &body {
            Body::Slot(slot) => slot.end(),
            Body::Memory(memory) => memory.lock().bytes.len() as u32,
        };
        // Who refers to it was not counted.
        let live = [u32::MAX; SEGMENTS_PER_OBJECT];
        // Nor which record was the last to speak of it.
        let (touched, last_seq, in_slot_alone) = (Duration::ZERO, Seq(u64::MAX), 0);
        let state = State { live, end, sealed: true, writers: 0, touched, last_seq, in_slot_alone };
        Self { id, first_seq, body, state: Mutex::new(state), dead: OnceLock::new() }
    }

    /// Bytes so far.
    pub fn end(&self) -> u32 {
        self.state.lock().end
    }

    /// The slot, when there is one.
    pub fn location(&self) -> Option<SlotLocation> {
        match &self.body {
            Body::Slot(slot) => Some(slot.location()),
            Body::Memory(_) => None,
        }
    }

    /// Sums of the segments that [offset, offset + len) touches.
    pub fn sums(&self, offset: u32, len: u32) -> Option<Vec<SegmentSum>> {
        let Body::Slot(slot) = &self.body else { return None };
        let (first, last) = (offset as usize / SEGMENT_BYTES, (offset + len - 1) as usize / SEGMENT_BYTES);
        Some(slot.sums().into_iter().skip(first).take(last - first + 1).collect())
    }

    /// Extents refer to [offset, offset + len), or did and do no more.
    pub fn count(&self, offset: u32, len: u32, is_gain: bool) {
        const SEGMENT: u32 = SEGMENT_BYTES as u32;
        let (mut at, end, mut state) = (offset, offset + len, self.state.lock());
        while at < end {
            let stop = end.min((at / SEGMENT + 1) * SEGMENT);
            let live = &mut state.live[(at / SEGMENT) as usize];
            if *live != u32::MAX {
                *live = if is_gain { live.saturating_add(stop - at) } else { live.saturating_sub(stop - at) };
            }
            at = stop;
        }
    }

    /// Segments that nothing refers to any more, a bit each, as of the first call; none where they are few: an object with holes is found by its
    /// table. It must be sealed, and have no commit under way.
    pub fn dead_segments(&self) -> u128 {
        *self.dead.get_or_init(|| {
            let state = self.state.lock();
            let count = (state.end as usize).div_ceil(SEGMENT_BYTES);
            let dead = (0..count).filter(|index| state.live[*index] == 0);
            let dead = dead.fold(0u128, |set, index| set | 1 << index);
            if dead.count_ones() as usize > count / HOLES_SHARE { dead } else { 0 }
        })
    }

    /// A record is about to speak of whole segments that only the slot has: the sync that makes it durable syncs them too.
    pub fn rely_on_slot(&self, bytes: Range<u32>) {
        if let Body::Slot(slot) = &self.body {
            slot.rely_on();
            let segments = bytes.start as usize / SEGMENT_BYTES..bytes.end as usize / SEGMENT_BYTES;
            self.state.lock().in_slot_alone |= segments.fold(0, |set, index| set | 1 << index);
        }
    }

    /// Whether the journal does not have this segment, as far as that is known.
    pub fn is_in_slot_alone(&self, index: usize) -> bool {
        self.state.lock().in_slot_alone & 1 << index != 0
    }

    /// A record up to `seq` speaks of it.
    pub fn was_noted(&self, seq: Seq) {
        let mut state = self.state.lock();
        state.last_seq = state.last_seq.max(seq);
    }

    /// The records that may speak of it: from the first to the last.
    pub fn records(&self) -> (Seq, Seq) {
        (self.first_seq, self.state.lock().last_seq)
    }

    /// Whether it is sealed and no record speaks of it: nothing was put into it. What replay found is never empty, however little of it can be
    /// read.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.sealed && state.end == 0 && state.live[0] == 0
    }

    /// No more data; false while a commit is under way.
    fn seal(&self) -> bool {
        let mut state = self.state.lock();
        state.sealed = true;
        state.writers == 0
    }

    /// Puts the first bytes of `bytes` at the end, `aligned` on a segment boundary. `None` when there is no room left.
    fn append(self: &Arc<Self>, bytes: &[u8], aligned: bool, now: Duration) -> Result<Option<Reservation>, CacheError> {
        let mut state = self.state.lock();
        let end = state.end as usize;
        let offset = if aligned { end.next_multiple_of(SEGMENT_BYTES) } else { end };
        let len = bytes.len().min(OBJECT_BYTES.saturating_sub(offset));
        if state.sealed || len == 0 {
            state.sealed = true;
            return Ok(None);
        }
        match &self.body {
            Body::Slot(slot) => slot.append(offset as u32, &bytes[..len])?,
            Body::Memory(memory) => memory.lock().put(offset, &bytes[..len]),
        }
        let grown = (offset + len - end) as u32;
        state.end = (offset + len) as u32;
        state.writers += 1;
        state.touched = now;
        Ok(Some(Reservation { object: self.clone(), offset: offset as u32, len: len as u32, grown }))
    }
}

/// Where a file's last bytes went, so that the next ones can go on there.
#[derive(Default)]
pub struct Stream {
    object: Option<Arc<DirtyObject>>,
    end: u32,
    file_offset: u64,
}

/// All objects that are not stored yet.
pub struct Dirty {
    cache: Option<Arc<Cache>>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    /// Open objects that no file's stream holds; the first one packs small writes.
    pool: Mutex<Vec<Arc<DirtyObject>>>,
    objects: Mutex<HashMap<ObjectId, Arc<DirtyObject>>>,
    in_memory: AtomicUsize,
    in_memory_max: usize,
    bytes: AtomicU64,
}

/// Most objects in the memory of a mount of `memory_bytes`, when no cache disk takes them.
fn in_memory_max(memory_bytes: u64) -> usize {
    ((memory_bytes / MEMORY_SHARE) as usize / OBJECT_BYTES).clamp(1, MEMORY_OBJECTS_MAX)
}

/// What is left of `memory_bytes` for reads.
pub(crate) fn memory_of_reads(memory_bytes: u64) -> u64 {
    memory_bytes.saturating_sub((in_memory_max(memory_bytes) * OBJECT_BYTES) as u64)
}

impl Dirty {
    /// No dirty objects yet.
    pub fn new(cache: Option<Arc<Cache>>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>, memory_bytes: u64) -> Self {
        let (pool, objects) = (Mutex::default(), Mutex::default());
        let (in_memory, in_memory_max) = (AtomicUsize::new(0), in_memory_max(memory_bytes));
        Self { cache, clock, entropy, pool, objects, in_memory, in_memory_max, bytes: AtomicU64::new(0) }
    }

    /// Takes room for the first bytes of `bytes`, which are the file's bytes from `file_offset`, and puts them there.
    pub fn append(
        &self,
        stream: &mut Stream,
        file_offset: u64,
        bytes: &[u8],
        large: bool,
        next_seq: Seq,
    ) -> Result<Reservation, Failure> {
        let now = self.clock.monotonic();
        if let Some(object) = stream.object.take() {
            let goes_on = stream.file_offset == file_offset && object.end() == stream.end;
            if goes_on || large {
                let aligned = !goes_on && bytes.len() >= SEGMENT_BYTES;
                if let Some(done) = self.try_append(&object, bytes, aligned, now)? {
                    return Ok(self.keep(stream, done, file_offset, large));
                }
            } else {
                self.give_back(object);
            }
        }
        let mut disk = true;
        loop {
            let object = self.take(large, disk, next_seq)?;
            disk = !matches!(object.body, Body::Slot(_)) || object.end() > 0;
            if let Some(done) = self.try_append(&object, bytes, bytes.len() >= SEGMENT_BYTES, now)? {
                return Ok(self.keep(stream, done, file_offset, large));
            }
        }
    }

    fn try_append(
        &self,
        to: &Arc<DirtyObject>,
        bytes: &[u8],
        aligned: bool,
        now: Duration,
    ) -> Result<Option<Reservation>, Failure> {
        match to.append(bytes, aligned, now) {
            Ok(done) => {
                self.bytes.fetch_add(done.as_ref().map_or(0, |d| d.grown.into()), Ordering::Relaxed);
                Ok(done)
            }
            Err(error) => {
                // What the slot holds so far stays; the next try takes a new slot, and when that fails too, memory.
                to.seal();
                tracing::warn!(%error, "a write to the cache disk failed");
                Ok(None)
            }
        }
    }

    /// Remembers where the stream goes on. A large writer keeps its object to itself; small ones share.
    fn keep(&self, stream: &mut Stream, done: Reservation, file_offset: u64, large: bool) -> Reservation {
        stream.end = done.offset + done.len;
        stream.file_offset = file_offset + u64::from(done.len);
        stream.object = Some(done.object.clone());
        if !large {
            self.give_back(done.object.clone());
        }
        done
    }

    /// An object is free for other writers again.
    fn give_back(&self, object: Arc<DirtyObject>) {
        let mut pool = self.pool.lock();
        let known = pool.iter().any(|o| o.id == object.id);
        if !known && pool.len() < POOL_MAX && !object.state.lock().sealed {
            pool.push(object);
        } else if !known {
            object.seal();
        }
    }

    /// The last handle of a file is gone.
    pub fn end_stream(&self, stream: &mut Stream) {
        if let Some(object) = stream.object.take() {
            self.give_back(object);
        }
    }

    /// An open object with room: one from the pool, or a new one.
    fn take(&self, large: bool, disk: bool, next_seq: Seq) -> Result<Arc<DirtyObject>, Failure> {
        let mut pool = self.pool.lock();
        pool.retain(|object| {
            let state = object.state.lock();
            !state.sealed && (state.end as usize) < OBJECT_BYTES
        });
        // Small writers share the first object; a large one takes the last for itself.
        let found = if large { if pool.len() > 1 { pool.pop() } else { None } } else { pool.first().cloned() };
        if let Some(object) = found {
            return Ok(object);
        }
        let object = self.create(disk, next_seq)?;
        if !large {
            pool.push(object.clone());
        }
        Ok(object)
    }

    fn create(&self, disk: bool, next_seq: Seq) -> Result<Arc<DirtyObject>, Failure> {
        let id = ObjectId::random(&*self.entropy);
        let cache = self.cache.as_ref().filter(|_| disk);
        let body = match cache.map(|cache| cache.create_dirty(id)) {
            Some(Ok(slot)) => Body::Slot(slot),
            Some(Err(CacheError::NoRoom)) => return Err(Failure::Wait),
            // No cache disk, or one that fails or is full: the volume goes on in memory, with every byte journalled.
            None | Some(Err(_)) => {
                if self.in_memory.fetch_add(1, Ordering::Relaxed) >= self.in_memory_max {
                    self.in_memory.fetch_sub(1, Ordering::Relaxed);
                    return Err(Failure::Wait);
                }
                Body::Memory(Mutex::default())
            }
        };
        let live = [0; SEGMENTS_PER_OBJECT];
        let (touched, last_seq, in_slot_alone) = (self.clock.monotonic(), Seq(0), 0);
        let state = State { live, end: 0, sealed: false, writers: 0, touched, last_seq, in_slot_alone };
        let (state, dead) = (Mutex::new(state), OnceLock::new());
        let object = Arc::new(DirtyObject { id, first_seq: next_seq, body, state, dead });
        self.objects.lock().insert(id, object.clone());
        Ok(object)
    }

    /// Takes in an object that replay found.
    pub fn adopt(&self, object: DirtyObject) {
        self.bytes.fetch_add(object.end().into(), Ordering::Relaxed);
        if matches!(object.body, Body::Memory(_)) {
            self.in_memory.fetch_add(1, Ordering::Release);
        }
        self.objects.lock().insert(object.id, Arc::new(object));
    }

    /// The object, while it is dirty.
    pub fn get(&self, id: ObjectId) -> Option<Arc<DirtyObject>> {
        self.objects.lock().get(&id).cloned()
    }

    /// Extents of a file change: they will refer to `gained`, and to `lost` no more. Both are places and lengths.
    pub fn count(&self, gained: &[(Place, u64)], lost: &[(Place, u64)]) {
        for (all, is_gain) in [(gained, true), (lost, false)] {
            for (place, len) in all {
                if let Some(object) = self.get(place.object) {
                    object.count(place.offset, *len as u32, is_gain);
                }
            }
        }
    }

    /// Whether there are objects in memory.
    pub fn has_memory(&self) -> bool {
        self.in_memory.load(Ordering::Acquire) != 0
    }

    /// Copies bytes of an object that is dirty in memory; false when it is not.
    pub fn read_memory(&self, id: ObjectId, offset: u32, buf: &mut [u8]) -> bool {
        if !self.has_memory() {
            return false;
        }
        let Some(object) = self.get(id) else { return false };
        let Body::Memory(memory) = &object.body else { return false };
        let memory = memory.lock();
        let Some(bytes) = memory.get(offset as usize, buf.len()) else { return false };
        buf.copy_from_slice(bytes);
        true
    }

    /// Seals what nobody added to for `idle`, and what keeps records before `needed` in the journal, and gives the objects that are ready for
    /// upload. One that was just made is left to its writer, who is about to put something into it.
    pub fn ready(&self, idle: Duration, needed: Option<Seq>) -> Vec<Arc<DirtyObject>> {
        let now = self.clock.monotonic();
        let all: Vec<_> = self.objects.lock().values().cloned().collect();
        let due = |object: &Arc<DirtyObject>| {
            let state = object.state.lock();
            let is_asked =
                now.saturating_sub(state.touched) >= idle || needed.is_some_and(|seq| object.first_seq < seq);
            state.sealed || is_asked && state.end > 0
        };
        all.into_iter().filter(|object| due(object) && object.seal()).collect()
    }

    /// An object is stored, or nothing refers to it.
    pub fn remove(&self, id: ObjectId) {
        if let Some(object) = self.objects.lock().remove(&id) {
            self.bytes.fetch_sub(object.end().into(), Ordering::Relaxed);
            if matches!(object.body, Body::Memory(_)) {
                self.in_memory.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// The first record that speaks of a dirty object: the journal is needed from there on.
    pub fn first_seq(&self) -> Option<Seq> {
        self.objects.lock().values().map(|object| object.first_seq).min()
    }

    /// Dirty objects that a record up to `seq` may speak of, and their bytes.
    pub fn totals_up_to(&self, seq: Seq) -> (usize, u64) {
        let objects = self.objects.lock();
        let older = objects.values().filter(|object| object.first_seq <= seq);
        older.fold((0, 0), |(count, bytes), object| (count + 1, bytes + u64::from(object.end())))
    }

    /// Dirty objects and bytes.
    pub fn totals(&self) -> (usize, u64) {
        (self.objects.lock().len(), self.bytes.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests;
