//! What threads that answer reads of hot bytes by themselves have to do with read-ahead: two numbers to look at, two to write. No lock.
//!
//! Such a thread leaves alone what is read ahead of its handle: those reads go the slow path, where each one is noted and gives memory
//! back. All others it notes here as one run, which the pattern is told with the next read that goes the slow path: a stream that
//! comes from hot bytes to cold ones goes on from its first miss as what it is. Nothing here is exact where threads pass each other, and need
//! not be: wrong numbers cost time, never bytes.

use super::pattern::PASSED_MAX;
use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// A range of a file, empty at first.
#[derive(Default)]
struct Shared {
    start: AtomicU64,
    end: AtomicU64,
}

impl Shared {
    fn get(&self) -> Range<u64> {
        self.start.load(Relaxed)..self.end.load(Relaxed)
    }

    fn set(&self, range: Range<u64>) {
        self.start.store(range.start, Relaxed);
        self.end.store(range.end, Relaxed);
    }
}

/// Of one handle.
#[derive(Default)]
pub(super) struct Hot {
    /// The last reads without a gap that were answered there.
    run: Shared,
    /// Nothing outside of it is read ahead.
    ahead: Shared,
}

impl Hot {
    /// These bytes were read there.
    pub(super) fn note(&self, read: Range<u64>) {
        let run = self.run.get();
        if read.start.abs_diff(run.end) > PASSED_MAX * (read.end - read.start) {
            self.run.set(read);
        } else if read.end > run.end {
            self.run.end.store(read.end, Relaxed);
        }
    }

    /// The run that a read at `offset` of `len` bytes goes on with; one that was begun there and failed is its last. Whatever it was, it has
    /// ended.
    pub(super) fn take(&self, offset: u64, len: u64) -> Option<Range<u64>> {
        let run = self.run.get();
        if run.end == 0 {
            return None;
        }
        self.run.set(0..0);
        (run.start < offset.min(run.end) && offset.abs_diff(run.end) <= PASSED_MAX * len).then_some(run)
    }

    /// These bytes are read ahead, `alone` when no others are.
    pub(super) fn begin_ahead(&self, part: &Range<u64>, alone: bool) {
        let known = self.ahead.get();
        let all = known.start.min(part.start)..known.end.max(part.end);
        self.ahead.set(if alone { part.clone() } else { all });
    }

    /// Whether some of these bytes may be read ahead, if any are.
    pub(super) fn is_ahead(&self, read: &Range<u64>) -> bool {
        let ahead = self.ahead.get();
        read.start < ahead.end && ahead.start < read.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_once_to_who_goes_on() {
        let hot = Hot::default();
        assert_eq!(hot.take(0, 10), None);
        // The second and the third pass each other.
        [100..110, 120..130, 110..120, 130..140].into_iter().for_each(|read| hot.note(read));
        assert_eq!(hot.take(140, 10), Some(100..140));
        assert_eq!(hot.take(140, 10), None);
        // Another place begins anew, and is nothing to who reads elsewhere.
        [100..110, 500..510].into_iter().for_each(|read| hot.note(read));
        assert_eq!(hot.take(110, 10), None);
        [100..110, 500..510].into_iter().for_each(|read| hot.note(read));
        assert_eq!(hot.take(510, 10), Some(500..510));
        // Reads that failed there are noted too: alone they are no run.
        hot.note(700..710);
        assert_eq!(hot.take(700, 10), None);
        [700..710, 710..720].into_iter().for_each(|read| hot.note(read));
        assert_eq!(hot.take(710, 10), Some(700..720));
    }

    #[test]
    fn what_is_ahead_is_forgotten_with_the_last_of_it() {
        let hot = Hot::default();
        assert!(!hot.is_ahead(&(0..10)));
        hot.begin_ahead(&(50..60), true);
        hot.begin_ahead(&(60..70), false);
        assert!(hot.is_ahead(&(45..51)) && hot.is_ahead(&(69..80)));
        assert!(!hot.is_ahead(&(40..50)) && !hot.is_ahead(&(70..80)));
        hot.begin_ahead(&(10..20), true);
        assert!(hot.is_ahead(&(10..20)) && !hot.is_ahead(&(50..70)));
    }
}
