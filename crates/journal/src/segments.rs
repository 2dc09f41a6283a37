//! The files of a journal: names, creation, retirement.
//!
//! Live segments are `<number>.log`, the number in 16 hex digits so that names sort. A file without records in use is
//! `<number>.spare`: a retired segment kept for reuse, or a new one that is not complete yet. Numbers only ever grow, so what a
//! spare still holds belongs to a lower number and never passes a checksum again.

use crate::{
    JournalError, JournalOptions,
    format::{MARK_OFFSET, Mark, Place, SegmentHeader},
};
use sluice_base::{Disk, DiskFile, Seq};
use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Retired segments kept for reuse: their blocks are already written, which makes fdatasync cheaper than on fresh ones. As many as uploads
/// free at a time.
pub(crate) const SPARES_MAX: usize = 4;

/// A live segment.
#[derive(Clone)]
pub(crate) struct Segment {
    pub number: u64,
    pub path: PathBuf,
    pub file: Arc<dyn DiskFile>,
    pub first_seq: Seq,
    pub bytes: u64,
    pub place: Place,
}

impl Segment {
    /// Notes that everything up to `synced`, which must be durable, is so.
    pub(crate) fn write_mark(&self, synced: Seq) -> Result<(), JournalError> {
        let mark = Mark { synced }.to_bytes(self.place);
        self.file.write_all_at(&mark, MARK_OFFSET).map_err(JournalError::io("write to", &self.path))
    }

    /// Zeros everything from `offset`, so that nothing that lies there comes back behind newer records.
    pub(crate) fn zero_from(&self, offset: u64) -> Result<(), JournalError> {
        let zeros = vec![0; 1 << 20];
        let mut at = offset;
        while at < self.bytes {
            let count = (self.bytes - at).min(zeros.len() as u64);
            let zeros = &zeros[..count as usize];
            self.file.write_all_at(zeros, at).map_err(JournalError::io("write to", &self.path))?;
            at += count;
        }
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<(), JournalError> {
        self.file.sync_data().map_err(|error| sync_failed(&self.path, &error))
    }
}

/// The error after which nothing that the kernel says about this file's durability can be believed.
pub(crate) fn sync_failed(path: &Path, error: &io::Error) -> JournalError {
    JournalError::Failed { why: format!("cannot sync {}: {error}", path.display()) }
}

/// The journal's directory.
pub(crate) struct Directory {
    pub disk: Arc<dyn Disk>,
    pub options: JournalOptions,
}

/// What lies in it.
pub(crate) struct Listing {
    /// In the order of their numbers.
    pub live: Vec<(u64, PathBuf)>,
    pub spares: Vec<PathBuf>,
}

impl Directory {
    pub(crate) fn new(disk: Arc<dyn Disk>, options: JournalOptions) -> Result<Self, JournalError> {
        options.check()?;
        disk.create_dir_all(&options.dir).map_err(JournalError::io("create", &options.dir))?;
        Ok(Self { disk, options })
    }

    pub(crate) fn path(&self, number: u64) -> PathBuf {
        self.options.dir.join(format!("{number:016x}.log"))
    }

    fn spare_path(&self, number: u64) -> PathBuf {
        self.options.dir.join(format!("{number:016x}.spare"))
    }

    pub(crate) fn listing(&self) -> Result<Listing, JournalError> {
        let dir = &self.options.dir;
        let paths = self.disk.list(dir).map_err(JournalError::io("list", dir))?;
        let mut listing = Listing { live: Vec::new(), spares: Vec::new() };
        for path in paths {
            let stem = path.file_stem().and_then(OsStr::to_str).filter(|stem| stem.len() == 16);
            let Some(number) = stem.and_then(|stem| u64::from_str_radix(stem, 16).ok()) else { continue };
            match path.extension().and_then(OsStr::to_str) {
                Some("log") => listing.live.push((number, path)),
                Some("spare") => listing.spares.push(path),
                _ => {}
            }
        }
        listing.live.sort_unstable();
        listing.spares.sort_unstable();
        Ok(listing)
    }

    /// Makes segment `number`, from `spare` if there is one. Everything before `first_seq` must be durable. The segment has its
    /// name, its header and its room, all durable, when this returns.
    pub(crate) fn create(&self, number: u64, first_seq: Seq, spare: Option<&Path>) -> Result<Segment, JournalError> {
        let fresh = self.spare_path(number);
        let staged = spare.unwrap_or(&fresh);
        let made = self.fill_and_name(staged, number, first_seq);
        if made.is_err() && spare.is_none() {
            // Gives back what a failed allocation may have taken. If this fails too, the next start finds the file.
            let _ = self.disk.remove(staged);
        }
        made
    }

    fn fill_and_name(&self, staged: &Path, number: u64, first_seq: Seq) -> Result<Segment, JournalError> {
        let (volume, bytes) = (self.options.volume, self.options.segment_bytes);
        let file = self.disk.open(staged).map_err(JournalError::io("open", staged))?;
        file.allocate(0, bytes).map_err(JournalError::io("allocate room for", staged))?;
        let header = SegmentHeader { volume, number, first_seq, synced: Seq(first_seq.0 - 1), bytes };
        file.write_all_at(&header.to_page(), 0).map_err(JournalError::io("write to", staged))?;
        file.sync_data().map_err(|error| sync_failed(staged, &error))?;
        let path = self.path(number);
        self.disk.rename(staged, &path).map_err(JournalError::io("rename", staged))?;
        self.sync_names()?;
        Ok(Segment { number, path, file, first_seq, bytes, place: Place::new(volume, number) })
    }

    /// Takes a segment out of the journal, durably: it must not be overwritten while its old name could come back. Returns the
    /// spare that it became when `keep` is set.
    pub(crate) fn retire(&self, number: u64, keep: bool) -> Result<Option<PathBuf>, JournalError> {
        let (path, spare) = (self.path(number), self.spare_path(number));
        if keep {
            self.disk.rename(&path, &spare).map_err(JournalError::io("rename", &path))?;
        } else {
            self.disk.remove(&path).map_err(JournalError::io("remove", &path))?;
        }
        self.sync_names()?;
        Ok(keep.then_some(spare))
    }

    /// Removes `spares`.
    pub(crate) fn remove_spares(&self, spares: &[PathBuf]) -> Result<(), JournalError> {
        for path in spares {
            self.disk.remove(path).map_err(JournalError::io("remove", path))?;
        }
        if spares.is_empty() { Ok(()) } else { self.sync_names() }
    }

    fn sync_names(&self) -> Result<(), JournalError> {
        self.disk.sync_dir(&self.options.dir).map_err(|error| sync_failed(&self.options.dir, &error))
    }
}
