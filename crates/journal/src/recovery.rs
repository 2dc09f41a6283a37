//! Reading a journal back after its writer ended, one way or another.

use crate::{
    Damage, JournalError,
    format::{ALIGN, HeaderError, Mark, Place, SEGMENT_HEADER_BYTES, SegmentHeader, parse_record},
    segments::{Directory, SPARES_MAX, Segment},
};
use sluice_base::{DiskFile, Seq};
use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
};

mod tail;

/// Takes a record at recovery: its seq and what was appended.
pub type OnRecord<'a> = dyn FnMut(Seq, &[u8]) -> Result<(), JournalError> + 'a;

/// What `Journal::open` found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records handed out.
    pub records: u64,
    /// The first of them, or the next to be appended when there is none.
    pub first_seq: Seq,
    /// The last of them, or the one before `first_seq` when there is none.
    pub last_seq: Seq,
    /// Segments found.
    pub segments: usize,
    /// Whole records dropped because an unsynced one before them was lost. They were never reported as synced.
    pub torn_records: u64,
    /// Bytes of the tail that was dropped, as far as it can be recognized.
    pub torn_bytes: u64,
}

/// A journal that was read and found sound; nothing has been written yet.
pub(crate) struct Scan {
    pub segments: VecDeque<Segment>,
    pub spares: Vec<PathBuf>,
    pub offset: u64,
    pub next_seq: Seq,
    pub recovered: Recovered,
    /// Records of the last segment that nothing vouches for, and where they start.
    unproven: (u64, Vec<u8>),
}

/// A segment whose header was read.
struct Found {
    number: u64,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    header: Result<SegmentHeader, HeaderError>,
}

/// Reads the journal and hands out its records. Writes nothing.
pub(crate) fn scan(directory: &Directory, on_record: &mut OnRecord) -> Result<Scan, JournalError> {
    let listing = directory.listing()?;
    let found = read_headers(directory, listing.live)?;
    let options = &directory.options;
    if found.is_empty() && options.needed_from.is_some() {
        return Err(JournalError::Missing { dir: options.dir.clone() });
    }
    let first_seq = found.first().and_then(|first| first.header.ok()).map_or(options.first_seq, |h| h.first_seq);
    if let Some(needed) = options.needed_from.filter(|needed| first_seq > *needed) {
        return Err(JournalError::Gap { dir: options.dir.clone(), found: first_seq, needed });
    }
    let mut reader = Reader { directory, next_seq: first_seq, evidence: Seq(0), buffer: Vec::new(), offset: 0 };
    let mut segments = VecDeque::with_capacity(found.len());
    for (index, one) in found.iter().enumerate() {
        let segment = reader.enter(one, segments.back())?;
        let successor = found.get(index + 1);
        reader.replay(&segment, successor, on_record)?;
        segments.push_back(segment);
    }
    let mut recovered =
        Recovered { first_seq, last_seq: Seq(reader.next_seq.0 - 1), segments: segments.len(), ..Recovered::default() };
    recovered.records = reader.next_seq.0 - first_seq.0;
    let mut unproven = (0, Vec::new());
    if let Some(last) = segments.back() {
        let tail = reader.examine_tail(last)?;
        (recovered.torn_records, recovered.torn_bytes) = (tail.records, tail.bytes);
        unproven = reader.unproven(last.place);
    }
    let (offset, next_seq) = (reader.offset, reader.next_seq);
    Ok(Scan { segments, spares: listing.spares, offset, next_seq, recovered, unproven })
}

/// Makes a scanned journal ready for appends: what was handed out becomes durable, what was dropped cannot come back.
pub(crate) fn settle(directory: &Directory, mut scan: Scan) -> Result<Scan, JournalError> {
    let Some(active) = scan.segments.back() else {
        // Spares of an earlier life could hold records of the very numbers that start again now.
        directory.remove_spares(&scan.spares)?;
        scan.spares.clear();
        scan.segments.push_back(directory.create(1, scan.next_seq, None)?);
        scan.offset = SEGMENT_HEADER_BYTES;
        if let Some(parent) = directory.options.dir.parent() {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            directory.disk.sync_dir(parent).map_err(JournalError::io("sync", parent))?;
        }
        return Ok(scan);
    };
    // If the last writer ended because a sync failed, these pages may be marked clean without being on the disk. Writing them
    // again makes the sync below mean something.
    let (offset, bytes) = &scan.unproven;
    active.file.write_all_at(bytes, *offset).map_err(JournalError::io("write to", &active.path))?;
    if scan.recovered.torn_bytes > 0 {
        active.zero_from(scan.offset)?;
    }
    active.sync()?;
    let mut useless = Vec::new();
    for path in std::mem::take(&mut scan.spares) {
        let file = directory.disk.open(&path).map_err(JournalError::io("open", &path))?;
        let bytes = file.size().map_err(JournalError::io("measure", &path))?;
        let kept = bytes == directory.options.segment_bytes && scan.spares.len() < SPARES_MAX;
        if kept { scan.spares.push(path) } else { useless.push(path) }
    }
    directory.remove_spares(&useless)?;
    Ok(scan)
}

/// Looks at all headers before anything else, so that a newer format or another volume stops us before the first record.
fn read_headers(directory: &Directory, live: Vec<(u64, PathBuf)>) -> Result<Vec<Found>, JournalError> {
    let mut all = Vec::with_capacity(live.len());
    for (number, path) in live {
        let file = directory.disk.open(&path).map_err(JournalError::io("open", &path))?;
        let mut page = Vec::new();
        read_up_to(&*file, SEGMENT_HEADER_BYTES, &mut page).map_err(JournalError::io("read", &path))?;
        let header = SegmentHeader::parse(&page);
        match header {
            Err(HeaderError::Newer(version)) => return Err(JournalError::NewerFormat { path, version }),
            Ok(SegmentHeader { volume, .. }) if volume != directory.options.volume => {
                return Err(JournalError::WrongVolume { path, found: volume, expected: directory.options.volume });
            }
            _ => all.push(Found { number, path, file, header }),
        }
    }
    Ok(all)
}

pub(crate) fn read_up_to(file: &dyn DiskFile, bytes: u64, buffer: &mut Vec<u8>) -> std::io::Result<()> {
    buffer.clear();
    buffer.resize(file.size()?.min(bytes) as usize, 0);
    file.read_exact_at(buffer, 0)
}

struct Reader<'a> {
    directory: &'a Directory,
    next_seq: Seq,
    /// Highest seq that anything valid says was durable.
    evidence: Seq,
    /// The segment last read, whole: segments are small beside the memory of a host, and the tail is searched anyway.
    buffer: Vec<u8>,
    /// Where its records end.
    offset: u64,
}

impl Reader<'_> {
    fn corrupt(&self, number: u64, offset: u64) -> JournalError {
        self.damaged(number, offset, Damage::Record)
    }

    fn damaged(&self, number: u64, offset: u64, damage: Damage) -> JournalError {
        let (seq, path) = (self.next_seq, self.directory.path(number));
        JournalError::Corrupt { segment: number, offset, seq, path, damage }
    }

    /// Checks that `found` is the successor of `previous`, and loads it.
    fn enter(&mut self, found: &Found, previous: Option<&Segment>) -> Result<Segment, JournalError> {
        if let Some(previous) = previous.filter(|previous| previous.number + 1 != found.number) {
            return Err(self.corrupt(previous.number + 1, 0));
        }
        let sound =
            found.header.ok().filter(|header| header.number == found.number && header.first_seq == self.next_seq);
        let header = sound.ok_or_else(|| self.corrupt(found.number, 0))?;
        let (place, path) = (Place::new(header.volume, header.number), found.path.clone());
        read_up_to(&*found.file, header.bytes, &mut self.buffer).map_err(JournalError::io("read", &path))?;
        let mark = Mark::find(&self.buffer, place).map_or(Seq(0), |mark| mark.synced);
        self.evidence = self.evidence.max(header.synced).max(mark);
        let (file, first_seq) = (found.file.clone(), header.first_seq);
        Ok(Segment { number: header.number, path, file, first_seq, bytes: header.bytes, place })
    }

    /// Hands out the records of `segment`. With a successor they must reach up to its first one.
    fn replay(
        &mut self,
        segment: &Segment,
        successor: Option<&Found>,
        on_record: &mut OnRecord,
    ) -> Result<(), JournalError> {
        // A damaged successor says nothing; then the records end where they end, and entering it reports the damage.
        let until = successor.and_then(|found| found.header.ok()).filter(|header| header.number == segment.number + 1);
        self.offset = SEGMENT_HEADER_BYTES;
        while until.is_none_or(|header| self.next_seq < header.first_seq) {
            let rest = self.buffer.get(self.offset as usize..).unwrap_or_default();
            let Some(record) = parse_record(rest, segment.place).ok().filter(|record| record.seq == self.next_seq)
            else {
                if until.is_some() {
                    return Err(self.corrupt(segment.number, self.offset));
                }
                break;
            };
            on_record(record.seq, record.payload)?;
            self.evidence = self.evidence.max(record.synced);
            self.offset += record.stored_bytes as u64;
            self.next_seq = Seq(self.next_seq.0 + 1);
        }
        Ok(())
    }

    /// Decides whether what lies behind the last record is a torn tail.
    fn examine_tail(&mut self, last: &Segment) -> Result<tail::Tail, JournalError> {
        let behind = self.buffer.get(self.offset as usize..).unwrap_or_default();
        let tail = tail::examine(behind, last.place, self.next_seq, self.directory.options.boot());
        self.evidence = self.evidence.max(tail.evidence);
        if self.next_seq <= self.evidence || tail.same_boot {
            return Err(self.corrupt(last.number, self.offset));
        }
        // A segment has all of its room, durably, before it has its name: what is missing was cut off by somebody, and may have been records.
        let bytes = self.buffer.len() as u64;
        if bytes < last.bytes {
            return Err(self.damaged(last.number, self.offset, Damage::Cut { bytes, of: last.bytes }));
        }
        Ok(tail)
    }

    /// The records of the last segment above all evidence.
    fn unproven(&self, place: Place) -> (u64, Vec<u8>) {
        let mut at = SEGMENT_HEADER_BYTES as usize;
        while at < self.offset as usize {
            match parse_record(&self.buffer[at..], place) {
                Ok(record) if record.seq <= self.evidence => at += record.stored_bytes,
                _ => break,
            }
        }
        debug_assert!(at.is_multiple_of(ALIGN));
        let records = self.buffer.get(at..self.offset as usize).unwrap_or_default();
        (at as u64, records.to_vec())
    }
}
