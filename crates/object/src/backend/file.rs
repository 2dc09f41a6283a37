//! A store in a directory of a local or network file system.
//!
//! A key is a path below the directory. A put writes a file under `.tmp/`, syncs it, moves it to its place and syncs that
//! directory: a reader sees all bytes or none, and what was stored survives a power loss. The directory itself is made when
//! the store is opened and never later, so that a disk that is not mounted is an error and not a new, empty store.

use super::{Backend, ListEntry, PutMode, check_key};
use crate::{Denied, StoreError};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream, stream::BoxStream};
use parking_lot::Mutex;
use rustix::fs::{Advice, fadvise};
use sluice_base::{Entropy, OsEntropy, Pages, Timestamp};
use std::{
    collections::HashSet,
    fs::{self, File, Metadata},
    io::{self, ErrorKind, Write},
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where unfinished files lie. No key begins with a dot.
const TEMP: &str = ".tmp";
/// An unfinished file this old has no writer any more, in seconds.
const TEMP_AGE_MAX_S: i64 = 24 * 3600;

/// Keys and bytes as files below a directory.
#[derive(Clone)]
pub struct FileBackend(Arc<Inner>, Arc<Pages>);

struct Inner {
    root: PathBuf,
    /// Directories whose own entry is known to survive a power loss. One that another thread has just made may not yet.
    durable_dirs: Mutex<HashSet<PathBuf>>,
}

impl FileBackend {
    /// Opens the store in `root`, making the directory when there is none. Blocks.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        let root = std::path::absolute(root).map_err(|error| failed(root, error))?;
        let inner = Inner { root, durable_dirs: Mutex::default() };
        let temp = inner.root.join(TEMP);
        fs::create_dir_all(&temp).map_err(|error| failed(&temp, error))?;
        for dir in inner.root.ancestors() {
            // Directories above ours may not be readable to us; then somebody else made them.
            if let Err(error) = sync_dir(dir) {
                tracing::debug!(dir = %dir.display(), %error, "not synced");
                break;
            }
        }
        inner.sweep(&temp).map_err(|error| failed(&temp, error))?;
        Ok(Self(Arc::new(inner), Pages::new(0)))
    }

    /// Answers go into buffers of `pages`.
    pub fn with_pages(self, pages: Arc<Pages>) -> Self {
        Self(self.0, pages)
    }

    /// The directory, absolute.
    pub fn root(&self) -> &Path {
        &self.0.root
    }

    async fn blocking<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(&Inner, &Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        check_key(key)?;
        let inner = self.0.clone();
        let path = inner.root.join(key);
        let done = tokio::task::spawn_blocking(move || work(&inner, &path)).await;
        match done.map_err(|_| StoreError::unavailable("the task was stopped"))? {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.0.check_root()?;
                Err(StoreError::NotFound { key: key.into() })
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(StoreError::Exists { key: key.into() }),
            done => done.map_err(|error| failed(&self.0.root.join(key), error)),
        }
    }
}

impl Inner {
    /// An empty mount point looks like a store without keys, but has no directory for temporary files either.
    fn check_root(&self) -> Result<(), StoreError> {
        let gone = || StoreError::unavailable(format!("{}: not a store; is its disk mounted?", self.root.display()));
        self.root.join(TEMP).is_dir().then_some(()).ok_or_else(gone)
    }

    fn put(&self, path: &Path, body: &[Bytes], mode: PutMode) -> io::Result<()> {
        let dir = path.parent().expect("a key is below the root");
        self.make_durable_dir(dir)?;
        let mut name = [0; 16];
        OsEntropy.fill(&mut name);
        let temp = self.root.join(TEMP).join(sluice_base::ObjectId(name).to_string());
        let done = self.write_and_place(&temp, path, body, mode);
        if done.is_err() || mode == PutMode::Create {
            // Best effort: what stays is swept when the store is opened again a day later.
            let _ = fs::remove_file(&temp);
        }
        done?;
        sync_dir(dir)
    }

    fn write_and_place(&self, temp: &Path, path: &Path, body: &[Bytes], mode: PutMode) -> io::Result<()> {
        let mut file = File::create_new(temp)?;
        body.iter().try_for_each(|piece| file.write_all(piece))?;
        file.sync_all()?;
        // Whoever wrote it has the bytes at hand. Where this fails they stay in memory for a while.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        match mode {
            PutMode::Overwrite => fs::rename(temp, path),
            // link(2) fails when the name is taken, which rename(2) does not.
            PutMode::Create => fs::hard_link(temp, path),
        }
    }

    /// Makes `dir`, below the root, and the directories above it, and their entries durable.
    fn make_durable_dir(&self, dir: &Path) -> io::Result<()> {
        if dir == self.root {
            return fs::metadata(dir.join(TEMP)).map(drop);
        }
        if self.durable_dirs.lock().contains(dir) && dir.is_dir() {
            return Ok(());
        }
        let above = dir.parent().expect("below the root");
        self.make_durable_dir(above)?;
        match fs::create_dir(dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => sync_dir(above)?,
        }
        self.durable_dirs.lock().insert(dir.into());
        Ok(())
    }

    /// Removes what writers that are long gone left unfinished. Ages are measured by the file system's own clock.
    fn sweep(&self, temp: &Path) -> io::Result<()> {
        let mut name = [0; 16];
        OsEntropy.fill(&mut name);
        let probe = temp.join(sluice_base::ObjectId(name).to_string());
        let now = File::create_new(&probe)?.metadata()?.mtime();
        for entry in fs::read_dir(temp)? {
            let path = entry?.path();
            let old = fs::metadata(&path).is_ok_and(|found| now - found.mtime() > TEMP_AGE_MAX_S);
            if old || path == probe {
                ignore_missing(fs::remove_file(&path))?;
            }
        }
        Ok(())
    }

    /// The files and directories directly in `dir`.
    fn read_dir(&self, dir: &Path) -> io::Result<(Vec<ListEntry>, Vec<PathBuf>)> {
        let (mut files, mut dirs) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let Some(key) = path.strip_prefix(&self.root).ok().and_then(Path::to_str) else { continue };
            if check_key(key).is_err() {
                continue;
            }
            match fs::metadata(&path) {
                Ok(found) if found.is_dir() => dirs.push(path),
                Ok(found) => files.push(ListEntry { key: key.into(), bytes: found.len(), modified: modified(&found) }),
                // Removed since it was listed.
                Err(error) => ignore_missing(Err(error))?,
            }
        }
        Ok((files, dirs))
    }
}

impl Backend for FileBackend {
    fn put<'a>(&'a self, key: &'a str, body: Vec<Bytes>, mode: PutMode) -> BoxFuture<'a, Result<(), StoreError>> {
        self.blocking(key, move |inner, path| inner.put(path, &body, mode)).boxed()
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        let pages = self.1.clone();
        self.blocking(key, move |_, path| {
            let file = File::open(path)?;
            let end = range.end.min(file.metadata()?.len());
            let mut page = pages.take(end.saturating_sub(range.start) as usize);
            file.read_exact_at(page.as_mut(), range.start)?;
            Ok(Bytes::from_owner(page))
        })
        .boxed()
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.blocking(key, |_, path| Ok(fs::read(path)?.into())).boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.blocking(key, |_, path| Ok(fs::metadata(path)?.len())).boxed()
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let remove = |_: &Inner, path: &Path| {
                fs::remove_file(path)?;
                sync_dir(path.parent().expect("a key is below the root"))
            };
            match self.blocking(key, remove).await {
                Err(StoreError::NotFound { .. }) => Ok(()),
                done => done,
            }
        }
        .boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<ListEntry, StoreError>> {
        let first = if prefix.is_empty() { self.0.root.clone() } else { self.0.root.join(prefix) };
        let pages = stream::try_unfold(vec![first], move |mut dirs| async move {
            let Some(dir) = dirs.pop() else { return Ok::<_, StoreError>(None) };
            let inner = self.0.clone();
            let read = tokio::task::spawn_blocking(move || match inner.read_dir(&dir) {
                Err(error) if error.kind() == ErrorKind::NotFound => inner.check_root().map(|()| Default::default()),
                done => done.map_err(|error| failed(&dir, error)),
            });
            let (files, mut below) = read.await.map_err(|_| StoreError::unavailable("the task was stopped"))??;
            below.sort_by(|a, b| b.cmp(a));
            dirs.extend(below);
            Ok(Some((files, dirs)))
        });
        pages
            .flat_map(|page| match page {
                Ok(files) => stream::iter(files.into_iter().map(Ok).collect::<Vec<_>>()),
                Err(error) => stream::iter(vec![Err(error)]),
            })
            .boxed()
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn ignore_missing(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn modified(found: &Metadata) -> Timestamp {
    Timestamp { secs: found.mtime(), nanos: found.mtime_nsec() as u32 }
}

fn failed(path: &Path, error: io::Error) -> StoreError {
    let detail = format!("{}: {error}", path.display());
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            StoreError::Denied { reason: Denied::Permission, detail }
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Full { detail },
        ErrorKind::NotADirectory | ErrorKind::IsADirectory => StoreError::invalid(detail),
        _ => StoreError::Unavailable { detail, cause: Some(error) },
    }
}
