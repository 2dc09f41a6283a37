//! Which snapshots are alive, for the engine to know which old versions it must keep.
//!
//! Readers are counted per *generation*: a reader enters the current one, and each question for the oldest live sequence opens
//! a new one if a slot is free. All readers of a generation read at its floor or later. The order of steps makes it safe without
//! locks: a reader counts itself in, then checks that the generation is still current, then loads the visible sequence; the
//! asker makes the new generation current first, then looks at the counts.

use sluice_base::Seq;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// More than this many long-lived snapshots of different ages share generations, which only keeps more versions.
const GENERATIONS: usize = 8;
/// Counters of a generation: threads differ in theirs, so that reads on different cores do not fight for a cache line.
const SHARDS: usize = 16;

#[derive(Default)]
#[repr(align(64))]
struct Shard([AtomicU64; GENERATIONS]);

pub(super) struct Snapshots {
    current: AtomicUsize,
    floors: [AtomicU64; GENERATIONS],
    shards: [Shard; SHARDS],
    /// One asker at a time.
    asking: sluice_run::lock::Mutex<()>,
}

/// Where a reader counted itself in.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    shard: usize,
    generation: usize,
}

impl Snapshots {
    pub(super) fn new(visible: Seq) -> Self {
        let floors: [AtomicU64; GENERATIONS] = Default::default();
        floors[0].store(visible.0, SeqCst);
        Self { current: AtomicUsize::new(0), floors, shards: Default::default(), asking: Default::default() }
    }

    /// Counts a reader in. It must load the visible sequence after this.
    pub(super) fn enter(&self) -> Ticket {
        let shard = this_threads_shard();
        loop {
            let generation = self.current.load(SeqCst);
            self.shards[shard].0[generation].fetch_add(1, SeqCst);
            let ticket = Ticket { shard, generation };
            if self.current.load(SeqCst) == generation {
                return ticket;
            }
            self.leave(ticket);
        }
    }

    pub(super) fn leave(&self, ticket: Ticket) {
        self.shards[ticket.shard].0[ticket.generation].fetch_sub(1, SeqCst);
    }

    /// No snapshot, living or to come, reads below this. `visible` loads the visible sequence.
    pub(super) fn oldest(&self, visible: impl Fn() -> Seq) -> Seq {
        let _asking = self.asking.lock();
        let current = self.current.load(SeqCst);
        if let Some(free) = (0..GENERATIONS).find(|g| *g != current && !self.occupied(*g)) {
            self.floors[free].store(visible().0, SeqCst);
            self.current.store(free, SeqCst);
        }
        let current = self.current.load(SeqCst);
        let floors =
            (0..GENERATIONS).filter(|g| *g == current || self.occupied(*g)).map(|g| self.floors[g].load(SeqCst));
        Seq(floors.min().expect("the current generation"))
    }

    fn occupied(&self, generation: usize) -> bool {
        self.shards.iter().any(|shard| shard.0[generation].load(SeqCst) > 0)
    }
}

fn this_threads_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SHARD: usize = NEXT.fetch_add(1, SeqCst) % SHARDS);
    SHARD.with(|shard| *shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_the_floor_of_the_oldest_live_generation() {
        let snapshots = Snapshots::new(Seq(5));
        let first = snapshots.enter();
        assert_eq!(snapshots.oldest(|| Seq(10)), Seq(5));
        let second = snapshots.enter();
        assert_eq!(snapshots.oldest(|| Seq(20)), Seq(5));
        snapshots.leave(first);
        assert_eq!(snapshots.oldest(|| Seq(30)), Seq(10));
        snapshots.leave(second);
        assert_eq!(snapshots.oldest(|| Seq(40)), Seq(40));
    }

    #[test]
    fn more_ages_than_generations_share() {
        let snapshots = Snapshots::new(Seq(1));
        let tickets: Vec<_> = (2..40)
            .map(|visible| {
                let ticket = snapshots.enter();
                assert_eq!(snapshots.oldest(|| Seq(visible)), Seq(1));
                ticket
            })
            .collect();
        tickets.into_iter().for_each(|ticket| snapshots.leave(ticket));
        assert_eq!(snapshots.oldest(|| Seq(50)), Seq(50));
    }
}
