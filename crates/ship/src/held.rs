//! The end of the log, of which it is not known whether the store has all bytes that it speaks of.

use futures::{StreamExt, stream};
use sluice_base::{ObjectId, Seq};
use sluice_meta::{
    records::{object_key, unstored},
    store::{EngineError, Record, RecordError, Tables},
};
use sluice_object::{Store, StoreError};
use std::collections::{BTreeSet, VecDeque};

/// Requests that run at once.
const REQUESTS_MAX: usize = 16;

/// Records behind the last one that was used, without a gap, in memory. A shipper is ahead of the bytes by some megabytes at most.
pub(crate) struct Held {
    /// The last one that was used.
    used: Seq,
    records: VecDeque<Vec<u8>>,
    /// What each of them says of objects: see [`unstored`].
    objects: VecDeque<Vec<(ObjectId, bool)>>,
}

impl Held {
    pub(crate) fn new(used: Seq) -> Self {
        Self { used, records: VecDeque::new(), objects: VecDeque::new() }
    }

    pub(crate) fn used(&self) -> Seq {
        self.used
    }

    pub(crate) fn end(&self) -> Seq {
        Seq(self.used.0 + self.records.len() as u64)
    }

    /// The record behind the last one.
    pub(crate) fn push(&mut self, record: &[u8]) -> Result<(), RecordError> {
        let parsed = Record::parse(record)?;
        let of_objects = parsed.entries().iter().filter_map(|(key, value)| unstored(key, *value)).collect();
        self.objects.push_back(of_objects);
        self.records.push_back(record.to_owned());
        Ok(())
    }

    /// The first one, if it is not behind `end`, to be used.
    pub(crate) fn take(&mut self, end: Seq) -> Option<(Seq, Vec<u8>)> {
        let record = if self.used < end { self.records.pop_front()? } else { return None };
        self.objects.pop_front();
        self.used = Seq(self.used.0 + 1);
        Some((self.used, record))
    }

    /// Forgets what is behind `end`.
    pub(crate) fn cut(&mut self, end: Seq) {
        let left = end.0.saturating_sub(self.used.0) as usize;
        self.records.truncate(left);
        self.objects.truncate(left);
    }

    /// Those of them that `tables`, which are where these records begin, do not know: the bytes of the others were there once, or are lost for good.
    pub(crate) fn needed(&self, tables: &dyn Tables) -> Result<BTreeSet<ObjectId>, EngineError> {
        let needed = self.objects.iter().flatten().filter(|(_, is_needed)| *is_needed).map(|(id, _)| *id);
        let at = tables.applied();
        let is_new = |id: &ObjectId| tables.get(&object_key(*id), at).map(|known| known.is_none());
        let needed: BTreeSet<_> = needed.collect();
        needed.into_iter().filter_map(|id| is_new(&id).map(|is_new| is_new.then_some(id)).transpose()).collect()
    }

    /// The last record up to which the store has every object of `needed` that has live bytes there, and that is not between two of `together`.
    /// What is missing is given up: whoever would store it still, and take that for the end of a sync, finds its place taken.
    ///
    /// What a sync has returned for is not behind it: up to some record, no earlier, the store had the log and every object that was ever begun, but
    /// those that a record up to there gave up. So none is missing there.
    pub(crate) async fn whole(
        &self,
        needed: BTreeSet<ObjectId>,
        together: &[(Seq, Seq)],
        store: &Store,
    ) -> Result<Seq, StoreError> {
        let is_missing = |id| async move {
            match store.find_object(id).await {
                // It has arrived, which is what is asked for.
                Err(StoreError::Corrupt { .. }) => Ok((id, false)),
                Ok(None) => Ok((id, store.give_up_object(id).await?)),
                found => found.map(|_| (id, false)),
            }
        };
        let mut looks = stream::iter(needed).map(is_missing).buffer_unordered(REQUESTS_MAX);
        let mut missing = BTreeSet::new();
        while let Some(look) = looks.next().await {
            let (id, is_missing) = look?;
            if is_missing {
                missing.insert(id);
            }
        }
        let (mut whole, mut waited_for) = (self.used, BTreeSet::new());
        for (of_objects, seq) in self.objects.iter().zip(self.used.0 + 1..) {
            for (id, is_needed) in of_objects.iter().filter(|(id, _)| missing.contains(id)) {
                if *is_needed {
                    waited_for.insert(*id)
                } else {
                    waited_for.remove(id)
                };
            }
            let is_between = together.iter().any(|(last, start)| last.0 < seq && seq < start.0);
            if waited_for.is_empty() && !is_between {
                whole = Seq(seq);
            }
        }
        Ok(whole)
    }
}
