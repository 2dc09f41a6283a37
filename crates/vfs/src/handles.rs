//! Open files and directories.

mod open_state;

pub use open_state::{OpenDir, OpenFile, OpenState};

use crate::{Failure, Vfs, ahead::Reads, files::FileState};
use sluice_base::{Errno, Ino};
use sluice_meta::{Attr, Error, atime_is_due};
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// What a front end keeps for an open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u64);

/// An open file.
pub struct FileHandle {
    /// Its state, shared by all handles of the inode.
    pub(crate) file: Arc<FileState>,
    /// The next read updates the access time.
    pub(crate) atime_due: AtomicBool,
    /// Nobody reads through it any more.
    pub(crate) closed: AtomicBool,
    /// Something of the file was lost, and this handle's next sync tells it.
    pub(crate) owes_loss: AtomicBool,
    /// Losses before it was opened: it does not stand on them.
    losses: u64,
    /// What its reads look like.
    pub(crate) reads: Reads,
}

impl FileHandle {
    fn new(file: Arc<FileState>, atime_due: bool, owes_loss: bool, losses: u64) -> Self {
        let (atime_due, owes_loss) = (atime_due.into(), owes_loss.into());
        Self { file, atime_due, closed: false.into(), owes_loss, losses, reads: Reads::default() }
    }
}

/// An open directory.
pub struct DirHandle {
    /// Its inode.
    pub ino: Ino,
    /// Entries with later cookies are not part of the listing under way.
    pub until: AtomicU64,
}

/// An opened file.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The handle.
    pub handle: HandleId,
    /// Pages that the kernel kept are still right and need no read for the access time's sake.
    pub keep_cache: bool,
}

const SHARDS: usize = 64;

struct Table<T> {
    shards: Vec<Mutex<HashMap<u64, Arc<T>>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl<T> Table<T> {
    fn shard(&self, id: HandleId) -> &Mutex<HashMap<u64, Arc<T>>> {
        &self.shards[id.0 as usize % SHARDS]
    }
    fn insert(&self, id: HandleId, value: Arc<T>) {
        self.shard(id).lock().insert(id.0, value);
    }
    fn get(&self, id: HandleId) -> Option<Arc<T>> {
        self.shard(id).lock().get(&id.0).cloned()
    }
    fn each(&self, visit: impl Fn(&T)) {
        self.shards.iter().for_each(|shard| shard.lock().values().for_each(|value| visit(value)));
    }
    fn remove(&self, id: HandleId) -> Option<Arc<T>> {
        self.shard(id).lock().remove(&id.0)
    }
}

/// All open handles.
#[derive(Default)]
pub(crate) struct Handles {
    next: AtomicU64,
    /// Files' handles that were closed.
    closed: AtomicU64,
    files: Table<FileHandle>,
    dirs: Table<DirHandle>,
}

impl Handles {
    /// How many handles of files were closed: who remembers some looks at them when this grows.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Ordering::Acquire)
    }
}

impl Vfs {
    fn new_handle(&self) -> HandleId {
        HandleId(self.handles.next.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Opens a file for which permissions were checked.
    pub fn open(&self, ino: Ino) -> Result<Opened, Failure> {
        self.warming.note_opening(ino);
        let (file, losses) = (self.files.acquire(ino), self.namespace().losses());
        match self.namespace().open(ino) {
            Ok((attr, unchanged)) => {
                let opened = self.opened(file, &attr, losses);
                Ok(Opened { keep_cache: opened.keep_cache && unchanged, ..opened })
            }
            Err(error) => {
                self.files.release(ino);
                Err(error.into())
            }
        }
    }

    /// A handle for `file`, a use of which it takes over, asked for after `losses` of [`crate::Metadata::losses`].
    pub(crate) fn opened(&self, file: Arc<FileState>, attr: &Attr, losses: u64) -> Opened {
        let due = attr.is_file() && atime_is_due(attr, self.parts.clock.wall());
        let handle = self.new_handle();
        self.handles.files.insert(handle, Arc::new(FileHandle::new(file, due, false, losses)));
        Opened { handle, keep_cache: !due }
    }

    /// The open file of a handle.
    pub(crate) fn file(&self, handle: HandleId) -> Result<Arc<FileHandle>, Errno> {
        self.handles.files.get(handle).ok_or(Errno::EBADF)
    }

    /// Tells others what was written through a handle, as a close of one of its descriptors does. That something of the file was lost is told by
    /// that too, but stays to be told: a descriptor that a child had and closed is not what the program looks at.
    pub fn publish(&self, ino: Ino, handle: HandleId) -> Result<(), Failure> {
        let (done, open) = (self.namespace().publish(ino), self.file(handle)?);
        if matches!(done, Err(Error::LocksLost)) {
            open.owes_loss.store(true, Ordering::Relaxed);
        }
        done?;
        if self.owes_loss(&open) {
            return Err(Error::Lost.into());
        }
        // Who has opened it since then is told by one close: not all of them sync.
        if self.namespace().take_lost(ino) {
            self.told_loss(ino);
            return Err(Error::Lost.into());
        }
        Ok(())
    }

    /// Has what was done to an open file seen by others, and durable where its metadata is. What was lost of it is told once through each handle that
    /// was open, as the kernel does for its own file systems (fsync(2)); until then nothing is written through that.
    pub fn sync_metadata(&self, ino: Ino, handle: HandleId) -> Result<(), Failure> {
        let done = self.namespace().publish(ino).and_then(|()| self.namespace().sync(Some(ino)));
        if matches!(done, Err(Error::Lost)) {
            self.told_loss(ino);
        }
        let may_tell = matches!(done, Ok(()) | Err(Error::Lost));
        let owed = may_tell && self.file(handle).is_ok_and(|open| open.owes_loss.swap(false, Ordering::Relaxed));
        if owed { Err(Error::Lost.into()) } else { Ok(done?) }
    }

    /// That something of a file was lost is told through one handle: the others that stand on it owe it.
    fn told_loss(&self, ino: Ino) {
        let losses = self.namespace().losses();
        self.handles.files.each(|open| {
            if open.file.ino == ino && open.losses < losses {
                open.owes_loss.store(true, Ordering::Relaxed);
            }
        });
    }

    /// Whether a handle stands on what is lost, and its sync has not told it.
    pub(crate) fn owes_loss(&self, open: &FileHandle) -> bool {
        let namespace = self.namespace();
        open.owes_loss.load(Ordering::Relaxed) || open.losses < namespace.losses() && namespace.is_lost(open.file.ino)
    }

    /// The open file of a handle to be changed through.
    pub(crate) fn file_to_write(&self, handle: HandleId) -> Result<Arc<FileHandle>, Errno> {
        let open = self.file(handle)?;
        if self.owes_loss(&open) { Err(Errno::EIO) } else { Ok(open) }
    }

    /// Whether a file may be changed through a handle now: it must not stand on what is lost.
    pub fn may_change_by(&self, handle: HandleId) -> Result<(), Failure> {
        Ok(self.file_to_write(handle).map(drop)?)
    }

    /// Closes a file's handle.
    pub fn release(&self, handle: HandleId) {
        let Some(open) = self.handles.files.remove(handle) else { return };
        open.closed.store(true, Ordering::Relaxed);
        self.handles.closed.fetch_add(1, Ordering::Release);
        self.ahead.close(&open.reads);
        if let Some(file) = self.files.release(open.file.ino) {
            // A read that was given up may still have it: then the object is sealed by its age.
            if let Ok(mut data) = file.exclusive() {
                self.dirty.end_stream(&mut data.stream);
            }
        }
    }

    /// Opens a directory.
    pub fn open_dir(&self, ino: Ino) -> Result<HandleId, Failure> {
        self.files.acquire(ino);
        match self.namespace().getattr(ino).and_then(|attr| Ok((attr, self.namespace().last_cookie()?))) {
            Ok((attr, until)) if attr.is_dir() => {
                let handle = self.new_handle();
                let until = AtomicU64::new(until);
                self.handles.dirs.insert(handle, Arc::new(DirHandle { ino, until }));
                Ok(handle)
            }
            other => {
                self.files.release(ino);
                Err(other.map_or_else(Failure::from, |_| Errno::ENOTDIR.into()))
            }
        }
    }

    /// The open directory of a handle. A listing that begins again sees what is there now.
    pub fn dir(&self, handle: HandleId, offset: u64) -> Result<Arc<DirHandle>, Failure> {
        let dir = self.handles.dirs.get(handle).ok_or(Errno::EBADF)?;
        if offset == 0 {
            dir.until.store(self.namespace().last_cookie()?, Ordering::Relaxed);
        }
        Ok(dir)
    }

    /// Closes a directory's handle.
    pub fn release_dir(&self, handle: HandleId) {
        if let Some(dir) = self.handles.dirs.remove(handle) {
            self.files.release(dir.ino);
        }
    }
}
