//! The bytes of an object: `segments || table || footer`, told once in docs/disk-format.md under "Object".
//!
//! Nothing here does I/O, and no parser panics on any input. Two decisions matter to callers:
//!
//! - **Segments are packed.** Segment i lies where the stored lengths before it add up to; an absent segment adds nothing. As
//!   every plain segment but the last is full, plain objects without absent segments have segment i at i x 32 KiB.
//! - **That case shows in the object's record alone** ([`StoredObject::is_strided`]): any absent segment leaves at most
//!   (n - 1) x 32 KiB of data, and a writer that compresses must save as much or store plain. So a reader that knows only the
//!   segment count and the stored length may fetch data and table at the same time.

mod layout;
mod table;

pub use layout::{FOOTER_BYTES, StoredObject, TABLE_ENTRY_BYTES, tail_len};
pub use table::{Codec, ObjectTable, SegmentEntry, decode_tail, encode_tail};

/// The newest version of the format, the only one so far.
pub const VERSION: u16 = 1;

/// Bytes that are not an object's tail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Written by a newer version of this program.
    #[error("written in object format {found}, this program knows up to {supported}; update it")]
    Newer {
        /// Version in the footer.
        found: u16,
        /// [`VERSION`].
        supported: u16,
    },
    /// Not what a writer of any version produces.
    #[error("{0}")]
    Invalid(&'static str),
}

#[cfg(test)]
mod tests;
