//! The host's own disks.

use super::{Disk, DiskFile, Space, residency};
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate, fcntl_getfl, fcntl_setfl};
use std::{
    fs::{self, File, OpenOptions},
    io,
    num::NonZeroU64,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

/// The host's file systems.
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        // A read looks at the file's times otherwise: a fiftieth of what one of 4 KiB costs. Only its owner may set this.
        let _ = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::NOATIME));
        Ok(Arc::new(RealFile(file)))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let direct = OFlags::DIRECT.bits().cast_signed();
        match OpenOptions::new().read(true).custom_flags(direct).open(path) {
            // open(2): the file system does not know O_DIRECT.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.open(path),
            opened => Ok(Arc::new(RealFile(opened?))),
        }
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Space { available_bytes: found.f_bavail * found.f_frsize, total_bytes: found.f_blocks * found.f_frsize })
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        Ok(fallocate(&self.0, FallocateFlags::empty(), offset, bytes)?)
    }

    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        Ok(fallocate(&self.0, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)?)
    }

    fn read_resident_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        residency::read(&self.0, buf, offset)
    }

    fn is_resident(&self, offset: u64, bytes: u64) -> io::Result<Option<bool>> {
        residency::is_resident(&self.0, offset, bytes)
    }

    fn load(&self, offset: u64, bytes: u64) -> io::Result<()> {
        // All of it at once: what sendfile(2) asks for by itself is 64 KiB.
        let _ = fadvise(&self.0, offset, NonZeroU64::new(bytes), Advice::WillNeed);
        residency::load(&self.0, offset, bytes)
    }

    fn expect_random(&self) {
        let _ = fadvise(&self.0, 0, None, Advice::Random);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}
