//! One answer, out of what is on the disk and what has just come.

use crate::message::{Answer, Read, ReadRange, Segment, Set, head};
use bytes::Bytes;
use sluice_base::{ObjectId, crc::crc32c, limits::SEGMENT_BYTES};
use sluice_run::Bug;
use sluice_store::{Cache, Pin, ReadError, Region};
use std::ops::Range;

/// What an answer is made of.
#[derive(Clone)]
pub(super) struct Gather {
    pub(super) cache: Cache,
    pub(super) read: Read,
    /// Segments that have come for it, in any order.
    pub(super) fetched: Vec<Segment>,
    /// Segments that are known to have no stored bytes.
    pub(super) holes: Set,
    /// Segments that the disk has and does not give.
    pub(super) lost: Set,
}

/// Why there is no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// These segments are not here.
    Missing(Set),
    /// The disk must be waited for.
    NotResident,
    /// The disk does not give these segments, though it should have them.
    Broken(Set),
    /// The object does not have these bytes.
    Absent,
}

impl Gather {
    /// The answer. Unless it `waits`, only what memory has is used.
    pub(super) fn answer(&self, waits: bool) -> Result<Answer, Lack> {
        let pin = self.cache.pin(self.read.object().id());
        let here = Here { gather: self, pin: pin.as_ref(), waits };
        let missing = here.missing();
        if missing != 0 && !Bug::MissIsAbsent.is_planted() {
            return Err(Lack::Missing(missing));
        }
        match &self.read {
            Read::Segments(ask) => here.segments(ask.range.clone()),
            Read::Range(ask) => here.range(ask),
        }
    }
}

/// A [`Gather`] at work, with the object's slot in place.
struct Here<'a> {
    gather: &'a Gather,
    pin: Option<&'a Pin>,
    waits: bool,
}

impl<'a> Here<'a> {
    fn object(&self) -> ObjectId {
        self.gather.read.object().id()
    }

    fn fetched(&self, index: u32) -> Option<&'a Segment> {
        self.gather.fetched.iter().find(|segment| segment.index == index)
    }

    /// The object's slot, if segment `index` is to be had from there.
    fn on_disk(&self, index: u32) -> Option<&'a Pin> {
        self.pin.filter(|pin| self.gather.lost >> index & 1 == 0 && pin.has(index, 1) && self.fetched(index).is_none())
    }

    fn missing(&self) -> Set {
        let gone = |index: &u32| self.on_disk(*index).is_none() && self.fetched(*index).is_none();
        let missing = self.gather.read.segments().filter(gone).fold(0, |set: Set, index| set | 1 << index);
        missing & !self.gather.holes
    }

    fn segments(&self, range: Range<u32>) -> Result<Answer, Lack> {
        let (mut sums, mut body, mut index) = (Vec::with_capacity(range.len()), Answer::default(), range.start);
        while index < range.end {
            if let Some(pin) = self.on_disk(index) {
                let run = self.run(index..range.end);
                sums.extend(run.clone().map(|index| (pin.sum(index).len, pin.sum(index).crc)));
                index = run.end;
                body.push_region(self.region(pin, run)?);
                continue;
            }
            let segment = self.fetched(index);
            sums.push(segment.map_or((0, 0), |segment| (segment.bytes.len() as u32, segment.crc)));
            if let Some(segment) = segment {
                body.push_segment(self.object(), segment);
            }
            index += 1;
        }
        let mut answer = head(&sums);
        answer.append(body);
        Ok(answer)
    }

    fn range(&self, ask: &ReadRange) -> Result<Answer, Lack> {
        let (mut answer, mut segments) = (Answer::default(), ask.segments());
        while let Some(index) = segments.next() {
            let (within, len) = (ask.within(index), self.len(index));
            if within.end > len {
                return Err(Lack::Absent);
            }
            let is_whole = within == (0..len);
            match (self.on_disk(index), self.fetched(index)) {
                (Some(pin), _) if is_whole => {
                    let is_whole = |index: &u32| ask.within(*index) == (0..self.len(*index));
                    let wholes = segments.clone().take_while(is_whole).count() as u32;
                    let run = self.run(index..index + 1 + wholes);
                    segments.start = run.end;
                    answer.push_region(self.region(pin, run)?);
                }
                (Some(pin), _) => {
                    let bytes = self.part(pin, index, within)?;
                    let crc = crc32c(&bytes);
                    answer.push(bytes, crc);
                }
                (None, Some(segment)) if is_whole => answer.push_segment(self.object(), segment),
                (None, Some(segment)) => {
                    let bytes = segment.bytes.slice(within);
                    let crc = crc32c(&bytes);
                    answer.push(bytes, crc);
                }
                (None, None) => return Err(Lack::Absent),
            }
        }
        Ok(answer)
    }

    /// Stored bytes of segment `index`.
    fn len(&self, index: u32) -> usize {
        match (self.on_disk(index), self.fetched(index)) {
            (Some(pin), _) => pin.sum(index).len as usize,
            (None, fetched) => fetched.map_or(0, |segment| segment.bytes.len()),
        }
    }

    /// Segments from the start of `range` that lie behind each other on the disk without a gap: only the last may be short.
    fn run(&self, range: Range<u32>) -> Range<u32> {
        let goes_on = |index: &u32| self.on_disk(*index).is_some() && self.len(index - 1) == SEGMENT_BYTES;
        range.start..range.start + 1 + (range.start + 1..range.end).take_while(goes_on).count() as u32
    }

    fn region(&self, pin: &Pin, run: Range<u32>) -> Result<Region, Lack> {
        let (first, count) = (run.start, run.len() as u32);
        let region = pin.region(first, count).map_err(|error| self.broken(&run, &error))?;
        match region.is_resident() {
            Ok(true) => Ok(region),
            Ok(false) if !self.waits => Err(Lack::NotResident),
            Ok(false) => match region.load() {
                Ok(()) => Ok(region),
                Err(error) => Err(self.broken(&run, &error)),
            },
            Err(error) => Err(self.broken(&run, &ReadError::Io(error))),
        }
    }

    /// A part of a segment, checked, or of one that was checked since it came from the disk.
    fn part(&self, pin: &Pin, index: u32, within: Range<usize>) -> Result<Bytes, Lack> {
        let (offset, mut bytes) = (index * SEGMENT_BYTES as u32 + within.start as u32, vec![0; within.len()]);
        let read = if self.waits { pin.read_at(offset, &mut bytes) } else { pin.read_resident_at(offset, &mut bytes) };
        match read {
            Ok(()) => Ok(bytes.into()),
            Err(ReadError::NotResident { .. }) => Err(Lack::NotResident),
            Err(error) => Err(self.broken(&(index..index + 1), &error)),
        }
    }

    /// The disk does not give a run of segments.
    fn broken(&self, run: &Range<u32>, error: &ReadError) -> Lack {
        let object = self.object();
        match error {
            ReadError::Corrupt { index } => {
                tracing::warn!(%object, %error, "a segment has rotted on the cache's disk");
                self.gather.cache.retire(object, *index);
            }
            ReadError::Io(_) => tracing::warn!(%object, %error, "a cached segment cannot be read"),
            // It is being given up.
            ReadError::Absent { .. } | ReadError::NotResident { .. } => {}
        }
        Lack::Broken(super::set_of(run))
    }
}
