//! Reading, with every byte checked, and without waiting for the disk where that is wanted.

mod read;
mod region;

pub(crate) use read::{bound, check_segment, loading, promised_segment, read_segments};
pub use region::Region;

use crate::{ReadError, SegmentSum, entry::Hold};
use read::Wait;
use sluice_base::{
    ObjectId,
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use std::os::fd::BorrowedFd;

/// Keeps an object's slot in place while it is read. Dropping it may punch the slot, if the object was given up meanwhile.
pub struct Pin(pub(crate) Hold);

impl Pin {
    /// The object.
    pub fn object(&self) -> ObjectId {
        self.0.object
    }

    /// Fills `buf` from `offset` of the object's plain form. Whole segments are read straight into `buf` and checked there. Of
    /// others the part is read, if the segment was checked since it came from the disk; else the whole segment is read and
    /// checked elsewhere and the part copied.
    pub fn read_at(&self, offset: u32, buf: &mut [u8]) -> Result<(), ReadError> {
        read::read_at(&self.0, offset as usize, buf, Wait::ForDisk)
    }

    /// As [`Self::read_at`], but fails with [`ReadError::NotResident`] where the disk would have to be waited for: for threads
    /// that have other things to do. The disk may have been asked for the bytes then. To a part of a segment that was not checked
    /// yet the rest of the segment belongs.
    pub fn read_resident_at(&self, offset: u32, buf: &mut [u8]) -> Result<(), ReadError> {
        read::read_at(&self.0, offset as usize, buf, Wait::Never)
    }

    /// `count` segments from `first`, at least one, as they lie behind each other on the disk: all present, and all but the last full.
    pub fn region(&self, first: u32, count: u32) -> Result<Region, ReadError> {
        Region::new(&self.0, first, count)
    }

    /// The file, and where in it [offset, offset + len) of the object's plain form lies, for sendfile and splice: **unchecked**, and
    /// in place as long as this pin. `None` when a byte of it is not present or known to be bad, or the slab has no descriptor.
    pub fn file(&self, offset: u32, len: usize) -> Option<(BorrowedFd<'_>, u64)> {
        let end = offset as usize + len;
        let is_there = |index: usize| {
            let stop = end.min((index + 1) * SEGMENT_BYTES);
            read::readable(&self.0, index).is_ok_and(|kept| index * SEGMENT_BYTES + kept.sum.len as usize >= stop)
        };
        let is_whole = (offset as usize / SEGMENT_BYTES..end.div_ceil(SEGMENT_BYTES)).all(is_there);
        Some((self.0.slab.descriptor().filter(|_| is_whole)?, self.0.base() + u64::from(offset)))
    }

    /// Whether all of `count` segments from `first` are present. Says nothing of their bytes.
    pub fn has(&self, first: u32, count: u32) -> bool {
        (first..first.saturating_add(count)).all(|index| self.sum(index).len != 0)
    }

    /// Those of `count` segments from `first` that are not present.
    pub fn absent(&self, first: u32, count: u32) -> Vec<u32> {
        (first..first.saturating_add(count)).filter(|index| self.sum(*index).len == 0).collect()
    }

    /// What is known of segment `index`.
    pub fn sum(&self, index: u32) -> SegmentSum {
        if (index as usize) < SEGMENTS_PER_OBJECT { self.0.sums.get(index as usize).sum } else { SegmentSum::default() }
    }
}
