//! Open and persist: the slot table between disk and memory.

use super::{Cache, CacheOptions, Counters, Inner};
use crate::{
    CAPACITY_BYTES_MAX, CacheError, SLOT_BYTES, SlotLocation,
    entry::Entry,
    health::Health,
    slab::{Slabs, What},
    space::Space,
    table::{Record, State, Table},
};
use sluice_base::{Clock, Disk, limits::SEGMENTS_PER_OBJECT};
use sluice_run::lock::Mutex;
use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// Slots whose records are prepared and written together: 4 MiB of records at most.
const BATCH_SLOTS: usize = 4096;

impl Inner {
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        options: CacheOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, CacheError> {
        if options.capacity_bytes > CAPACITY_BYTES_MAX {
            return Err(CacheError::TooLarge(options.capacity_bytes));
        }
        let capacity = (options.capacity_bytes / SLOT_BYTES) as u32;
        if capacity == 0 {
            return Err(CacheError::TooSmall(options.capacity_bytes));
        }
        disk.create_dir_all(&options.dir)?;
        let wall_secs = u32::try_from(clock.wall().secs).unwrap_or(0);
        let table = Table::open(&*disk, &options.dir, options.volume, capacity, wall_secs.max(1))?;
        let header = table.header;
        let health = Arc::new(Health::default());
        let first_generation = u64::from(header.epoch) << 32 | 1;
        let slabs = Slabs::new(disk, &options.dir, health.clone(), header.slab_slots);
        let doubted = slabs.is_doubted()?.into();
        let inner = Arc::new(Self {
            slabs,
            clock,
            health,
            counters: Counters::default(),
            table: Mutex::new(table),
            map: std::array::from_fn(|_| Mutex::default()),
            space: Mutex::new(Space::new(header.slots as usize, capacity as usize)),
            next_generation: AtomicU64::new(first_generation),
            first_generation,
            scrubber: OnceLock::new(),
            doubted,
        });
        inner.load(capacity)?;
        Ok(inner)
    }

    /// Clean slots of the table within the capacity come back; of the others only the generation is remembered.
    fn load(self: &Arc<Self>, capacity: u32) -> Result<(), CacheError> {
        let mut entries: Vec<Arc<Entry>> = Vec::new();
        let mut failed = None;
        let mut beyond = Vec::new();
        let table = self.table.lock();
        table.load(|index, record| {
            self.space.lock().slots[index as usize].generation = record.generation();
            match record.state() {
                State::Clean if index < capacity => match self.entry_of(index, record) {
                    Ok(entry) => entries.push(entry),
                    Err(error) => failed = Some(error),
                },
                State::Clean => beyond.push(index),
                State::Dirty | State::Empty => {}
            }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        // Oldest first into the queue. Of two slots that a crash left with one object the later stay counts.
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.at.generation));
        entries.retain(|entry| {
            let mut shard = self.shard(entry.object).lock();
            let first = !shard.entries.contains_key(&entry.object);
            if first {
                shard.entries.insert(entry.object, entry.clone());
            }
            first
        });
        // Nobody else has this cache yet: the lock may cover the punches.
        let mut space = self.space.lock();
        for entry in entries.iter().rev() {
            self.counters.add(entry);
            space.queues.push_main(entry.clone());
            space.slots[entry.index as usize].entry = Some(entry.clone());
        }
        let space = &mut *space;
        space.free.retain(|index| space.slots[*index as usize].entry.is_none());
        // Beyond a capacity that shrank, slots are there to be adopted only. What was clean there gives its room back.
        for index in beyond {
            space.slots[index as usize].blank = self.punch(index).is_ok();
            space.slots[index as usize].changed = true;
        }
        Ok(())
    }

    fn entry_of(self: &Arc<Self>, index: u32, record: &Record) -> io::Result<Arc<Entry>> {
        let at = SlotLocation {
            slab: index / self.slabs.slots,
            slot: index % self.slabs.slots,
            generation: record.generation(),
        };
        let slab = self.slabs.get(at.slab)?;
        let entry = Entry::new(Arc::downgrade(self), record.object(), index, at, slab);
        let mut bytes = 0;
        for segment in 0..SEGMENTS_PER_OBJECT {
            let sum = record.sum(segment);
            bytes += sum.len;
            entry.sums.publish(segment, sum);
        }
        entry.bytes.store(bytes, Ordering::Relaxed);
        entry.changed.store(false, Ordering::Relaxed);
        Ok(Arc::new(entry))
    }

    pub(super) fn persist(&self) -> Result<(), CacheError> {
        if self.health.is_failed() {
            return Err(CacheError::Failed);
        }
        let mut table = self.table.lock();
        let all = std::mem::replace(&mut table.rewrite, true);
        for first in (0..table.header.slots as usize).step_by(BATCH_SLOTS) {
            let records = self.changed_records(first, all);
            if records.is_empty() {
                continue;
            }
            // Sums first, data second, records last: no record names bytes that a power loss can take.
            self.slabs.sync(What::All)?;
            for run in records.chunk_by(|a, b| a.0 + 1 == b.0) {
                let bytes: Vec<Record> = run.iter().map(|(_, record)| *record).collect();
                self.health.note("write the slot table", table.write(run[0].0, &bytes))?;
            }
        }
        self.slabs.sync(What::All)?;
        table.sync().inspect_err(|error| self.health.fail("sync the slot table", error))?;
        table.rewrite = false;
        Ok(())
    }

    fn changed_records(&self, first: usize, all: bool) -> Vec<(u32, Record)> {
        let mut space = self.space.lock();
        let end = space.slots.len().min(first + BATCH_SLOTS);
        let mut changed = Vec::new();
        for index in first..end {
            let slot = &mut space.slots[index];
            let freed = std::mem::take(&mut slot.changed);
            let filled = slot.entry.as_ref().is_some_and(|entry| entry.changed.swap(false, Ordering::AcqRel));
            if freed || filled || all {
                changed.push((index as u32, slot.entry.clone(), slot.generation));
            }
        }
        drop(space);
        let record = |(index, entry, generation): (u32, Option<Arc<Entry>>, u64)| match entry {
            Some(entry) => (index, Record::of(&entry)),
            None => (index, Record::empty(index, generation)),
        };
        changed.into_iter().map(record).collect()
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
