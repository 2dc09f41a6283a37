//! The one append-only log of a writer.
//!
//! Records are numbered 1, 2, 3... and lie in preallocated segment files. A record is in the page cache when `append` returns,
//! so it survives kill -9, and on the disk when `sync` or the [`Committer`] says so, so it survives power loss.
//!
//! The difficulty is to tell, after a crash, a tail that never was durable from durable records that went bad. The first must be
//! dropped in silence, the second must never be. Pages of an unsynced tail reach the disk in any order, so a bad record with good
//! ones behind it proves nothing by itself. Therefore each record carries the seq that was durable when it was appended, and a
//! tag of the boot it was appended in: a bad record at or below any durable seq ever written down is corruption, and so is a bad
//! record with a good one behind it that was written in the current boot, as the page cache has lost nothing since.
//! Everything else is a torn tail; it is dropped and zeroed, so that it never comes back behind newer records.
//!
//! A segment is synced before its successor exists, so only the last one can have a torn tail. A checksum covers the volume, the
//! number of the segment and the seq: what a recycled segment still holds of its former life is never taken for a record.
//!
//! This crate knows nothing of what the records mean. One process at a time may have a journal open: whoever owns the directory
//! locks it. The format is in docs/disk-format.md.

#![forbid(unsafe_code)]

mod again;
mod committer;
mod error;
mod format;
mod journal;
mod options;
mod recovery;
mod repair;
mod segments;

pub use committer::{Committer, SyncError, Syncable, WaitSynced};
pub use error::{Damage, JournalError};
pub use format::{
    ParseError, Place, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, Record, SEGMENT_HEADER_BYTES, VERSION, parse_record,
};
pub use journal::{Journal, Usage};
pub use options::{Class, JournalOptions};
pub use recovery::{OnRecord, Recovered};
pub use repair::Report;
pub use sluice_base::{Seq, VolumeId};
