//! The cache of one directory: which object has which slot.

mod claim;
mod persist;

use crate::{
    CacheError, DirtySlot, Pin, SLOT_BYTES, SegmentSum, SlotLocation,
    entry::{Entry, Hold},
    error::is_full,
    health::Health,
    scrub::Scrubber,
    slab::{Slabs, What},
    space::Space,
    table::Table,
};
use sluice_base::{
    Clock, Disk, ObjectId, VolumeId,
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Shards of the object map. Its locks are held for a lookup: 64 keep dozens of threads apart.
const SHARDS: usize = 64;

/// Where and how large a cache is.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Directory for slabs and slot table. One process at a time may use it; the caller sees to that.
    pub dir: PathBuf,
    /// Room for slots in bytes, rounded down to whole slots of 4 MiB. The slot table comes on top, 0.03 %.
    pub capacity_bytes: u64,
    /// The volume whose objects are cached.
    pub volume: VolumeId,
}

/// How well the disk serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheState {
    /// All of the capacity is in use or can be.
    Active,
    /// The disk was full: fewer slots are used, more are tried for every minute.
    Reduced,
    /// Out of use after I/O errors.
    Failed,
}

/// Counts since open, and sizes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CacheStats {
    pub state: CacheState,
    pub capacity_bytes: u64,
    /// Slots that may be occupied now: below `capacity_bytes` / 4 MiB while the disk is full.
    pub usable_slots: u64,
    pub free_slots: u64,
    pub clean_slots: u64,
    pub dirty_slots: u64,
    /// Bytes of present segments.
    pub clean_bytes: u64,
    pub dirty_bytes: u64,
    /// `pin` calls that found the object, and that did not.
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    pub corrupt_segments: u64,
    pub io_errors: u64,
}

/// The cache of one directory. A clone is another handle to it.
#[derive(Clone)]
pub struct Cache(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) health: Arc<Health>,
    pub(crate) counters: Counters,
    pub(crate) slabs: Slabs,
    table: Mutex<Table>,
    map: [Mutex<Shard>; SHARDS],
    space: Mutex<Space>,
    next_generation: AtomicU64,
    /// Of this process; earlier runs had smaller ones.
    pub(crate) first_generation: u64,
    pub(crate) scrubber: OnceLock<Arc<Scrubber>>,
    /// A sync of an earlier process failed: what is adopted is written again.
    pub(crate) doubted: AtomicBool,
}

#[derive(Default)]
#[repr(align(64))]
struct Shard {
    entries: HashMap<ObjectId, Arc<Entry>>,
    hits: u64,
    misses: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    clean_slots: AtomicU64,
    dirty_slots: AtomicU64,
    clean_bytes: AtomicU64,
    dirty_bytes: AtomicU64,
    evictions: AtomicU64,
    pub(crate) corrupt: AtomicU64,
}

impl Counters {
    /// Slots and bytes of entries like this one.
    pub(crate) fn of(&self, entry: &Entry) -> (&AtomicU64, &AtomicU64) {
        if entry.is_dirty() { (&self.dirty_slots, &self.dirty_bytes) } else { (&self.clean_slots, &self.clean_bytes) }
    }

    /// Segments of `entry` grew by `bytes`.
    pub(crate) fn add_bytes(&self, entry: &Entry, bytes: u32) {
        entry.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.of(entry).1.fetch_add(bytes.into(), Ordering::Relaxed);
    }

    fn add(&self, entry: &Entry) {
        let (slots, bytes) = self.of(entry);
        slots.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(entry.bytes.load(Ordering::Relaxed).into(), Ordering::Relaxed);
    }

    fn subtract(&self, entry: &Entry) {
        let (slots, bytes) = self.of(entry);
        slots.fetch_sub(1, Ordering::Relaxed);
        bytes.fetch_sub(entry.bytes.load(Ordering::Relaxed).into(), Ordering::Relaxed);
    }
}

impl Cache {
    /// Opens or makes the cache in `options.dir`. Objects of the last persisted table are there again, as clean slots; slots
    /// that were dirty come back by `adopt_dirty` only, which must come before anything that claims slots.
    pub fn open(disk: Arc<dyn Disk>, options: CacheOptions, clock: Arc<dyn Clock>) -> Result<Self, CacheError> {
        Ok(Self(Inner::open(disk, options, clock)?))
    }

    /// A slot for an object that this process will write: pinned until `mark_clean` or `discard`.
    pub fn create_dirty(&self, object: ObjectId) -> Result<DirtySlot, CacheError> {
        if self.0.find(object).is_some() {
            return Err(CacheError::Exists(object));
        }
        let hold = self.0.install(object, true)?;
        Ok(DirtySlot { entry: hold.clone(), cache: self.0.clone() })
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.0.slabs.dir
    }

    /// The object's dirty slot.
    pub fn dirty(&self, object: ObjectId) -> Option<DirtySlot> {
        let entry = self.0.find(object).filter(|entry| entry.is_dirty())?;
        Some(DirtySlot { entry, cache: self.0.clone() })
    }

    /// Takes the place of a journal record again, before any other claim: a dirty slot of which no segment is known yet. The
    /// journal then names its bytes by `DirtySlot::restore` and `DirtySlot::verify_run`. Again for the same object and place:
    /// the same slot.
    pub fn adopt_dirty(&self, object: ObjectId, at: SlotLocation) -> Result<DirtySlot, CacheError> {
        let entry = self.0.adopt(object, at)?;
        Ok(DirtySlot { entry, cache: self.0.clone() })
    }

    /// The object is stored: its slot may be evicted from now on. To be called only once nothing that a crash leaves in the
    /// journal would adopt the place again.
    pub fn mark_clean(&self, object: ObjectId) {
        let Some(hold) = self.0.held(object) else { return };
        let mut writer = hold.writer.lock();
        if !hold.is_dirty() {
            return;
        }
        if hold.replaying.load(Ordering::Acquire) {
            crate::replay::settle(&self.0, &hold, &mut writer).ok();
        }
        if hold.sums.any_bad() || hold.replaying.load(Ordering::Acquire) {
            drop(writer);
            return self.discard(object);
        }
        self.0.counters.subtract(&hold);
        hold.set_dirty(false);
        self.0.counters.add(&hold);
        *writer = Default::default();
        hold.arrive(self.0.now_secs());
        self.0.space.lock().queues.push(hold.clone());
    }

    /// Gives the object's slot up, whatever its state; its room is free once the last pin is gone.
    pub fn discard(&self, object: ObjectId) {
        if let Some(entry) = self.0.find(object) {
            self.0.drop_entry(&entry);
        }
    }

    /// Keeps segment `index` of a stored object: `stored` is its stored form and `crc` its `segment_crc`, both verified by the
    /// caller. Takes a slot when the object has none. A present segment is never rewritten, and nothing is added to dirty slots.
    pub fn fill(&self, object: ObjectId, index: u32, stored: &[u8], crc: u32) -> Result<(), CacheError> {
        if index as usize >= SEGMENTS_PER_OBJECT || stored.is_empty() || stored.len() > SEGMENT_BYTES {
            return Err(CacheError::Invalid("a segment has 1 to 32768 bytes and an index below 128"));
        }
        if self.0.health.is_failed() {
            return Err(CacheError::Failed);
        }
        let hold = self.0.held_or_installed(object)?;
        let _writer = hold.writer.lock();
        if hold.is_dirty() || !hold.sums.get(index as usize).is_absent() {
            return Ok(());
        }
        let offset = hold.base() + u64::from(index) * SEGMENT_BYTES as u64;
        if let Err(error) = hold.slab.write(stored, offset) {
            if hold.bytes.load(Ordering::Relaxed) == 0 {
                self.0.drop_entry(&hold);
            }
            if is_full(&error) {
                self.0.make_room();
                return Err(CacheError::DiskFull);
            }
            return Err(error.into());
        }
        hold.sums.publish_verified(index as usize, SegmentSum { len: stored.len() as u32, crc });
        self.0.counters.add_bytes(&hold, stored.len() as u32);
        hold.changed.store(true, Ordering::Release);
        Ok(())
    }

    /// Keeps the object's slot in place for reading, and counts a use. `None` when the object has no slot, or when the cache
    /// failed and the slot is clean.
    pub fn pin(&self, object: ObjectId) -> Option<Pin> {
        let hold = self.0.looked_up(object)?;
        if self.0.health.is_failed() && !hold.is_dirty() {
            return None;
        }
        if hold.replaying.load(Ordering::Acquire) {
            crate::replay::settle(&self.0, &hold, &mut hold.writer.lock()).ok()?;
        }
        hold.count_use(self.0.now_secs());
        Some(Pin(hold))
    }

    /// Which segments of an object are present, bit i for segment i. No use of it is counted.
    pub fn present(&self, object: ObjectId) -> u128 {
        let Some(entry) = self.0.find(object).filter(|entry| entry.is_dirty() || !self.0.health.is_failed()) else {
            return 0;
        };
        (0..SEGMENTS_PER_OBJECT).fold(0, |set, index| {
            let kept = entry.sums.get(index);
            set | u128::from(!kept.is_absent() && !kept.bad) << index
        })
    }

    /// A slot for a stored object that is about to be brought and used: it stays while the pin lives, and does not go with the next scan
    /// that passes through the cache. One that nothing came into is given up by [`Cache::evict`].
    pub fn prepare(&self, object: ObjectId) -> Result<Pin, CacheError> {
        let hold = self.0.held_or_installed(object)?;
        hold.set_uses(hold.uses().max(1));
        Ok(Pin(hold))
    }

    /// Somebody is about to use the object: it is not to go with the next scan that passes through the cache.
    pub fn favour(&self, object: ObjectId) {
        if let Some(entry) = self.0.find(object) {
            entry.set_uses(entry.uses().max(1));
        }
    }

    /// Gives up the slot of a stored object. Returns the bytes that were in it; none of an object that is not stored yet.
    pub fn evict(&self, object: ObjectId) -> u32 {
        let Some(entry) = self.0.find(object).filter(|entry| !entry.is_dirty()) else { return 0 };
        let bytes = entry.bytes.load(Ordering::Relaxed);
        self.0.drop_entry(&entry);
        bytes
    }

    /// A segment failed its check, or its disk gave an error. The slot of a stored object is given up. In a dirty slot the
    /// segment is checked once more and then marked: reads of it fail until its bytes are restored.
    pub fn retire(&self, object: ObjectId, index: u32) {
        self.0.counters.corrupt.fetch_add(1, Ordering::Relaxed);
        let Some(hold) = self.0.held(object) else { return };
        if !hold.is_dirty() {
            self.0.drop_entry(&hold);
            return;
        }
        let _writer = hold.writer.lock();
        if index as usize >= SEGMENTS_PER_OBJECT {
            return;
        }
        let kept = hold.sums.get(index as usize);
        if !kept.is_absent() && crate::pin::check_segment(&hold, index as usize, kept.sum).is_err() {
            hold.sums.publish_bad(index as usize, kept.sum);
        }
    }

    /// Everything appended and filled before this call survives power loss (fdatasync of the slabs written since).
    pub fn sync(&self) -> io::Result<()> {
        self.0.slabs.sync(What::All)
    }

    /// What was appended before this call and is relied on ([`DirtySlot::rely_on`]) survives power loss: fdatasync of its slabs, and none
    /// where a journal has all bytes that it speaks of.
    pub fn sync_relied_on(&self) -> io::Result<()> {
        self.0.slabs.sync(What::ReliedOn)
    }

    /// Whether [`Cache::sync_relied_on`] has anything to do, or a failure to tell.
    pub fn is_relied_on(&self) -> bool {
        self.0.slabs.are_relied_on()
    }

    /// Syncs what a replay has adopted, all of which it has seen by now: from here on the journal is believed in what it says of slots.
    pub fn sync_replayed(&self) -> io::Result<()> {
        self.sync()?;
        if self.0.doubted.swap(false, Ordering::Relaxed) {
            self.0.slabs.end_doubt()?;
        }
        Ok(())
    }

    /// Makes the slabs durable, then writes what changed in the slot table, durably.
    pub fn persist_table(&self) -> Result<(), CacheError> {
        self.0.persist()
    }

    /// Counts and sizes.
    pub fn stats(&self) -> CacheStats {
        let inner = &*self.0;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (mut hits, mut misses) = (0, 0);
        for shard in &inner.map {
            let shard = shard.lock();
            hits += shard.hits;
            misses += shard.misses;
        }
        let space = inner.space.lock();
        CacheStats {
            state: match () {
                () if inner.health.is_failed() => CacheState::Failed,
                () if space.is_reduced() => CacheState::Reduced,
                () => CacheState::Active,
            },
            capacity_bytes: space.capacity as u64 * SLOT_BYTES,
            usable_slots: space.usable as u64,
            free_slots: space.usable.saturating_sub(space.occupied()) as u64,
            clean_slots: load(&inner.counters.clean_slots),
            dirty_slots: load(&inner.counters.dirty_slots),
            clean_bytes: load(&inner.counters.clean_bytes),
            dirty_bytes: load(&inner.counters.dirty_bytes),
            hits,
            misses,
            evictions: load(&inner.counters.evictions),
            corrupt_segments: load(&inner.counters.corrupt),
            io_errors: inner.health.errors().into(),
        }
    }
}

impl Inner {
    pub(crate) fn now_secs(&self) -> u32 {
        self.clock.monotonic().as_secs() as u32
    }

    fn shard(&self, object: ObjectId) -> &Mutex<Shard> {
        // Ids are random: any byte spreads them.
        &self.map[usize::from(object.0[15]) % SHARDS]
    }

    fn find(&self, object: ObjectId) -> Option<Arc<Entry>> {
        self.shard(object).lock().entries.get(&object).filter(|entry| !entry.is_doomed()).cloned()
    }

    fn held(&self, object: ObjectId) -> Option<Hold> {
        self.shard(object).lock().entries.get(&object)?.hold()
    }

    /// `held`, counted as hit or miss.
    fn looked_up(&self, object: ObjectId) -> Option<Hold> {
        let mut shard = self.shard(object).lock();
        let hold = shard.entries.get(&object).and_then(|entry| entry.hold());
        *if hold.is_some() { &mut shard.hits } else { &mut shard.misses } += 1;
        hold
    }

    /// Who sits in slot `index`.
    pub(crate) fn tenant(&self, index: u32) -> Option<Arc<Entry>> {
        self.space.lock().slots.get(index as usize)?.entry.clone()
    }

    /// Slots that exist.
    pub(crate) fn slots(&self) -> u32 {
        self.space.lock().slots.len() as u32
    }

    /// Takes `entry` out of the map, if it is still the one there.
    fn forget(&self, entry: &Arc<Entry>) {
        let mut shard = self.shard(entry.object).lock();
        if shard.entries.get(&entry.object).is_some_and(|found| Arc::ptr_eq(found, entry)) {
            shard.entries.remove(&entry.object);
        }
    }
}
