//! The metadata in the store: a volume whose host is gone is rebuilt from there.
//!
//! What lies below `meta/` of the store is a *checkpoint*, all keys in parts, and the *log* since: the after-images of every
//! transaction, in blobs of a few seconds each. docs/disk-format.md, "Shipped metadata", has the layout.
//!
//! - [`Tee`] keeps what was committed and is not shipped; [`TeeLog`] fills it on the way to the journal, replay fills it at the start.
//! - [`Shipper`] takes it to the store, and makes checkpoints: the first, one where something is missing between what the store has
//!   and what the tee has, and one when the log has grown as large as the checkpoint.
//! - [`restore()`] reads all of it back into empty tables.
//!
//! **A checkpoint is fuzzy**: keys are read portion by portion while others write, so no snapshot is held for long. It begins at one
//! sequence and ends at another; with the log in between applied on top it is right from its end on, and it is not used before the
//! store has that log.
//!
//! **The log may be ahead of the bytes** that it speaks of, so that a sync waits for both at once. Each blob says up to where all bytes were
//! there; of what comes behind, [`restore()`] takes as much as has all its bytes in the store.
//!
//! **Only what the journal has for good is shipped.** Otherwise a loss of power would take back here what the store has there, and
//! numbers would be given twice.

#![forbid(unsafe_code)]

mod blob;
mod checkpoint;
mod found;
mod head;
mod held;
mod in_use;
mod names;
mod restore;
mod shipper;
mod survey;
mod tee;

pub use blob::{BadBlob, Line, OtherLine, parse, parse_head, samples};
pub use found::Damage;
pub use in_use::{InUse, Place, in_use};
pub use restore::{RestoreError, Restored, Taking, begin_anew, forget, has_any, restore};
pub use shipper::{Bound, OnCheckpoint, ShipStatus, Shipper, ShipperParts};
pub use survey::{Survey, survey, verify};
pub use tee::{Tee, TeeLog};
