//! How far a shipper is.

use super::AHEAD_BYTES;
use crate::{checkpoint::CheckpointError, found::Found, head::Head};
use bytes::Bytes;
use sluice_base::Seq;
use sluice_run::task::JoinHandle;
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// What is known while it runs.
pub(super) struct Position {
    pub(super) shipped: Seq,
    /// The checkpoint that counts; none where nothing leads on from the one that the store has.
    pub(super) head: Option<Head>,
    pub(super) log_bytes: u64,
    /// Made up to here: in the store or on their way.
    pub(super) made: Seq,
    /// The number of the blob that is made next.
    pub(super) next: u64,
    /// The number of the one with which this process began.
    pub(super) fence: u64,
    /// The number of the checkpoint that it found, or made.
    pub(super) base: u64,
    /// What was there when it did: either all of its bytes are there, or no more than the store's log says.
    pub(super) start: Seq,
    /// All bytes up to here are there.
    pub(super) whole: Seq,
    /// What the log in the store says of that.
    pub(super) said: Seq,
    /// The blobs behind it: their last records and lengths.
    pub(super) ahead: VecDeque<(Seq, usize)>,
    /// No record behind this one is missing in the store's log.
    pub(super) since: Seq,
    /// What is made, in its order, until it and all before it are known to be there. It may be there although the answer was lost, and then
    /// nothing else can be.
    pub(super) blobs: VecDeque<Made>,
    pub(super) making: Option<Making>,
}

impl Position {
    /// As the store has it.
    pub(super) fn at(found: &Found) -> Self {
        let (last, begin) = (found.last.as_ref(), found.head.as_ref().map_or(Seq(0), Head::begin));
        let whole = last.map_or(begin, |last| Seq(last.whole));
        // What was shipped ahead by the process before this one counts in full.
        let ahead = last.filter(|last| last.whole < last.last).map(|last| (Seq(last.last), AHEAD_BYTES));
        Self {
            shipped: Seq(0),
            head: None,
            log_bytes: found.log_bytes,
            made: Seq(0),
            next: found.next,
            fence: found.next,
            base: found.head.as_ref().map_or(0, |head| head.log),
            start: Seq(0),
            whole,
            said: whole,
            ahead: ahead.into_iter().collect(),
            since: begin,
            blobs: VecDeque::new(),
            making: None,
        }
    }

    /// Every blob with a number below this one is there.
    pub(super) fn there(&self) -> u64 {
        self.blobs.front().map_or(self.next, |made| made.number)
    }

    /// All bytes up to `whole` are there.
    pub(super) fn is_whole_to(&mut self, whole: Seq) {
        self.whole = whole;
        while self.ahead.front().is_some_and(|(last, _)| *last <= whole) {
            self.ahead.pop_front();
        }
    }
}

/// A blob of the log.
pub(super) struct Made {
    pub(super) number: u64,
    pub(super) body: Bytes,
    pub(super) last: Seq,
    /// What it says of bytes.
    pub(super) whole: Seq,
    pub(super) is_there: bool,
}

/// A checkpoint under way.
pub(super) struct Making {
    pub(super) task: JoinHandle<()>,
    pub(super) made: oneshot::Receiver<Result<Head, CheckpointError>>,
    /// Once it is there.
    pub(super) head: Option<Head>,
    /// Of the log that it replaces.
    pub(super) log_bytes: u64,
}

impl Drop for Making {
    fn drop(&mut self) {
        self.task.abort();
    }
}
