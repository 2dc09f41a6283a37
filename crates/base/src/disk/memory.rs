//! A disk in memory that can lose power.
//!
//! Every file is kept twice: as programs see it, and as the platter would hold it if the power failed now and the disk had
//! written nothing on its own. The operations in between are pending; `sync_data` and `sync_dir` carry them over. Power loss
//! keeps any subset of the pending operations, which is more hostile than any one file system: code that survives it does not
//! lean on the order in which ext4 or XFS happen to write.

mod content;

#[cfg(test)]
mod tests;

use super::{Disk, DiskFile, Space};
use content::{Change, Content, PAGE_BYTES};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// A disk in memory. Clones are the same disk.
///
/// Directories are durable as soon as they are made; files, their names and their contents only when synced.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    names: Arc<Mutex<Names>>,
    room: Arc<Room>,
}

impl MemoryDisk {
    /// The disk as found after a power cut at this moment. `seed` decides which unsynced operations had reached it: each
    /// write is kept, dropped or torn at 512-byte granularity, each change of a name is kept or dropped.
    pub fn power_loss(&self, seed: u64) -> MemoryDisk {
        let mut rng = SmallRng::seed_from_u64(seed);
        // A different share each time, so that "all but one kept" and "all dropped" both come up often.
        let kept = f64::from(rng.random_range(0..=100u32)) / 100.0;
        let names = self.names.lock();
        let mut found = names.durable.clone();
        for change in &names.pending {
            if rng.random_bool(kept) {
                change.apply(&mut found);
            }
        }
        let room = Arc::new(Room { capacity: AtomicU64::new(self.room.capacity()), used: AtomicU64::new(0) });
        let files: BTreeMap<_, _> =
            found.iter().map(|(path, file)| (path.clone(), file.after_power_loss(&mut rng, kept, &room))).collect();
        let names = Names { dirs: names.dirs.clone(), durable: files.clone(), live: files, pending: Vec::new() };
        MemoryDisk { names: Arc::new(Mutex::new(names)), room }
    }

    /// From now on operations that would take the disk past `bytes` fail with ENOSPC.
    pub fn set_capacity(&self, bytes: u64) {
        self.room.capacity.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that linked files occupy, in whole pages.
    pub fn used_bytes(&self) -> u64 {
        self.room.used.load(Ordering::Relaxed)
    }

    /// The kernel gives up what it keeps of the file `path` in memory; what was not synced is not lost. False when there is none.
    pub fn drop_pages(&self, path: &Path) -> bool {
        let Some(file) = self.names.lock().live.get(path).cloned() else { return false };
        let state = &mut *file.state.lock();
        state.cold = state.live.pages().collect();
        true
    }

    /// The kernel fails to write back the file `path`: what was not synced stays in memory, counts as written, and never reaches the
    /// disk. A sync tells of that once; this one leaves it to whoever calls it. False when there is no such file.
    pub fn fail_writeback(&self, path: &Path) -> bool {
        let Some(file) = self.names.lock().live.get(path).cloned() else { return false };
        file.state.lock().pending.clear();
        true
    }

    /// Flips one bit of the byte at `offset` of the file `path`, on the platter, and drops its page from memory: rot is met when
    /// the disk is read. Which bit follows from the offset. False when there is no such file or byte: a hole has none.
    pub fn flip_bit(&self, path: &Path, offset: u64) -> bool {
        let Some(file) = self.names.lock().live.get(path).cloned() else { return false };
        let mut state = file.state.lock();
        let mut byte = [0];
        if state.live.read(&mut byte, offset).is_err() {
            return false;
        }
        byte[0] ^= 1 << (offset % 8);
        let flipped = Change::Write { offset, bytes: byte.to_vec() };
        if state.live.missing_pages(&flipped) > 0 {
            return false;
        }
        state.live.apply(&flipped);
        state.cold.insert(offset / PAGE_BYTES);
        if offset < state.durable.size() && state.durable.missing_pages(&flipped) == 0 {
            state.durable.apply(&flipped);
        }
        true
    }
}

impl Disk for MemoryDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut names = self.names.lock();
        if let Some(file) = names.live.get(path) {
            return Ok(file.clone());
        }
        if !path.parent().is_some_and(|dir| names.has_dir(dir)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = Arc::new(MemoryFile { state: Mutex::default(), room: self.room.clone() });
        names.change(NameChange::Create(path.to_owned(), file.clone()));
        Ok(file)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        names.dirs.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let names = self.names.lock();
        if !names.has_dir(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(names.live.keys().filter(|file| file.parent() == Some(path)).cloned().collect())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        names.live.get(path).ok_or(io::ErrorKind::NotFound)?.unlink();
        names.change(NameChange::Remove(path.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        if !names.live.contains_key(from) || !to.parent().is_some_and(|dir| names.has_dir(dir)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if from != to {
            names.live.get(to).inspect(|replaced| replaced.unlink());
            names.change(NameChange::Rename(from.to_owned(), to.to_owned()));
        }
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        if !names.has_dir(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let (now, later): (Vec<_>, _) = names.pending.drain(..).partition(|change| change.touches(path));
        names.pending = later;
        now.iter().for_each(|change| change.apply(&mut names.durable));
        Ok(())
    }

    fn space(&self, _path: &Path) -> io::Result<Space> {
        let total_bytes = self.room.capacity();
        Ok(Space { available_bytes: total_bytes.saturating_sub(self.used_bytes()), total_bytes })
    }
}

#[derive(Default)]
struct Names {
    dirs: BTreeSet<PathBuf>,
    live: BTreeMap<PathBuf, Arc<MemoryFile>>,
    durable: BTreeMap<PathBuf, Arc<MemoryFile>>,
    pending: Vec<NameChange>,
}

impl Names {
    fn has_dir(&self, path: &Path) -> bool {
        ["/", "", "."].iter().any(|root| path == Path::new(root)) || self.dirs.contains(path)
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.live);
        self.pending.push(change);
    }
}

enum NameChange {
    Create(PathBuf, Arc<MemoryFile>),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
}

impl NameChange {
    fn apply(&self, files: &mut BTreeMap<PathBuf, Arc<MemoryFile>>) {
        match self {
            Self::Create(path, file) => drop(files.insert(path.clone(), file.clone())),
            Self::Remove(path) => drop(files.remove(path)),
            // The source is missing when its creation was lost: then the rename is lost with it.
            Self::Rename(from, to) => {
                if let Some(file) = files.remove(from) {
                    files.insert(to.clone(), file);
                }
            }
        }
    }

    fn touches(&self, dir: &Path) -> bool {
        match self {
            Self::Create(path, _) | Self::Remove(path) => path.parent() == Some(dir),
            Self::Rename(from, to) => from.parent() == Some(dir) || to.parent() == Some(dir),
        }
    }
}

/// What the files of a disk share.
struct Room {
    capacity: AtomicU64,
    used: AtomicU64,
}

impl Default for Room {
    fn default() -> Self {
        Self { capacity: AtomicU64::new(u64::MAX), used: AtomicU64::new(0) }
    }
}

impl Room {
    fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> io::Result<()> {
        let grown = |used: u64| used.checked_add(bytes).filter(|&after| bytes == 0 || after <= self.capacity());
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        taken.map(drop).map_err(|_| io::Error::from_raw_os_error(crate::Errno::ENOSPC.0))
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

struct MemoryFile {
    state: Mutex<FileState>,
    room: Arc<Room>,
}

#[derive(Default)]
struct FileState {
    live: Content,
    durable: Content,
    pending: Vec<Change>,
    /// Pages that the kernel does not have in memory.
    cold: BTreeSet<u64>,
    /// A file without a name no longer counts against the disk's capacity.
    unlinked: bool,
}

impl FileState {
    fn is_resident(&self, offset: u64, bytes: u64) -> bool {
        self.cold.range(touched(offset, bytes)).next().is_none()
    }

    fn warm(&mut self, offset: u64, bytes: u64) {
        if !self.cold.is_empty() {
            let warm = touched(offset, bytes);
            self.cold.retain(|page| !warm.contains(page));
        }
    }
}

/// Pages that hold a byte of [offset, offset + bytes).
fn touched(offset: u64, bytes: u64) -> Range<u64> {
    offset / PAGE_BYTES..(offset + bytes).div_ceil(PAGE_BYTES).max(offset / PAGE_BYTES)
}

impl MemoryFile {
    fn unlink(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.unlinked, true) {
            self.room.give_back(state.live.page_count() * PAGE_BYTES);
        }
    }

    fn change(&self, change: Change) -> io::Result<()> {
        let mut state = self.state.lock();
        let before = state.live.page_count();
        if !state.unlinked {
            self.room.take(state.live.missing_pages(&change) * PAGE_BYTES)?;
        }
        let expected = before + state.live.missing_pages(&change);
        state.live.apply(&change);
        if !state.cold.is_empty() {
            let warm = change.pages();
            state.cold.retain(|page| !warm.contains(page));
        }
        if !state.unlinked {
            self.room.give_back((expected - state.live.page_count()) * PAGE_BYTES);
        }
        state.pending.push(change);
        Ok(())
    }

    fn after_power_loss(&self, rng: &mut SmallRng, kept: f64, room: &Arc<Room>) -> Arc<MemoryFile> {
        let state = self.state.lock();
        let mut found = state.durable.clone();
        for change in &state.pending {
            if rng.random_bool(kept) {
                found.apply(change);
            } else if rng.random_bool(0.5) {
                change.sectors().filter(|_| rng.random_bool(0.5)).for_each(|sector| found.apply(&sector));
            }
        }
        room.used.fetch_add(found.page_count() * PAGE_BYTES, Ordering::Relaxed);
        let state = FileState { live: found.clone(), durable: found, ..FileState::default() };
        Arc::new(MemoryFile { state: Mutex::new(state), room: room.clone() })
    }
}

impl DiskFile for MemoryFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.warm(offset, buf.len() as u64);
        state.live.read(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.change(Change::Write { offset, bytes: buf.to_vec() })
    }

    fn sync_data(&self) -> io::Result<()> {
        let state = &mut *self.state.lock();
        state.pending.drain(..).for_each(|change| state.durable.apply(&change));
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.state.lock().live.size())
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.change(Change::SetSize(bytes))
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.change(Change::Allocate { offset, bytes })
    }

    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.change(Change::Punch { offset, bytes })
    }

    fn read_resident_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        let state = self.state.lock();
        if !state.is_resident(offset, buf.len() as u64) {
            return Ok(false);
        }
        state.live.read(buf, offset).map(|()| true)
    }

    fn is_resident(&self, offset: u64, bytes: u64) -> io::Result<Option<bool>> {
        Ok(Some(self.state.lock().is_resident(offset, bytes)))
    }

    fn load(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.read_exact_at(&mut vec![0; bytes as usize], offset)
    }

    /// No read brings in more than was asked for anyway.
    fn expect_random(&self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
