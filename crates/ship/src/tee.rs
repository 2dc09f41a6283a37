//! What was committed and is not shipped.

use sluice_base::{Clock, Seq};
use sluice_meta::store::{Log, LogClass, LogError, without_attachments};
use sluice_run::lock::Mutex;
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// Memory for what waits. With more than this the store has been away for long, and a checkpoint brings it up to date.
const BYTES_MAX: usize = 64 << 20;

/// The after-images of transactions in their order, until they are shipped.
pub struct Tee {
    clock: Arc<dyn Clock>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Number of the first record.
    first: u64,
    records: VecDeque<Kept>,
    bytes: usize,
}

struct Kept {
    record: Vec<u8>,
    since: Duration,
}

impl Kept {
    /// Memory: beside its bytes itself, twice in a deque that has just grown, and what the allocator takes.
    fn cost(&self) -> usize {
        const ALLOCATION: usize = 16;
        self.record.len() + ALLOCATION + 2 * size_of::<Self>()
    }
}

/// What comes after a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// So much, from the record behind it on.
    Records(Vec<Vec<u8>>),
    /// Nothing that may be taken yet.
    Nothing,
    /// Something, but not from there on.
    Gap,
}

impl Tee {
    /// An empty one.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, waiting: Mutex::default() })
    }

    /// A record of the log, or the part of it that has its entries. In their order, each once.
    pub fn push(&self, seq: Seq, record: &[u8]) {
        let since = self.clock.monotonic();
        let mut waiting = self.waiting.lock();
        let expected = waiting.first + waiting.records.len() as u64;
        if !waiting.records.is_empty() && seq.0 < expected {
            return;
        }
        let Ok(record) = without_attachments(record) else {
            // The next push makes a gap.
            tracing::error!(seq = seq.0, "a record of the log does not parse, and is not shipped");
            return;
        };
        if waiting.bytes > BYTES_MAX || (!waiting.records.is_empty() && seq.0 != expected) {
            *waiting = Waiting::default();
        }
        if waiting.records.is_empty() {
            waiting.first = seq.0;
        }
        let kept = Kept { record, since };
        waiting.bytes += kept.cost();
        waiting.records.push_back(kept);
    }

    /// Forgets everything up to `shipped`, and gives what comes behind it, up to `end` and about `bytes_max`.
    pub(crate) fn after(&self, shipped: Seq, end: Seq, bytes_max: usize) -> Next {
        let mut waiting = self.waiting.lock();
        while !waiting.records.is_empty() && waiting.first <= shipped.0 {
            let gone = waiting.records.pop_front().expect("it is not empty");
            waiting.bytes -= gone.cost();
            waiting.first += 1;
        }
        if waiting.records.is_empty() {
            return if end > shipped { Next::Gap } else { Next::Nothing };
        }
        if waiting.first != shipped.0 + 1 {
            return Next::Gap;
        }
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for (Kept { record, .. }, seq) in waiting.records.iter().zip(waiting.first..) {
            if seq > end.0 || (bytes > 0 && bytes + record.len() > bytes_max) {
                break;
            }
            bytes += record.len();
            taken.push(record.clone());
        }
        if taken.is_empty() { Next::Nothing } else { Next::Records(taken) }
    }

    /// Since when the oldest record behind `shipped` waits; bytes that are kept.
    pub(crate) fn waits(&self, shipped: Seq) -> (Option<Duration>, usize) {
        let waiting = self.waiting.lock();
        let at = (shipped.0 + 1).saturating_sub(waiting.first) as usize;
        (waiting.records.get(at).map(|kept| kept.since), waiting.bytes)
    }
}

/// A log whose records also go to a tee.
pub struct TeeLog {
    log: Arc<dyn Log>,
    tee: Arc<Tee>,
}

impl TeeLog {
    /// `log`, with `tee` beside it.
    pub fn new(log: Arc<dyn Log>, tee: Arc<Tee>) -> Self {
        Self { log, tee }
    }
}

impl Log for TeeLog {
    fn append(&self, class: LogClass, parts: &[&[u8]]) -> Result<Seq, LogError> {
        let seq = self.log.append(class, parts)?;
        // All entries are in the first part, before the first attachment's data.
        self.tee.push(seq, parts[0]);
        Ok(seq)
    }

    fn ensure_synced(&self, seq: Seq) -> Result<(), LogError> {
        self.log.ensure_synced(seq)
    }

    fn synced(&self) -> Seq {
        self.log.synced()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_base::ManualClock;

    fn record(byte: u8) -> Vec<u8> {
        vec![1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, b'k', byte]
    }

    #[test]
    fn what_comes_behind_a_record_is_given_in_order() {
        let tee = Tee::new(Arc::new(ManualClock::default()));
        (5..9).for_each(|seq| tee.push(Seq(seq), &record(seq as u8)));
        // Replay may hand a record out a second time.
        tee.push(Seq(7), &record(0));
        assert_eq!(tee.after(Seq(4), Seq(6), usize::MAX), Next::Records(vec![record(5), record(6)]));
        assert_eq!(tee.after(Seq(6), Seq(8), 1), Next::Records(vec![record(7)]), "one at least");
        assert_eq!(tee.after(Seq(6), Seq(6), usize::MAX), Next::Nothing);
        assert_eq!(tee.after(Seq(5), Seq(8), usize::MAX), Next::Gap, "it was forgotten");
        assert_eq!(tee.after(Seq(8), Seq(8), usize::MAX), Next::Nothing);
        assert_eq!(tee.after(Seq(8), Seq(9), usize::MAX), Next::Gap, "somebody has written past it");
    }

    #[test]
    fn a_store_that_is_away_for_long_costs_a_checkpoint_not_memory() {
        let tee = Tee::new(Arc::new(ManualClock::default()));
        let mut large = vec![1, 0, 0, 0, 1, 0, 0, 0, 1, 0];
        large.extend((1_u32 << 20).to_le_bytes());
        large.push(b'k');
        large.resize(large.len() + (1 << 20), 7);
        (1..200).for_each(|seq| tee.push(Seq(seq), &large));
        assert!(tee.waits(Seq(0)).1 <= BYTES_MAX + (2 << 20));
        assert_eq!(tee.after(Seq(0), Seq(199), usize::MAX), Next::Gap);
    }

    /// Records of which each takes less than what is kept beside it.
    #[test]
    fn what_a_record_takes_beside_its_bytes_counts() {
        let tee = Tee::new(Arc::new(ManualClock::default()));
        let held_max = BYTES_MAX / (record(0).len() + size_of::<Kept>());
        (1..=held_max as u64).for_each(|seq| tee.push(Seq(seq), &record(0)));
        assert_eq!(tee.after(Seq(0), Seq(held_max as u64), usize::MAX), Next::Gap);
        tee.after(Seq(held_max as u64), Seq(held_max as u64), 0);
        assert_eq!(tee.waits(Seq(0)).1, 0, "all that was counted is taken off again");
    }
}
