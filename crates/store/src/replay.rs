//! What a journal tells of an adopted slot, in the order of its records, which need not be that of the bytes.
//!
//! While it lasts no segment has a sum. Settling computes them: bytes that no record named become zeros, as they were for the
//! writer, whatever an unjournaled write or an earlier tenant left there.

use crate::{
    CacheError, ReadError, SegmentSum,
    cache::Inner,
    entry::{Entry, Writer},
    pin::bound,
};
use sluice_base::{
    crc::{Crc32c, segment_crc},
    limits::SEGMENT_BYTES,
};
use std::{collections::BTreeMap, io, ops::Range, sync::atomic::Ordering};

#[derive(Default)]
pub(crate) struct Replay {
    /// Bytes whose content is as the journal says.
    known: Vec<Range<u32>>,
    /// Longest accepted run of each segment, from its start.
    good: BTreeMap<u32, SegmentSum>,
    /// What the journal says of segments that hold something else.
    bad: BTreeMap<u32, SegmentSum>,
}

impl Replay {
    pub(crate) fn know(&mut self, bytes: Range<u32>) {
        if !bytes.is_empty() {
            self.known.push(bytes);
        }
    }

    pub(crate) fn verified(&mut self, index: u32, sum: SegmentSum, good: bool) {
        let start = index * SEGMENT_BYTES as u32;
        self.know(start..start + sum.len);
        let sums = if good { &mut self.good } else { &mut self.bad };
        let known = sums.entry(index).or_default();
        if known.len < sum.len {
            *known = sum;
        }
    }

    /// `known`, in order and without overlaps.
    fn merge(&mut self) {
        self.known.sort_by_key(|range| range.start);
        self.known.dedup_by(|next, range| {
            let touches = next.start <= range.end;
            if touches {
                range.end = range.end.max(next.end);
            }
            touches
        });
    }

    /// Sets what is not known of `bytes`, which start at `start`, to zero; true when that changed any.
    fn blank_unknown(&self, start: u32, bytes: &mut [u8]) -> bool {
        let mut blanked = false;
        let mut at = 0;
        let end = start + bytes.len() as u32;
        let first = self.known.partition_point(|range| range.end <= start);
        let overlapping = self.known[first..].iter().take_while(|range| range.start < end);
        let mut blank = |hole: &mut [u8]| {
            blanked |= hole.iter().any(|byte| *byte != 0);
            hole.fill(0);
        };
        for range in overlapping {
            let from = range.start.saturating_sub(start) as usize;
            blank(&mut bytes[at..from.max(at)]);
            at = (range.end.min(end) - start) as usize;
        }
        blank(&mut bytes[at..]);
        blanked
    }

    fn knows_any(&self, bytes: Range<u32>) -> bool {
        let first = self.known.partition_point(|range| range.end <= bytes.start);
        self.known.get(first).is_some_and(|range| range.start < bytes.end)
    }
}

/// Ends the replay of `entry`, if there is one, and publishes its sums. After an error the replay goes on and may be settled
/// again.
pub(crate) fn settle(cache: &Inner, entry: &Entry, writer: &mut Writer) -> Result<(), CacheError> {
    let Some(mut replay) = writer.replay.take() else { return Ok(()) };
    replay.merge();
    let end = replay.known.last().map_or(0, |range| range.end);
    let mut tail = None;
    for index in 0..end.div_ceil(SEGMENT_BYTES as u32) {
        match settle_segment(cache, entry, &replay, index, end) {
            Ok(crc) => tail = crc,
            Err(error) => {
                writer.replay = Some(replay);
                return Err(error);
            }
        }
    }
    writer.tail = tail;
    let bytes = (0..end.div_ceil(SEGMENT_BYTES as u32)).map(|index| entry.sums.get(index as usize).sum.len).sum();
    cache.counters.add_bytes(entry, bytes);
    entry.end.store(end, Ordering::Release);
    entry.replaying.store(false, Ordering::Release);
    entry.changed.store(true, Ordering::Release);
    Ok(())
}

/// A segment as the writer had it, as far as the disk still has that.
struct Read {
    bytes: Vec<u8>,
    /// What the journal says of it, where that is not so.
    broken: Option<SegmentSum>,
    /// The disk has something in bytes that no record named.
    is_blanked: bool,
}

fn read_segment(entry: &Entry, replay: &Replay, index: u32, len: u32) -> Result<Read, CacheError> {
    let start = index * SEGMENT_BYTES as u32;
    let mut bytes = vec![0; len as usize];
    match entry.slab.read(&mut bytes, entry.base() + u64::from(start)) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error.into()),
        _ => {}
    }
    let holds = |sum: &SegmentSum| segment_crc(entry.object, index, &bytes[..sum.len as usize]) == sum.crc;
    // A refused run may have been restored since, an accepted one may have rotted.
    let promised = [replay.good.get(&index), replay.bad.get(&index)].into_iter().flatten();
    let broken = promised.max_by_key(|sum| sum.len).filter(|sum| !holds(sum)).copied();
    let is_blanked = replay.blank_unknown(start, &mut bytes);
    Ok(Read { bytes, broken, is_blanked })
}

/// What settling would find in each segment, without a write: nothing where no record names any of it, `None` where it is not what was written.
pub(crate) fn salvage(entry: &Entry, writer: &mut Writer) -> Vec<Option<Vec<u8>>> {
    let Some(replay) = &mut writer.replay else { return Vec::new() };
    replay.merge();
    let end = replay.known.last().map_or(0, |range| range.end);
    let read = |index: u32| {
        let start = index * SEGMENT_BYTES as u32;
        let len = (end - start).min(SEGMENT_BYTES as u32);
        if !replay.knows_any(start..start + len) {
            return Some(Vec::new());
        }
        let read = read_segment(entry, replay, index, len).ok()?;
        read.broken.is_none().then_some(read.bytes)
    };
    (0..end.div_ceil(SEGMENT_BYTES as u32)).map(read).collect()
}

/// Publishes the sum of one segment; returns its running CRC for an append to go on from.
fn settle_segment(
    cache: &Inner,
    entry: &Entry,
    replay: &Replay,
    index: u32,
    end: u32,
) -> Result<Option<Box<Crc32c>>, CacheError> {
    let start = index * SEGMENT_BYTES as u32;
    let len = (end - start).min(SEGMENT_BYTES as u32);
    let place = index as usize;
    if !replay.knows_any(start..start + len) {
        return Ok(None);
    }
    if let Some(sum) = replay.good.get(&index).filter(|sum| sum.len == SEGMENT_BYTES as u32) {
        entry.sums.publish(place, *sum);
        return Ok(None);
    }
    let Read { bytes, broken, is_blanked } = read_segment(entry, replay, index, len)?;
    if is_blanked {
        cache.write_dirty(entry, &bytes, start.into())?;
    }
    let mut crc = Crc32c::default();
    crc.update(&bytes);
    match broken {
        // Whatever is there, it must not pass: the sum promises what the journal said, and the mark refuses to look.
        Some(sum) => entry.sums.publish_bad(place, SegmentSum { len, crc: sum.crc }),
        None => entry.sums.publish(place, SegmentSum { len, crc: bound(entry.object, place, crc.value()) }),
    }
    Ok(Some(Box::new(crc)))
}

impl From<ReadError> for CacheError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => error.into(),
            other => io::Error::other(other).into(),
        }
    }
}
