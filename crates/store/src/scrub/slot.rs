//! One slot, read from the disk itself and checked.

use super::ScrubCounts;
use crate::{SLOT_BYTES, SegmentSum, cache::Inner, entry::Entry};
use sluice_base::{
    DiskFile,
    crc::segment_crc,
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use std::{
    io,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

/// Segments of one read: 256 KiB, so that a reader waits behind little.
const CHUNK_SEGMENTS: usize = 8;
/// Direct reads want offsets, lengths and buffers that are multiples of the disk's blocks; none has larger ones.
const ALIGN: usize = 4096;

/// What reads slabs for a scrub: past the page cache, as that would give back what was written, not what the disk has kept.
pub(super) struct Reader {
    slab: Option<(u32, Arc<dyn DiskFile>)>,
    buf: Vec<u8>,
}

impl Reader {
    pub fn new() -> Self {
        Self { slab: None, buf: vec![0; CHUNK_SEGMENTS * SEGMENT_BYTES + ALIGN] }
    }

    fn file(&mut self, inner: &Inner, number: u32) -> io::Result<Arc<dyn DiskFile>> {
        if let Some((_, file)) = self.slab.as_ref().filter(|(open, _)| *open == number) {
            return Ok(file.clone());
        }
        let file = inner.slabs.open_direct(number)?;
        self.slab = Some((number, file.clone()));
        Ok(file)
    }

    /// So many bytes from `offset`; what lies between them and the next block is read too.
    fn read(&mut self, file: &dyn DiskFile, offset: u64, len: usize) -> io::Result<&[u8]> {
        let start = self.buf.as_ptr().align_offset(ALIGN);
        let whole = len.next_multiple_of(ALIGN);
        file.read_exact_at(&mut self.buf[start..start + whole], offset)?;
        Ok(&self.buf[start..start + len])
    }
}

/// Segments of a slot, as the disk gave them.
#[derive(Default)]
struct Seen {
    counts: ScrubCounts,
    bad: Vec<u32>,
}

/// Checks what is in slot `index`; a bad slot is given up. `None` when the scrub is to stop. Slots that are not stored yet are
/// checked when they are uploaded, and may be written to meanwhile.
pub(super) fn scrub_slot(
    inner: &Arc<Inner>,
    index: u32,
    reader: &mut Reader,
    is_inherited: impl Fn(&Entry) -> bool,
    pace: &mut dyn FnMut(u64) -> bool,
) -> Option<ScrubCounts> {
    let Some(entry) = inner.tenant(index) else { return Some(ScrubCounts::default()) };
    let mut seen = Seen::default();
    for first in (0..SEGMENTS_PER_OBJECT).step_by(CHUNK_SEGMENTS) {
        let bytes = {
            // Held for one read only: at a low rate a slot takes seconds, and may be wanted for something else.
            let Some(hold) = entry.hold().filter(|hold| !hold.is_dirty()) else { break };
            let before = seen.counts.bytes;
            check_chunk(inner, &hold, first..first + CHUNK_SEGMENTS, reader, &mut seen);
            seen.counts.bytes - before
        };
        if bytes > 0 && !pace(bytes) {
            return None;
        }
    }
    if seen.bad.is_empty() {
        return Some(seen.counts);
    }
    Some(give_up(inner, &entry, seen, is_inherited(&entry)))
}

/// Counts and says what was found, and gives the slot up: the store has the object.
fn give_up(inner: &Inner, entry: &Arc<Entry>, seen: Seen, inherited: bool) -> ScrubCounts {
    let Seen { mut counts, bad } = seen;
    let object = entry.object;
    if inherited && bad.len() as u64 == counts.segments && counts.unreadable_segments == 0 {
        (counts.bad_segments, counts.stale_slots) = (0, 1);
        tracing::info!(%object, slot = entry.index, "the slot table was older than its slab; the slot is given up");
    } else {
        inner.counters.corrupt.fetch_add(bad.len() as u64, Ordering::Relaxed);
        let (slab, slot) = (entry.at.slab, entry.at.slot);
        tracing::warn!(%object, slab, slot, segments = ?bad, "the cache disk has lost bytes; the slot is given up, the store has them");
    }
    inner.drop_entry(entry);
    counts
}

/// Reads the present segments of `range` at once, and checks each.
fn check_chunk(inner: &Inner, entry: &Entry, range: Range<usize>, reader: &mut Reader, seen: &mut Seen) {
    let sums: Vec<(usize, SegmentSum)> =
        range.map(|index| (index, entry.sums.get(index).sum)).filter(|(_, sum)| sum.len != 0).collect();
    let (Some((first, _)), Some((last, last_sum))) = (sums.first(), sums.last()) else { return };
    let start = first * SEGMENT_BYTES;
    let offset = entry.base() + start as u64;
    let len = last * SEGMENT_BYTES + last_sum.len as usize - start;
    seen.counts.segments += sums.len() as u64;
    seen.counts.bytes += len as u64;
    let file = match reader.file(inner, entry.at.slab) {
        Ok(file) => file,
        Err(error) => {
            // Nothing was learnt of the bytes.
            tracing::warn!(%error, slab = entry.at.slab, "a slab cannot be opened for a scrub");
            return;
        }
    };
    if let Ok(bytes) = reader.read(&*file, offset, len) {
        let is_bad = |(index, sum): &&(usize, SegmentSum)| {
            let at = index * SEGMENT_BYTES - start;
            segment_crc(entry.object, *index as u32, &bytes[at..at + sum.len as usize]) != sum.crc
        };
        let bad: Vec<u32> = sums.iter().filter(is_bad).map(|(index, _)| *index as u32).collect();
        seen.counts.bad_segments += bad.len() as u64;
        seen.bad.extend(bad);
        return;
    }
    // Which of them is it?
    for (index, sum) in sums {
        let offset = entry.base() + (index * SEGMENT_BYTES) as u64;
        let read = reader.read(&*file, offset, sum.len as usize);
        let outcome = read.map(|bytes| segment_crc(entry.object, index as u32, bytes) == sum.crc);
        match &outcome {
            Ok(true) => continue,
            // A slab that lost its tail.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => seen.counts.unreadable_segments += 1,
            _ => seen.counts.bad_segments += 1,
        }
        seen.bad.push(index as u32);
        // A disk that gives nothing any more is out of use soon, as under any other reader.
        if let Err(error) = outcome {
            let _ = inner.health.note::<()>("scrub", Err(error));
        }
    }
}

const _: () = assert!(SLOT_BYTES as usize == SEGMENTS_PER_OBJECT * SEGMENT_BYTES);
