//! What the reads of one handle look like, and so what they will ask for next. No I/O, no clock.
//!
//! A handle may have several readers: threads that read their parts of a file, or a kernel that sends the requests of one reader out
//! of order. So reads are sorted into streams. A read that continues none is a lone one, remembered for a while: the read that follows it
//! without a gap makes a stream of both, forward or backward; four at equal distances make a strided one, since three of them
//! happen to stand so in a small file that is read at random.
//!
//! How far ahead a stream asks is its window. It doubles while reads have to wait, once for what was asked before it doubled last, so
//! it grows to what the distance of the bytes takes and no further; it halves when bytes were fetched in vain. It is never more than a
//! share of what the stream has read so far: who reads the first megabyte of each of a thousand files costs at most that share in vain.

use std::ops::Range;

/// Streams and lone reads of a handle that are remembered.
const STREAMS_MAX: usize = 16;
/// Lone reads that are looked through for a stride.
const LONE_MAX: usize = 8;
/// Window of a new stream, unless its reads are larger.
const WINDOW_FIRST: u64 = 256 << 10;
/// Bounds of one request. A large one costs less for each byte, a small one brings its first byte sooner.
const PIECE_MIN: u64 = 128 << 10;
const PIECE_MAX: u64 = 1 << 20;
/// A first read of at least this, at the start of a file, is taken for a stream at once: who looks at a header asks for less.
const FIRST_READ_MIN: u64 = 128 << 10;
/// Requests of the kernel for one reader may pass each other: by so many of their length.
pub(super) const PASSED_MAX: u64 = 2;
/// Runs that a strided stream is ahead.
const RUNS_MAX: u64 = 64;
/// Largest stride, in bytes. Further apart it is rather threads of which each reads its part of a file.
const STEP_MAX: u64 = 16 << 20;

/// How far a stream may be ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most bytes.
    pub(crate) window_max: u64,
    /// Most, in percent of the bytes that the stream has read.
    pub(crate) of_read_percent: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One read that continues nothing.
    Lone,
    Forward,
    Backward,
    Strided {
        /// From one read's offset to the next one's.
        step: i64,
        /// Runs that were asked for beyond the last read.
        ahead: u64,
    },
}

/// What will be read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    way: Way,
    /// Of a strided stream the first run.
    start: u64,
    end: u64,
    /// Requests end at multiples of this.
    piece: u64,
    runs: u64,
}

impl Wanted {
    /// All of it.
    pub(crate) fn bytes(&self) -> u64 {
        match self.way {
            Way::Strided { .. } => (self.end - self.start) * self.runs,
            _ => self.end - self.start,
        }
    }

    /// What to ask for, one request each, the soonest needed first.
    pub(crate) fn pieces(self) -> impl Iterator<Item = Range<u64>> {
        let (mut start, mut end, mut runs) = (self.start, self.end, self.runs);
        std::iter::from_fn(move || {
            if start >= end {
                return None;
            }
            match self.way {
                Way::Strided { step, .. } => {
                    let run = start..end;
                    runs = runs.checked_sub(1)?;
                    let next = start.checked_add_signed(step).zip(end.checked_add_signed(step));
                    (start, end) = next.unwrap_or((0, 0));
                    Some(run)
                }
                Way::Backward => {
                    let from = ((end - 1) / self.piece * self.piece).max(start);
                    Some(from..std::mem::replace(&mut end, from))
                }
                _ => {
                    let to = ((start / self.piece + 1) * self.piece).min(end);
                    Some(std::mem::replace(&mut start, to)..to)
                }
            }
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    way: Way,
    /// The last read.
    offset: u64,
    len: u64,
    /// Forward: where what was read ends; backward: where it begins.
    edge: u64,
    /// Up to where bytes were asked for, beyond the edge.
    asked: u64,
    /// Bytes read.
    read: u64,
    window: u64,
    /// The window does not grow before as much was read: reads until then wait for what was asked for with the old one.
    grows_at: u64,
}

/// The reads of one handle.
#[derive(Debug, Default)]
pub(crate) struct Pattern {
    /// The one that was read last is the first.
    streams: Vec<Stream>,
}

impl Pattern {
    /// Notes a read, `late` when its bytes were not at hand. Gives what to ask for now that was not asked for before.
    pub(crate) fn handle_read(&mut self, offset: u64, len: u64, late: bool, limits: &Limits) -> Option<Wanted> {
        if len == 0 {
            return None;
        }
        match self.streams.iter_mut().position(|stream| stream.take(offset, len)) {
            Some(at) => self.streams[..=at].rotate_right(1),
            None => {
                let stream = self.strided(offset, len).unwrap_or_else(|| Stream::first(offset, len));
                self.remember(stream);
            }
        }
        self.streams[0].want(late, limits)
    }

    /// Notes reads without a gap, each of about `len` bytes, whose bytes were at hand: the next one goes on with them.
    pub(crate) fn handle_run(&mut self, run: Range<u64>, len: u64) {
        let goes_on = |stream: &Stream| {
            stream.way == Way::Forward && run.start.abs_diff(stream.edge) <= PASSED_MAX * len.max(stream.len)
        };
        match self.streams.iter().position(goes_on) {
            Some(at) => self.streams[..=at].rotate_right(1),
            None => self.remember(Stream { way: Way::Forward, read: 0, len, ..Stream::first(run.start, 0) }),
        }
        let stream = &mut self.streams[0];
        stream.edge = stream.edge.max(run.end);
        stream.asked = stream.asked.max(stream.edge);
        stream.offset = stream.edge.saturating_sub(len);
        stream.read = stream.read.saturating_add(run.end - run.start);
    }

    /// Of what the last read wanted only the first `taken` bytes, in the order of its pieces, are being fetched.
    pub(crate) fn handle_refused(&mut self, wanted: &Wanted, taken: u64) {
        let Some(stream) = self.streams.first_mut() else { return };
        match &mut stream.way {
            Way::Lone => {}
            Way::Forward => stream.asked = wanted.start + taken,
            Way::Backward => stream.asked = wanted.end - taken,
            Way::Strided { ahead, .. } => *ahead -= wanted.runs - taken / (wanted.end - wanted.start),
        }
    }

    /// Bytes that were read ahead were dropped before anybody asked for them.
    pub(crate) fn handle_useless(&mut self) {
        for stream in &mut self.streams {
            stream.window = (stream.window / 2).max(PIECE_MIN);
        }
    }

    fn remember(&mut self, stream: Stream) {
        if self.streams.len() >= STREAMS_MAX {
            let lone = self.streams.iter().rposition(|stream| stream.way == Way::Lone);
            self.streams.remove(lone.unwrap_or(STREAMS_MAX - 1));
        }
        self.streams.insert(0, stream);
    }

    /// The stream that this read makes with three lone ones before it.
    fn strided(&self, offset: u64, len: u64) -> Option<Stream> {
        let lone = || self.streams.iter().filter(|stream| stream.way == Way::Lone && stream.len == len).take(LONE_MAX);
        let before = |at: u64, step: i64| {
            let at = at.checked_add_signed(-step)?;
            lone().any(|stream| stream.offset == at).then_some(at)
        };
        let step = lone().find_map(|last| {
            let step = i64::try_from(i128::from(offset) - i128::from(last.offset)).ok()?;
            (step != 0 && step.unsigned_abs() <= STEP_MAX).then_some(())?;
            before(before(last.offset, step)?, step).map(|_| step)
        })?;
        Some(Stream { way: Way::Strided { step, ahead: 0 }, read: 4 * len, ..Stream::first(offset, len) })
    }
}

impl Stream {
    fn first(offset: u64, len: u64) -> Self {
        let end = offset.saturating_add(len);
        let way = if offset == 0 && len >= FIRST_READ_MIN { Way::Forward } else { Way::Lone };
        Self { way, offset, len, edge: end, asked: end, read: len, window: WINDOW_FIRST, grows_at: 0 }
    }

    /// Takes a read in that continues this stream.
    fn take(&mut self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        let passed = PASSED_MAX * len.max(self.len);
        match &mut self.way {
            Way::Lone if offset == self.edge => {
                self.way = Way::Forward;
                (self.edge, self.asked) = (end, end);
            }
            Way::Lone if end == self.offset => {
                self.way = Way::Backward;
                (self.edge, self.asked) = (offset, offset);
            }
            Way::Forward if offset.abs_diff(self.edge) <= passed => {
                self.edge = self.edge.max(end);
                self.asked = self.asked.max(self.edge);
            }
            Way::Backward if end.abs_diff(self.edge) <= passed => {
                self.edge = self.edge.min(offset);
                self.asked = self.asked.min(self.edge);
            }
            Way::Strided { step, ahead } => {
                let behind = i128::from(offset) - i128::from(self.offset);
                let steps = behind / i128::from(*step);
                if len > self.len
                    || behind % i128::from(*step) != 0
                    || steps.unsigned_abs() > 2 * u128::from(PASSED_MAX)
                {
                    return false;
                }
                self.read = self.read.saturating_add(len);
                if steps <= 0 {
                    return true;
                }
                *ahead = ahead.saturating_sub(steps as u64);
                self.offset = offset;
                return true;
            }
            _ => return false,
        }
        (self.offset, self.len) = (offset, len);
        self.read = self.read.saturating_add(len);
        true
    }

    /// What to ask for.
    fn want(&mut self, late: bool, limits: &Limits) -> Option<Wanted> {
        self.window = self.window.max(2 * self.len);
        if late && self.way != Way::Lone && self.read >= self.grows_at && self.window < limits.window_max {
            // What is asked for already comes in the time of the old window.
            self.grows_at = self.read.saturating_add(self.window);
            self.window *= 2;
        }
        let of_read = self.read.saturating_mul(limits.of_read_percent) / 100;
        let target = self.window.min(limits.window_max).min(of_read);
        let piece = (1 << (target / 2).max(1).ilog2()).clamp(PIECE_MIN, PIECE_MAX);
        let none = Wanted { way: self.way, start: 0, end: 0, piece, runs: 0 };
        let wanted = match &mut self.way {
            Way::Lone => none,
            Way::Forward => {
                let (start, end) = (self.asked, self.edge.saturating_add(target) / piece * piece);
                self.asked = start.max(end);
                Wanted { start, end, ..none }
            }
            Way::Backward => {
                let (start, end) = (self.edge.saturating_sub(target).next_multiple_of(piece), self.asked);
                let start = if self.edge <= target { 0 } else { start };
                self.asked = start.min(end);
                Wanted { start, end, ..none }
            }
            Way::Strided { step, ahead } => {
                let runs = (target / self.len).min(RUNS_MAX);
                let first = self.offset.checked_add_signed(step.saturating_mul(*ahead as i64 + 1));
                match first {
                    // By halves: a request for each single run is no smaller, a burst of them is sent together.
                    Some(start) if runs > *ahead && *ahead <= runs / 2 => {
                        let more = runs - std::mem::replace(ahead, runs);
                        Wanted { start, end: start.saturating_add(self.len), runs: more, ..none }
                    }
                    _ => none,
                }
            }
        };
        (wanted.start < wanted.end).then_some(wanted)
    }
}

#[cfg(test)]
mod tests;
