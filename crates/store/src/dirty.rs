//! Slots that a writer of this process fills.

use crate::{
    CacheError, ReadError, SegmentSum, SlotLocation,
    cache::Inner,
    entry::{Entry, Hold, Writer},
    pin::{bound, check_segment, promised_segment, read_segments},
    replay,
};
use sluice_base::{
    ObjectId,
    crc::{Crc32c, crc32c},
    limits::{OBJECT_BYTES, SEGMENT_BYTES},
};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

static ZEROS: [u8; SEGMENT_BYTES] = [0; SEGMENT_BYTES];

/// A slot whose bytes may exist nowhere else. A clone is another handle to it. Once the slot was marked clean or discarded,
/// every call that would touch it fails with `CacheError::Gone`, whoever sits in the slot by then.
#[derive(Clone)]
pub struct DirtySlot {
    pub(crate) entry: Arc<Entry>,
    pub(crate) cache: Arc<Inner>,
}

impl DirtySlot {
    /// The object.
    pub fn object(&self) -> ObjectId {
        self.entry.object
    }

    /// The place, for journal records.
    pub fn location(&self) -> SlotLocation {
        self.entry.at
    }

    /// The journal is about to speak of bytes that were appended, without having them: the next [`crate::Cache::sync_relied_on`] is
    /// to make them durable. Others come back from the journal, whatever the power takes.
    pub fn rely_on(&self) {
        self.entry.slab.rely_on();
    }

    /// Puts `bytes` at `offset_in_object`, which is at or behind `end`. What is skipped within a segment reads as zeros;
    /// segments skipped entirely stay absent. After an error nothing was appended.
    pub fn append(&self, offset_in_object: u32, bytes: &[u8]) -> Result<(), CacheError> {
        let hold = self.hold()?;
        let mut writer = hold.writer.lock();
        if !hold.is_dirty() {
            return Err(CacheError::Gone(hold.object));
        }
        if self.cache.health.is_failed() {
            return Err(CacheError::Failed);
        }
        replay::settle(&self.cache, &hold, &mut writer)?;
        let (offset, end) = (offset_in_object as usize, hold.end.load(Ordering::Relaxed) as usize);
        if offset < end || offset + bytes.len() > OBJECT_BYTES {
            return Err(CacheError::Invalid("bytes are appended behind the end and within 4 MiB"));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let gap = Gap::between(end, offset);
        let outcome = self.write_with_gap(&writer, &gap, offset, bytes);
        if outcome.is_err() {
            writer.soiled = true;
            return outcome;
        }
        for (at, len) in gap.pieces() {
            grow(&self.cache, &hold, &mut writer, at, &ZEROS[..len]);
        }
        grow(&self.cache, &hold, &mut writer, offset, bytes);
        hold.end.store((offset + bytes.len()) as u32, Ordering::Release);
        hold.changed.store(true, Ordering::Release);
        Ok(())
    }

    /// One pwrite: the gap is a hole already, unless something was written there before.
    fn write_with_gap(&self, writer: &Writer, gap: &Gap, offset: usize, bytes: &[u8]) -> Result<(), CacheError> {
        if writer.soiled {
            for (at, len) in gap.pieces() {
                self.cache.write_dirty(&self.entry, &ZEROS[..len], at as u64)?;
            }
        }
        self.cache.write_dirty(&self.entry, bytes, offset as u64)
    }

    /// Bytes from the object's start up to the last one appended.
    pub fn end(&self) -> u32 {
        self.settled();
        self.entry.end.load(Ordering::Acquire)
    }

    /// Sums of all segments up to `end`, a partial last one included.
    pub fn sums(&self) -> Vec<SegmentSum> {
        let count = (self.end() as usize).div_ceil(SEGMENT_BYTES);
        (0..count).map(|index| self.entry.sums.get(index).sum).collect()
    }

    /// Reads and checks everything, for upload. Absent segments are `None`.
    pub fn read_all(&self) -> Result<Vec<Option<Vec<u8>>>, ReadError> {
        let gone = |_| ReadError::Io(io::Error::other("the slot was given up"));
        let hold = self.hold().map_err(gone)?;
        self.try_settle().map_err(|error| ReadError::Io(io::Error::other(error)))?;
        read_segments(&hold, (hold.end.load(Ordering::Acquire) as usize).div_ceil(SEGMENT_BYTES))
    }

    /// Replay: `bytes` at `offset` come from the journal and are written again. In any order; the first other use of the slot
    /// ends the replay. Afterwards it mends bytes that went bad: the touched segments are checked against their sums.
    pub fn restore(&self, offset: u32, bytes: &[u8]) -> Result<(), CacheError> {
        let hold = self.hold()?;
        let mut writer = hold.writer.lock();
        if offset as usize + bytes.len() > OBJECT_BYTES {
            return Err(CacheError::Invalid("bytes are restored within 4 MiB"));
        }
        if let Some(replay) = &mut writer.replay {
            self.cache.write_dirty(&hold, bytes, offset.into())?;
            replay.know(offset..offset + bytes.len() as u32);
            return Ok(());
        }
        if !hold.is_dirty() {
            return Err(CacheError::Gone(hold.object));
        }
        if offset as usize + bytes.len() > hold.end.load(Ordering::Relaxed) as usize {
            return Err(CacheError::Invalid("only appended bytes are restored"));
        }
        self.cache.write_dirty(&hold, bytes, offset.into())?;
        let last = (offset as usize + bytes.len()).div_ceil(SEGMENT_BYTES);
        for index in offset as usize / SEGMENT_BYTES..last {
            let kept = hold.sums.get(index);
            if kept.bad && check_segment(&hold, index, kept.sum).is_ok() {
                hold.sums.publish(index, kept.sum);
            }
        }
        Ok(())
    }

    /// Replay: the journal says that the segments from `first_segment` have these sums (length 0: not part of the run). They
    /// are read; those that match are accepted, in any order, the others are named, and reads of them fail.
    pub fn verify_run(&self, first_segment: u32, sums: &[SegmentSum]) -> Result<(), Vec<u32>> {
        let numbers = || (first_segment..).take(sums.len());
        let Ok(hold) = self.hold() else { return Err(numbers().collect()) };
        let mut writer = hold.writer.lock();
        let is_doubted = self.cache.doubted.load(Ordering::Relaxed);
        let look =
            |index, sum| if is_doubted { self.write_again(index, sum) } else { check_segment(&hold, index, sum) };
        let mut bad = Vec::new();
        for (index, sum) in numbers().zip(sums).filter(|(_, sum)| sum.len != 0) {
            let possible = (index as usize) < OBJECT_BYTES / SEGMENT_BYTES && sum.len as usize <= SEGMENT_BYTES;
            let good = possible && look(index as usize, *sum).is_ok();
            if !good {
                bad.push(index);
            }
            if let Some(replay) = writer.replay.as_mut().filter(|_| possible) {
                replay.verified(index, *sum, good);
            }
        }
        if bad.is_empty() { Ok(()) } else { Err(bad) }
    }

    /// What memory has of a segment may not be on the disk, although the kernel believes so. Written again it is synced with the rest.
    fn write_again(&self, index: usize, sum: SegmentSum) -> Result<(), ReadError> {
        let bytes = promised_segment(&self.entry, index, sum)?;
        if let Err(error) = self.cache.write_dirty(&self.entry, &bytes, (index * SEGMENT_BYTES) as u64) {
            // Then no sync may say that it is.
            self.cache.health.fail("write", &io::Error::other(error));
        }
        Ok(())
    }

    /// Replay, of a slot whose disk takes no writes: what was restored and verified so far, segment by segment. Nothing where no record named any
    /// bytes; `None` where they are not what was written.
    pub fn salvage(&self) -> Vec<Option<Vec<u8>>> {
        self.hold().map_or(Vec::new(), |hold| replay::salvage(&hold, &mut hold.writer.lock()))
    }

    /// Ends the replay of an adopted slot: computes the sums of all that was restored and verified. Other calls do it when
    /// needed; this one tells of errors.
    pub fn finish_replay(&self) -> Result<(), CacheError> {
        self.try_settle()
    }

    fn hold(&self) -> Result<Hold, CacheError> {
        self.entry.hold().ok_or(CacheError::Gone(self.entry.object))
    }

    fn settled(&self) {
        if let Err(error) = self.try_settle() {
            tracing::warn!(%error, object = %self.entry.object, "settling a replayed slot");
        }
    }

    fn try_settle(&self) -> Result<(), CacheError> {
        if !self.entry.replaying.load(Ordering::Acquire) {
            return Ok(());
        }
        let hold = self.hold()?;
        replay::settle(&self.cache, &hold, &mut hold.writer.lock())
    }
}

/// What an append skips: the rest of the last segment, and the start of its own.
struct Gap {
    rest: (usize, usize),
    start: (usize, usize),
}

impl Gap {
    fn between(end: usize, offset: usize) -> Self {
        let rest_end = end.next_multiple_of(SEGMENT_BYTES).min(offset);
        let start = (offset - offset % SEGMENT_BYTES).max(rest_end);
        Self { rest: (end, rest_end - end), start: (start, offset - start) }
    }

    /// Offset and length of what must be zeros.
    fn pieces(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        [self.rest, self.start].into_iter().filter(|(_, len)| *len > 0)
    }
}

/// Takes `bytes` at `offset`, which are on the disk, into the sums. `offset` is where the sums of its segment end.
fn grow(cache: &Inner, entry: &Entry, writer: &mut Writer, mut offset: usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let (index, within) = (offset / SEGMENT_BYTES, offset % SEGMENT_BYTES);
        let (piece, rest) = bytes.split_at(bytes.len().min(SEGMENT_BYTES - within));
        let crc = if within == 0 && piece.len() == SEGMENT_BYTES {
            crc32c(piece)
        } else {
            if within == 0 {
                writer.tail = None;
            }
            let tail = writer.tail.get_or_insert_with(|| Box::new(Crc32c::default()));
            tail.update(piece);
            tail.value()
        };
        let sum = SegmentSum { len: (within + piece.len()) as u32, crc: bound(entry.object, index, crc) };
        if entry.sums.get(index).bad {
            entry.sums.publish_bad(index, sum);
        } else {
            entry.sums.publish(index, sum);
        }
        cache.counters.add_bytes(entry, piece.len() as u32);
        offset += piece.len();
        bytes = rest;
    }
}
