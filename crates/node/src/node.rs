//! A node: reads of segments, answered from the cache disk or, once for all who wait, from the store.
//!
//! **What memory has is answered at once** ([`Node::answer_now`]), on the thread that took the request; what the disk must be waited for is
//! brought into memory first, by a bounded number of threads that do nothing else. Nothing else waits for a disk, so
//! heartbeats and answers from memory do not either.
//!
//! **Whole segments are sent by the kernel, unread** ([`sluice_store::Region`]): the reader checks them, with CRCs that were kept apart
//! from them, and tells the node what failed ([`Node::check`]). So the bytes are looked at once on their way, where they are used.
//! Parts of segments are copied, from segments that were checked here since they came from the disk.

mod fills;
mod gather;
mod warm;

pub use fills::Elsewhere;

use crate::message::{self, Answer, CheckSegments, Numbers, Read, Set, indices};
use fills::Fills;
use gather::{Gather, Lack};
use sluice_base::{Clock, limits::SEGMENT_BYTES};
use sluice_object::{Store, StoreStats};
use sluice_store::{Cache, ScrubStatus};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::sync::Semaphore;

/// Reads that wait for the cache disk at once: what keeps an NVMe disk busy, and a thread each.
const READS_MAX: usize = 16;
/// Rounds of fetching what is missing and looking again. One is usual, and two where a slot is given away meanwhile.
const ROUNDS_MAX: usize = 8;

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
    /// These bytes were never stored.
    #[error("the object does not have these bytes")]
    Absent,
}

impl NodeError {
    /// For programs: `message::FAILED_*`.
    pub fn code(&self) -> u32 {
        match self {
            Self::NotHere => message::FAILED_NOT_HERE,
            Self::Busy => message::FAILED_BUSY,
            Self::Gone => message::FAILED_GONE,
            Self::Store(_) => message::FAILED_STORE,
            Self::Absent => message::FAILED_ABSENT,
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
    /// Objects that are brought before anybody reads them.
    warming: Semaphore,
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

impl Node {
    /// A node of these parts. Its methods are called on a runtime of tokio.
    pub fn new(parts: NodeParts) -> Self {
        let counters = Arc::new(Counters::default());
        let cache = parts.cache.clone();
        let fills = Arc::new(Fills::new(parts, counters.clone()));
        let warming = Semaphore::new(warm::WARMING_MAX);
        Self { cache, fills, reads: Semaphore::new(READS_MAX), warming, counters }
    }

    /// The answer, if memory has all of it. To be called on any thread: it waits for nothing.
    pub fn answer_now(&self, read: &Read) -> Option<Result<Answer, NodeError>> {
        let mut gather =
            Gather { cache: self.cache.clone(), read: read.clone(), fetched: Vec::new(), holes: 0, lost: 0 };
        let mut answer = gather.answer(false);
        if let Err(Lack::Missing(missing)) = answer {
            gather.holes = self.fills.holes(read.object().id());
            if missing & !gather.holes != 0 {
                return read.cached_only().then_some(Err(NodeError::NotHere));
            }
            answer = gather.answer(false);
        }
        let answer = match answer {
            Ok(answer) => Ok(answer),
            Err(Lack::Absent) => Err(NodeError::Absent),
            Err(Lack::Missing(_) | Lack::NotResident | Lack::Broken(_)) => return None,
        };
        self.counters.hits.fetch_add(1, Relaxed);
        self.count(&answer);
        Some(answer)
    }

    /// The answer, with what the disk must be waited for and what must be fetched. Whole segments are as the disk gives
    /// them: sound unless it is rotten.
    pub async fn answer(&self, read: &Read) -> Result<Answer, NodeError> {
        let answer = self.answer_uncounted(read).await;
        self.count(&answer);
        answer
    }

    fn count(&self, answer: &Result<Answer, NodeError>) {
        match answer {
            Ok(answer) => drop(self.counters.served_bytes.fetch_add(answer.len() as u64, Relaxed)),
            Err(NodeError::NotHere) => {}
            Err(_) => drop(self.counters.failures.fetch_add(1, Relaxed)),
        }
    }

    async fn answer_uncounted(&self, read: &Read) -> Result<Answer, NodeError> {
        let object = read.object();
        let holes = self.fills.holes(object.id());
        let mut gather = Gather { cache: self.cache.clone(), read: read.clone(), fetched: Vec::new(), holes, lost: 0 };
        let (mut is_hit, mut is_second) = (true, false);
        // Each round that fails has fetched some, or found that the disk lacks or loses some.
        for _ in 0..ROUNDS_MAX {
            let lack = match self.gathered(&mut gather).await {
                Ok(answer) => {
                    let counter = if is_hit { &self.counters.hits } else { &self.counters.misses };
                    counter.fetch_add(1, Relaxed);
                    return Ok(answer);
                }
                Err(lack) => lack,
            };
            let missing = match lack {
                Lack::Missing(missing) => missing,
                Lack::Broken(lost) => {
                    gather.lost |= lost;
                    continue;
                }
                Lack::Absent => return Err(NodeError::Absent),
                Lack::NotResident => return Err(NodeError::Busy),
            };
            if read.cached_only() {
                return Err(NodeError::NotHere);
            }
            match self.fills.fetch(object, missing, is_second || missing & gather.lost != 0).await? {
                Some(found) => {
                    gather.fetched.extend(found);
                    is_hit = false;
                }
                None => is_second = true,
            }
            gather.holes = self.fills.holes(object.id());
        }
        Err(NodeError::Store("its cache loses the object while it is read".into()))
    }

    /// What `gather` comes to, on a thread that may wait for the disk if it must be waited for.
    async fn gathered(&self, gather: &mut Gather) -> Result<Answer, Lack> {
        match gather.answer(false) {
            Err(Lack::NotResident) => {}
            done => return done,
        }
        let Ok(_turn) = self.reads.acquire().await else { return Err(Lack::NotResident) };
        let gather = gather.clone();
        let answer = sluice_run::task::spawn_blocking(move || gather.answer(true));
        answer.await.unwrap_or(Err(Lack::NotResident))
    }

    /// Reads segments that failed a reader's check, and gives up the slot of those that fail it here too. Returns these.
    pub async fn check(&self, check: CheckSegments) -> Set {
        let Ok(_turn) = self.reads.acquire().await else { return 0 };
        let cache = self.cache.clone();
        sluice_run::task::spawn_blocking(move || check_present(&cache, check)).await.unwrap_or(0)
    }

    /// Counts since the start, and sizes.
    pub fn numbers(&self) -> Numbers {
        let (cache, counters) = (self.cache.stats(), &self.counters);
        let scrub = self.cache.scrub_status();
        let permille = |scrub: &ScrubStatus| u64::from(scrub.slots_done) * 1000 / u64::from(scrub.slots).max(1);
        Numbers {
            used_bytes: cache.clean_bytes,
            hits: counters.hits.load(Relaxed),
            misses: counters.misses.load(Relaxed),
            failures: counters.failures.load(Relaxed),
            served_bytes: counters.served_bytes.load(Relaxed),
            filled_bytes: counters.filled_bytes.load(Relaxed),
            moved_bytes: counters.moved_bytes.load(Relaxed),
            corrupt_segments: cache.corrupt_segments,
            scrub_permille: scrub.as_ref().map_or(0, permille),
            rotten_segments: scrub.as_ref().map_or(0, ScrubStatus::rotten),
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
