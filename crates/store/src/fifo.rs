//! Which clean slot goes next: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! New objects enter a small queue. What was used again by the time it gets to the head moves to the main queue, the rest leaves
//! and is remembered by id in a ghost queue; if it comes back soon it enters the main queue. A scan flows through the small
//! queue only. Uses are counted at most once in ten seconds (`Entry::count_use`), so a sequential reader that asks for an object
//! piece by piece counts as having seen it once. A hit moves nothing: O(1) without a lock.

use crate::entry::Entry;
use sluice_base::ObjectId;
use sluice_run::collections::HashSet;
use std::{collections::VecDeque, sync::Arc};

/// Share of the queued slots that the small queue may take before it gives one up: one in this many.
const SMALL_SHARE: usize = 10;

pub(crate) struct Fifo {
    small: VecDeque<Arc<Entry>>,
    main: VecDeque<Arc<Entry>>,
    ghosts: VecDeque<u64>,
    ghost_set: HashSet<u64>,
    /// Slots of the cache: bounds the ghosts, and twice this the stale entries in the queues.
    slots: usize,
}

fn ghost_of(object: ObjectId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = object.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Queued, and neither taken out nor made dirty meanwhile.
fn is_candidate(entry: &Arc<Entry>) -> bool {
    !entry.is_doomed() && !entry.is_dirty()
}

impl Fifo {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            ghost_set: HashSet::default(),
            slots,
        }
    }

    /// A clean slot arrived, or a dirty one became clean.
    pub(crate) fn push(&mut self, entry: Arc<Entry>) {
        if self.ghost_set.remove(&ghost_of(entry.object)) {
            self.main.push_back(entry);
        } else {
            self.small.push_back(entry);
        }
        if self.small.len() + self.main.len() > 2 * self.slots {
            self.small.retain(is_candidate);
            self.main.retain(is_candidate);
        }
    }

    /// A slot that survived a restart.
    pub(crate) fn push_main(&mut self, entry: Arc<Entry>) {
        self.main.push_back(entry);
    }

    /// Takes a slot that nobody holds. The caller owns it: it is doomed.
    pub(crate) fn pop(&mut self) -> Option<Arc<Entry>> {
        // Every entry leaves the small queue once and makes at most four rounds of the main one.
        for _ in 0..=self.small.len() + 5 * (self.small.len() + self.main.len()) {
            let share = (self.small.len() + self.main.len()) / SMALL_SHARE;
            let taken =
                if self.small.len() > share || self.main.is_empty() { self.pop_small()? } else { self.pop_main()? };
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    /// `None`: the queue is empty. `Some(None)`: its head stays.
    fn pop_small(&mut self) -> Option<Option<Arc<Entry>>> {
        let entry = self.small.pop_front()?;
        if !is_candidate(&entry) {
            return Some(None);
        }
        if entry.uses() == 0 && entry.doom_unheld() {
            self.remember(entry.object);
            return Some(Some(entry));
        }
        if !entry.is_doomed() {
            entry.set_uses(0);
            self.main.push_back(entry);
        }
        Some(None)
    }

    fn pop_main(&mut self) -> Option<Option<Arc<Entry>>> {
        let entry = self.main.pop_front()?;
        if !is_candidate(&entry) {
            return Some(None);
        }
        let uses = entry.uses();
        if uses == 0 && entry.doom_unheld() {
            return Some(Some(entry));
        }
        if !entry.is_doomed() {
            entry.set_uses(uses.saturating_sub(1));
            self.main.push_back(entry);
        }
        Some(None)
    }

    fn remember(&mut self, object: ObjectId) {
        if self.ghost_set.insert(ghost_of(object)) {
            self.ghosts.push_back(ghost_of(object));
        }
        while self.ghosts.len() > self.slots {
            if let Some(oldest) = self.ghosts.pop_front() {
                self.ghost_set.remove(&oldest);
            }
        }
    }
}
