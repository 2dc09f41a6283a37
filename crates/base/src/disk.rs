//! Disks enter here: the few calls that journal, slabs and slot tables need, so that tests can lose power, fail the Nth write
//! or flip a bit under the shipped code.

mod faulty;
mod memory;
mod real;
mod residency;

pub use faulty::{FaultPlan, FaultyDisk, Operation};
pub use memory::MemoryDisk;
pub use real::RealDisk;

use std::{
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A directory tree with files that are read and written by position.
pub trait Disk: Send + Sync + 'static {
    /// Opens `path` for reading and writing, creating an empty file when there is none.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens `path`, which exists, for reading past the page cache, so that reads give what the disk has. Offsets, lengths and the
    /// places of buffers are to be multiples of 4096 bytes. Where the file system cannot, or by default, reads are ordinary ones.
    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open(path)
    }
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

    /// Fills `buf` from `offset` if that needs no waiting (preadv2(2), RWF_NOWAIT); false, and what is in `buf` undefined, if the
    /// disk would have to be waited for. The kernel may ask the disk for it then, and a disk that is quick enough is not waited for:
    /// so true does not mean that memory had the bytes.
    fn read_resident_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool>;
    /// Whether memory has all of [offset, offset + bytes) at this moment, or a read brings it in at this moment (cachestat(2)).
    /// `None` where the kernel does not say.
    fn is_resident(&self, offset: u64, bytes: u64) -> io::Result<Option<bool>>;
    /// Waits until memory has, or has had, all of [offset, offset + bytes), without a copy of them.
    fn load(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Reads come in no order: from now on none brings in more than was asked for (POSIX_FADV_RANDOM). A hint.
    fn expect_random(&self);
    /// The descriptor, for sendfile(2) and splice(2). `None`: the bytes are had by reading only.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}
