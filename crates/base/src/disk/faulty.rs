//! A disk that fails when told to.

use super::{Disk, DiskFile, Space};
use crate::Errno;
use parking_lot::Mutex;
use std::{
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

/// What may be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `read_exact_at`, `read_resident_at` and `is_resident`.
    Read,
    /// `write_all_at`. A write that fails leaves its first half behind, as a real one may.
    Write,
    /// `allocate` and `set_size`: what finds a disk full.
    Allocate,
    /// `sync_data` and `sync_dir`.
    Sync,
    /// `open`, `rename`, `remove` and `create_dir_all`.
    Name,
}

const OPERATIONS: usize = Operation::Name as usize + 1;

/// Which operations fail from now on. Shared between the disk and the test that drives it.
#[derive(Default)]
pub struct FaultPlan(Mutex<Plan>);

#[derive(Default)]
struct Plan {
    seen: [u64; OPERATIONS],
    nth: Vec<(Operation, u64, Errno)>,
    nth_under: Vec<(Operation, PathBuf, u64, Errno)>,
    under: Vec<(Operation, PathBuf, Errno)>,
}

impl FaultPlan {
    /// The `n`-th `operation` from now fails, once; 1 is the next.
    pub fn fail_nth(&self, operation: Operation, n: u64, errno: Errno) {
        let mut plan = self.0.lock();
        let at = plan.seen[operation as usize] + n;
        plan.nth.push((operation, at, errno));
    }

    /// The `n`-th `operation` from now on `path` and what lies under it fails, once.
    pub fn fail_nth_under(&self, operation: Operation, path: &Path, n: u64, errno: Errno) {
        self.0.lock().nth_under.push((operation, path.to_owned(), n, errno));
    }

    /// Every `operation` on `path` and what lies under it fails until `heal`.
    pub fn fail_under(&self, operation: Operation, path: &Path, errno: Errno) {
        self.0.lock().under.push((operation, path.to_owned(), errno));
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        let mut plan = self.0.lock();
        plan.nth.clear();
        plan.nth_under.clear();
        plan.under.clear();
    }

    /// How many times `operation` was asked for, failed ones included.
    pub fn count(&self, operation: Operation) -> u64 {
        self.0.lock().seen[operation as usize]
    }

    fn check(&self, operation: Operation, path: &Path) -> io::Result<()> {
        let mut plan = self.0.lock();
        plan.seen[operation as usize] += 1;
        let now = plan.seen[operation as usize];
        let mut once = None;
        plan.nth_under.retain_mut(|(what, dir, left, errno)| {
            if *what == operation && path.starts_with(dir) {
                *left -= 1;
                once = once.or((*left == 0).then_some(*errno));
            }
            *left > 0
        });
        if let Some(errno) = once {
            return Err(io::Error::from_raw_os_error(errno.0));
        }
        let nth = plan.nth.iter().position(|&(what, at, _)| what == operation && at == now);
        let errno = match nth {
            Some(index) => Some(plan.nth.swap_remove(index).2),
            None => {
                plan.under.iter().find(|(what, dir, _)| *what == operation && path.starts_with(dir)).map(|rule| rule.2)
            }
        };
        errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno.0)))
    }
}

/// A disk over another one that fails as its plan says.
pub struct FaultyDisk {
    inner: Arc<dyn Disk>,
    plan: Arc<FaultPlan>,
}

impl FaultyDisk {
    /// Passes everything on to `inner` but what `plan` makes fail.
    pub fn new(inner: Arc<dyn Disk>, plan: Arc<FaultPlan>) -> Self {
        Self { inner, plan }
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.plan.check(Operation::Name, path)?;
        let inner = self.inner.open(path)?;
        Ok(Arc::new(FaultyFile { inner, plan: self.plan.clone(), path: path.to_owned() }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.plan.check(Operation::Name, path)?;
        self.inner.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        self.inner.list(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.plan.check(Operation::Name, path)?;
        self.inner.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.plan.check(Operation::Name, from)?;
        self.inner.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.plan.check(Operation::Sync, path)?;
        self.inner.sync_dir(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.inner.space(path)
    }
}

/// Matched against rules by the path it was opened under, also after a rename.
struct FaultyFile {
    inner: Arc<dyn DiskFile>,
    plan: Arc<FaultPlan>,
    path: PathBuf,
}

impl DiskFile for FaultyFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.plan.check(Operation::Read, &self.path)?;
        self.inner.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if let Err(error) = self.plan.check(Operation::Write, &self.path) {
            self.inner.write_all_at(&buf[..buf.len() / 2], offset)?;
            return Err(error);
        }
        self.inner.write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.plan.check(Operation::Sync, &self.path)?;
        self.inner.sync_data()
    }

    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.plan.check(Operation::Allocate, &self.path)?;
        self.inner.set_size(bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.plan.check(Operation::Allocate, &self.path)?;
        self.inner.allocate(offset, bytes)
    }

    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.inner.punch(offset, bytes)
    }

    fn read_resident_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.plan.check(Operation::Read, &self.path)?;
        self.inner.read_resident_at(buf, offset)
    }

    fn is_resident(&self, offset: u64, bytes: u64) -> io::Result<Option<bool>> {
        self.plan.check(Operation::Read, &self.path)?;
        self.inner.is_resident(offset, bytes)
    }

    fn load(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.plan.check(Operation::Read, &self.path)?;
        self.inner.load(offset, bytes)
    }

    fn expect_random(&self) {
        self.inner.expect_random();
    }

    /// None: no read goes past the plan.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::MemoryDisk;

    #[test]
    fn fails_as_told_and_heals() {
        let (plan, dir) = (Arc::new(FaultPlan::default()), Path::new("/d"));
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::default()), plan.clone());
        disk.create_dir_all(dir).unwrap();
        let file = disk.open(&dir.join("f")).unwrap();
        let raw = |result: io::Result<()>| result.map_err(|error| Errno(error.raw_os_error().unwrap()));

        plan.fail_nth(Operation::Write, 2, Errno::EIO);
        assert_eq!(raw(file.write_all_at(&[1; 4], 0)), Ok(()));
        assert_eq!(raw(file.write_all_at(&[2; 4], 0)), Err(Errno::EIO));
        let mut found = [0; 4];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, [2, 2, 1, 1], "half of the failed write arrived");
        assert_eq!(raw(file.write_all_at(&[3; 4], 0)), Ok(()));

        plan.fail_nth_under(Operation::Write, &dir.join("other"), 1, Errno::EIO);
        plan.fail_nth_under(Operation::Write, dir, 2, Errno::EIO);
        assert_eq!(raw(file.write_all_at(&[4; 4], 0)), Ok(()));
        assert_eq!(raw(file.write_all_at(&[5; 4], 0)), Err(Errno::EIO));
        assert_eq!(raw(file.write_all_at(&[6; 4], 0)), Ok(()));

        plan.fail_under(Operation::Sync, dir, Errno::EIO);
        plan.fail_under(Operation::Allocate, &dir.join("f"), Errno::ENOSPC);
        plan.fail_under(Operation::Read, &dir.join("other"), Errno::EIO);
        assert_eq!(raw(file.sync_data()), Err(Errno::EIO));
        assert_eq!(raw(disk.sync_dir(dir)), Err(Errno::EIO));
        assert_eq!(raw(file.allocate(0, 1)), Err(Errno::ENOSPC));
        assert_eq!(raw(file.read_exact_at(&mut found, 0)), Ok(()));
        plan.heal();
        assert_eq!(raw(file.sync_data()), Ok(()));
        assert_eq!(plan.count(Operation::Write), 6);
        assert_eq!(plan.count(Operation::Sync), 3);
    }
}
