//! Arithmetic of the layout.

use super::FormatError;
use sluice_base::{
    ObjectId,
    limits::{OBJECT_BYTES, SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use std::ops::Range;

/// Size of the footer.
pub const FOOTER_BYTES: usize = 64;
/// Size of one table entry.
pub const TABLE_ENTRY_BYTES: usize = 32;

/// Size of table and footer of an object of `segment_count` segments, in bytes: at most 4160.
pub const fn tail_len(segment_count: u32) -> usize {
    segment_count as usize * TABLE_ENTRY_BYTES + FOOTER_BYTES
}

/// What the metadata keeps about a stored object, and all that a reader needs to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct StoredObject {
    id: ObjectId,
    segment_count: u32,
    stored_bytes: u64,
}

impl StoredObject {
    /// An object of 1 to 128 segments whose whole length, tail included, is `stored_bytes`.
    pub fn new(id: ObjectId, segment_count: u32, stored_bytes: u64) -> Result<Self, FormatError> {
        if segment_count == 0 || segment_count as usize > SEGMENTS_PER_OBJECT {
            return Err(FormatError::Invalid("an object has 1 to 128 segments"));
        }
        let tail = tail_len(segment_count) as u64;
        let data_max = u64::from(segment_count) * SEGMENT_BYTES as u64;
        if !(tail..=tail + data_max).contains(&stored_bytes) {
            return Err(FormatError::Invalid("the stored length does not fit the segment count"));
        }
        debug_assert!(stored_bytes <= (OBJECT_BYTES + tail_len(SEGMENTS_PER_OBJECT as u32)) as u64);
        Ok(Self { id, segment_count, stored_bytes })
    }

    /// The object's id.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Number of segments, absent ones included: 1 to 128.
    pub fn segment_count(&self) -> u32 {
        self.segment_count
    }

    /// Whole length in the store, in bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Length of all segments together: where the table begins.
    pub fn data_bytes(&self) -> u64 {
        self.stored_bytes - tail_len(self.segment_count) as u64
    }

    /// Table and footer.
    pub fn tail_range(&self) -> Range<u64> {
        self.data_bytes()..self.stored_bytes
    }

    /// Whether segment i lies at i x 32 KiB: nothing absent, nothing compressed.
    pub fn is_strided(&self) -> bool {
        self.data_bytes() > u64::from(self.segment_count - 1) * SEGMENT_BYTES as u64
    }

    /// Where the segments of `range` lie, for a strided object only: the table is not needed to know.
    pub fn strided_range(&self, range: Range<u32>) -> Option<Range<u64>> {
        let at = |segment: u32| (u64::from(segment) * SEGMENT_BYTES as u64).min(self.data_bytes());
        let inside = range.start <= range.end && range.end <= self.segment_count;
        (self.is_strided() && inside).then(|| at(range.start)..at(range.end))
    }
}
