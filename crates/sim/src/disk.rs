//! A disk that takes time, and where other threads get their turn.

use sluice_base::{
    Disk,
    disk::{DiskFile, Space},
};
use sluice_run::simulation;
use std::{
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// What a sync takes. Reads and writes are the page cache's: they take none.
const SYNC: Duration = Duration::from_micros(700);

/// `inner`, slower.
pub struct SlowDisk<D>(pub D);

struct SlowFile(Arc<dyn DiskFile>);

impl<D: Disk> Disk for SlowDisk<D> {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SlowFile(self.0.open(path)?)))
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir_all(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        self.0.list(path)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        simulation::sleep(SYNC);
        self.0.sync_dir(path)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        self.0.space(path)
    }
}

impl DiskFile for SlowFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        // A process may be killed before a write and after it.
        simulation::pause();
        simulation::note(offset.rotate_left(32) ^ buf.len() as u64);
        self.0.write_all_at(buf, offset)
    }
    /// What was written when it began is what it makes durable, so the time passes after it.
    fn sync_data(&self) -> io::Result<()> {
        let synced = self.0.sync_data();
        simulation::sleep(SYNC);
        synced
    }
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }
    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.0.set_size(bytes)
    }
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.0.allocate(offset, bytes)
    }
    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.0.punch(offset, bytes)
    }
    fn read_resident_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.0.read_resident_at(buf, offset)
    }
    fn is_resident(&self, offset: u64, bytes: u64) -> io::Result<Option<bool>> {
        self.0.is_resident(offset, bytes)
    }
    fn load(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.0.load(offset, bytes)
    }
    fn expect_random(&self) {
        self.0.expect_random();
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
