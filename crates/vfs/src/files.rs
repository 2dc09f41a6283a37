//! Files in use: one state for each inode that has an open handle or an operation under way.

use crate::{Failure, dirty::Stream, may_wait};
use sluice_base::Ino;
use sluice_meta::{
    extent::FileExtents,
    records::{Inode, flags},
};
use sluice_run::collections::HashMap;
use sluice_run::lock::{Mutex, RwLock, RwLockUpgradableReadGuard, RwLockWriteGuard};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// Who holds a file's data may be waiting for the network. A thread that must not gives up after this long, far longer than a
/// local operation holds it, and the operation is run again where it may wait.
const HELD_MAX: Duration = Duration::from_millis(10);

/// What decides how a file's bytes are kept. Only the vfs changes it, so it stays valid while the file is in use.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Length in bytes.
    pub size: u64,
    /// The body is inline.
    pub inline: bool,
    /// There are extents.
    pub extents: bool,
}

impl Shape {
    /// The shape that an inode has.
    pub fn of(inode: &Inode) -> Self {
        Self { size: inode.size, inline: inode.has(flags::INLINE), extents: inode.has(flags::EXTENTS) }
    }
}

/// The part of a file's state that reads share and writes own.
#[derive(Default)]
pub struct FileData {
    /// As far as loaded.
    pub shape: Option<Shape>,
    /// As far as loaded.
    pub extents: FileExtents,
    /// Where the last write ended.
    pub stream: Stream,
}

/// A file in use.
pub struct FileState {
    /// Its inode.
    pub ino: Ino,
    /// Its data. Some who hold it wait for the network: see [`FileState::shared`].
    data: RwLock<FileData>,
    /// Somebody else changed the file since its data was loaded.
    stale: AtomicBool,
    /// Grows whenever somebody may change the data, before he does, and when it has become stale: see [`FileState::version`].
    version: AtomicU64,
}

impl FileState {
    /// What a copy of the data is remembered with: while this is the same, the copy is what [`FileState::fresh`] would show. To be
    /// read before that: what changes later is then told by another number, what changes in between by one that nobody remembers.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    fn changes(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// What `look` finds in the data, if nobody changes it at the moment and it is not stale. Never waits.
    pub fn fresh<R>(&self, look: impl FnOnce(&FileData) -> Option<R>) -> Option<R> {
        let data = self.data.try_read()?;
        if self.stale.load(Ordering::Acquire) { None } else { look(&data) }
    }

    /// The data, to be read, and to be loaded after [`FileState::upgraded`]. [`Failure::Away`] where somebody has it for long and
    /// this thread must not wait for the network, as he may. What somebody else made stale is forgotten.
    pub fn shared(&self) -> Result<RwLockUpgradableReadGuard<'_, FileData>, Failure> {
        let data =
            if may_wait() { Some(self.data.upgradable_read()) } else { self.data.try_upgradable_read_for(HELD_MAX) };
        let data = data.ok_or(Failure::Away)?;
        if !self.stale.load(Ordering::Acquire) {
            return Ok(data);
        }
        let mut data = self.upgraded(data)?;
        self.forget_stale(&mut data);
        Ok(RwLockWriteGuard::downgrade_to_upgradable(data))
    }

    /// The data, to be changed. Waits as [`FileState::shared`] does.
    pub fn exclusive(&self) -> Result<RwLockWriteGuard<'_, FileData>, Failure> {
        let data = if may_wait() { Some(self.data.write()) } else { self.data.try_write_for(HELD_MAX) };
        let mut data = data.ok_or(Failure::Away)?;
        self.changes();
        self.forget_stale(&mut data);
        Ok(data)
    }

    /// What was to be read is to be changed. Waits as [`FileState::shared`] does.
    pub fn upgraded<'a>(
        &self,
        data: RwLockUpgradableReadGuard<'a, FileData>,
    ) -> Result<RwLockWriteGuard<'a, FileData>, Failure> {
        let data = match may_wait() {
            true => RwLockUpgradableReadGuard::upgrade(data),
            false => RwLockUpgradableReadGuard::try_upgrade_for(data, HELD_MAX).map_err(|_| Failure::Away)?,
        };
        self.changes();
        Ok(data)
    }

    fn became_stale(&self) {
        self.stale.store(true, Ordering::Release);
        self.changes();
    }

    /// Under the lock, so that whoever finds the file no longer stale finds nothing stale in it either.
    fn forget_stale(&self, data: &mut FileData) {
        if self.stale.swap(false, Ordering::AcqRel) {
            data.shape = None;
            data.extents.forget();
        }
    }
}

struct Entry {
    file: Arc<FileState>,
    uses: usize,
    /// It has no name left.
    orphaned: bool,
    /// The front end, which may still hold a reference by number, gave it back.
    forgotten: bool,
}

impl Entry {
    fn new(ino: Ino) -> Self {
        let (data, stale, version) = (RwLock::default(), AtomicBool::new(false), AtomicU64::new(0));
        let file = FileState { ino, data, stale, version };
        Self { file: Arc::new(file), uses: 0, orphaned: false, forgotten: false }
    }

    fn is_over(&self) -> bool {
        self.uses == 0 && (self.forgotten || !self.orphaned)
    }
}

/// An inode without a name that a front end may still ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The inode.
    pub ino: Ino,
    /// The front end gave its number back: only handles keep it.
    pub forgotten: bool,
}

const SHARDS: usize = 64;

/// All files in use, and those without a name that a front end may still ask for.
///
/// An inode that lost its last name lives on until its last use ends and the front end has given its number back (FORGET):
/// whoever looked the name up before may still open it, and the kernel keeps fifos, sockets and devices open without telling.
pub struct Files {
    shards: Vec<Mutex<HashMap<Ino, Entry>>>,
    left: Mutex<Vec<Ino>>,
    /// Told when an orphan is left by everybody.
    pub orphan_left: Notify,
}

/// A use of a file; the last one to go takes the state with it.
pub struct FileUse<'a> {
    files: &'a Files,
    /// The file.
    pub file: Arc<FileState>,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            left: Mutex::default(),
            orphan_left: Notify::new(),
        }
    }
}

impl Files {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Entry>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Counts a use until [`Files::release`].
    pub fn acquire(&self, ino: Ino) -> Arc<FileState> {
        let mut shard = self.shard(ino).lock();
        let entry = shard.entry(ino).or_insert_with(|| Entry::new(ino));
        entry.uses += 1;
        entry.file.clone()
    }

    /// Ends a use; gives the state back when it was the last.
    pub fn release(&self, ino: Ino) -> Option<Arc<FileState>> {
        let mut last = None;
        self.change(ino, |entry| {
            entry.uses -= 1;
            last = (entry.uses == 0).then(|| entry.file.clone());
        });
        last
    }

    /// Uses a file for one operation.
    pub fn with(&self, ino: Ino) -> FileUse<'_> {
        FileUse { files: self, file: self.acquire(ino) }
    }

    /// The inode lost its last name, or was made without one.
    pub fn orphaned(&self, ino: Ino) {
        self.shard(ino).lock().entry(ino).or_insert_with(|| Entry::new(ino)).orphaned = true;
    }

    /// Those without a name, in the order of their numbers, also those that are left by everybody and not taken yet.
    pub fn orphans(&self) -> Vec<Orphan> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let orphaned = shard.iter().filter(|(_, entry)| entry.orphaned);
            all.extend(orphaned.map(|(ino, entry)| Orphan { ino: *ino, forgotten: entry.forgotten }));
        }
        all.extend(self.left.lock().iter().map(|ino| Orphan { ino: *ino, forgotten: true }));
        all.sort_by_key(|orphan| orphan.ino);
        all.dedup_by_key(|orphan| orphan.ino);
        all
    }

    /// An orphan of the process that served the front end before.
    pub fn inherit(&self, orphan: Orphan) {
        self.orphaned(orphan.ino);
        if orphan.forgotten {
            self.forget(orphan.ino);
        }
    }

    /// Somebody else changed the file.
    pub fn changed(&self, ino: Ino) {
        if let Some(entry) = self.shard(ino).lock().get(&ino) {
            entry.file.became_stale();
        }
    }

    /// Somebody else may have changed any file.
    pub fn all_changed(&self) {
        let stale = |entry: &Entry| entry.file.became_stale();
        self.shards.iter().for_each(|shard| shard.lock().values().for_each(stale));
    }

    /// The inode got a name again.
    pub fn named(&self, ino: Ino) {
        self.change(ino, |entry| entry.orphaned = false);
    }

    /// The front end holds no reference any more.
    pub fn forget(&self, ino: Ino) {
        self.change(ino, |entry| entry.forgotten = entry.orphaned);
    }

    /// Changes an entry, if there is one, and takes it out when nothing needs it any more.
    fn change(&self, ino: Ino, change: impl FnOnce(&mut Entry)) {
        let mut shard = self.shard(ino).lock();
        let Some(entry) = shard.get_mut(&ino) else { return };
        change(entry);
        if entry.is_over() {
            let orphaned = entry.orphaned;
            shard.remove(&ino);
            drop(shard);
            if orphaned {
                self.left.lock().push(ino);
                self.orphan_left.notify_one();
            }
        }
    }

    /// Orphans that nobody needs any more.
    pub fn take_orphans(&self) -> Vec<Ino> {
        std::mem::take(&mut self.left.lock())
    }

    /// Files in use.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().values().filter(|entry| entry.uses > 0).count()).sum()
    }
}

impl Drop for FileUse<'_> {
    fn drop(&mut self) {
        self.files.release(self.file.ino);
    }
}
