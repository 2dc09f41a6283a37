//! A node: reads of segments, answered from the cache disk or, once for all who wait, from the store.
//!
//! Nothing that touches a disk runs on the threads of the runtime, so that heartbeats and answers from memory never wait for one.
//!
//! **What is on the disk is not checked here before it is sent**: the reader checks it, with CRCs that were kept apart from it, and
//! tells the node what failed ([`Node::check`]). So the bytes are looked at once on their way, where they are used.

mod fills;

pub use fills::Elsewhere;

use crate::message::{self, CheckSegments, Numbers, ReadSegments, Segment, Set, indices};
use bytes::Bytes;
use fills::Fills;
use sluice_base::{Clock, ObjectId, Pages, limits::SEGMENT_BYTES};
use sluice_object::{Store, StoreStats};
use sluice_run::Bug;
use sluice_store::{Cache, Pin, ReadError};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::sync::Semaphore;

/// Reads of the cache disk at once, each with at most 4 MiB for its answer: 64 MiB. What waits to be sent is bounded by its lane.
const READS_MAX: usize = 16;
/// Buffers for answers that are kept for the next ones: what four readers of 1 MiB have under way.
const IDLE_BYTES_MAX: usize = 8 << 20;

/// Why a read has no answer. The reader asks the next owner, or the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// Only what is cached was asked for.
    #[error("not cached here")]
    NotHere,
    /// As many fetches as may be are waiting.
    #[error("too much is being fetched already")]
    Busy,
    /// The store does not have the object.
    #[error("the object is not in the store")]
    Gone,
    /// The store did not give it.
    #[error("{0}")]
    Store(String),
}

impl NodeError {
    /// For programs: `message::FAILED_*`.
    pub fn code(&self) -> u32 {
        match self {
            Self::NotHere => message::FAILED_NOT_HERE,
            Self::Busy => message::FAILED_BUSY,
            Self::Gone => message::FAILED_GONE,
            Self::Store(_) => message::FAILED_STORE,
        }
    }
}

/// What a [`Node`] is made of.
pub struct NodeParts {
    /// Its disk.
    pub cache: Cache,
    /// Where misses go.
    pub store: Store,
    /// Who may have what is missing, before the store is asked.
    pub elsewhere: Option<Arc<dyn Elsewhere>>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// See the module.
pub struct Node {
    cache: Cache,
    fills: Arc<Fills>,
    reads: Semaphore,
    pages: Arc<Pages>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    failures: AtomicU64,
    served_bytes: AtomicU64,
    filled_bytes: AtomicU64,
    moved_bytes: AtomicU64,
}

fn set_of(range: &Range<u32>) -> Set {
    range.clone().fold(0, |set, index| set | 1 << index)
}

fn known(segments: &[Segment]) -> Set {
    segments.iter().fold(0, |set, segment| set | 1 << segment.index)
}

impl Node {
    /// A node of these parts. Its methods are called on a runtime of tokio.
    pub fn new(parts: NodeParts) -> Self {
        let counters = Arc::new(Counters::default());
        let cache = parts.cache.clone();
        let fills = Arc::new(Fills::new(parts, counters.clone()));
        let (reads, pages) = (Semaphore::new(READS_MAX), Pages::new(IDLE_BYTES_MAX));
        Self { cache, fills, reads, pages, counters }
    }

    /// The segments asked for, in their order. Those from the disk are as it gives them: sound unless it is rotten.
    pub async fn read(&self, ask: &ReadSegments) -> Result<Vec<Segment>, NodeError> {
        let outcome = self.read_uncounted(ask).await;
        match &outcome {
            Ok(segments) => {
                let bytes: usize = segments.iter().map(|segment| segment.bytes.len()).sum();
                self.counters.served_bytes.fetch_add(bytes as u64, Relaxed);
            }
            Err(NodeError::NotHere) => {}
            Err(_) => drop(self.counters.failures.fetch_add(1, Relaxed)),
        }
        outcome
    }

    async fn read_uncounted(&self, ask: &ReadSegments) -> Result<Vec<Segment>, NodeError> {
        let object = ask.object.id();
        let mut is_second = false;
        let mut segments = loop {
            let mut segments = self.cached(object, ask.range.clone()).await;
            let missing = set_of(&ask.range) & !known(&segments) & !self.fills.holes(object);
            if missing == 0 || Bug::MissIsAbsent.is_planted() {
                self.counters.hits.fetch_add(1, Relaxed);
                break segments;
            }
            if ask.cached_only {
                return Err(NodeError::NotHere);
            }
            if let Some(found) = self.fills.fetch(ask.object, missing, is_second).await? {
                self.counters.misses.fetch_add(1, Relaxed);
                segments.extend(found);
                break segments;
            }
            is_second = true;
        };
        let holes = set_of(&ask.range) & !known(&segments);
        segments.extend(ask.range.clone().filter(|index| holes >> index & 1 != 0).map(Segment::absent));
        segments.sort_unstable_by_key(|segment| segment.index);
        Ok(segments)
    }

    /// Reads segments that failed a reader's check, and gives up the slot of those that fail it here too. Returns these.
    pub async fn check(&self, check: CheckSegments) -> Set {
        let Ok(_turn) = self.reads.acquire().await else { return 0 };
        let cache = self.cache.clone();
        sluice_run::task::spawn_blocking(move || check_present(&cache, check)).await.unwrap_or(0)
    }

    /// Those that are on the disk.
    async fn cached(&self, object: ObjectId, range: Range<u32>) -> Vec<Segment> {
        let Some(pin) = self.cache.pin(object) else { return Vec::new() };
        if pin.absent(range.start, range.len() as u32).len() == range.len() {
            return Vec::new();
        }
        let Ok(_turn) = self.reads.acquire().await else { return Vec::new() };
        let (cache, pages) = (self.cache.clone(), self.pages.clone());
        let read = sluice_run::task::spawn_blocking(move || read_present(&cache, &pages, pin, range));
        read.await.unwrap_or_default()
    }

    /// Counts since the start, and sizes.
    pub fn numbers(&self) -> Numbers {
        let (cache, counters) = (self.cache.stats(), &self.counters);
        Numbers {
            used_bytes: cache.clean_bytes,
            hits: counters.hits.load(Relaxed),
            misses: counters.misses.load(Relaxed),
            failures: counters.failures.load(Relaxed),
            served_bytes: counters.served_bytes.load(Relaxed),
            filled_bytes: counters.filled_bytes.load(Relaxed),
            moved_bytes: counters.moved_bytes.load(Relaxed),
            corrupt_segments: cache.corrupt_segments,
        }
    }

    /// Fetches that were begun since the start, and those that have not ended.
    pub fn fills(&self) -> (u64, usize) {
        self.fills.counts()
    }

    /// What the store was asked.
    pub fn store_stats(&self) -> StoreStats {
        self.fills.store().stats()
    }

    /// The disk.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }
}

/// Reads the runs of present segments. One that the disk does not give counts as missing.
fn read_present(cache: &Cache, pages: &Arc<Pages>, pin: Pin, range: Range<u32>) -> Vec<Segment> {
    let object = pin.object();
    let mut found = Vec::with_capacity(range.len());
    for run in present_runs(&pin, range) {
        let lens: Vec<usize> = run.clone().map(|index| pin.sum(index).len as usize).collect();
        let mut page = pages.take(lens.iter().sum());
        if let Err(error) = pin.read_unchecked(run.start, page.as_mut()) {
            tracing::warn!(%object, %error, "a cached segment cannot be read");
            if let ReadError::Corrupt { index } = error {
                cache.retire(object, index);
            }
            continue;
        }
        let mut bytes = Bytes::from_owner(page);
        found.extend(run.zip(lens).map(|(index, len)| Segment {
            index,
            bytes: bytes.split_to(len),
            crc: pin.sum(index).crc,
        }));
    }
    found
}

fn check_present(cache: &Cache, check: CheckSegments) -> Set {
    let object = check.object;
    let Some(pin) = cache.pin(object) else { return 0 };
    let (mut damaged, mut buf) = (0, vec![0; SEGMENT_BYTES]);
    for index in indices(check.segments).filter(|index| pin.has(*index, 1)) {
        let segment = &mut buf[..pin.sum(index).len as usize];
        if let Err(error) = pin.read_at(index * SEGMENT_BYTES as u32, segment) {
            tracing::warn!(%object, %error, "a segment has rotted on the cache's disk");
            damaged |= 1 << index;
        }
    }
    drop(pin);
    indices(damaged).for_each(|index| cache.retire(object, index));
    damaged
}

/// Runs of present segments that lie behind each other without a gap: only the last of each may be short.
fn present_runs(pin: &Pin, range: Range<u32>) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for index in range.filter(|index| pin.has(*index, 1)) {
        match runs.last_mut() {
            Some(run) if run.end == index && pin.sum(index - 1).len as usize == SEGMENT_BYTES => run.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}
