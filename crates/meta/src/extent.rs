//! Extents of one file: which bytes are where. Pure logic; [`crate::Namespace`] stores what it decides.
//!
//! A file is cut into spans of 64 MiB. Within a span, every write adds one record under the next sequence number (or makes the
//! last record longer when it goes on where that one ends), and later records cover earlier ones. When a span has gathered
//! many records they are replaced by one packed record, sequence 0. A span of many runs is packed in steps, since a change fits
//! into one record of the log: each of the next changes adds a record of a few thousand runs as they are by then, until all of them are
//! there again; then the records from before go.

use crate::{
    Error, keys,
    keys::Key,
    records::{Reader, Writer},
};
use sluice_base::{Ino, ObjectId, limits::SPAN_BYTES};
use std::{collections::BTreeMap, ops::Range};

/// A place within an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The object.
    pub object: ObjectId,
    /// Byte of its payload.
    pub offset: u32,
}

/// A run of a file's bytes. Without a place it is a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Where the bytes are.
    pub place: Option<Place>,
}

/// A run within one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    offset: u32,
    len: u32,
    place: Option<Place>,
}

impl Run {
    fn end(&self) -> u32 {
        self.offset + self.len
    }
    /// Whether `next` goes on where this one ends, in the file and in the object.
    fn continues_in(&self, next: &Run) -> bool {
        self.end() == next.offset
            && match (self.place, next.place) {
                (Some(a), Some(b)) => a.object == b.object && a.offset + self.len == b.offset,
                (None, None) => true,
                _ => false,
            }
    }
}

const HOLE: ObjectId = ObjectId([0; 16]);

fn encode_runs<'a>(runs: impl Iterator<Item = &'a Run>) -> Vec<u8> {
    let write = |w: Writer, run: &Run| {
        let place = run.place.unwrap_or(Place { object: HOLE, offset: 0 });
        w.u32(run.offset).u32(run.len).bytes(&place.object.0).u32(place.offset)
    };
    let writer = Writer::new(1 + 28 * runs.size_hint().0);
    runs.fold(writer, write).0
}

/// The runs of a stored record. Pure parser: any bytes are answered with runs inside the span or an error.
pub fn decode_runs(bytes: &[u8]) -> Result<Vec<Extent>, Error> {
    let runs = parse_runs(bytes).ok_or_else(|| Error::Corrupt("an extent record does not parse".into()))?;
    Ok(runs.iter().map(|run| Extent { offset: run.offset.into(), len: run.len.into(), place: run.place }).collect())
}

/// The stored record of runs as [`decode_runs`] gives them; `None` when it would not parse.
pub(crate) fn encode_extents(extents: &[Extent]) -> Option<Vec<u8>> {
    let run = |extent: &Extent| {
        let (offset, len) = (extent.offset.try_into().ok()?, extent.len.try_into().ok()?);
        Some(Run { offset, len, place: extent.place })
    };
    let runs: Vec<Run> = extents.iter().map(run).collect::<Option<_>>()?;
    let bytes = encode_runs(runs.iter());
    parse_runs(&bytes).is_some().then_some(bytes)
}

fn parse_runs(bytes: &[u8]) -> Option<Vec<Run>> {
    let mut r = Reader::new(bytes)?;
    let mut runs = Vec::with_capacity(bytes.len() / 28);
    while !r.is_empty() {
        let (offset, len) = (r.u32()?, r.u32()?);
        let (object, object_offset) = (ObjectId(r.take()?), r.u32()?);
        if len == 0 || u64::from(offset) + u64::from(len) > SPAN_BYTES || object_offset.checked_add(len).is_none() {
            return None;
        }
        let place = (object != HOLE).then_some(Place { object, offset: object_offset });
        runs.push(Run { offset, len, place });
    }
    Some(runs)
}

/// Runs of one step, 115 KB; a span of up to four times as many is packed at once.
const PACK_RUNS: usize = 4096;
/// Records that a span may have gathered before it is packed: their deletion, 31 bytes each, is half a megabyte of the log.
const RECORDS_MAX: usize = 16 << 10;

/// A span that is being packed.
#[derive(Clone, Copy, Debug)]
struct Packing {
    /// Sequence of the first step: what has a smaller one goes at the end.
    first: u64,
    /// Runs from here on are not there again yet.
    next: u32,
}

/// The current extents of one span.
#[derive(Clone, Debug, Default)]
struct Span {
    packing: Option<Packing>,
    /// Runs that hold bytes, by offset; they do not overlap.
    runs: BTreeMap<u32, Run>,
    /// Sequence numbers of the stored records; 0 is the packed one.
    sequences: Vec<u64>,
    /// The newest record, which may still grow.
    last: Option<Run>,
}

impl Span {
    /// Covers what is there by `run`; tells the pieces that lost their last reference from here.
    fn cover(&mut self, run: Run, lost: &mut Vec<Run>) {
        let before = self.runs.range(..run.offset).next_back().map(|(_, r)| *r).filter(|r| r.end() > run.offset);
        let inside: Vec<Run> = self.runs.range(run.offset..run.end()).map(|(_, r)| *r).collect();
        for old in before.into_iter().chain(inside) {
            self.runs.remove(&old.offset);
            let (from, to) = (old.offset.max(run.offset), old.end().min(run.end()));
            lost.push(part(&old, from, to));
            for kept in [part(&old, old.offset, from), part(&old, to, old.end())] {
                if kept.len > 0 {
                    self.runs.insert(kept.offset, kept);
                }
            }
        }
        if run.place.is_some() {
            match self.runs.range_mut(..run.offset).next_back() {
                Some((_, previous)) if previous.continues_in(&run) => previous.len += run.len,
                _ => drop(self.runs.insert(run.offset, run)),
            }
        }
    }
}

/// Bytes [from, to) of a run.
fn part(run: &Run, from: u32, to: u32) -> Run {
    let place = run.place.map(|p| Place { object: p.object, offset: p.offset + (from - run.offset) });
    Run { offset: from, len: to - from, place }
}

/// What a change of extents writes.
#[derive(Default)]
pub struct ExtentPlan {
    /// Records to put.
    pub puts: Vec<(Key, Vec<u8>)>,
    /// Records to delete.
    pub deletes: Vec<Key>,
    /// Bytes that objects gain or lose, as references.
    pub live: BTreeMap<ObjectId, i64>,
    /// Bytes that the file gains or loses.
    pub held_bytes: i64,
    /// It has a step of packing, of which one is enough for one record of the log.
    has_step: bool,
}

/// The extents of a file, as far as they were loaded.
#[derive(Default)]
pub struct FileExtents {
    spans: BTreeMap<u64, Span>,
}

impl FileExtents {
    /// Whether span `span` was loaded.
    pub fn has(&self, span: u64) -> bool {
        self.spans.contains_key(&span)
    }

    /// Forgets everything, so that it is loaded again: for when a change that was planned did not commit.
    pub fn forget(&mut self) {
        self.spans.clear();
    }

    /// Runs in memory, for budgets.
    pub fn runs(&self) -> usize {
        self.spans.values().map(|span| span.runs.len() + 1).sum()
    }

    /// Loads a span from its records in order of sequence.
    pub fn load(&mut self, span: u64, records: &[(u64, Vec<u8>)]) -> Result<(), Error> {
        let mut loaded = Span::default();
        for (sequence, bytes) in records {
            let runs = parse_runs(bytes).ok_or_else(|| Error::Corrupt("an extent record does not parse".into()))?;
            runs.into_iter().for_each(|run| loaded.cover(run, &mut Vec::new()));
            loaded.sequences.push(*sequence);
        }
        self.spans.insert(span, loaded);
        Ok(())
    }

    /// The file's bytes [range) as extents and holes in order, without gaps. All its spans must be loaded.
    pub fn map(&self, range: Range<u64>) -> Vec<Extent> {
        let mut out = Vec::new();
        self.for_each(range, |extent| out.push(extent));
        out
    }

    /// Hands out what [`FileExtents::map`] collects, one after the other.
    pub fn for_each(&self, range: Range<u64>, mut then: impl FnMut(Extent)) {
        let mut at = range.start;
        for (number, span) in self.spans.range(range.start / SPAN_BYTES..=range.end.saturating_sub(1) / SPAN_BYTES) {
            let base = number * SPAN_BYTES;
            let from = range.start.saturating_sub(base).min(SPAN_BYTES) as u32;
            let to = (range.end - base).min(SPAN_BYTES) as u32;
            let first = span.runs.range(..from).next_back().map(|(_, r)| r).filter(|r| r.end() > from);
            for run in first.into_iter().chain(span.runs.range(from..to).map(|(_, r)| r)) {
                let run = part(run, run.offset.max(from), run.end().min(to));
                let offset = base + u64::from(run.offset);
                if offset > at {
                    then(Extent { offset: at, len: offset - at, place: None });
                }
                then(Extent { offset, len: run.len.into(), place: run.place });
                at = offset + u64::from(run.len);
            }
        }
        if at < range.end {
            then(Extent { offset: at, len: range.end - at, place: None });
        }
    }

    /// How many runs span `span` has; 0 when it was not loaded.
    pub fn runs_of(&self, span: u64) -> usize {
        self.spans.get(&span).map_or(0, |span| span.runs.len())
    }

    /// Puts `extent` over what is there and adds to `plan` what must be stored. All its spans must be loaded.
    pub fn put(&mut self, ino: Ino, extent: Extent, plan: &mut ExtentPlan) {
        let (mut at, end) = (extent.offset, extent.offset + extent.len);
        while at < end {
            let number = at / SPAN_BYTES;
            let stop = end.min((number + 1) * SPAN_BYTES);
            let place =
                extent.place.map(|p| Place { object: p.object, offset: p.offset + (at - extent.offset) as u32 });
            let run = Run { offset: (at % SPAN_BYTES) as u32, len: (stop - at) as u32, place };
            self.put_run(ino, number, run, plan);
            at = stop;
        }
    }

    fn put_run(&mut self, ino: Ino, number: u64, run: Run, plan: &mut ExtentPlan) {
        let span = self.spans.entry(number).or_default();
        let mut lost = Vec::new();
        span.cover(run, &mut lost);
        for old in &lost {
            let place = old.place.expect("kept runs have a place");
            *plan.live.entry(place.object).or_default() -= i64::from(old.len);
            plan.held_bytes -= i64::from(old.len);
        }
        match run.place {
            Some(place) => {
                *plan.live.entry(place.object).or_default() += i64::from(run.len);
                plan.held_bytes += i64::from(run.len);
            }
            None if lost.is_empty() => return,
            None => {}
        }
        if span.runs.is_empty() {
            let old = std::mem::take(&mut span.sequences);
            plan.forget_puts(ino, number);
            plan.deletes.extend(old.into_iter().map(|sequence| keys::extent(ino, number, sequence)));
            (span.last, span.packing) = (None, None);
        } else {
            span.record(ino, number, run, plan);
        }
    }
}

impl ExtentPlan {
    /// Takes back puts of a span that turned out empty within the same plan.
    fn forget_puts(&mut self, ino: Ino, number: u64) {
        let first = keys::extent(ino, number, 0);
        self.puts.retain(|(key, _)| key[..17] != first[..17]);
    }

    fn put(&mut self, key: Key, value: Vec<u8>) {
        self.deletes.retain(|old| **old != *key);
        match self.puts.iter_mut().find(|(old, _)| **old == *key) {
            Some((_, old)) => *old = value,
            None => self.puts.push((key, value)),
        }
    }
}

impl Span {
    fn record(&mut self, ino: Ino, number: u64, run: Run, plan: &mut ExtentPlan) {
        if let (Some(last), Some(sequence)) = (&mut self.last, self.sequences.last())
            && last.continues_in(&run)
        {
            last.len += run.len;
            plan.put(keys::extent(ino, number, *sequence), encode_runs([&*last].into_iter()));
            return;
        }
        // A fragmented span is packed less often, so that packing costs a bounded share of what is written.
        let is_due = self.sequences.len() > (32 + self.runs.len() / 8).min(RECORDS_MAX);
        if is_due && self.runs.len() <= 4 * PACK_RUNS {
            plan.forget_puts(ino, number);
            plan.deletes.extend(self.sequences.drain(..).filter(|s| *s != 0).map(|s| keys::extent(ino, number, s)));
            plan.put(keys::extent(ino, number, 0), encode_runs(self.runs.values()));
            self.sequences.push(0);
            (self.last, self.packing) = (None, None);
            return;
        }
        let sequence = self.next_sequence();
        self.last = Some(run);
        plan.put(keys::extent(ino, number, sequence), encode_runs([&run].into_iter()));
        if is_due && self.packing.is_none() {
            self.packing = Some(Packing { first: sequence + 1, next: 0 });
        }
        if let Some(packing) = self.packing.filter(|_| !std::mem::replace(&mut plan.has_step, true)) {
            self.pack(ino, number, packing, plan);
        }
    }

    fn next_sequence(&mut self) -> u64 {
        let sequence = self.sequences.last().map_or(1, |s| s + 1);
        self.sequences.push(sequence);
        sequence
    }

    /// One step.
    fn pack(&mut self, ino: Ino, number: u64, packing: Packing, plan: &mut ExtentPlan) {
        let step: Vec<Run> = self.runs.range(packing.next..).take(PACK_RUNS).map(|(_, run)| *run).collect();
        if let Some(end) = step.last().map(Run::end) {
            let sequence = self.next_sequence();
            plan.put(keys::extent(ino, number, sequence), encode_runs(step.iter()));
            self.last = None;
            self.packing = Some(Packing { next: end, ..packing });
            return;
        }
        let old = self.sequences.partition_point(|sequence| *sequence < packing.first);
        let old: Vec<_> = self.sequences.drain(..old).map(|sequence| keys::extent(ino, number, sequence)).collect();
        plan.puts.retain(|(key, _)| !old.iter().any(|old| **old == **key));
        plan.deletes.extend(old);
        self.packing = None;
    }
}

#[cfg(test)]
mod tests;
