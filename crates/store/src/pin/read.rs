//! Bytes of a slot, checked against the sums of their segments.

use crate::{ReadError, SegmentSum, entry::Entry, sums::Kept};
use sluice_base::{
    ObjectId,
    crc::{place_crc, segment_crc},
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use std::{cell::RefCell, io, ops::Range, sync::Arc};

/// Segments of one pread: 256 KiB stay in the L2 cache until they are checked.
const CHUNK_SEGMENTS: usize = 8;

thread_local! {
    /// A whole segment, for reads of a part of it.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SEGMENT_BYTES]);
}

/// Whether a read may wait for the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    ForDisk,
    Never,
}

/// What is kept of a segment that may be read.
pub(super) fn readable(entry: &Entry, index: usize) -> Result<Kept, ReadError> {
    let number = index as u32;
    if index >= SEGMENTS_PER_OBJECT {
        return Err(ReadError::Absent { index: number });
    }
    let kept = entry.sums.get(index);
    match () {
        () if kept.is_absent() => Err(ReadError::Absent { index: number }),
        () if kept.bad => Err(ReadError::Corrupt { index: number }),
        () => Ok(kept),
    }
}

pub(super) fn read_at(entry: &Entry, mut offset: usize, mut buf: &mut [u8], wait: Wait) -> Result<(), ReadError> {
    while !buf.is_empty() {
        let (index, within) = (offset / SEGMENT_BYTES, offset % SEGMENT_BYTES);
        let mut run = whole_segments(entry, index, within, buf.len())?;
        let done = if run.count == 0 {
            read_part(entry, index, within, buf, wait)?
        } else {
            read_whole(entry, index, &mut run.kept[..run.count], &mut buf[..run.bytes], wait)?;
            run.bytes
        };
        offset += done;
        buf = &mut buf[done..];
    }
    Ok(())
}

/// A list of segments that lives on the stack.
struct Run {
    kept: [Kept; CHUNK_SEGMENTS],
    count: usize,
    bytes: usize,
}

/// Segments from `index` that one read can put into `room` bytes whole, and their total length. All but the last are full.
fn whole_segments(entry: &Entry, index: usize, within: usize, room: usize) -> Result<Run, ReadError> {
    let mut run = Run { kept: [Kept::default(); CHUNK_SEGMENTS], count: 0, bytes: 0 };
    while within == 0 && run.count < CHUNK_SEGMENTS && run.bytes == run.count * SEGMENT_BYTES && run.bytes < room {
        let kept = readable(entry, index + run.count)?;
        let (len, left) = (kept.sum.len as usize, room - run.bytes);
        let fits = len == left || (len == SEGMENT_BYTES && left > SEGMENT_BYTES);
        if !fits {
            break;
        }
        run.kept[run.count] = kept;
        run.count += 1;
        run.bytes += len;
    }
    Ok(run)
}

fn read_whole(entry: &Entry, first: usize, segments: &mut [Kept], buf: &mut [u8], wait: Wait) -> Result<(), ReadError> {
    let mut seen = [Kept::default(); CHUNK_SEGMENTS];
    let seen = &mut seen[..segments.len()];
    seen.copy_from_slice(segments);
    fetch(entry, first * SEGMENT_BYTES, buf, wait, || {
        (first..).zip(&mut *seen).for_each(|(index, seen)| *seen = entry.sums.loading(index));
    })?;
    let mut rest = &*buf;
    for ((index, kept), seen) in (first..).zip(segments).zip(seen) {
        let (segment, after) = rest.split_at(kept.sum.len as usize);
        check(entry, index, segment, kept.sum, *seen)?;
        rest = after;
    }
    Ok(())
}

fn read_part(entry: &Entry, index: usize, within: usize, buf: &mut [u8], wait: Wait) -> Result<usize, ReadError> {
    let kept = readable(entry, index)?;
    let count = buf.len().min(SEGMENT_BYTES - within);
    if within + count > kept.sum.len as usize {
        return Err(ReadError::Absent { index: index as u32 });
    }
    let part = &mut buf[..count];
    if kept.is_verified && is_unloaded_since(entry, index, within, count)? {
        match fetch(entry, index * SEGMENT_BYTES + within, part, Wait::Never, || ()) {
            // Unless somebody has found since that the disk must be asked: these may be the bytes that it gave him.
            Ok(()) if entry.sums.get(index) == kept => return Ok(count),
            Ok(()) | Err(ReadError::NotResident { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    with_segment(entry, index, kept, wait, |segment| part.copy_from_slice(&segment[within..within + count]))?;
    Ok(count)
}

/// Whether memory has a part of a verified segment. Otherwise the segment is verified no longer: it comes from the disk again.
fn is_unloaded_since(entry: &Entry, index: usize, within: usize, count: usize) -> Result<bool, ReadError> {
    let at = entry.base() + (index * SEGMENT_BYTES + within) as u64;
    let is_there = entry.slab.is_resident(at, count as u64)? == Some(true);
    if !is_there {
        loading(entry, index..index + 1);
    }
    Ok(is_there)
}

/// Reads `buf` from `offset` of the slot. Calls `loading` before the disk is asked for what memory lacks.
pub(super) fn fetch(
    entry: &Entry,
    offset: usize,
    buf: &mut [u8],
    wait: Wait,
    loading: impl FnOnce(),
) -> Result<(), ReadError> {
    let (at, index) = (entry.base() + offset as u64, (offset / SEGMENT_BYTES) as u32);
    let read = match entry.slab.read_resident(buf, at) {
        Ok(false) => {
            loading();
            if wait == Wait::Never {
                return Err(ReadError::NotResident { index });
            }
            entry.slab.read(buf, at)
        }
        done => done.map(drop),
    };
    read.map_err(|error| failed(error, index))
}

/// A read from segment `index` on that failed.
pub(super) fn failed(error: io::Error, index: u32) -> ReadError {
    match error.kind() {
        // A slab that lost its tail.
        io::ErrorKind::UnexpectedEof => ReadError::Corrupt { index },
        _ => ReadError::Io(error),
    }
}

/// Compares `bytes`, which were read after `seen` was, with `sum`.
fn check(entry: &Entry, index: usize, bytes: &[u8], sum: SegmentSum, seen: Kept) -> Result<(), ReadError> {
    if segment_crc(entry.object, index as u32, bytes) != sum.crc {
        entry.sums.loading(index);
        return Err(ReadError::Corrupt { index: index as u32 });
    }
    if seen.sum == sum {
        entry.sums.verified(index, seen);
    }
    Ok(())
}

/// Reads and checks one segment and hands it to `then`.
fn with_segment<T>(
    entry: &Entry,
    index: usize,
    kept: Kept,
    wait: Wait,
    then: impl FnOnce(&[u8]) -> T,
) -> Result<T, ReadError> {
    SCRATCH.with_borrow_mut(|scratch| {
        let (segment, mut seen) = (&mut scratch[..kept.sum.len as usize], kept);
        fetch(entry, index * SEGMENT_BYTES, segment, wait, || seen = entry.sums.loading(index))?;
        check(entry, index, segment, kept.sum, seen)?;
        Ok(then(segment))
    })
}

/// Whether the disk still holds what `sum` promises of segment `index`.
pub(crate) fn check_segment(entry: &Entry, index: usize, sum: SegmentSum) -> Result<(), ReadError> {
    with_segment(entry, index, Kept::unverified(sum), Wait::ForDisk, |_| ())
}

/// Segment `index`, as `sum` promises it.
pub(crate) fn promised_segment(entry: &Entry, index: usize, sum: SegmentSum) -> Result<Vec<u8>, ReadError> {
    with_segment(entry, index, Kept::unverified(sum), Wait::ForDisk, <[u8]>::to_vec)
}

/// All segments below `count`, read and checked; absent ones are `None`.
pub(crate) fn read_segments(entry: &Arc<Entry>, count: usize) -> Result<Vec<Option<Vec<u8>>>, ReadError> {
    let one = |index| match readable(entry, index) {
        Ok(kept) => {
            let mut segment = vec![0; kept.sum.len as usize];
            read_whole(entry, index, &mut [kept], &mut segment, Wait::ForDisk)?;
            Ok(Some(segment))
        }
        Err(ReadError::Absent { .. }) => Ok(None),
        Err(error) => Err(error),
    };
    (0..count).map(one).collect()
}

/// What is kept of the segments of `range` counts as not looked at: the disk is about to be asked for them.
pub(crate) fn loading(entry: &Entry, range: Range<usize>) {
    for index in range {
        entry.sums.loading(index);
    }
}

/// The sum of `bytes` with the place taken in, from a running CRC of them.
pub(crate) fn bound(object: ObjectId, index: usize, crc: u32) -> u32 {
    crc ^ place_crc(object, index as u32)
}
