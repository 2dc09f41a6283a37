//! What every other crate may know: ids, times, checksums, limits, errno, and the traits through which clock,
//! randomness and disks enter.
//!
//! This crate knows nothing of files, objects or peers.

#![deny(unsafe_code)]

pub mod allocations;
pub mod clock;
pub mod crc;
pub mod descriptors;
pub mod disk;
pub mod entropy;
pub mod errno;
pub mod ids;
pub mod ioprio;
pub mod limits;
pub mod pages;
pub mod pipe;
pub mod time;

pub use clock::{Clock, ManualClock, SystemClock};
pub use disk::{Disk, DiskFile};
pub use entropy::{Entropy, OsEntropy, SeededEntropy};
pub use errno::Errno;
pub use ids::{Ino, ObjectId, Seq, SessionId, VolumeId};
pub use pages::{Page, Pages};
pub use pipe::Pipe;
pub use time::Timestamp;
