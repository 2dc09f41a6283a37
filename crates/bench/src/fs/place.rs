//! A directory that is measured, and the large files in it.

use super::{
    content::{self, Key},
    hand::Watch,
    plan::{CHUNK, Plan},
};
use anyhow::Context;
use rustix::fs::{Advice, SeekFrom, fadvise};
use sluice_base::{Entropy, OsEntropy};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    num::NonZeroU64,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Generation of what is written in order, and read.
pub(super) const INTACT: u64 = 0;
const PAGE: u64 = 4096;

/// A directory that is measured. Everything it gets lies in a directory of its own, which goes with this value.
pub struct Place {
    /// As it is named in the report.
    pub dir: PathBuf,
    /// What fsync promises there.
    pub tier: String,
    /// Type of its file system.
    pub fs: String,
    /// Asks how many bytes are acked there and not stored, where that is known.
    pub unstored: Option<Box<dyn Fn() -> Option<u64> + Send + Sync>>,
    root: TempDir,
    salt: u64,
    pub(super) data: Data,
}

/// What the corrected files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Data {
    /// Not there, or in parts.
    None,
    /// Without holes.
    Whole,
    /// And everywhere what was written in order.
    Intact,
}

impl Place {
    /// Makes the directory for everything.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn new(dir: &Path, tier: String, fs: String) -> io::Result<Self> {
        let root = tempfile::Builder::new().prefix("sluice-bench-fs.").tempdir_in(dir)?;
        let mut salt = [0; 8];
        OsEntropy.fill(&mut salt);
        let salt = u64::from_le_bytes(salt);
        Ok(Self { dir: dir.to_owned(), tier, fs, unstored: None, root, salt, data: Data::None })
    }

    /// Removes everything.
    ///
    /// # Errors
    /// Those of unlink(2) and rmdir(2).
    pub fn close(self) -> io::Result<()> {
        self.root.close()
    }

    /// Bytes that are free for whoever asks.
    ///
    /// # Errors
    /// Those of statvfs(3).
    pub fn free(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(self.root.path())?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Which file system it is on: the same number for the same one.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn device(&self) -> io::Result<u64> {
        Ok(rustix::fs::stat(self.root.path())?.st_dev)
    }

    /// What a file has to hold.
    pub(super) fn key(&self, file: usize, generation: u64) -> Key {
        Key::new(self.salt, file, generation)
    }

    pub(super) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.path().join(name)
    }

    /// A large file.
    pub(super) fn file(&self, kind: &str, at: usize) -> PathBuf {
        self.path(format!("{kind}-{at}"))
    }

    /// Removes everything but files of this kind.
    pub(super) fn keep_only(&mut self, kind: &str) -> io::Result<()> {
        for entry in fs::read_dir(self.root.path())? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else if kind.is_empty() || !entry.file_name().to_string_lossy().starts_with(kind) {
                fs::remove_file(entry.path())?;
            }
        }
        if kind != DATA {
            self.data = Data::None;
        }
        Ok(())
    }

    /// Writes the corrected files to the last byte, and syncs them, unless they are as good as `wanted` already.
    pub(super) fn prepare(&mut self, wanted: Data, plan: &Plan, watch: &Watch) -> anyhow::Result<()> {
        if self.data >= wanted {
            return Ok(());
        }
        self.data = Data::None;
        (watch.begins)(format!("preparing files in {}", self.dir.display()));
        let mut buffer = content::random(CHUNK as usize, 1);
        for at in 0..plan.threads {
            self.write_file(at, plan, watch, &mut buffer)
                .with_context(|| format!("preparing files in {}", self.dir.display()))?;
        }
        self.sync_names().with_context(|| format!("syncing {}", self.dir.display()))?;
        self.data = Data::Intact;
        Ok(())
    }

    fn write_file(&self, at: usize, plan: &Plan, watch: &Watch, buffer: &mut [u8]) -> anyhow::Result<()> {
        let (mut file, key) = (File::create(self.file(DATA, at))?, self.key(at, INTACT));
        for (offset, len) in chunks(plan.file_bytes) {
            key.mark(offset, &mut buffer[..len]);
            file.write_all(&buffer[..len])?;
            (watch.part)((at as f64 + offset as f64 / plan.file_bytes as f64) / plan.threads as f64);
            watch.check()?;
        }
        Ok(file.sync_all()?)
    }

    /// Opens the large files of a kind.
    pub(super) fn open_all(&self, kind: &str, plan: &Plan, options: &OpenOptions) -> anyhow::Result<Vec<File>> {
        let open = |at| {
            let path = self.file(kind, at);
            options.open(&path).with_context(|| format!("opening {}", path.display()))
        };
        (0..plan.threads).map(open).collect()
    }

    /// Makes sure of the names in the directory.
    pub(super) fn sync_names(&self) -> io::Result<()> {
        File::open(self.root.path())?.sync_all()
    }
}

/// Kind of the corrected files.
pub(super) const DATA: &str = "data";

/// Offsets and lengths of a file from begin to end.
pub(super) fn chunks(file_bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..file_bytes).step_by(CHUNK as usize).map(move |offset| (offset, CHUNK.min(file_bytes - offset) as usize))
}

/// The kernel gives up what it has of a synced file, if it can.
pub(super) fn forget(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// The same for the pages of a range.
pub(super) fn forget_range(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let begin = offset / PAGE * PAGE;
    let end = (offset + len).next_multiple_of(PAGE);
    Ok(fadvise(file, begin, NonZeroU64::new(end - begin), Advice::DontNeed)?)
}

/// How much of the files is data and no hole, 0 to 1, by the file system's word (lseek(2)).
pub(super) fn written_part(files: &[File]) -> io::Result<f64> {
    let (mut data, mut whole) = (0, 0);
    for file in files {
        let (size, mut at) = (file.metadata()?.len(), 0);
        whole += size;
        while at < size {
            let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(begin) => begin,
                Err(rustix::io::Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            at = rustix::fs::seek(file, SeekFrom::Hole(begin))?;
            data += at - begin;
        }
    }
    Ok(data as f64 / whole.max(1) as f64)
}
