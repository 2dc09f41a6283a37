//! Which slots are free and who sits in the others.

use crate::{entry::Entry, fifo::Fifo};
use std::{sync::Arc, time::Duration};

/// How long after the last "disk full" the cache tries to take more room again.
const REGROW_AFTER: Duration = Duration::from_secs(60);
/// Share of the slots by which it then grows, and of the occupied ones that it gives back when the disk is full.
const STEP_SHARE: usize = 16;

pub(crate) struct Space {
    pub(crate) slots: Vec<Slot>,
    /// Free slots; the last is taken first.
    pub(crate) free: Vec<u32>,
    pub(crate) queues: Fifo,
    /// Slots that may be occupied: the capacity, or less while the disk has no room.
    pub(crate) usable: usize,
    /// Slots that the capacity allows.
    pub(crate) capacity: usize,
    shrunk_at: Duration,
}

#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) entry: Option<Arc<Entry>>,
    /// Latest stay known; 0 when there was none.
    pub(crate) generation: u64,
    /// Reads as zeros: punched since its last stay.
    pub(crate) blank: bool,
    /// Became free since the table was written.
    pub(crate) changed: bool,
}

/// A slot that was claimed.
pub(crate) struct Claim {
    pub(crate) index: u32,
    pub(crate) blank: bool,
    /// The object that had to go: doomed, still in the map, its slot not punched.
    pub(crate) evicted: Option<Arc<Entry>>,
}

impl Space {
    /// `total` slots exist, of which `capacity` may be used.
    pub(crate) fn new(total: usize, capacity: usize) -> Self {
        Self {
            slots: std::iter::repeat_with(Slot::default).take(total).collect(),
            free: (0..total as u32).rev().collect(),
            queues: Fifo::new(total),
            usable: capacity,
            capacity,
            shrunk_at: Duration::ZERO,
        }
    }

    pub(crate) fn occupied(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A free slot, or the next victim's.
    pub(crate) fn claim(&mut self, now: Duration) -> Option<Claim> {
        self.regrow(now);
        if self.occupied() < self.usable
            && let Some(index) = self.free.pop()
        {
            return Some(Claim { index, blank: self.slots[index as usize].blank, evicted: None });
        }
        let evicted = self.queues.pop()?;
        Some(Claim { index: evicted.index, blank: false, evicted: Some(evicted) })
    }

    /// The slot has no tenant any more.
    pub(crate) fn release(&mut self, index: u32, blank: bool) {
        let slot = &mut self.slots[index as usize];
        *slot = Slot { entry: None, generation: slot.generation, blank, changed: true };
        debug_assert!(!self.free.contains(&index));
        self.free.push(index);
    }

    /// The disk is full: use fewer slots than now, and go on with that for a while.
    pub(crate) fn shrink(&mut self, now: Duration) {
        let occupied = self.occupied();
        self.usable = occupied.saturating_sub((occupied / STEP_SHARE).max(1)).clamp(1, self.usable);
        self.shrunk_at = now;
    }

    /// Whether the disk had no room for all that the capacity allows.
    pub(crate) fn is_reduced(&self) -> bool {
        self.usable < self.capacity
    }

    fn regrow(&mut self, now: Duration) {
        if self.is_reduced() && now.saturating_sub(self.shrunk_at) >= REGROW_AFTER {
            self.usable = (self.usable + (self.capacity / STEP_SHARE).max(1)).min(self.capacity);
            self.shrunk_at = now;
        }
    }
}
