//! Files, readers and write-back: what a front end calls.
//!
//! Metadata rules are `sluice-meta`'s, the stored form `sluice-object`'s, cache disks `sluice-store`'s. This crate decides
//! where a write's bytes go (inline, journal and open object, or slot), finds a read's bytes (memory, slot, store) and
//! uploads what is dirty. It knows nothing of FUSE, sockets or the command line.

#![forbid(unsafe_code)]

mod access;
mod ahead;
mod attachment;
mod away;
mod brake;
mod cache_sync;
mod change;
pub mod direct;
mod dirty;
mod durability;
pub mod error;
mod fetch;
mod files;
mod flush;
pub mod gc;
mod handles;
mod log;
mod mend;
mod metadata;
mod names;
mod others;
mod read;
pub mod remote;
mod replay;
mod space;
mod status;
mod upload;
mod vfs;
mod warm;
mod write;

pub use ahead::{MemoryStatus, idle_bytes};
pub use attachment::DataNote;
pub use away::{may_wait, waiting};
pub use cache_sync::CacheSync;
pub use durability::{Durability, Owner, Ship};
pub use error::Failure;
pub use fetch::Group;
pub use files::Orphan;
pub use handles::{DirHandle, FileHandle, HandleId, OpenDir, OpenFile, OpenState, Opened};
pub use log::JournalLog;
pub use metadata::Metadata;
pub use others::{Others, Piece};
pub use read::Read;
pub use replay::{NoRoom, Recovered, Replay, unstored};
pub use space::SeekFrom;
pub use status::{CacheStatus, ScrubFound, ScrubNumbers, Status};
pub use vfs::{MEMORY_BYTES, MEMORY_BYTES_MIN, Parts, Settings, Vfs};
pub use warm::{Held, Openings, WarmNumbers, WarmTo, Warmup};
