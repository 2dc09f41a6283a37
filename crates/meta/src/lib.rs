//! Metadata: ordered keys with serializable transactions, and every POSIX rule above them.
//!
//! This crate knows nothing of sockets, of the kernel or of the object store.

#![forbid(unsafe_code)]

pub mod dump;
mod error;
pub mod extent;
pub mod fsck;
mod keys;
mod namespace;
pub mod records;
pub mod rpc;
pub mod store;

pub use error::{Error, Result};
pub use namespace::{
    Attachment, Attr, Caller, DataChange, DirEntry, FileSpan, Moved, Namespace, NewNode, RenameMode, SetAttributes,
    SetTime, SizeChange, Unlinked, XattrMode, atime_is_due,
};
