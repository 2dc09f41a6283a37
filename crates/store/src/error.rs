//! What can go wrong with a cache disk, by what the caller must do about it.

use crate::SlotLocation;
use sluice_base::{ObjectId, VolumeId};
use std::{io, path::PathBuf};

/// A claim, write or start that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Every slot is dirty or pinned. Wait for an upload, or go without the cache.
    #[error("every slot of the cache is waiting for upload or in use")]
    NoRoom,
    /// The disk is full although clean slots were given back. Wait for an upload, or go without the cache.
    #[error("the disk of the cache is full")]
    DiskFull,
    /// The cache gave up after repeated I/O errors or a failed sync. Go without it.
    #[error("the cache is out of use after I/O errors on its disk; the log names the first")]
    Failed,
    /// The object has a slot already.
    #[error("object {0} has a slot already")]
    Exists(ObjectId),
    /// The object's slot was given up since, or is not dirty any more.
    #[error("object {0} has no dirty slot any more")]
    Gone(ObjectId),
    /// The place named by a journal record is outside of the slabs or in use by a later stay. The record is older than the
    /// place's present content.
    #[error("slab {} slot {} holds something newer than generation {}", .0.slab, .0.slot, .0.generation)]
    Taken(SlotLocation),
    /// The call breaks this rule.
    #[error("invalid call: {0}")]
    Invalid(&'static str),
    /// The directory caches another volume.
    #[error("{dir} caches volume {found}, not {wanted}; choose another directory or remove this one", dir = .dir.display())]
    OtherVolume {
        /// The cache directory.
        dir: PathBuf,
        /// Whose cache it is.
        found: VolumeId,
        /// Whose cache was asked for.
        wanted: VolumeId,
    },
    /// A later version wrote the directory. Nothing was touched.
    #[error("{dir} has format {found}, this version knows up to {known}; use a newer version or another directory", dir = .dir.display())]
    NewerFormat {
        /// The cache directory.
        dir: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format known here.
        known: u32,
    },
    /// The slot table's headers are unreadable. Nothing was touched.
    #[error("{file} is damaged; remove it to start with an empty cache, after recovering the journal", file = .file.display())]
    Damaged {
        /// The slot table.
        file: PathBuf,
    },
    /// The capacity is below one slot.
    #[error("a cache needs at least 4 MiB, not {0} bytes")]
    TooSmall(u64),
    /// The capacity is above [`crate::CAPACITY_BYTES_MAX`]. Nothing was touched.
    #[error("a cache has at most 64 TiB, not {0} bytes")]
    TooLarge(u64),
    /// The disk reported this.
    #[error("cache disk: {0}")]
    Io(#[from] io::Error),
}

/// A read that did not give bytes. The buffer's content is undefined.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The segment, or the asked part of it, is not here. Fetch it.
    #[error("segment {index} is not cached")]
    Absent {
        /// First such segment.
        index: u32,
    },
    /// The bytes fail their check. `Cache::retire` and fetch elsewhere.
    #[error("segment {index} fails its checksum")]
    Corrupt {
        /// First such segment.
        index: u32,
    },
    /// The disk would have to be waited for, and the caller did not want to. Read on a thread that may wait.
    #[error("segment {index} is not in memory")]
    NotResident {
        /// First such segment, or one before it.
        index: u32,
    },
    /// The disk reported this. Fetch elsewhere.
    #[error("cache disk: {0}")]
    Io(#[from] io::Error),
}

/// ENOSPC and EDQUOT: the disk works, it has no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
