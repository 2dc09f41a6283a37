//! Disks enter here: the few calls that journal, slabs and slot tables need, so that tests can lose power, fail the Nth write
//! or flip a bit under the shipped code.

mod faulty;
mod memory;
mod real;

pub use faulty::{FaultPlan, FaultyDisk, Operation};
pub use memory::MemoryDisk;
pub use real::RealDisk;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A directory tree with files that are read and written by position.
pub trait Disk: Send + Sync + 'static {
    /// Opens `path` for reading and writing, creating an empty file when there is none.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Makes a directory and its parents.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Files directly in the directory `path`, in no particular order.
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Renames a file over another.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes creations, removals and renames in the directory `path` survive power loss (fsync(2) of the directory).
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Bytes that ordinary users may still write on the disk that holds `path`, and its size.
    fn space(&self, path: &Path) -> io::Result<Space>;
}

/// Room on a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that may still be written.
    pub available_bytes: u64,
    /// Size of the disk.
    pub total_bytes: u64,
}

/// An open file. Calls from many threads are allowed; overlapping writes have no defined order.
pub trait DiskFile: Send + Sync + 'static {
    /// Fills `buf` from `offset`; `UnexpectedEof` when the file ends before.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `buf` at `offset`. Survives the process, not power loss.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Everything written before this call survives power loss (fdatasync(2)).
    fn sync_data(&self) -> io::Result<()>;
    /// Current size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Truncates, or extends with zeros that take no room.
    fn set_size(&self, bytes: u64) -> io::Result<()>;
    /// Reserves room for [offset, offset + bytes), extending the file, so that later writes there cannot find the disk full
    /// (fallocate(2) mode 0).
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Gives [offset, offset + bytes) back to the disk; reads zeros afterwards (FALLOC_FL_PUNCH_HOLE).
    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()>;
}
