//! Length and checksum of each segment of a slot, and whether its bytes were looked at, readable without a lock.

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
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) sum: SegmentSum,
    /// Dirty bytes that failed their check: the sum says what they should be.
    pub(crate) bad: bool,
    /// The bytes in memory have passed their check.
    pub(crate) is_verified: bool,
    /// How often the disk had to be asked for bytes of it.
    loads: u16,
}

impl Kept {
    pub(crate) fn is_absent(self) -> bool {
        self.sum.len == 0
    }

    /// As it is published.
    pub(crate) fn unverified(sum: SegmentSum) -> Self {
        Self { sum, ..Self::default() }
    }

    fn of(word: u64) -> Self {
        Self {
            sum: SegmentSum { crc: word as u32, len: (word >> 32) as u32 & 0xffff },
            bad: word & BAD != 0,
            is_verified: word & VERIFIED != 0,
            loads: (word >> LOADS_SHIFT) as u16,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.sum.crc)
            | u64::from(self.sum.len) << 32
            | if self.bad { BAD } else { 0 }
            | if self.is_verified { VERIFIED } else { 0 }
            | u64::from(self.loads) << LOADS_SHIFT
    }
}

/// One word per segment: CRC in bits 0..32, length in 32..48 (0..=32768), bad in 48, verified in 49, loads from 50 on. One word, so
/// that a reader never sees the length of one state with the CRC of another.
///
/// **Verified** says that the bytes which memory has of the segment passed their check after they came from the disk, or are those
/// that were written: a part of it may then be used as it is, without reading 32 KiB for 4. Whoever wants to use a part asks first
/// whether memory has it (cachestat), and takes the mark away if not ([`Sums::loading`]), before the disk is read. Every other read
/// of this process looks at all it reads. What this cannot see: pages that memory gave up and somebody brought back without looking
/// at them, between two reads of parts. That is another process which reads slabs, and a sendfile whose pages were dropped after
/// they had been asked for; the kernel does not by itself (`expect_random`). If the disk has rotted just there, a part of the
/// segment is served with a wrong byte under a right sum. Scrubbing bounds how long; whole segments are never taken on trust.
pub(crate) struct Sums([AtomicU64; SEGMENTS_PER_OBJECT]);

const BAD: u64 = 1 << 48;
const VERIFIED: u64 = 1 << 49;
/// They wrap after 16384; a check would have to run for that long to be taken for a later one.
const LOADS_SHIFT: u32 = 50;

impl Sums {
    pub(crate) fn new() -> Self {
        Self([const { AtomicU64::new(0) }; SEGMENTS_PER_OBJECT])
    }

    /// Pairs with `publish`: who sees the sum sees the bytes.
    pub(crate) fn get(&self, index: usize) -> Kept {
        Kept::of(self.0[index].load(Ordering::Acquire))
    }

    pub(crate) fn publish(&self, index: usize, sum: SegmentSum) {
        self.store(index, Kept::unverified(sum));
    }

    /// As `publish`, of bytes that were checked before they were written whole.
    pub(crate) fn publish_verified(&self, index: usize, sum: SegmentSum) {
        self.store(index, Kept { sum, is_verified: true, ..Kept::default() });
    }

    pub(crate) fn publish_bad(&self, index: usize, sum: SegmentSum) {
        self.store(index, Kept { sum, bad: true, ..Kept::default() });
    }

    fn store(&self, index: usize, kept: Kept) {
        debug_assert!(kept.sum.len as usize <= sluice_base::limits::SEGMENT_BYTES);
        self.0[index].store(kept.word(), Ordering::Release);
    }

    /// The disk is about to be read for the segment. Returns what is known of it then, for [`Sums::verified`].
    pub(crate) fn loading(&self, index: usize) -> Kept {
        let next = |word| {
            Some(Kept { is_verified: false, loads: Kept::of(word).loads.wrapping_add(1), ..Kept::of(word) }.word())
        };
        match self.0[index].fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
            Ok(before) => Kept::of(next(before).unwrap_or(before)),
            Err(word) => Kept::of(word),
        }
    }

    /// Bytes that were read after `seen` passed their check. Nothing happens if the segment has changed, or was loaded again, since.
    pub(crate) fn verified(&self, index: usize, seen: Kept) {
        if !seen.is_verified && !seen.bad {
            let marked = Kept { is_verified: true, ..seen };
            let _ = self.0[index].compare_exchange(seen.word(), marked.word(), Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    pub(crate) fn any_bad(&self) -> bool {
        self.0.iter().any(|word| word.load(Ordering::Acquire) & BAD != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_of_the_bytes_that_were_checked() {
        let (sums, sum) = (Sums::new(), SegmentSum { len: 32768, crc: u32::MAX });
        sums.publish(3, sum);
        let seen = sums.get(3);
        assert_eq!((seen.sum, seen.is_verified, seen.bad), (sum, false, false));
        sums.verified(3, seen);
        assert!(sums.get(3).is_verified && sums.get(3).sum == sum);
        // It was loaded again while somebody checked what he had read before.
        let (before, loading) = (sums.get(3), sums.loading(3));
        assert!(!sums.get(3).is_verified);
        sums.verified(3, Kept { is_verified: false, ..before });
        assert!(!sums.get(3).is_verified);
        sums.verified(3, loading);
        assert!(sums.get(3).is_verified);
        // It grew.
        let seen = sums.loading(3);
        sums.publish(3, SegmentSum { len: 5, crc: 9 });
        sums.verified(3, seen);
        assert!(!sums.get(3).is_verified);
        for _ in 0..20_000 {
            sums.loading(3);
        }
        assert_eq!(sums.get(3).sum, SegmentSum { len: 5, crc: 9 });
        sums.publish_bad(3, sum);
        sums.verified(3, sums.get(3));
        assert!(sums.get(3).bad && !sums.get(3).is_verified);
    }
}
