//! What can go wrong, and what to do then.

use crate::Class;
use sluice_base::{Seq, VolumeId};
use std::{io, path::PathBuf};

/// An error of the journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The journal's own limit. Room comes back when segments are freed.
    #[error("the journal is full for {class:?} records: wait until older ones are stored, or give it more room")]
    Full {
        /// Whose share is used up.
        class: Class,
    },
    /// The disk has no room for another segment. Nothing is lost; the next append tries again.
    #[error("no room for another journal segment in {}: free some space on this disk", dir.display())]
    DiskFull {
        /// The journal's directory.
        dir: PathBuf,
    },
    /// The record can never be appended.
    #[error("a record of {bytes} bytes is larger than the {bytes_max} that a journal record may have")]
    TooLarge {
        /// Payload of the record.
        bytes: usize,
        /// Most payload of a record in this journal.
        bytes_max: usize,
    },
    /// A sync failed earlier. The kernel may have marked the lost pages clean, so that no later sync could be believed.
    #[error("the journal stopped: {why}; check the disk, then start again: what was acknowledged as synced is intact")]
    Failed {
        /// The first failure.
        why: String,
    },
    /// Records that were durable are damaged or missing.
    #[error(
        "journal segment {segment} ({}) {}. Keep a copy of \
         the journal; then restore the volume from a copy, or drop this record and all later ones with `sluice fsck --repair`",
        path.display(), damage.at(*offset, *seq)
    )]
    Corrupt {
        /// Number of the segment.
        segment: u64,
        /// Byte in the segment's file at which the record should start; 0 when the segment's header is bad or the file missing.
        offset: u64,
        /// The first record that is lost.
        seq: Seq,
        /// The segment's file.
        path: PathBuf,
        /// What is wrong with it.
        damage: Damage,
    },
    /// There is no journal where one must be. Nothing was touched.
    #[error(
        "the journal is missing: {} has no segment. If its disk is not mounted, mount it; if it is lost, `sluice fsck --repair` \
         begins an empty one, without the changes that only the lost one held",
        dir.display()
    )]
    Missing {
        /// The journal's directory.
        dir: PathBuf,
    },
    /// The journal begins after what it is needed for. Nothing was touched.
    #[error(
        "the journal in {} begins at record {found}, but records from {needed} on are needed: the metadata or the first journal \
         segments are missing, or of another time. Put them back; where they are lost, `sluice recover --from-store STORE NEWDIR` makes a \
         new directory of what the store has",
        dir.display()
    )]
    Gap {
        /// The journal's directory.
        dir: PathBuf,
        /// The first record that is there.
        found: Seq,
        /// The first record that its owner lacks.
        needed: Seq,
    },
    /// Written by a newer version of this program. Nothing was touched.
    #[error("{} has format {version}, newer than this program knows: use the version that wrote it", path.display())]
    NewerFormat {
        /// The segment's file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The journal of another volume. Nothing was touched.
    #[error("{} belongs to volume {found}, not to {expected}", path.display())]
    WrongVolume {
        /// The segment's file.
        path: PathBuf,
        /// The volume that it names.
        found: VolumeId,
        /// The volume in the options.
        expected: VolumeId,
    },
    /// The options contradict themselves.
    #[error("journal options: {0}")]
    BadOptions(&'static str),
    /// What was to take a record at recovery refused it.
    #[error("record {seq} could not be replayed: {source}")]
    Replay {
        /// The record.
        seq: Seq,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The disk failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What is wrong with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A record, or what says where it is, is not what was written.
    Record,
    /// The file ends before its header says; the records that are left are sound.
    Cut {
        /// Its size.
        bytes: u64,
        /// What its size was.
        of: u64,
    },
}

impl Damage {
    fn at(self, offset: u64, seq: Seq) -> String {
        match self {
            Self::Record => format!("is damaged at byte {offset}: record {seq} was durable and cannot be read"),
            Self::Cut { bytes, of } => {
                format!("was cut short, to {bytes} of {of} bytes: record {seq} and later ones may be lost")
            }
        }
    }
}

impl JournalError {
    pub(crate) fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> JournalError {
        let path = path.to_owned();
        move |source| JournalError::Io { action, path, source }
    }

    /// Whether it comes from a disk or a quota without room.
    pub(crate) fn is_no_room(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_no_room(source))
    }
}

/// Whether a disk or a quota has no room.
pub(crate) fn is_no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}
