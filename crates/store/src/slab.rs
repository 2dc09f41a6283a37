//! Slab files: sparse, created as needed, read and written through counted calls.

use crate::{SLOT_BYTES, health::Health};
use sluice_base::{Disk, DiskFile};
use sluice_run::lock::Mutex;
use std::{
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

pub(crate) struct Slab {
    file: Arc<dyn DiskFile>,
    health: Arc<Health>,
    /// Written since the last fdatasync began.
    unsynced: AtomicBool,
    /// A journal speaks of some of that without having its bytes.
    relied_on: AtomicBool,
    /// Held by a running fdatasync: a second caller must not return before the first one's, which may carry its bytes, ends.
    sync: Mutex<()>,
}

impl Slab {
    /// Fills `buf` if that needs no disk.
    pub(crate) fn read_resident(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.noted(self.file.read_resident_at(buf, offset))
    }

    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.noted(self.file.read_exact_at(buf, offset))
    }

    fn noted<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        match outcome {
            // Bytes that are not there are a failed check, not a failing disk.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(error),
            outcome => self.health.note("read", outcome),
        }
    }

    /// Whether memory has these bytes; `None` where the kernel does not say.
    pub(crate) fn is_resident(&self, offset: u64, bytes: u64) -> io::Result<Option<bool>> {
        // An answer says nothing of the disk.
        self.file.is_resident(offset, bytes).or_else(|error| self.noted(Err(error)))
    }

    /// Waits until memory has these bytes.
    pub(crate) fn load(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.noted(self.file.load(offset, bytes))
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.descriptor()
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let outcome = self.file.write_all_at(bytes, offset);
        // After the write: a flag set before could be cleared by a sync that misses the bytes.
        self.unsynced.store(true, Ordering::Release);
        self.health.note("write", outcome)
    }

    /// Gives a slot's room back to the disk. Detaches pages that sendfile has queued, rather than changing them.
    pub(crate) fn punch(&self, offset: u64) -> io::Result<()> {
        let outcome = self.file.punch(offset, SLOT_BYTES);
        self.health.note("punch", outcome)
    }

    /// Takes what an earlier process wrote, and may not have synced, as written now.
    pub(crate) fn inherit_writes(&self) {
        self.unsynced.store(true, Ordering::Release);
    }

    /// To be called before the record that speaks of what was written: the sync that makes that durable takes this slab along.
    pub(crate) fn rely_on(&self) {
        self.relied_on.store(true, Ordering::Release);
    }

    /// Whether a journal relies on what was written since the last sync, or on one that is under way.
    fn is_relied_on(&self) -> bool {
        self.sync.try_lock().is_none_or(|_one| self.relied_on.load(Ordering::Acquire))
    }

    fn sync(&self, what: What) -> io::Result<()> {
        let _one = self.sync.lock();
        let relied_on = self.relied_on.load(Ordering::Acquire);
        if !(relied_on || what == What::All && self.unsynced.load(Ordering::Acquire)) {
            return Ok(());
        }
        self.relied_on.store(false, Ordering::Release);
        self.unsynced.store(false, Ordering::Release);
        self.file.sync_data().inspect_err(|error| self.health.fail("sync", error))
    }
}

/// What a sync is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Everything written.
    All,
    /// A journal's records, where slabs have bytes that they speak of and do not have themselves.
    ReliedOn,
}

/// All slabs of a directory.
pub(crate) struct Slabs {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    health: Arc<Health>,
    /// Slots of a slab file.
    pub(crate) slots: u32,
    open: Mutex<Vec<Option<Arc<Slab>>>>,
}

impl Slabs {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, health: Arc<Health>, slots: u32) -> Self {
        Self { disk, dir: dir.into(), health, slots, open: Mutex::default() }
    }

    /// Slab `number`, at least `slots` slots long, created when there is none.
    pub(crate) fn get(&self, number: u32) -> io::Result<Arc<Slab>> {
        let mut open = self.open.lock();
        if let Some(Some(slab)) = open.get(number as usize) {
            return Ok(slab.clone());
        }
        let slab = Arc::new(Slab {
            file: self.health.note("open", self.make(number))?,
            health: self.health.clone(),
            unsynced: AtomicBool::new(false),
            relied_on: AtomicBool::new(false),
            sync: Mutex::new(()),
        });
        if open.len() <= number as usize {
            open.resize(number as usize + 1, None);
        }
        open[number as usize] = Some(slab.clone());
        Ok(slab)
    }

    fn make(&self, number: u32) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(&self.path(number))?;
        let bytes = u64::from(self.slots) * SLOT_BYTES;
        if file.size()? < bytes {
            file.set_size(bytes)?;
        }
        // Slots have nothing to do with each other, and every load is to be one that somebody asked for: `Sums` relies on it.
        file.expect_random();
        // Whoever made it may have died before this. The size is data: the first sync of written slots covers it.
        self.disk.sync_dir(&self.dir)?;
        Ok(file)
    }

    /// A second way to slab `number`, which exists, past the page cache where that can be.
    pub(crate) fn open_direct(&self, number: u32) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open_direct(&self.path(number))
    }

    fn path(&self, number: u32) -> PathBuf {
        self.dir.join(format!("slab-{number:05}"))
    }

    /// Whether a sync of what is relied on has anything to do, or a failure to tell.
    pub(crate) fn are_relied_on(&self) -> bool {
        let open: Vec<_> = self.open.lock().iter().flatten().cloned().collect();
        // Slabs first: a sync that fails says so before it lets its slab go.
        open.iter().any(|slab| slab.is_relied_on()) || self.health.is_failed()
    }

    /// fdatasync of every slab of which that is wanted since its last.
    pub(crate) fn sync(&self, what: What) -> io::Result<()> {
        let open: Vec<_> = self.open.lock().iter().flatten().cloned().collect();
        open.iter().try_for_each(|slab| slab.sync(what)).inspect_err(|_| self.note_doubt())?;
        if self.health.is_failed() {
            return Err(io::Error::other("the cache disk failed before"));
        }
        Ok(())
    }
    /// A sync failed: what memory has of the slabs may never reach the disk, which the kernel tells once. The next process is to know it too. It
    /// need not outlive a loss of power, after which reads give what the disk has.
    fn note_doubt(&self) {
        if let Err(error) = self.disk.open(&self.doubt()) {
            tracing::error!(%error, "a process after this one may take for synced what is not");
        }
    }

    /// Whether a sync of an earlier process failed.
    pub(crate) fn is_doubted(&self) -> io::Result<bool> {
        Ok(self.disk.list(&self.dir)?.contains(&self.doubt()))
    }

    /// What the doubt was about was written again and synced.
    pub(crate) fn end_doubt(&self) -> io::Result<()> {
        self.disk.remove(&self.doubt())
    }

    fn doubt(&self) -> PathBuf {
        self.dir.join("unsynced")
    }
}
