//! What a journal is told at its start.

use crate::{JournalError, format};
use sluice_base::{Seq, VolumeId};
use std::path::PathBuf;

/// Settings of a journal. Plain data; `JournalOptions::new` has the defaults.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Directory of the segment files; made when absent. Nothing else may put files there.
    pub dir: PathBuf,
    /// The volume that the records belong to.
    pub volume: VolumeId,
    /// Size of new segments, a multiple of 4 KiB. Tuned so that the pause of a crossing comes once in 64 MiB.
    pub segment_bytes: u64,
    /// Most room that all segments may take together; at least two segments.
    pub capacity_bytes: u64,
    /// Seq of the first record of a journal that has no segment yet; ignored otherwise.
    pub first_seq: Seq,
    /// There is a journal, and its owner has no record from here on by other means: that there is no segment, or that the first
    /// one begins later, is an error.
    pub needed_from: Option<Seq>,
    /// What tells this boot of the host from every other one (/proc/sys/kernel/random/boot_id). All zero: not known, then a
    /// damaged record that was never synced is always taken for a torn one.
    pub boot_id: [u8; 16],
}

impl JournalOptions {
    /// The defaults: segments of 64 MiB, 1 GiB in all, records from 1, boot not known.
    pub fn new(dir: impl Into<PathBuf>, volume: VolumeId) -> Self {
        let (segment_bytes, capacity_bytes) = (64 << 20, 1 << 30);
        Self {
            dir: dir.into(),
            volume,
            segment_bytes,
            capacity_bytes,
            first_seq: Seq(1),
            needed_from: None,
            boot_id: [0; 16],
        }
    }

    pub(crate) fn check(&self) -> Result<(), JournalError> {
        if !self.segment_bytes.is_multiple_of(format::SEGMENT_HEADER_BYTES) {
            return Err(JournalError::BadOptions("segment_bytes is not a multiple of 4096"));
        }
        if self.segment_bytes < 2 * format::SEGMENT_HEADER_BYTES {
            return Err(JournalError::BadOptions("segment_bytes is below 8192"));
        }
        if self.capacity_bytes / 2 < self.segment_bytes {
            return Err(JournalError::BadOptions("capacity_bytes holds less than two segments"));
        }
        if self.first_seq == Seq(0) {
            return Err(JournalError::BadOptions("first_seq is 0; records are numbered from 1"));
        }
        Ok(())
    }

    /// The tag that records of this boot carry: half of the id is enough to tell boots apart.
    pub(crate) fn boot(&self) -> u64 {
        u64::from_le_bytes(self.boot_id[..8].try_into().expect("8 of 16 bytes"))
    }

    /// Most payload of one record: what always fits into a fresh segment.
    pub(crate) fn record_bytes_max(&self) -> usize {
        let room = self.segment_bytes - format::SEGMENT_HEADER_BYTES - format::RECORD_HEADER_BYTES as u64;
        format::RECORD_BYTES_MAX.min(room as usize)
    }

    /// Bytes up to which records of `class` may fill the journal.
    pub(crate) fn limit(&self, class: Class) -> u64 {
        match class {
            Class::Data => self.capacity_bytes / 10 * 8,
            Class::Metadata => self.capacity_bytes,
        }
    }
}

/// What a record holds, for the sake of its share of the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Metadata changes: may fill the whole journal, so that they go on when the store is down.
    Metadata,
    /// File data: may fill 80 % of it.
    Data,
}
