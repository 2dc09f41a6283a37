//! Reading, with every byte checked.

use crate::{
    ReadError, SegmentSum,
    entry::{Entry, Hold},
};
use sluice_base::{
    ObjectId,
    crc::{place_crc, segment_crc},
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use std::{cell::RefCell, io, sync::Arc};

/// Segments of one pread: 256 KiB stay in the L2 cache until they are checked.
const CHUNK_SEGMENTS: usize = 8;

thread_local! {
    /// A whole segment, for reads of a part of it.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SEGMENT_BYTES]);
}

/// Keeps an object's slot in place while it is read. Dropping it may punch the slot, if the object was given up meanwhile.
pub struct Pin(pub(crate) Hold);

impl Pin {
    /// The object.
    pub fn object(&self) -> ObjectId {
        self.0.object
    }

    /// Fills `buf` from `offset` of the object's plain form. Whole segments are read straight into `buf` and checked there;
    /// of others the whole segment is read and checked elsewhere and the part copied.
    pub fn read_at(&self, offset: u32, buf: &mut [u8]) -> Result<(), ReadError> {
        read_at(&self.0, offset as usize, buf)
    }

    /// Fills `buf` with what is on the disk from the start of segment `first` on, **unchecked**: for who hands the bytes on with
    /// their CRCs to somebody who checks them.
    pub fn read_unchecked(&self, first: u32, buf: &mut [u8]) -> Result<(), ReadError> {
        read_bytes(&self.0, first as usize, buf)
    }

    /// Whether all of `count` segments from `first` are present. Says nothing of their bytes.
    pub fn has(&self, first: u32, count: u32) -> bool {
        (first..first.saturating_add(count)).all(|index| self.sum(index).len != 0)
    }

    /// Those of `count` segments from `first` that are not present.
    pub fn absent(&self, first: u32, count: u32) -> Vec<u32> {
        (first..first.saturating_add(count)).filter(|index| self.sum(*index).len == 0).collect()
    }

    /// What is known of segment `index`.
    pub fn sum(&self, index: u32) -> SegmentSum {
        if (index as usize) < SEGMENTS_PER_OBJECT { self.0.sums.get(index as usize).sum } else { SegmentSum::default() }
    }
}

/// The sum of a segment that may be read.
fn readable(entry: &Entry, index: usize) -> Result<SegmentSum, ReadError> {
    let number = index as u32;
    if index >= SEGMENTS_PER_OBJECT {
        return Err(ReadError::Absent { index: number });
    }
    let kept = entry.sums.get(index);
    match () {
        () if kept.is_absent() => Err(ReadError::Absent { index: number }),
        () if kept.bad => Err(ReadError::Corrupt { index: number }),
        () => Ok(kept.sum),
    }
}

pub(crate) fn read_at(entry: &Entry, mut offset: usize, mut buf: &mut [u8]) -> Result<(), ReadError> {
    while !buf.is_empty() {
        let (index, within) = (offset / SEGMENT_BYTES, offset % SEGMENT_BYTES);
        let run = whole_segments(entry, index, within, buf.len())?;
        let done = if run.count == 0 {
            read_part(entry, index, within, buf)?
        } else {
            read_whole(entry, index, &run.sums[..run.count], &mut buf[..run.bytes])?;
            run.bytes
        };
        offset += done;
        buf = &mut buf[done..];
    }
    Ok(())
}

/// A list of sums that lives on the stack.
struct Run {
    sums: [SegmentSum; CHUNK_SEGMENTS],
    count: usize,
    bytes: usize,
}

/// Sums and total length of the segments from `index` that one read can put into `room` bytes whole. All but the last are full.
fn whole_segments(entry: &Entry, index: usize, within: usize, room: usize) -> Result<Run, ReadError> {
    let mut run = Run { sums: [SegmentSum::default(); CHUNK_SEGMENTS], count: 0, bytes: 0 };
    while within == 0 && run.count < CHUNK_SEGMENTS && run.bytes == run.count * SEGMENT_BYTES && run.bytes < room {
        let sum = readable(entry, index + run.count)?;
        let left = room - run.bytes;
        let fits = sum.len as usize == left || (sum.len as usize == SEGMENT_BYTES && left > SEGMENT_BYTES);
        if !fits {
            break;
        }
        run.sums[run.count] = sum;
        run.count += 1;
        run.bytes += sum.len as usize;
    }
    Ok(run)
}

fn read_whole(entry: &Entry, first: usize, sums: &[SegmentSum], buf: &mut [u8]) -> Result<(), ReadError> {
    read_bytes(entry, first, buf)?;
    let mut rest = &*buf;
    for (index, sum) in (first..).zip(sums) {
        let (segment, after) = rest.split_at(sum.len as usize);
        check(entry.object, index, segment, *sum)?;
        rest = after;
    }
    Ok(())
}

fn read_part(entry: &Entry, index: usize, within: usize, buf: &mut [u8]) -> Result<usize, ReadError> {
    let sum = readable(entry, index)?;
    let count = buf.len().min(SEGMENT_BYTES - within);
    if within + count > sum.len as usize {
        return Err(ReadError::Absent { index: index as u32 });
    }
    with_segment(entry, index, sum, |segment| buf[..count].copy_from_slice(&segment[within..within + count]))?;
    Ok(count)
}

/// Reads `buf` from the start of segment `first`.
fn read_bytes(entry: &Entry, first: usize, buf: &mut [u8]) -> Result<(), ReadError> {
    let offset = entry.base() + (first * SEGMENT_BYTES) as u64;
    entry.slab.read(buf, offset).map_err(|error| match error.kind() {
        // A slab that lost its tail.
        io::ErrorKind::UnexpectedEof => ReadError::Corrupt { index: first as u32 },
        _ => ReadError::Io(error),
    })
}

fn check(object: ObjectId, index: usize, bytes: &[u8], sum: SegmentSum) -> Result<(), ReadError> {
    if segment_crc(object, index as u32, bytes) == sum.crc {
        Ok(())
    } else {
        Err(ReadError::Corrupt { index: index as u32 })
    }
}

/// Reads and checks one segment and hands it to `then`.
fn with_segment<T>(
    entry: &Entry,
    index: usize,
    sum: SegmentSum,
    then: impl FnOnce(&[u8]) -> T,
) -> Result<T, ReadError> {
    SCRATCH.with_borrow_mut(|scratch| {
        let segment = &mut scratch[..sum.len as usize];
        read_bytes(entry, index, segment)?;
        check(entry.object, index, segment, sum)?;
        Ok(then(segment))
    })
}

/// Whether the disk still holds what `sum` promises of segment `index`.
pub(crate) fn check_segment(entry: &Entry, index: usize, sum: SegmentSum) -> Result<(), ReadError> {
    with_segment(entry, index, sum, |_| ())
}

/// All segments below `count`, read and checked; absent ones are `None`.
pub(crate) fn read_segments(entry: &Arc<Entry>, count: usize) -> Result<Vec<Option<Vec<u8>>>, ReadError> {
    let one = |index| match readable(entry, index) {
        Ok(sum) => {
            let mut segment = vec![0; sum.len as usize];
            read_bytes(entry, index, &mut segment)?;
            check(entry.object, index, &segment, sum)?;
            Ok(Some(segment))
        }
        Err(ReadError::Absent { .. }) => Ok(None),
        Err(error) => Err(error),
    };
    (0..count).map(one).collect()
}

/// The sum of `bytes` with the place taken in, from a running CRC of them.
pub(crate) fn bound(object: ObjectId, index: usize, crc: u32) -> u32 {
    crc ^ place_crc(object, index as u32)
}
