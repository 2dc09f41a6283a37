//! What programs have open, as one process tells it to the next that serves the same mount.

use super::{DirHandle, FileHandle, HandleId, Table};
use crate::{Vfs, files::Orphan};
use sluice_base::Ino;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// All that a front end may still ask for by number: what is not here, nobody has open. In the order of the numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenState {
    /// Open files.
    pub files: Vec<OpenFile>,
    /// Open directories.
    pub dirs: Vec<OpenDir>,
    /// Inodes without a name.
    pub orphans: Vec<Orphan>,
    /// Bytes were lost before they were stored: the next sync says so.
    pub lost: bool,
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Its handle.
    pub handle: HandleId,
    /// Its inode.
    pub ino: Ino,
    /// The next read updates the access time.
    pub atime_due: bool,
    /// Its next sync tells that something of the file was lost.
    pub owes_loss: bool,
}

/// An open directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDir {
    /// Its handle.
    pub handle: HandleId,
    /// Its inode.
    pub ino: Ino,
    /// Entries with later cookies are not part of the listing under way.
    pub until: u64,
}

impl<T> Table<T> {
    fn list<R>(&self, describe: impl Fn(HandleId, &T) -> R) -> Vec<R> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().iter().map(|(id, value)| (*id, describe(HandleId(*id), value))));
        }
        all.sort_by_key(|(id, _)| *id);
        all.into_iter().map(|(_, described)| described).collect()
    }
}

impl Vfs {
    /// What is open, while no request of the front end is under way.
    pub fn open_state(&self) -> OpenState {
        let file = |handle, open: &FileHandle| {
            let load = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
            OpenFile { handle, ino: open.file.ino, atime_due: load(&open.atime_due), owes_loss: self.owes_loss(open) }
        };
        let dir =
            |handle, open: &DirHandle| OpenDir { handle, ino: open.ino, until: open.until.load(Ordering::Relaxed) };
        OpenState {
            files: self.handles.files.list(file),
            dirs: self.handles.dirs.list(dir),
            orphans: self.files.orphans(),
            lost: self.lost.load(Ordering::Acquire),
        }
    }

    /// Has open what another process had, before the first request.
    pub(crate) fn inherit(&self, state: OpenState) {
        let OpenState { files, dirs, orphans, lost } = state;
        let last = files.last().map(|open| open.handle).max(dirs.last().map(|open| open.handle));
        self.handles.next.store(last.map_or(0, |last| last.0), Ordering::Relaxed);
        for OpenFile { handle, ino, atime_due, owes_loss } in files {
            let file = self.files.acquire(ino);
            let open = FileHandle::new(file, atime_due, owes_loss, self.namespace().losses());
            self.handles.files.insert(handle, Arc::new(open));
        }
        for OpenDir { handle, ino, until } in dirs {
            self.files.acquire(ino);
            self.handles.dirs.insert(handle, Arc::new(DirHandle { ino, until: AtomicU64::new(until) }));
        }
        // Behind the handles, which keep one that was forgotten.
        orphans.into_iter().for_each(|orphan| self.files.inherit(orphan));
        self.lost.store(lost, Ordering::Release);
    }
}
