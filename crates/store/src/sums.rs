//! Length and checksum of each segment of a slot, readable without a lock.

use sluice_base::limits::SEGMENTS_PER_OBJECT;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is known of one stored segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentSum {
    /// Valid bytes from the segment's start; 0 = absent.
    pub len: u32,
    /// `sluice_base::crc::segment_crc` of those bytes.
    pub crc: u32,
}

/// A sum as a slot keeps it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) sum: SegmentSum,
    /// Dirty bytes that failed their check: the sum says what they should be.
    pub(crate) bad: bool,
}

impl Kept {
    pub(crate) fn is_absent(self) -> bool {
        self.sum.len == 0
    }
}

/// One word per segment: CRC in bits 0..32, length in 32..48 (0..=32768), bad in 48. One word, so that a reader never sees the
/// length of one state with the CRC of another.
pub(crate) struct Sums([AtomicU64; SEGMENTS_PER_OBJECT]);

const BAD: u64 = 1 << 48;

impl Sums {
    pub(crate) fn new() -> Self {
        Self([const { AtomicU64::new(0) }; SEGMENTS_PER_OBJECT])
    }

    /// Pairs with `publish`: who sees the sum sees the bytes.
    pub(crate) fn get(&self, index: usize) -> Kept {
        let word = self.0[index].load(Ordering::Acquire);
        Kept { sum: SegmentSum { crc: word as u32, len: (word >> 32) as u32 & 0xffff }, bad: word & BAD != 0 }
    }

    pub(crate) fn publish(&self, index: usize, sum: SegmentSum) {
        self.store(index, sum, 0);
    }

    pub(crate) fn publish_bad(&self, index: usize, sum: SegmentSum) {
        self.store(index, sum, BAD);
    }

    fn store(&self, index: usize, sum: SegmentSum, flags: u64) {
        debug_assert!(sum.len as usize <= sluice_base::limits::SEGMENT_BYTES);
        self.0[index].store(u64::from(sum.crc) | u64::from(sum.len) << 32 | flags, Ordering::Release);
    }

    pub(crate) fn any_bad(&self) -> bool {
        self.0.iter().any(|word| word.load(Ordering::Acquire) & BAD != 0)
    }
}
