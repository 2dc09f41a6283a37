//! Slots change hands: claimed, adopted, evicted, given back.

use super::Inner;
use crate::{
    CacheError, SLOT_BYTES, SlotLocation,
    entry::{Entry, Hold},
    error::is_full,
    replay::Replay,
};
use sluice_base::ObjectId;
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

/// Rounds of evicting and writing again before a write gives up on a full disk. Each gives back a sixteenth of the slots.
const FULL_DISK_ROUNDS_MAX: u32 = 4;

impl Inner {
    /// A slot with nothing in it for `object`, in the map and held.
    pub(super) fn install(self: &Arc<Self>, object: ObjectId, dirty: bool) -> Result<Hold, CacheError> {
        if self.health.is_failed() {
            return Err(CacheError::Failed);
        }
        let index = self.claim()?;
        let at = SlotLocation {
            slab: index / self.slabs.slots,
            slot: index % self.slabs.slots,
            generation: self.next_generation.fetch_add(1, Ordering::Relaxed),
        };
        let slab = match self.slabs.get(at.slab) {
            Ok(slab) => slab,
            Err(error) => {
                self.space.lock().release(index, true);
                return Err(if is_full(&error) { CacheError::DiskFull } else { error.into() });
            }
        };
        let entry = Arc::new(Entry::new(Arc::downgrade(self), object, index, at, slab));
        self.move_in(entry, dirty)
    }

    /// Makes `entry` the tenant of its slot and puts it into the map.
    fn move_in(&self, entry: Arc<Entry>, dirty: bool) -> Result<Hold, CacheError> {
        entry.set_dirty(dirty);
        entry.arrive(self.now_secs());
        // Held from before it is seen: nobody evicts it between the two locks.
        let hold = entry.hold().ok_or(CacheError::Failed)?;
        self.counters.add(&entry);
        {
            let mut space = self.space.lock();
            let slot = &mut space.slots[entry.index as usize];
            (slot.entry, slot.generation, slot.blank) = (Some(entry.clone()), entry.at.generation, false);
            if !dirty {
                space.queues.push(entry.clone());
            }
        }
        let mut shard = self.shard(entry.object).lock();
        if shard.entries.get(&entry.object).is_some_and(|other| !other.is_doomed()) {
            drop(shard);
            entry.doom();
            return Err(CacheError::Exists(entry.object));
        }
        shard.entries.insert(entry.object, entry.clone());
        drop(shard);
        Ok(hold)
    }

    /// A slot that reads as zeros and belongs to the caller.
    fn claim(&self) -> Result<u32, CacheError> {
        let (claim, excess) = {
            let mut space = self.space.lock();
            let Some(claim) = space.claim(self.clock.monotonic()) else {
                // Slots that the disk has no room for do not come back with an upload alone.
                return Err(if space.is_reduced() { CacheError::DiskFull } else { CacheError::NoRoom });
            };
            // After a full disk, two go for every one that comes.
            let excess = if space.occupied() > space.usable { space.queues.pop() } else { None };
            (claim, excess)
        };
        if let Some(excess) = excess {
            self.evict(&excess);
        }
        if let Some(evicted) = &claim.evicted {
            self.forget(evicted);
            self.counters.subtract(evicted);
            self.counters.evictions.fetch_add(1, Ordering::Relaxed);
        }
        if !claim.blank
            && let Err(error) = self.punch(claim.index)
        {
            self.space.lock().release(claim.index, false);
            return Err(error.into());
        }
        Ok(claim.index)
    }

    pub(super) fn punch(&self, index: u32) -> io::Result<()> {
        let slab = self.slabs.get(index / self.slabs.slots)?;
        slab.punch(u64::from(index % self.slabs.slots) * SLOT_BYTES)
    }

    /// Frees the slot of an entry that the queues gave out.
    fn evict(&self, entry: &Arc<Entry>) {
        self.forget(entry);
        self.counters.evictions.fetch_add(1, Ordering::Relaxed);
        self.reclaim(entry);
    }

    /// Frees the slot of a doomed entry that nobody holds; the caller is the one who saw both.
    pub(crate) fn reclaim(&self, entry: &Arc<Entry>) {
        self.counters.subtract(entry);
        let blank = self.punch(entry.index).is_ok();
        self.space.lock().release(entry.index, blank);
    }

    /// Ends the stay of `entry`, now or with its last hold.
    pub(crate) fn drop_entry(&self, entry: &Arc<Entry>) {
        self.forget(entry);
        if entry.doom() {
            self.reclaim(entry);
        }
    }

    pub(super) fn held_or_installed(self: &Arc<Self>, object: ObjectId) -> Result<Hold, CacheError> {
        loop {
            if let Some(hold) = self.held(object) {
                return Ok(hold);
            }
            match self.install(object, false) {
                // Somebody else was quicker.
                Err(CacheError::Exists(_)) => {}
                outcome => return outcome,
            }
        }
    }

    /// The disk is full: gives back some clean slots. True when any went.
    pub(crate) fn make_room(&self) -> bool {
        self.space.lock().shrink(self.clock.monotonic());
        let mut any = false;
        loop {
            let entry = {
                let mut space = self.space.lock();
                if space.occupied() <= space.usable {
                    return any;
                }
                space.queues.pop()
            };
            let Some(entry) = entry else { return any };
            self.evict(&entry);
            any = true;
        }
    }

    /// Writes into a dirty slot; a full disk first costs clean slots.
    pub(crate) fn write_dirty(&self, entry: &Entry, bytes: &[u8], offset: u64) -> Result<(), CacheError> {
        for _ in 0..FULL_DISK_ROUNDS_MAX {
            match entry.slab.write(bytes, entry.base() + offset) {
                Ok(()) => return Ok(()),
                Err(error) if !is_full(&error) => return Err(error.into()),
                Err(_) if self.make_room() => {}
                Err(_) => return Err(CacheError::DiskFull),
            }
        }
        Err(CacheError::DiskFull)
    }

    /// The place `at` for `object`, as it is on disk.
    pub(super) fn adopt(self: &Arc<Self>, object: ObjectId, at: SlotLocation) -> Result<Arc<Entry>, CacheError> {
        let index = u64::from(at.slab) * u64::from(self.slabs.slots) + u64::from(at.slot);
        if at.slot >= self.slabs.slots || index >= self.space.lock().slots.len() as u64 {
            return Err(CacheError::Taken(at));
        }
        let known = self.find(object);
        match &known {
            Some(entry) if entry.at == at && entry.is_dirty() => return Ok(entry.clone()),
            // A copy that an old table remembers.
            Some(entry) if !entry.is_dirty() && entry.at.generation < at.generation => self.drop_entry(entry),
            Some(entry) if entry.at != at => return Err(CacheError::Exists(object)),
            _ => {}
        }
        let slab = self.slabs.get(at.slab)?;
        slab.inherit_writes();
        if let Some(old) = self.take_place(index as u32, at)? {
            self.forget(&old);
            self.counters.subtract(&old);
        }
        self.next_generation.fetch_max(at.generation.saturating_add(1), Ordering::Relaxed);
        let entry = Arc::new(Entry::new(Arc::downgrade(self), object, index as u32, at, slab));
        entry.replaying.store(true, Ordering::Release);
        {
            let mut writer = entry.writer.lock();
            writer.soiled = true;
            writer.replay = Some(Box::new(Replay::default()));
        }
        let hold = self.move_in(entry, true)?;
        Ok(hold.clone())
    }

    /// Takes slot `index` out of the free list or from an older tenant, whose entry is returned doomed.
    fn take_place(&self, index: u32, at: SlotLocation) -> Result<Option<Arc<Entry>>, CacheError> {
        let mut space = self.space.lock();
        let slot = &space.slots[index as usize];
        if slot.generation > at.generation {
            return Err(CacheError::Taken(at));
        }
        if let Some(entry) = &slot.entry {
            // A clean tenant of an older stay is what an old table remembers.
            let goes = !entry.is_dirty() && entry.doom_unheld();
            return if goes { Ok(Some(entry.clone())) } else { Err(CacheError::Taken(at)) };
        }
        let position = space.free.iter().position(|free| *free == index).ok_or(CacheError::Taken(at))?;
        space.free.remove(position);
        Ok(None)
    }
}
