//! Appending, syncing and freeing.
//!
//! Locks: `inner` for the state that an append changes, `syncing` around every fdatasync of a segment, `freeing` around
//! retirement. `inner` may be held while `syncing` is taken (a crossing does so), never the other way round. Syncs exclude each
//! other because the kernel reports a failed write-back to one caller only: a second sync that ran beside the failing one would
//! come back clean.

use crate::{
    Class, JournalError, JournalOptions, OnRecord, Recovered, error,
    format::{self, Envelope, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES},
    recovery,
    segments::{Directory, SPARES_MAX, Segment, sync_failed},
};
use sluice_base::{Disk, Seq};
use sluice_run::lock::Mutex;
use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// The one append-only log of a writer.
pub struct Journal {
    directory: Directory,
    inner: Mutex<Inner>,
    syncing: Mutex<()>,
    freeing: Mutex<()>,
    written: AtomicU64,
    /// [`Usage::used_bytes`], for who asks with each write.
    used: AtomicU64,
    synced: AtomicU64,
    /// The `synced` that the last mark names.
    marked: AtomicU64,
    failed: OnceLock<String>,
}

struct Inner {
    /// Never empty; the last one takes the appends.
    segments: VecDeque<Segment>,
    spares: Vec<PathBuf>,
    /// Where the next record goes in the active segment.
    offset: u64,
    /// Up to here the active segment is taken to have been written, by this life of it or an earlier one: a multiple of [`PAGE_BYTES`].
    filled: u64,
    next_seq: Seq,
    /// Sizes of all segments but the active one.
    closed_bytes: u64,
    /// What the active segment has from the last page's start up to `offset`; while a record is appended, that behind it. Kept so that appends
    /// allocate nothing.
    buffer: Vec<u8>,
}

/// Appends write whole pages: what the page cache has not, as of a segment that was used long ago, would be read first.
const PAGE_BYTES: u64 = 4096;
/// A segment that was never written is so many bytes ahead of its records, with zeros: a sync of what has its place on the disk already writes that and nothing
/// else, where a file system otherwise notes with each one what is no longer without contents. A sync of these is not much longer than others.
const FILL_BYTES: u64 = 256 << 10;

impl Inner {
    fn active(&self) -> &Segment {
        self.segments.back().expect("a journal has an active segment")
    }

    fn used_bytes(&self) -> u64 {
        self.closed_bytes + self.offset
    }

    /// The first byte of `buffer` in the active segment.
    fn page(&self) -> u64 {
        self.offset - self.offset % PAGE_BYTES
    }

    /// Goes on behind the record in `buffer`.
    fn go_on(&mut self) {
        let page = self.page();
        self.offset = page + self.buffer.len() as u64;
        let kept = (self.page() - page) as usize;
        self.buffer.copy_within(kept.., 0);
        self.buffer.truncate(self.buffer.len() - kept);
        self.next_seq = Seq(self.next_seq.0 + 1);
    }
}

/// How full a journal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that records keep from being used again: closed segments whole, the active one up to its end.
    pub used_bytes: u64,
    /// Limit of `used_bytes` for metadata records.
    pub capacity_bytes: u64,
    /// Limit of `used_bytes` for data records.
    pub data_capacity_bytes: u64,
    /// Segments that hold records, and the active one.
    pub segments: usize,
    /// Retired segments kept for reuse.
    pub spares: usize,
    /// Oldest record that is still held; the next one to be appended when there is none.
    pub first_seq: Seq,
    /// What the next record will be.
    pub next_seq: Seq,
}

/// The end of a segment that data leaves to metadata: that part of it.
const SPARED_SHARE: u64 = 128;

impl Journal {
    /// Opens the journal in `options.dir`, or makes a new one. Calls `on_record` for every record held, in order; records before a
    /// corrupt one are handed out before the error is found. All records handed out are durable when this returns.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: JournalOptions,
        on_record: &mut OnRecord<'_>,
    ) -> Result<(Journal, Recovered), JournalError> {
        let directory = Directory::new(disk, options)?;
        let scan = recovery::scan(&directory, on_record)?;
        let recovered = scan.recovered;
        let state = recovery::settle(&directory, scan)?;
        let written = state.next_seq.0 - 1;
        let closed_bytes = state.segments.iter().rev().skip(1).map(|segment| segment.bytes).sum();
        let used = AtomicU64::new(closed_bytes + state.offset);
        let mut inner = Inner {
            segments: state.segments,
            spares: state.spares,
            offset: state.offset,
            filled: state.offset.next_multiple_of(PAGE_BYTES),
            next_seq: state.next_seq,
            closed_bytes,
            buffer: vec![0; (state.offset % PAGE_BYTES) as usize],
        };
        let (page, active) = (inner.page(), inner.active().clone());
        active.file.read_exact_at(&mut inner.buffer, page).map_err(JournalError::io("read", &active.path))?;
        let journal = Journal {
            directory,
            inner: Mutex::new(inner),
            syncing: Mutex::default(),
            freeing: Mutex::default(),
            written: AtomicU64::new(written),
            used,
            synced: AtomicU64::new(written),
            marked: AtomicU64::new(0),
            failed: OnceLock::new(),
        };
        journal.note_synced()?;
        Ok((journal, recovered))
    }

    /// Appends a record whose payload is `parts` put together. It survives the process when this returns, and power loss once
    /// `synced` has reached the returned seq.
    ///
    /// [`JournalError::Full`] and [`JournalError::DiskFull`] pass once there is room; an `Io` error leaves no record behind.
    pub fn append(&self, class: Class, parts: &[&[u8]]) -> Result<Seq, JournalError> {
        let (bytes, bytes_max) = (parts.iter().map(|part| part.len()).sum(), self.options().record_bytes_max());
        if bytes > bytes_max {
            return Err(JournalError::TooLarge { bytes, bytes_max });
        }
        let inner = &mut *self.inner.lock();
        self.check()?;
        self.make_room(inner, class, format::stored_bytes(bytes) as u64)?;
        let active = inner.segments.back().expect("a journal has an active segment");
        let (seq, place) = (inner.next_seq, active.place);
        let envelope = Envelope { seq, synced: self.synced(), boot: self.options().boot(), class, place };
        let (page, kept) = (inner.page(), inner.buffer.len());
        format::put_record(&mut inner.buffer, &envelope, parts);
        let record_end = inner.buffer.len();
        let needed = (page + record_end as u64).next_multiple_of(PAGE_BYTES);
        let end = if needed > inner.filled { (needed + FILL_BYTES).min(active.bytes) } else { needed };
        inner.buffer.resize((end - page) as usize, 0);
        let mut written = active.file.write_all_at(&inner.buffer, page);
        if end > needed && written.as_ref().is_err_and(error::is_no_room) {
            // A copy-on-write disk may have room for the record alone.
            written = active.file.write_all_at(&inner.buffer[..(needed - page) as usize], page);
        }
        if let Err(source) = written {
            inner.buffer.truncate(kept);
            return Err(self.undo(inner, JournalError::io("write to", &inner.active().path)(source)));
        }
        inner.buffer.truncate(record_end);
        inner.filled = inner.filled.max(end);
        inner.go_on();
        self.used.store(inner.used_bytes(), Ordering::Relaxed);
        self.written.store(seq.0, Ordering::Release);
        Ok(seq)
    }

    /// The last record appended.
    pub fn written(&self) -> Seq {
        Seq(self.written.load(Ordering::Acquire))
    }

    /// The last record known to be durable.
    pub fn synced(&self) -> Seq {
        Seq(self.synced.load(Ordering::Acquire))
    }

    /// Makes everything that was written before this call durable, with one fdatasync: a segment is synced when it is left, so
    /// only the active one can hold anything unsynced.
    pub fn sync(&self) -> Result<Seq, JournalError> {
        let (file, path, written) = {
            let inner = self.inner.lock();
            let active = inner.active();
            (active.file.clone(), active.path.clone(), self.written())
        };
        let _one = self.syncing.lock();
        self.check()?;
        if self.synced() < written {
            file.sync_data().map_err(|error| self.poison(sync_failed(&path, &error)))?;
            self.synced.fetch_max(written.0, Ordering::AcqRel);
        }
        Ok(self.synced())
    }

    /// Frees, oldest first, the segments whose records are all before `seq`. The active segment stays. Returns the bytes freed.
    pub fn free_before(&self, seq: Seq) -> Result<u64, JournalError> {
        let _one = self.freeing.lock();
        let mut freed = 0;
        loop {
            self.check()?;
            let (number, bytes, keep) = {
                let inner = self.inner.lock();
                let (Some(oldest), Some(next)) = (inner.segments.front(), inner.segments.get(1)) else {
                    return Ok(freed);
                };
                if next.first_seq > seq {
                    return Ok(freed);
                }
                let keep = inner.spares.len() < SPARES_MAX && oldest.bytes == self.options().segment_bytes;
                (oldest.number, oldest.bytes, keep)
            };
            let spare = self.directory.retire(number, keep).map_err(|error| self.poison(error))?;
            let mut inner = self.inner.lock();
            inner.segments.pop_front();
            inner.closed_bytes -= bytes;
            self.used.store(inner.used_bytes(), Ordering::Relaxed);
            inner.spares.extend(spare);
            freed += bytes;
        }
    }

    /// How full the journal is.
    pub fn usage(&self) -> Usage {
        let inner = self.inner.lock();
        Usage {
            used_bytes: inner.used_bytes(),
            capacity_bytes: self.options().limit(Class::Metadata),
            data_capacity_bytes: self.options().limit(Class::Data),
            segments: inner.segments.len(),
            spares: inner.spares.len(),
            first_seq: inner.segments.front().map_or(inner.next_seq, |oldest| oldest.first_seq),
            next_seq: inner.next_seq,
        }
    }

    /// The segments that hold records from `first` to `last`, and where the records of each end.
    pub(crate) fn segments_of(&self, first: Seq, last: Seq) -> Vec<(Segment, u64)> {
        let inner = self.inner.lock();
        let active = inner.active().number;
        let begins = inner.segments.partition_point(|segment| segment.first_seq <= first).saturating_sub(1);
        let held = inner.segments.iter().skip(begins).take_while(|segment| segment.first_seq <= last);
        held.map(|one| (one.clone(), if one.number == active { inner.offset } else { one.bytes })).collect()
    }

    /// The first record that may stay once the oldest segments are freed, so many of them that no more than `bytes` are in use then; at most
    /// the first of the active segment, which always stays.
    pub fn first_seq_below(&self, bytes: u64) -> Option<Seq> {
        let inner = self.inner.lock();
        let mut used = inner.used_bytes();
        let pairs = inner.segments.iter().zip(inner.segments.iter().skip(1));
        let goes = |(oldest, _): &(&Segment, &Segment)| {
            let is_over = used > bytes;
            used -= oldest.bytes;
            is_over
        };
        pairs.take_while(goes).last().map(|(_, next)| next.first_seq)
    }

    /// [`Usage::used_bytes`], [`Usage::data_capacity_bytes`] and the size of new segments. Waits for nobody.
    pub fn room(&self) -> (u64, u64, u64) {
        (self.used.load(Ordering::Relaxed), self.options().limit(Class::Data), self.options().segment_bytes)
    }

    /// Whether records of `bytes` need a further segment, for which the disk has no room. Asks the disk.
    pub fn disk_is_full(&self, bytes: u64) -> bool {
        let fits = {
            let inner = self.inner.lock();
            !inner.spares.is_empty() || inner.offset + bytes <= inner.active().bytes
        };
        let JournalOptions { dir, segment_bytes, .. } = self.options();
        !fits && self.directory.disk.space(dir).is_ok_and(|space| space.available_bytes < *segment_bytes)
    }

    /// Leaves a note of what is durable, for a recovery that finds the last records damaged: with it they are corrupt, without it
    /// they could as well be a torn tail. Later records carry the same evidence, so this is for a journal that falls idle.
    pub fn note_synced(&self) -> Result<(), JournalError> {
        let inner = self.inner.lock();
        self.check()?;
        let synced = self.synced();
        if self.marked.load(Ordering::Relaxed) < synced.0 {
            inner.active().write_mark(synced)?;
            self.marked.store(synced.0, Ordering::Relaxed);
        }
        Ok(())
    }

    fn options(&self) -> &JournalOptions {
        &self.directory.options
    }

    fn check(&self) -> Result<(), JournalError> {
        self.failed.get().map_or(Ok(()), |why| Err(JournalError::Failed { why: why.clone() }))
    }

    /// Remembers `error` for good if it is a failed sync; the first one stays the reason.
    fn poison(&self, error: JournalError) -> JournalError {
        match error {
            JournalError::Failed { why } => JournalError::Failed { why: self.failed.get_or_init(|| why).clone() },
            other => other,
        }
    }

    /// After this a record of `stored` bytes fits into the active segment.
    fn make_room(&self, inner: &mut Inner, class: Class, stored: u64) -> Result<(), JournalError> {
        let active_bytes = inner.active().bytes;
        let fits = inner.offset + stored <= active_bytes;
        let in_active = if fits { inner.offset + stored } else { active_bytes + SEGMENT_HEADER_BYTES + stored };
        if inner.closed_bytes + in_active > self.options().limit(class) {
            return Err(JournalError::Full { class });
        }
        // A disk that is full must still take that data is stored, and that a process begins to store it.
        let is_spared = class == Class::Data
            && inner.offset > SEGMENT_HEADER_BYTES
            && in_active + self.options().segment_bytes / SPARED_SHARE > active_bytes;
        if fits && !is_spared {
            return Ok(());
        }
        if inner.closed_bytes + active_bytes + self.options().segment_bytes > self.options().capacity_bytes {
            return Err(JournalError::Full { class });
        }
        self.cross(inner)
    }

    /// Goes on to a new segment. Nothing has changed when this fails for want of room, so the next append tries again.
    fn cross(&self, inner: &mut Inner) -> Result<(), JournalError> {
        let last = self.written();
        {
            let _one = self.syncing.lock();
            self.check()?;
            if self.synced() < last {
                inner.active().sync().map_err(|error| self.poison(error))?;
                self.synced.fetch_max(last.0, Ordering::AcqRel);
            }
        }
        let spare = inner.spares.last().map(PathBuf::as_path);
        match self.directory.create(inner.active().number + 1, inner.next_seq, spare) {
            Ok(segment) => {
                let is_new = inner.spares.pop().is_none();
                inner.filled = if is_new { SEGMENT_HEADER_BYTES } else { segment.bytes };
                inner.closed_bytes += inner.active().bytes;
                inner.segments.push_back(segment);
                inner.offset = SEGMENT_HEADER_BYTES;
                inner.buffer.clear();
                Ok(())
            }
            Err(error) if error.is_no_room() => Err(JournalError::DiskFull { dir: self.options().dir.clone() }),
            Err(error) => Err(self.poison(error)),
        }
    }

    /// Wipes the header of a record whose write failed, lest recovery find a record that was never acknowledged. A copy-on-write
    /// disk may be out of room in spite of the allocation.
    fn undo(&self, inner: &Inner, error: JournalError) -> JournalError {
        match inner.active().file.write_all_at(&[0; RECORD_HEADER_BYTES], inner.offset) {
            Ok(()) if error.is_no_room() => JournalError::DiskFull { dir: self.options().dir.clone() },
            Ok(()) => error,
            Err(_) => self.poison(JournalError::Failed { why: error.to_string() }),
        }
    }
}
