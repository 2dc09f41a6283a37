//! One fill: what is wanted, what has come.

use super::NodeError;
use crate::message::{Segment, Set};
use sluice_object::StoredObject;
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use sluice_run::watch;
use std::{collections::VecDeque, ops::Range};

/// Once an object's table is known its rest is fetched in runs of 1 MiB, which readers need not wait for together.
const RUN_SEGMENTS: u32 = 32;

/// One fill, as its task and those who wait for it see it.
pub(super) struct Fill {
    pub(super) object: StoredObject,
    pub(super) state: Mutex<State>,
    pub(super) changed: watch::Sender<()>,
}

/// What a fill has and what is to come.
#[derive(Default)]
pub(super) struct State {
    /// To be fetched, those first that somebody waits for.
    queue: VecDeque<Range<u32>>,
    /// Everything that was ever put into the queue.
    pub(super) wanted: Set,
    got: HashMap<u32, Segment>,
    /// Why it has ended, when it has.
    ended: Option<NodeError>,
}

impl Fill {
    pub(super) fn new(object: StoredObject) -> Self {
        Self { object, state: Mutex::default(), changed: watch::Sender::new(()) }
    }

    /// The next run. Without the table the whole of it, as one request then brings both.
    pub(super) fn next(&self, has_table: bool) -> Option<Range<u32>> {
        let mut state = self.state.lock();
        let first = state.queue.front_mut()?;
        if has_table && first.len() as u32 > RUN_SEGMENTS {
            let run = first.start..first.start + RUN_SEGMENTS;
            first.start = run.end;
            return Some(run);
        }
        state.queue.pop_front()
    }

    pub(super) fn give(&self, segments: &[Segment]) {
        self.state.lock().got.extend(segments.iter().map(|segment| (segment.index, segment.clone())));
        self.changed.send_replace(());
    }

    /// Nothing more comes.
    pub(super) fn end(&self, why: NodeError) {
        self.state.lock().ended = Some(why);
        self.changed.send_replace(());
    }

    /// Nothing comes any more, and what came is in the cache, if that could keep it.
    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().ended.is_some()
    }

    /// The segments of `missing`, once all are there, or why they will not be.
    pub(super) fn take(&self, missing: Set) -> Option<Result<Vec<Segment>, NodeError>> {
        let state = self.state.lock();
        let wanted = (0..Set::BITS).filter(|index| missing >> index & 1 != 0);
        match wanted.map(|index| state.got.get(&index).cloned()).collect() {
            Some(all) => Some(Ok(all)),
            None => state.ended.clone().map(Err),
        }
    }
}

impl State {
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Puts the runs of `set` that nobody wanted yet into the queue.
    pub(super) fn want(&mut self, set: Set) {
        let new = set & !self.wanted;
        self.wanted |= set;
        let mut from = 0;
        while let Some(rest) = new.checked_shr(from).filter(|rest| *rest != 0) {
            let start = from + rest.trailing_zeros();
            let end = start + (new >> start).trailing_ones();
            self.queue.push_back(start..end);
            from = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::set_of, *};
    use sluice_base::ObjectId;

    #[test]
    fn what_is_wanted_is_queued_once_in_runs() {
        let mut state = State::default();
        state.want(set_of(&(3..5)));
        state.want(set_of(&(0..128)));
        state.want(set_of(&(7..9)));
        assert_eq!(state.queue, [3..5, 0..3, 5..128]);
        let mut all = State::default();
        all.want(!0);
        assert_eq!((all.queue.len(), &all.queue[0]), (1, &(0..128)));
    }

    #[test]
    fn runs_are_cut_once_the_table_is_known() {
        let object = StoredObject::new(ObjectId([1; 16]), 128, 4 << 20).unwrap();
        let fill = Fill::new(object);
        fill.state.lock().want(set_of(&(0..70)));
        assert_eq!((fill.next(true), fill.next(true)), (Some(0..32), Some(32..64)));
        assert_eq!((fill.next(false), fill.next(true)), (Some(64..70), None));
    }
}
