//! Misses: one fetch of an object for all who wait for any of its segments.
//!
//! A fill is a task. Who misses adds what it needs to the fill of its object, or begins one, and waits for just that. What comes
//! is handed out first and written to the cache then; the fill ends when everything is in the cache, so that whoever comes
//! later finds it in one place or the other.

mod fill;

use super::{Counters, NodeError, NodeParts, set_of};
use crate::message::{Segment, Set};
use fill::{Fill, State};
use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use sluice_base::ObjectId;
use sluice_object::{ObjectTable, Store, StoreError, StoredObject};
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Semaphore;

/// Fills that run at once. Each holds at most an object, 4 MiB: 32 MiB.
pub(super) const FILLS_MAX: usize = 8;
/// Fills that run or wait: who finds more asks somebody else.
const FILLS_WAITING_MAX: usize = 256;
/// Runs of a fill that are fetched at once, when its table is known.
const RUNS_MAX: usize = 4;
/// An object of which so much was missed, more than once and within this time ([`Misses`]), is read all over: the rest of it is fetched.
const MISSES_WITHIN: Duration = Duration::from_secs(60);
/// A quarter, so that what is fetched is at most four times what was asked for: of 4 MiB 128 KiB for each segment that a reader missed.
const MISSED_SHARE: u32 = 4;
/// Or so many misses in order, each where the one before ended.
const IN_ORDER: u32 = 3;
/// Objects whose misses, or whose absent segments, are remembered.
const REMEMBERED_MAX: usize = 4096;

/// Somebody who may have segments that are missing here.
pub trait Elsewhere: Send + Sync + 'static {
    /// The segments, each one checked; `None` when they are not to be had there, soon.
    fn segments(&self, object: StoredObject, range: Range<u32>) -> BoxFuture<'_, Option<Vec<Segment>>>;
}

/// All fills of a node.
pub(super) struct Fills {
    parts: NodeParts,
    counters: Arc<Counters>,
    active: Mutex<HashMap<ObjectId, Arc<Fill>>>,
    misses: Mutex<HashMap<ObjectId, Misses>>,
    /// Segments without stored bytes, which no cache keeps.
    holes: Mutex<HashMap<ObjectId, Set>>,
    permits: Semaphore,
    begun: AtomicU64,
}

/// What was missed of an object.
#[derive(Clone, Copy, Default)]
struct Misses {
    since: Duration,
    segments: Set,
    /// Where the last one ended.
    end: u32,
    in_order: u32,
    count: u32,
}

impl Misses {
    /// Notes a miss.
    fn add(&mut self, missed: Set) {
        self.in_order = if missed.trailing_zeros() == self.end { self.in_order + 1 } else { 1 };
        self.end = Set::BITS - missed.leading_zeros();
        self.segments |= missed;
        self.count += 1;
    }

    /// Whether the rest of an object of `count` segments will be missed as well.
    fn is_all_over(&self, count: u32) -> bool {
        self.count > 1 && (self.segments.count_ones() >= count.div_ceil(MISSED_SHARE) || self.in_order >= IN_ORDER)
    }
}

impl Fills {
    pub(super) fn new(parts: NodeParts, counters: Arc<Counters>) -> Self {
        Self {
            parts,
            counters,
            active: Mutex::default(),
            misses: Mutex::default(),
            holes: Mutex::default(),
            permits: Semaphore::new(FILLS_MAX),
            begun: AtomicU64::new(0),
        }
    }

    /// Fills that were begun since the start, and those that have not ended.
    pub(super) fn counts(&self) -> (u64, usize) {
        (self.begun.load(Relaxed), self.active.lock().len())
    }

    pub(super) fn store(&self) -> &Store {
        &self.parts.store
    }

    /// Segments that are known to have no stored bytes.
    pub(super) fn holes(&self, object: ObjectId) -> Set {
        self.holes.lock().get(&object).copied().unwrap_or(0)
    }

    /// Brings the segments of `missing`. `None` when some of them have come into the cache since they were missed there, unless they are
    /// to be brought `anyway`.
    pub(super) async fn fetch(
        self: &Arc<Self>,
        object: StoredObject,
        missing: Set,
        anyway: bool,
    ) -> Result<Option<Vec<Segment>>, NodeError> {
        let Some(fill) = self.fill_of(object, missing, anyway)? else { return Ok(None) };
        let mut changed = fill.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if let Some(done) = fill.take(missing) {
                return done.map(Some);
            }
            if changed.changed().await.is_err() {
                return Err(NodeError::Store("the fetch ended".into()));
            }
        }
    }

    /// Brings what is missing of an object, and waits until it is in the cache. Returns the bytes that came.
    pub(super) async fn whole(self: &Arc<Self>, object: StoredObject) -> Result<u64, NodeError> {
        let wanted = |fills: &Self| fills.lacks(object) & !fills.holes(object.id());
        let missing = wanted(self);
        if missing == 0 {
            return Ok(0);
        }
        let Some(fill) = self.fill_of(object, missing, false)? else { return Ok(0) };
        let mut changed = fill.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if fill.has_ended() {
                break;
            }
            if changed.changed().await.is_err() {
                return Err(NodeError::Store("the fetch ended".into()));
            }
        }
        let came = match fill.take(missing) {
            Some(came) => came?,
            None => return Err(NodeError::Store("the fetch ended".into())),
        };
        if wanted(self) != 0 {
            return Err(NodeError::Store("the cache has no room for it".into()));
        }
        Ok(came.iter().map(|segment| segment.bytes.len() as u64).sum())
    }

    /// As [`Fills::absent`], for one who does not use the object.
    fn lacks(&self, object: StoredObject) -> Set {
        set_of(&(0..object.segment_count())) & !self.parts.cache.present(object.id())
    }

    /// The fill of an object, begun if there is none, with `missing` in its queue.
    fn fill_of(
        self: &Arc<Self>,
        object: StoredObject,
        missing: Set,
        anyway: bool,
    ) -> Result<Option<Arc<Fill>>, NodeError> {
        let mut active = self.active.lock();
        // A fill that has ended brought some of them.
        let has_come = |missing: Set| !anyway && missing & !self.absent(object) != 0;
        if let Some(fill) = active.get(&object.id()) {
            if fill.object != object {
                return Err(NodeError::Store("somebody else describes this object otherwise".into()));
            }
            let mut state = fill.state.lock();
            let new = missing & !state.wanted;
            if has_come(new) {
                return Ok(None);
            }
            if new != 0 {
                state.want(missing);
                if self.is_read_all_over(object, missing) {
                    self.want_rest(object, &mut state);
                }
            }
            drop(state);
            return Ok(Some(fill.clone()));
        }
        if has_come(missing) {
            return Ok(None);
        }
        if active.len() >= FILLS_WAITING_MAX {
            return Err(NodeError::Busy);
        }
        let fill = Arc::new(Fill::new(object));
        self.begun.fetch_add(1, Relaxed);
        let mut state = fill.state.lock();
        state.want(missing);
        if self.is_read_all_over(object, missing) {
            self.want_rest(object, &mut state);
        }
        drop(state);
        active.insert(object.id(), fill.clone());
        sluice_run::task::spawn(self.clone().run(fill.clone()));
        Ok(Some(fill))
    }

    /// Notes a miss; true when so much of the object was missed that the rest will be.
    fn is_read_all_over(&self, object: StoredObject, missed: Set) -> bool {
        let now = self.parts.clock.monotonic();
        let mut misses = self.misses.lock();
        let is_recent = |found: &Misses| now.saturating_sub(found.since) < MISSES_WITHIN;
        if misses.len() >= REMEMBERED_MAX {
            misses.retain(|_, found| is_recent(found));
        }
        if misses.len() >= REMEMBERED_MAX {
            misses.clear();
        }
        let found = misses.entry(object.id()).or_insert(Misses { since: now, ..Misses::default() });
        if !is_recent(found) {
            *found = Misses { since: now, ..Misses::default() };
        }
        found.add(missed);
        found.is_all_over(object.segment_count())
    }

    /// Everything of the object that is not here.
    fn want_rest(&self, object: StoredObject, state: &mut State) {
        state.want(self.absent(object) & !self.holes(object.id()));
    }

    /// Segments of an object that are not in the cache.
    fn absent(&self, object: StoredObject) -> Set {
        let count = object.segment_count();
        match self.parts.cache.pin(object.id()) {
            Some(pin) => pin.absent(0, count).into_iter().fold(0, |set, index| set | 1 << index),
            None => set_of(&(0..count)),
        }
    }

    async fn run(self: Arc<Self>, fill: Arc<Fill>) {
        // However this task ends, nobody waits for it in vain.
        let mut ending = Ending { fills: &self, fill: &fill, why: NodeError::Store("the fetch failed".into()) };
        let Ok(_permit) = self.permits.acquire().await else { return };
        let mut running = FuturesUnordered::new();
        let mut table: Option<Arc<ObjectTable>> = None;
        loop {
            let runs_max = if table.is_some() { RUNS_MAX } else { 1 };
            while running.len() < runs_max
                && let Some(range) = fill.next(table.is_some())
            {
                running.push(self.bring(&fill, range, table.clone()));
            }
            match running.next().await {
                Some(Ok(found)) => table = table.or(found),
                Some(Err(error)) => {
                    ending.why = error;
                    return;
                }
                None if self.is_done(&fill) => return,
                None => {}
            }
        }
    }

    /// Fetches a run, hands it out, and writes it to the cache.
    async fn bring(
        &self,
        fill: &Fill,
        range: Range<u32>,
        table: Option<Arc<ObjectTable>>,
    ) -> Result<Option<Arc<ObjectTable>>, NodeError> {
        let (segments, table) = self.get(fill.object, range, table).await?;
        let object = fill.object.id();
        let holes = segments.iter().filter(|segment| segment.bytes.is_empty());
        let holes = holes.fold(0, |set: Set, segment| set | 1 << segment.index);
        if holes != 0 {
            self.note_holes(object, holes);
        }
        fill.give(&segments);
        let cache = self.parts.cache.clone();
        let written = sluice_run::task::spawn_blocking(move || {
            for segment in segments.iter().filter(|segment| !segment.bytes.is_empty()) {
                if let Err(error) = cache.fill(object, segment.index, &segment.bytes, segment.crc) {
                    tracing::debug!(%object, %error, "not cached");
                    return;
                }
            }
        });
        let _ = written.await;
        Ok(table)
    }

    async fn get(
        &self,
        object: StoredObject,
        range: Range<u32>,
        table: Option<Arc<ObjectTable>>,
    ) -> Result<(Vec<Segment>, Option<Arc<ObjectTable>>), NodeError> {
        let bytes = |segments: &[Segment]| segments.iter().map(|segment| segment.bytes.len() as u64).sum();
        if let Some(elsewhere) = &self.parts.elsewhere
            && let Some(found) = elsewhere.segments(object, range.clone()).await
        {
            self.counters.moved_bytes.fetch_add(bytes(&found), Relaxed);
            return Ok((found, table));
        }
        let fetched =
            self.parts.store.read_segments(&object, table, range.clone()).await.map_err(|error| match error {
                StoreError::NotFound { .. } => NodeError::Gone,
                other => {
                    tracing::warn!(object = %object.id(), error = %other, "a read from the store failed");
                    NodeError::Store(other.to_string())
                }
            })?;
        let entries = &fetched.table.segments()[range.start as usize..range.end as usize];
        let segment = |((index, entry), bytes): ((u32, &sluice_object::SegmentEntry), _)| Segment {
            index,
            bytes,
            crc: entry.crc,
        };
        let found: Vec<_> = range.zip(entries).zip(fetched.segments).map(segment).collect();
        self.counters.filled_bytes.fetch_add(bytes(&found), Relaxed);
        Ok((found, Some(fetched.table)))
    }

    fn note_holes(&self, object: ObjectId, holes: Set) {
        let mut known = self.holes.lock();
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        *known.entry(object).or_default() |= holes;
    }

    /// Whether nobody has asked for more; then nobody finds the fill any more.
    fn is_done(&self, fill: &Fill) -> bool {
        let mut active = self.active.lock();
        let done = fill.state.lock().is_idle();
        if done {
            active.remove(&fill.object.id());
        }
        done
    }
}

struct Ending<'a> {
    fills: &'a Fills,
    fill: &'a Arc<Fill>,
    why: NodeError,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut active = self.fills.active.lock();
        if active.get(&self.fill.object.id()).is_some_and(|found| Arc::ptr_eq(found, self.fill)) {
            active.remove(&self.fill.object.id());
        }
        drop(active);
        self.fill.end(self.why.clone());
    }
}

#[cfg(test)]
mod tests;
