//! The cache disk: slabs, the slot table, and every way of reading and filling them.
//!
//! A cache directory holds *slabs*, big sparse files divided into 4 MiB *slots*, and one slot table. A slot caches one object
//! or a part of it; stored segment `i` lies at `i * 32 KiB` of its slot and is read only under a check of its CRC, which binds
//! the bytes to object and index. So the table need not be right, only its promises must be checkable: an old table after a
//! power loss, a slab that someone overwrote or a rotten sector cost a miss, never a wrong byte.
//!
//! **Occupancy.** One `entry::Entry` is one stay of one object in one slot, with its own generation. It carries a word of
//! holds (pins and running operations) and a DOOMED bit. Nobody gets a hold on a doomed entry, and a slot is punched and given
//! away only by whoever saw `DOOMED` with no holds. A `Pin` or `DirtySlot` that outlives its entry's stay therefore finds the
//! entry doomed and never reaches the slot's next tenant.
//!
//! **Present segments never change.** A segment's sum is published (release) after its bytes are written; a reader takes the sum
//! (acquire), reads as many bytes as it names and checks them. Appending to a dirty tail writes behind the published length only.
//!
//! **Memory and disk.** A read finds its bytes in memory, or the disk has to be waited for; [`Pin::read_resident_at`] does the first only, for
//! threads that serve others meanwhile, and [`Region::load`] brings bytes in on one that may wait. A [`Region`] is a run of whole
//! segments that is sent from the slab's file by the kernel, with a CRC made of theirs. Of a segment that was checked since
//! it came from the disk a part may be used by itself; `sums::Sums` says what that is worth.
//!
//! **Lock order**, outermost first:
//! 1. `Inner::table`: one `persist_table` at a time; does the table's own I/O.
//! 2. `Entry::writer`: append, fill and replay of one object; held across its I/O. Never two of them.
//! 3. a shard of `Inner::map` (object -> entry), or `Inner::space` (free slots, queues, who is where): never both, never across
//!    I/O.
//! 4. `Slab::sync`: one fdatasync per slab at a time; and `Slabs::open`. Leaves.
//!
//! **Memory** per occupied slot: 1 KiB of sums, about 150 bytes of entry, about 60 bytes of map, queues and slot list: 1.25 KiB
//! for 4 MiB, 0.03 %, 320 MiB for a full terabyte. The sums are kept, not loaded on demand: a read never waits for the table.
//!
//! This crate knows nothing of peers, stores, journals or files of a volume.

#![forbid(unsafe_code)]

mod cache;
mod dirty;
mod entry;
mod error;
mod fifo;
mod health;
mod known;
mod pin;
mod replay;
mod scrub;
mod slab;
mod space;
mod sums;
mod table;
mod unchecked;

pub use cache::{Cache, CacheOptions, CacheState, CacheStats};
pub use dirty::DirtySlot;
pub use error::{CacheError, ReadError};
pub use known::Known;
pub use pin::{Pin, Region};
pub use scrub::{ScrubCounts, ScrubOptions, ScrubStatus};
pub use sums::SegmentSum;

use sluice_base::limits::OBJECT_BYTES;

/// Room of one slot in bytes: what the largest object needs.
pub const SLOT_BYTES: u64 = OBJECT_BYTES as u64;

/// Most room that a cache may have, in bytes: its slots take 28 bytes of memory each before they are filled, so 0.4 GiB.
pub const CAPACITY_BYTES_MAX: u64 = 64 << 40;

/// A place in a cache directory, for one stay of one object. Goes into journal records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotLocation {
    /// Number of the slab file.
    pub slab: u32,
    /// Index of the slot within its slab.
    pub slot: u32,
    /// Which stay: no two stays in a cache directory share one, not even across a crash.
    pub generation: u64,
}
