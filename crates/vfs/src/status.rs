//! What a running volume can tell of itself.

use crate::{Durability, Failure, Vfs, ahead::MemoryStatus, direct::DirectCounts, error::errno, gc::GcStatus};
use serde::{Deserialize, Serialize};
use sluice_base::Errno;
use sluice_object::{Store, StoreStats};
use sluice_store::{Cache, CacheStats, ScrubCounts, ScrubStatus};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the start.
#[derive(Default)]
pub(crate) struct Counters {
    pub read_cached: AtomicU64,
    pub read_stored: AtomicU64,
    pub written: AtomicU64,
    pub uploaded: AtomicU64,
    pub upload_errors: AtomicU64,
    pub fetches: AtomicU64,
    pub group_fetches: AtomicU64,
}

/// Numbers of a running volume; bytes unless the name says otherwise.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Status {
    pub tier: &'static str,
    pub inodes: Option<u64>,
    pub held_bytes: Option<u64>,
    pub dirty_objects: usize,
    pub dirty_bytes: u64,
    /// Operations that wait for an upload to make room.
    pub waiting_writes: usize,
    pub read_cached_bytes: u64,
    pub read_stored_bytes: u64,
    pub written_bytes: u64,
    pub uploaded_bytes: u64,
    pub upload_errors: u64,
    pub fetches: u64,
    pub group_fetches: u64,
    /// What was read on the threads that took the requests.
    pub direct: DirectCounts,
    pub open_files: usize,
    pub memory: MemoryStatus,
    pub journal: JournalStatus,
    pub cache: Option<CacheStatus>,
    pub store: StoreStatus,
    /// Where this process collects the garbage.
    pub gc: Option<GcStatus>,
    /// Why metadata is not being checkpointed, when it is not.
    pub trouble: Option<String>,
}

/// The log.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct JournalStatus {
    pub capacity_bytes: u64,
    /// Limit of `used_bytes` for file data; behind it, writes wait for the store.
    pub data_capacity_bytes: u64,
    pub used_bytes: u64,
    pub written_seq: u64,
    pub synced_seq: u64,
    pub checkpointed_seq: u64,
}

/// The cache disk.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CacheStatus {
    pub state: String,
    pub capacity_bytes: u64,
    pub clean_bytes: u64,
    pub dirty_bytes: u64,
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    pub corrupt_segments: u64,
    pub io_errors: u64,
    pub scrub: Option<ScrubNumbers>,
}

/// What the scrubber of a cache has done and found; times in seconds of the wall clock, 0 for never.
#[derive(Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ScrubNumbers {
    pub running: bool,
    pub rate_bytes_per_s: u64,
    pub slots_done: u32,
    pub slots: u32,
    pub passes: u32,
    pub began_secs: u64,
    pub ended_secs: u64,
    /// Bad segments were so many that the disk should be replaced.
    pub rotting: bool,
    /// Of the pass under way, or the latest.
    pub pass: ScrubFound,
    /// Of the last pass that was completed.
    pub last: ScrubFound,
}

/// What a pass has looked at and found.
#[derive(Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ScrubFound {
    pub segments: u64,
    pub bytes: u64,
    pub bad_segments: u64,
    pub unreadable_segments: u64,
    pub stale_slots: u64,
}

impl From<ScrubCounts> for ScrubFound {
    fn from(counts: ScrubCounts) -> Self {
        let ScrubCounts { segments, bytes, bad_segments, unreadable_segments, stale_slots } = counts;
        Self { segments, bytes, bad_segments, unreadable_segments, stale_slots }
    }
}

impl From<ScrubStatus> for ScrubNumbers {
    fn from(status: ScrubStatus) -> Self {
        Self {
            running: status.running,
            rate_bytes_per_s: status.rate,
            slots_done: status.slots_done,
            slots: status.slots,
            passes: status.passes,
            began_secs: status.began_secs,
            ended_secs: status.ended_secs,
            rotting: status.is_rotting(),
            pass: status.counts.into(),
            last: status.last.into(),
        }
    }
}

impl CacheStatus {
    /// The numbers of now.
    pub fn of(cache: &Cache) -> Self {
        let stats = cache.stats();
        Self {
            state: format!("{:?}", stats.state).to_lowercase(),
            capacity_bytes: stats.capacity_bytes,
            clean_bytes: stats.clean_bytes,
            dirty_bytes: stats.dirty_bytes,
            hits: stats.hits,
            misses: stats.misses,
            evictions: stats.evictions,
            corrupt_segments: stats.corrupt_segments,
            io_errors: stats.io_errors,
            scrub: cache.scrub_status().map(ScrubNumbers::from),
        }
    }
}

/// Requests to the object store.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct StoreStatus {
    pub place: String,
    pub puts: u64,
    pub gets: u64,
    pub deletes: u64,
    pub other: u64,
    pub retries: u64,
    pub errors: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl StoreStatus {
    fn of(place: &str, stats: &StoreStats) -> Self {
        use sluice_object::backend::RequestKind as Kind;
        let all = || Kind::ALL.iter().map(|kind| stats.of(*kind));
        let (puts, gets, deletes) = (stats.of(Kind::Put), stats.of(Kind::Get), stats.of(Kind::Delete));
        Self {
            place: place.to_string(),
            puts: puts.requests,
            gets: gets.requests,
            deletes: deletes.requests,
            other: all().map(|kind| kind.requests).sum::<u64>() - puts.requests - gets.requests - deletes.requests,
            retries: all().map(|kind| kind.retries).sum(),
            errors: all().map(|kind| kind.errors).sum(),
            sent_bytes: stats.sent_bytes,
            received_bytes: stats.received_bytes,
        }
    }
}

impl Vfs {
    /// The numbers of now.
    pub fn status(&self) -> Result<Status, Errno> {
        // Numbers that are with a server are not waited for.
        let usage = match self.namespace().usage() {
            Err(sluice_meta::Error::Away) => None,
            found => Some(found.map_err(|error| errno(&error))?),
        };
        let (dirty_objects, dirty_bytes) = self.dirty.totals();
        let journal = self.parts.journal.usage();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        Ok(Status {
            tier: self.settings.durability.name(),
            inodes: usage.map(|usage| usage.inodes.max(0) as u64),
            held_bytes: usage.map(|usage| usage.bytes.max(0) as u64),
            dirty_objects,
            dirty_bytes,
            waiting_writes: self.waiting.load(Ordering::Relaxed),
            read_cached_bytes: read(&c.read_cached) + self.direct.counts().bytes,
            read_stored_bytes: read(&c.read_stored) + self.direct.counts().far_bytes,
            written_bytes: read(&c.written),
            uploaded_bytes: read(&c.uploaded),
            upload_errors: read(&c.upload_errors),
            fetches: read(&c.fetches),
            group_fetches: read(&c.group_fetches) + self.direct.counts().far_reads,
            direct: self.direct.counts(),
            open_files: self.files.len(),
            memory: self.ahead.status(),
            journal: JournalStatus {
                capacity_bytes: journal.capacity_bytes,
                data_capacity_bytes: journal.data_capacity_bytes,
                used_bytes: journal.used_bytes,
                written_seq: self.parts.journal.written().0,
                synced_seq: self.parts.journal.synced().0,
                checkpointed_seq: self.namespace().settled().0,
            },
            cache: self.parts.cache.as_deref().map(|cache| {
                let found = CacheStatus::of(cache);
                CacheStatus { hits: found.hits + self.direct.counts().pins, ..found }
            }),
            store: StoreStatus::of(self.parts.store.place(), &self.parts.store.stats()),
            gc: self.gc.lock().as_ref().map(|gc| gc.status()),
            trouble: self.namespace().trouble(),
        })
    }

    /// Whether the journal's disk has no room for `bytes` more. Asks the disk.
    pub fn journal_disk_is_full(&self, bytes: u64) -> bool {
        self.parts.journal.disk_is_full(bytes)
    }

    /// What the store was asked, by kind.
    pub fn store_stats(&self) -> StoreStats {
        self.parts.store.stats()
    }

    /// The cache disk, if there is one.
    pub fn cache_stats(&self) -> Option<CacheStats> {
        let stats = self.parts.cache.as_ref()?.stats();
        Some(CacheStats { hits: stats.hits + self.direct.counts().pins, ..stats })
    }

    /// The object store.
    pub fn store(&self) -> Store {
        (*self.parts.store).clone()
    }

    /// The cache disk itself.
    pub fn cache(&self) -> Option<&Cache> {
        self.parts.cache.as_deref()
    }

    /// Whether syncs wait for the store.
    pub fn waits_for_store(&self) -> bool {
        matches!(self.settings.durability, Durability::Object(_))
    }

    /// Objects and bytes that are not stored yet.
    pub fn dirty_totals(&self) -> (usize, u64) {
        self.dirty.totals()
    }

    /// Bytes and inodes in use, for statfs.
    pub fn usage(&self) -> Result<(u64, u64), Failure> {
        let usage = self.namespace().usage()?;
        Ok((usage.bytes.max(0) as u64, usage.inodes.max(0) as u64))
    }
}
