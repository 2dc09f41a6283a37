//! Files in use: one state for each inode that has an open handle or an operation under way.

use crate::dirty::Stream;
use parking_lot::{Mutex, MutexGuard, RwLock};
use sluice_base::Ino;
use sluice_meta::{extent::FileExtents, records::{Inode, flags}};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tokio::sync::Notify;

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
    /// Its data.
    pub data: RwLock<FileData>,
    /// It lost its last name: reclaim it when nobody uses it.
    pub orphaned: AtomicBool,
    /// Where the last read ended, to tell sequential readers.
    pub read_end: AtomicU64,
}

struct Entry {
    file: Arc<FileState>,
    uses: usize,
}

const SHARDS: usize = 64;

/// All files in use.
pub struct Files {
    shards: Vec<Mutex<HashMap<Ino, Entry>>>,
    left: Mutex<Vec<Ino>>,
    /// Told when an orphan is left without users.
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
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), left: Mutex::default(), orphan_left: Notify::new() }
    }
}

impl Files {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Entry>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Counts a use until [`Files::release`].
    pub fn acquire(&self, ino: Ino) -> Arc<FileState> {
        let mut shard = self.shard(ino).lock();
        let entry = shard.entry(ino).or_insert_with(|| {
            let (data, orphaned, read_end) = (RwLock::default(), AtomicBool::new(false), AtomicU64::new(0));
            Entry { file: Arc::new(FileState { ino, data, orphaned, read_end }), uses: 0 }
        });
        entry.uses += 1;
        entry.file.clone()
    }

    /// Ends a use; gives the state back when it was the last.
    pub fn release(&self, ino: Ino) -> Option<Arc<FileState>> {
        let mut shard = self.shard(ino).lock();
        let entry = shard.get_mut(&ino)?;
        entry.uses -= 1;
        if entry.uses > 0 {
            return None;
        }
        let file = shard.remove(&ino).map(|entry| entry.file);
        drop(shard);
        if file.as_ref().is_some_and(|file| file.orphaned.load(Ordering::Acquire)) {
            self.left.lock().push(ino);
            self.orphan_left.notify_one();
        }
        file
    }

    /// Orphans that nobody uses any more.
    pub fn take_orphans(&self) -> Vec<Ino> {
        std::mem::take(&mut self.left.lock())
    }

    /// Uses a file for one operation.
    pub fn with(&self, ino: Ino) -> FileUse<'_> {
        FileUse { files: self, file: self.acquire(ino) }
    }

    /// Holds off new uses of `ino` (and its shard), so that "is it in use" stays true until the guard goes.
    pub fn freeze(&self, ino: Ino) -> Frozen<'_> {
        Frozen { ino, shard: self.shard(ino).lock() }
    }

    /// Files in use.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

}

impl Drop for FileUse<'_> {
    fn drop(&mut self) {
        self.files.release(self.file.ino);
    }
}

/// See [`Files::freeze`].
pub struct Frozen<'a> {
    ino: Ino,
    shard: MutexGuard<'a, HashMap<Ino, Entry>>,
}

impl Frozen<'_> {
    /// Whether the inode is in use. Of any other inode we know nothing, so it counts as used.
    pub fn in_use(&self, ino: Ino) -> bool {
        ino != self.ino || self.shard.contains_key(&ino)
    }

    /// The inode lost its last name while in use. True when somebody will reclaim it.
    pub fn mark_orphan(&self, ino: Ino) -> bool {
        match self.shard.get(&ino) {
            Some(entry) => {
                entry.file.orphaned.store(true, Ordering::Release);
                true
            }
            None => false,
        }
    }
}
