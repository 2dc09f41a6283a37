//! Read-ahead, and the memory that a mount keeps for reads.
//!
//! Each handle's reads are watched by its [`Pattern`], which says what will be asked for next. What the [`Pace`] and the [`Budget`]
//! then allow is fetched in requests of at most a megabyte, by tasks that nobody waits for, into the [`Pool`], where the reads find it: on
//! the reactor when it has come, else as somebody who waits for it with the others. How much of it was in vain decides how far ahead
//! the next ones go.

mod budget;
mod hot;
mod pace;
mod pattern;
mod pool;

pub(crate) use budget::{Budget, Room, Share};
pub(crate) use pool::{Claim, Fetched, Part, Turn};

use crate::{Vfs, dirty::memory_of_reads, files::FileState, handles::FileHandle, read::segments};
use futures::{StreamExt, stream::FuturesUnordered};
use hot::Hot;
use pace::{Pace, weighed};
use pattern::{Limits, Pattern, Wanted};
use pool::{Counts, Owner, Pool};
use serde::Serialize;
use sluice_base::limits::SEGMENT_BYTES;
use sluice_meta::extent::{Extent, Place};
use sluice_object::StoredObject;
use sluice_run::lock::Mutex;
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, SemaphorePermit};

/// How far a stream may be ahead, in percent of what it has read, if nothing was ever read ahead in vain, and at least.
const OF_READ_PERCENT: (u64, u64) = (200, 25);
/// What was used and what was in vain are weighed against each other by so many bytes at a time.
const LOOK_BYTES: u64 = 16 << 20;
/// What was read ahead and not read for this long makes room for others that want some...
const STALE_WHEN_SHORT: Duration = Duration::from_secs(5);
/// ... and after this long in any case: a player takes a minute for the window of a film.
const STALE: Duration = Duration::from_secs(60);
/// How often that is looked for by those who read what was read ahead.
const SWEEP: Duration = Duration::from_secs(1);
/// The smallest request whose time says something of the way.
const TIMED_BYTES_MIN: usize = 128 << 10;

/// The part of the memory for reads that is kept for those that wait for the cache disk alone...
const COLD_SHARE: u64 = 16;
/// ... and at most so much: three of the largest reads.
const COLD_BYTES_MAX: u64 = 4 << 20;

/// What other hosts answer within this time is near: the threads that take requests get it as soon by themselves, and to fetch it before it
/// is asked for costs more than it gives. It is four times what their own lanes take, within these bounds.
const NEAR: (Duration, Duration) = (Duration::from_millis(3), Duration::from_millis(20));

/// The reads of an open file.
#[derive(Default)]
pub(crate) struct Reads {
    pattern: Mutex<Pattern>,
    owner: Arc<Owner>,
    hot: Hot,
}

impl Reads {
    /// A thread answered this read by itself.
    pub(crate) fn note_hot(&self, read: Range<u64>) {
        self.hot.note(read);
    }

    /// Whether some of these bytes may be in the pool because this handle's reads were followed: who reads them tells. No lock.
    pub(crate) fn is_ahead(&self, read: &Range<u64>) -> bool {
        self.owner.has_some() && self.hot.is_ahead(read)
    }
}

/// A read, as it went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Went {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// It goes to its program without the page cache.
    pub(crate) direct: bool,
    /// Its bytes were not at hand.
    pub(crate) late: bool,
}

/// What is read ahead, and the memory of all reads.
pub(crate) struct Ahead {
    pub(crate) pool: Arc<Pool>,
    budget: Budget,
    /// Of reads that wait for the cache disk, when the rest is taken: theirs end whatever becomes of the store.
    cold: Budget,
    pace: Pace,
    /// In percent of what a stream has read.
    of_read: AtomicU64,
    /// Bytes used and in vain, at the last look.
    looked: Mutex<(u64, u64)>,
    /// When what is stale was dropped last, in milliseconds.
    swept: AtomicU64,
    refused: AtomicU64,
    /// The upload that needs no room.
    upload: Semaphore,
    /// What an answer over the lanes of threads took lately, in microseconds.
    lanes_took: AtomicU64,
}

/// Memory for reads, and read-ahead; bytes unless the name says otherwise.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct MemoryStatus {
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub ahead_bytes: u64,
    pub ahead_used_bytes: u64,
    pub ahead_useless_bytes: u64,
    /// Requests that were not made ahead, for lack of memory or because the way was busy.
    pub ahead_refused: u64,
    /// How much may be under way, and is: a byte of a buffered read counts twice.
    pub pace_limit_bytes: u64,
    pub pace_used_bytes: u64,
}

/// What is counted as under way until this is dropped.
pub(crate) struct UnderWay<'a> {
    pace: &'a Pace,
    weight: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.pace.end(self.weight);
    }
}

impl Ahead {
    /// Of a mount with so much memory, and with a cache disk or without.
    pub(crate) fn new(memory_bytes: u64, has_cache: bool) -> Self {
        let all = memory_of_reads(memory_bytes).saturating_sub(idle_bytes(memory_bytes));
        let cold = if has_cache { (all / COLD_SHARE).min(COLD_BYTES_MAX) } else { 0 };
        let bytes = all - cold;
        Self {
            pool: Arc::default(),
            budget: Budget::new(bytes),
            cold: Budget::new(cold),
            pace: Pace::new(2 * bytes),
            of_read: AtomicU64::new(OF_READ_PERCENT.0),
            looked: Mutex::default(),
            swept: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            upload: Semaphore::new(1),
            lanes_took: AtomicU64::new(0),
        }
    }

    /// Nobody reads by this handle any more.
    pub(crate) fn close(&self, reads: &Reads) {
        self.pool.close(&reads.owner);
    }

    /// Room for the answer to a read, when there is some: before it is waited for, what was read ahead makes some.
    pub(crate) async fn room(&self, bytes: usize) -> Option<Room> {
        match self.room_now(bytes) {
            Some(room) => Some(room),
            None => self.budget.take(bytes).await,
        }
    }

    /// Room for the answer to a read that waits for nothing but the cache disk: when there is none, it waits for others of its kind, and
    /// not behind those that wait for other hosts or the store.
    pub(crate) async fn room_of_cold(&self, bytes: usize) -> Option<Room> {
        match self.room_now(bytes) {
            Some(room) => Some(room),
            None => self.cold.take(bytes).await,
        }
    }

    fn room_now(&self, bytes: usize) -> Option<Room> {
        let mut taken = self.budget.try_take(bytes);
        if taken.is_none() {
            self.pool.evict(|| {
                taken = self.budget.try_take(bytes);
                taken.is_none()
            });
        }
        taken
    }

    /// For a thread that asks other hosts by itself.
    pub(crate) fn share(&self) -> Share {
        self.budget.share()
    }

    /// Room for what a warm-up brings, which leaves the last quarter to readers: none, as long as they have the rest. What was read ahead
    /// and not read for a while makes some.
    pub(crate) fn room_to_warm(&self, bytes: usize, now: Duration) -> Option<Room> {
        let room = self.budget.try_take_ahead(bytes);
        room.or_else(|| {
            self.pool.drop_older(now.saturating_sub(STALE_WHEN_SHORT));
            self.budget.try_take_ahead(bytes)
        })
    }

    /// Room for an object on its way to the store, when there is some. One at a time has its own: what takes the mount's memory may wait
    /// for it.
    pub(crate) async fn room_to_upload(&self, bytes: usize) -> (Option<Room>, Option<SemaphorePermit<'_>>) {
        tokio::select! {
            biased;
            room = self.room(bytes) => (room, None),
            turn = self.upload.acquire() => (None, turn.ok()),
        }
    }

    /// Room for a write that waits, nobody knows how long, and is here already. Where there is none it goes uncounted: it cannot be
    /// given back to its program.
    pub(crate) fn room_of_write(&self, bytes: usize) -> Option<Room> {
        let mut taken = self.budget.try_take_ahead(bytes);
        if taken.is_none() {
            self.pool.evict(|| {
                taken = self.budget.try_take_ahead(bytes);
                taken.is_none()
            });
        }
        taken.or_else(|| self.budget.try_take_ahead(bytes))
    }

    /// Room for bytes that were fetched for somebody and are kept for the next reads, if there is some.
    pub(crate) fn room_to_keep(&self, bytes: usize) -> Option<Room> {
        self.budget.try_take_ahead(bytes)
    }

    /// Somebody waits for this.
    pub(crate) fn waits(&self, bytes: usize, direct: bool) -> UnderWay<'_> {
        let weight = weighed(bytes, direct);
        self.pace.begin(weight);
        UnderWay { pace: &self.pace, weight }
    }

    /// An answer over a thread's own lanes took so long.
    pub(crate) fn note_lane(&self, took: Duration) {
        let (before, now) = (self.lanes_took.load(Relaxed), took.as_micros() as u64);
        // Of two threads at once one is lost: it is an average.
        self.lanes_took.store(if before == 0 { now } else { (7 * before + now) / 8 }, Relaxed);
    }

    /// What is answered within this time is near; `None` as long as no lane has answered.
    pub(crate) fn near(&self) -> Option<Duration> {
        let took = self.lanes_took.load(Relaxed);
        (took > 0).then(|| Duration::from_micros(4 * took).clamp(NEAR.0, NEAR.1))
    }

    fn limits(&self) -> Limits {
        // Each reader its share.
        let window_max = (self.budget.bytes() / 4 * 3 / self.pool.owners().max(1)) as u64;
        Limits { window_max, of_read_percent: self.of_read.load(Relaxed) }
    }

    /// Room for what nobody waits for, and leave to fetch it.
    fn admit(&self, bytes: usize, direct: bool, now: Duration) -> Option<(Room, u64)> {
        let weight = weighed(bytes, direct);
        let room = || {
            let room = self.budget.try_take_ahead(bytes);
            room.or_else(|| {
                self.pool.drop_older(now.saturating_sub(STALE_WHEN_SHORT));
                self.budget.try_take_ahead(bytes)
            })
        };
        let admitted = if self.pace.try_begin(weight) {
            let room = room();
            if room.is_none() {
                self.pace.end(weight);
            }
            room
        } else {
            None
        };
        if admitted.is_none() {
            self.refused.fetch_add(1, Relaxed);
        }
        admitted.map(|room| (room, weight))
    }

    /// Drops what is stale, once in a while.
    fn sweep(&self, now: Duration) {
        let (before, now_ms) = (self.swept.load(Relaxed), now.as_millis() as u64);
        if now_ms.saturating_sub(before) >= SWEEP.as_millis() as u64
            && self.swept.compare_exchange(before, now_ms, Relaxed, Relaxed).is_ok()
        {
            self.pool.drop_older(now.saturating_sub(STALE));
        }
    }

    /// What was in vain makes the next ones more careful.
    fn look_back(&self) {
        let Counts { used, useless, .. } = &self.pool.counts;
        let (used, useless) = (used.load(Relaxed), useless.load(Relaxed));
        let mut looked = self.looked.lock();
        let (good, bad) = (used - looked.0.min(used), useless - looked.1.min(useless));
        if good + bad < LOOK_BYTES {
            return;
        }
        *looked = (used, useless);
        let (most, least) = OF_READ_PERCENT;
        let now = (most * good / (good + bad) * good / (good + bad)).max(least);
        self.of_read.store((self.of_read.load(Relaxed) + now) / 2, Relaxed);
    }

    pub(crate) fn status(&self) -> MemoryStatus {
        let counts = &self.pool.counts;
        let (pace_limit_bytes, pace_used_bytes) = self.pace.now();
        MemoryStatus {
            capacity_bytes: (self.budget.bytes() + self.cold.bytes()) as u64,
            used_bytes: (self.budget.taken_bytes() + self.cold.taken_bytes()) as u64,
            ahead_bytes: counts.ahead.load(Relaxed),
            ahead_used_bytes: counts.used.load(Relaxed),
            ahead_useless_bytes: counts.useless.load(Relaxed),
            ahead_refused: self.refused.load(Relaxed),
            pace_limit_bytes,
            pace_used_bytes,
        }
    }
}

/// Of a mount's memory what idle buffers for the answers of nodes may take.
pub fn idle_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / 16).min(16 << 20)
}

impl Vfs {
    /// Notes a read, and fetches what it will be followed by.
    pub(crate) fn read_ahead(self: &Arc<Self>, open: &FileHandle, went: Went) {
        let (ahead, reads) = (&self.ahead, &open.reads);
        if reads.owner.has_some() {
            ahead.sweep(self.parts.clock.monotonic());
        }
        let mut pattern = reads.pattern.lock();
        if let Some(run) = reads.hot.take(went.offset, went.len as u64) {
            pattern.handle_run(run, went.len as u64);
        }
        if reads.owner.take_useless() {
            pattern.handle_useless();
        }
        let wanted = pattern.handle_read(went.offset, went.len as u64, went.late, &ahead.limits());
        // The pattern has it as refused, so that it goes on from there if the next ones have to wait.
        if let Some(wanted) = wanted
            && !went.late
            && reads.owner.is_near()
        {
            pattern.handle_refused(&wanted, 0);
            return;
        }
        let Some(wanted) = wanted else { return };
        let taken = self.begin_ahead(open, &wanted, went.direct);
        if taken < wanted.bytes() {
            pattern.handle_refused(&wanted, taken);
        }
        drop(pattern);
        ahead.look_back();
    }

    /// Begins to fetch what is wanted, in its order; gives how many bytes of it.
    fn begin_ahead(self: &Arc<Self>, open: &FileHandle, wanted: &Wanted, direct: bool) -> u64 {
        let shape = open.file.fresh(|data| data.shape);
        let size = shape.map_or(u64::MAX, |shape| if shape.extents { shape.size } else { 0 });
        let now = self.parts.clock.monotonic();
        self.ahead.pool.drop_older(now.saturating_sub(STALE));
        let mut taken = 0;
        for piece in wanted.pieces() {
            let part = piece.start..piece.end.min(size);
            if part.is_empty() {
                break;
            }
            let Some((room, weight)) = self.ahead.admit((part.end - part.start) as usize, direct, now) else { break };
            taken += piece.end - piece.start;
            let reads = &open.reads;
            // Tasks that have not begun have it too.
            reads.hot.begin_ahead(&part, Arc::strong_count(&reads.owner) == 1);
            let (vfs, file, owner) = (self.clone(), open.file.clone(), reads.owner.clone());
            self.parts.runtime.spawn(async move {
                let _under_way = UnderWay { pace: &vfs.ahead.pace, weight };
                vfs.fetch_ahead(&file, part, &owner, room, weight).await;
            });
        }
        taken
    }

    /// Fetches a part of a file into the pool. What fails is left to whoever asks for it.
    async fn fetch_ahead(
        self: &Arc<Self>,
        file: &Arc<FileState>,
        part: Range<u64>,
        owner: &Arc<Owner>,
        mut room: Room,
        weight: u64,
    ) {
        let now = self.parts.clock.monotonic();
        let wait = self.ahead.pace.departs(weight, now).saturating_sub(now);
        // What the runtime's clock tells apart.
        if wait >= Duration::from_millis(1) {
            sluice_run::time::sleep(wait).await;
        }
        let extents = self.extents_from_task(file, part.start, (part.end - part.start) as usize).await;
        let fetches = FuturesUnordered::new();
        for Extent { place, len, .. } in extents.unwrap_or_default() {
            let Some(place) = place else { continue };
            let Some(stored) = self.stored_elsewhere(place, len as usize).await else { continue };
            let part = Part { object: stored.id(), offset: place.offset, len: len as usize };
            let now = self.parts.clock.monotonic();
            for claim in self.ahead.pool.claim(&part, Some(owner), now) {
                let bytes = claim.segments.len() * SEGMENT_BYTES;
                let Claim { segments, turn: Some(turn), .. } = claim else { continue };
                // Pieces of a file in many objects take more of these than of the file.
                let Some(room) = room.split(bytes) else { return drain(fetches).await };
                fetches.push(async move {
                    let outcome = self.bring(&stored, segments, turn, Some(room)).await;
                    if outcome.is_ok() && bytes >= TIMED_BYTES_MIN {
                        let ended = self.parts.clock.monotonic();
                        let took = ended.saturating_sub(now);
                        self.ahead.pace.handle_took(weight, took, ended);
                        owner.note_near(self.ahead.near().is_some_and(|near| took < near));
                    }
                });
            }
        }
        drain(fetches).await;
    }

    /// The object of these bytes, if it is stored and they are not here.
    async fn stored_elsewhere(self: &Arc<Self>, place: Place, len: usize) -> Option<StoredObject> {
        if self.dirty.get(place.object).is_some() || self.is_cached(place.object, &segments(place.offset, len)) {
            return None;
        }
        let stored = self.stored(place.object).await?;
        (segments(place.offset, len).end <= stored.segment_count()).then_some(stored)
    }

    /// Brings what is not here of an object into the cache, if memory and pace allow it now; nobody waits for it.
    pub(crate) fn fetch_rest(self: &Arc<Self>, stored: StoredObject) {
        const RUN: u32 = (1 << 20) / SEGMENT_BYTES as u32;
        let now = self.parts.clock.monotonic();
        for from in (0..stored.segment_count()).step_by(RUN as usize) {
            let run = from..stored.segment_count().min(from + RUN);
            if self.is_cached(stored.id(), &run) {
                continue;
            }
            let Some((mut room, weight)) = self.ahead.admit(run.len() * SEGMENT_BYTES, true, now) else { return };
            let vfs = self.clone();
            self.parts.runtime.spawn(async move {
                let _under_way = UnderWay { pace: &vfs.ahead.pace, weight };
                let fetches = FuturesUnordered::new();
                let part = Part::of(stored.id(), &run);
                for Claim { segments, turn, .. } in vfs.ahead.pool.claim(&part, None, now) {
                    let (Some(turn), Some(room)) = (turn, room.split(segments.len() * SEGMENT_BYTES)) else { continue };
                    fetches.push(vfs.bring(&stored, segments, turn, Some(room)));
                }
                drain(fetches).await;
            });
        }
    }
}

async fn drain<T>(mut all: FuturesUnordered<impl Future<Output = T>>) {
    while all.next().await.is_some() {}
}
