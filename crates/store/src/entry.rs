//! One stay of one object in one slot.

use crate::{SLOT_BYTES, SlotLocation, cache::Inner, replay::Replay, slab::Slab, sums::Sums};
use sluice_base::{ObjectId, crc::Crc32c};
use sluice_run::lock::Mutex;
use std::{
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    },
};

/// Set in `Entry::holds` once the entry has left the map or is about to.
const DOOMED: u32 = 1 << 31;
/// Uses that an entry is credited with at most: how many rounds of the main queue it survives unused.
const USES_MAX: u8 = 3;
/// Uses within this time are one: a scan that reads an object in pieces is no reason to keep it.
const SAME_USE_SECS: u32 = 10;

pub(crate) struct Entry {
    pub(crate) object: ObjectId,
    /// Slot number over all slabs.
    pub(crate) index: u32,
    pub(crate) at: SlotLocation,
    pub(crate) slab: Arc<Slab>,
    cache: Weak<Inner>,
    /// Holds, and DOOMED.
    holds: AtomicU32,
    dirty: AtomicBool,
    uses: AtomicU8,
    last_use_secs: AtomicU32,
    /// The persisted record is older than this entry.
    pub(crate) changed: AtomicBool,
    /// Replay has not been settled: sums are yet to be computed.
    pub(crate) replaying: AtomicBool,
    /// Bytes from the slot's start that were appended; of a dirty slot only.
    pub(crate) end: AtomicU32,
    /// Bytes in present segments, for statistics.
    pub(crate) bytes: AtomicU32,
    pub(crate) sums: Sums,
    pub(crate) writer: Mutex<Writer>,
}

/// What only the one who appends needs.
#[derive(Default)]
pub(crate) struct Writer {
    /// Sum of the bytes of the segment that `end` lies in, without the place; `None` stands for no bytes.
    pub(crate) tail: Option<Box<Crc32c>>,
    /// Bytes behind `end` may not be zeros: after a failed write, or in an adopted slot.
    pub(crate) soiled: bool,
    pub(crate) replay: Option<Box<Replay>>,
}

impl Entry {
    pub(crate) fn new(cache: Weak<Inner>, object: ObjectId, index: u32, at: SlotLocation, slab: Arc<Slab>) -> Self {
        Self {
            object,
            index,
            at,
            slab,
            cache,
            holds: AtomicU32::new(0),
            dirty: AtomicBool::new(false),
            uses: AtomicU8::new(0),
            last_use_secs: AtomicU32::new(0),
            changed: AtomicBool::new(true),
            replaying: AtomicBool::new(false),
            end: AtomicU32::new(0),
            bytes: AtomicU32::new(0),
            sums: Sums::new(),
            writer: Mutex::default(),
        }
    }

    /// Where the slot starts in its slab.
    pub(crate) fn base(&self) -> u64 {
        u64::from(self.at.slot) * SLOT_BYTES
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    pub(crate) fn set_dirty(&self, dirty: bool) {
        self.dirty.store(dirty, Ordering::Release);
        self.changed.store(true, Ordering::Release);
    }

    /// Keeps the slot with this object until the hold is dropped; `None` when it is on its way out.
    pub(crate) fn hold(self: &Arc<Self>) -> Option<Hold> {
        let more = |holds: u32| (holds & DOOMED == 0).then_some(holds + 1);
        self.holds.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        Some(Hold(self.clone()))
    }

    /// Counts a use at `now_secs`, at most one in ten seconds.
    pub(crate) fn count_use(&self, now_secs: u32) {
        if now_secs.wrapping_sub(self.last_use_secs.load(Ordering::Relaxed)) < SAME_USE_SECS {
            return;
        }
        self.last_use_secs.store(now_secs, Ordering::Relaxed);
        let uses = self.uses.load(Ordering::Relaxed);
        // Two readers at once may count one use: harmless.
        self.uses.store((uses + 1).min(USES_MAX), Ordering::Relaxed);
    }

    /// Its arrival is no use.
    pub(crate) fn arrive(&self, now_secs: u32) {
        self.last_use_secs.store(now_secs, Ordering::Relaxed);
        self.uses.store(0, Ordering::Relaxed);
    }

    pub(crate) fn uses(&self) -> u8 {
        self.uses.load(Ordering::Relaxed)
    }

    pub(crate) fn set_uses(&self, uses: u8) {
        self.uses.store(uses, Ordering::Relaxed);
    }

    pub(crate) fn is_doomed(&self) -> bool {
        self.holds.load(Ordering::Acquire) & DOOMED != 0
    }

    /// Ends the stay if nobody holds it. True: the caller owns the slot now.
    pub(crate) fn doom_unheld(&self) -> bool {
        self.holds.compare_exchange(0, DOOMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Ends the stay as soon as nobody holds it. True: that is now, and the caller owns the slot.
    pub(crate) fn doom(&self) -> bool {
        self.holds.fetch_or(DOOMED, Ordering::AcqRel) == 0
    }
}

/// A count on an entry that keeps its slot in place.
pub(crate) struct Hold(Arc<Entry>);

impl Deref for Hold {
    type Target = Arc<Entry>;
    fn deref(&self) -> &Arc<Entry> {
        &self.0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The last hold of a doomed entry owns the slot: no other caller can see these two facts together.
        if self.0.holds.fetch_sub(1, Ordering::AcqRel) == DOOMED | 1
            && let Some(cache) = self.0.cache.upgrade()
        {
            cache.reclaim(&self.0);
        }
    }
}
