//! The uploader: dirty objects leave for the store, oldest first, and their slots become clean.

use crate::{
    Durability, Metadata, Vfs,
    away::on_thread,
    dirty::{Body, Dirty, DirtyObject},
};
use bytes::Bytes;
use sluice_base::{ObjectId, Seq};
use sluice_meta::records::{ObjectRecord, ObjectState};
use sluice_object::{StoreError, backend::RequestKind};
use sluice_run::Bug;
use sluice_run::collections::HashSet;
use sluice_run::lock::Mutex;
use sluice_store::{Cache, CacheState, ReadError};
use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, SemaphorePermit};
use width::Width;

mod width;

/// How often the uploader looks for objects that became old enough.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The wait after a failed upload doubles from here to the last.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LAST: Duration = Duration::from_secs(5);
/// How often whoever waits for a sync looks whether the cache failed meanwhile.
const CACHE_LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Syncs leave slabs alone where the journal has their bytes, so it is asked now and then whether the disk takes them: what it refuses is
/// still in memory then, and leaves for the store at once.
const CACHE_SYNC_INTERVAL: Duration = Duration::from_secs(30);

/// Most uploads at once; `--memory` bounds what they hold.
const UPLOADS_MAX: usize = 24;

/// Whose turn it is to be uploaded.
pub(crate) struct Turns {
    places: Semaphore,
    waiting: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    width: Width,
    /// Places that there are, taken or not: follows the width.
    places: usize,
    /// Requests that the store did not answer or refused, when an upload last ended; none has yet.
    refusals: Option<u64>,
}

impl Turns {
    /// `start` at once at first.
    pub(crate) fn new(start: usize) -> Self {
        let width = Width::new(start, UPLOADS_MAX);
        let places = width.get();
        let state = Mutex::new(State { width, places, refusals: None });
        Self { places: Semaphore::new(places), waiting: AtomicUsize::new(0), state }
    }

    async fn begin(&self) -> SemaphorePermit<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = self.places.acquire().await.expect("the semaphore is never closed");
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        place
    }

    /// An upload that brought so many bytes ended; the store has refused so many requests so far, whosever they were.
    fn end(&self, place: SemaphorePermit<'_>, now: Duration, bytes: u64, refusals: u64) {
        let mut state = self.state.lock();
        let before = state.refusals.unwrap_or(refusals);
        // Another one may have asked later, and be here already.
        state.refusals = Some(before.max(refusals));
        let refused = refusals.saturating_sub(before);
        state.width.ended(now, bytes, self.waiting.load(Ordering::Relaxed) > 0, refused);
        let wanted = state.width.get();
        if state.places > wanted {
            // One with each upload that ends, until there are as few.
            state.places -= 1;
            place.forget();
        } else {
            self.places.add_permits(wanted - state.places);
            state.places = wanted;
        }
    }
}

/// An object whose upload has a task, until that ends, however it does.
struct UnderWay {
    set: Arc<Mutex<HashSet<ObjectId>>>,
    id: ObjectId,
}

impl UnderWay {
    /// `None` where it has one, or has become clean since it was found to be ready: an upload takes it from what is dirty before it leaves.
    fn enter(set: &Arc<Mutex<HashSet<ObjectId>>>, dirty: &Dirty, id: ObjectId) -> Option<Self> {
        let is_new = set.lock().insert(id);
        let entered = is_new.then(|| Self { set: set.clone(), id });
        entered.filter(|_| dirty.get(id).is_some())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.set.lock().remove(&self.id);
    }
}

/// Runs until the volume goes.
pub(crate) async fn run(vfs: Weak<Vfs>) {
    let under_way: Arc<Mutex<HashSet<ObjectId>>> = Arc::default();
    let mut cache_synced = Duration::ZERO;
    loop {
        let Some(alive) = vfs.upgrade() else { return };
        let now = alive.parts.clock.monotonic();
        if now.saturating_sub(cache_synced) >= CACHE_SYNC_INTERVAL && alive.dirty.totals().0 > 0 {
            cache_synced = now;
            alive.sync_cache();
        }
        let _ = sluice_run::time::timeout(LOOK_INTERVAL, alive.upload_now.notified()).await;
        let (is_waited_for, fills) = (alive.is_waited_for(), alive.journal_is_filling());
        let needed = if fills { alive.parts.journal.first_seq_below(alive.journal_calm_bytes()) } else { None };
        let idle = if is_waited_for { Duration::ZERO } else { alive.settings.upload_delay };
        let mut ready = alive.dirty.ready(idle, needed);
        ready.retain(|object| !alive.given_up.lock().contains(&object.id));
        ready.sort_by_key(|object| object.first_seq);
        for object in ready {
            let Some(leave) = UnderWay::enter(&under_way, &alive.dirty, object.id) else { continue };
            let vfs = alive.clone();
            alive.parts.runtime.spawn(async move {
                vfs.upload(&object).await;
                drop(leave);
                vfs.upload_now.notify_one();
            });
        }
        if is_waited_for || fills {
            alive.checkpoint_if_due().await;
        }
    }
}

impl Vfs {
    fn sync_cache(&self) {
        let Some(cache) = self.parts.cache.clone() else { return };
        sluice_run::task::spawn_blocking(move || {
            if let Err(error) = cache.sync() {
                tracing::error!(%error, "the cache disk does not take what was written; what is not stored leaves for the store");
            }
        });
    }

    /// Whether objects leave whatever their age.
    fn is_waited_for(&self) -> bool {
        let by_somebody = self.draining.load(Ordering::Acquire) || self.waiting.load(Ordering::Acquire) > 0;
        by_somebody || self.failed_cache().is_some()
    }

    /// The cache, when it is out of use and what is dirty in it must leave.
    fn failed_cache(&self) -> Option<&Cache> {
        self.parts.cache.as_deref().filter(|cache| cache.stats().state == CacheState::Failed)
    }

    fn journal_is_filling(&self) -> bool {
        self.parts.journal.usage().used_bytes > self.journal_calm_bytes()
    }

    /// Up to here the journal may fill without anybody's doing.
    fn journal_calm_bytes(&self) -> u64 {
        self.parts.journal.usage().capacity_bytes / 3
    }

    /// When the journal fills up although data is stored, it is metadata that keeps its segments: bring it to its tables.
    async fn checkpoint_if_due(&self) {
        let settled = self.namespace().settled();
        let behind = self.parts.journal.written().0.saturating_sub(settled.0);
        if self.journal_is_filling() && behind > 0 && self.dirty.first_seq().is_none_or(|first| first > settled) {
            self.namespace().settle();
        }
        self.trim_journal();
    }

    /// Takes one object to the store, or drops it when nothing refers to it. Ends only when that is done.
    async fn upload(self: &Arc<Self>, object: &Arc<DirtyObject>) {
        if object.is_empty() {
            // Its only write failed. The metadata has never heard of it.
            return self.settle(object, false);
        }
        let (mut wait, mut unread) = (RETRY_FIRST, 0);
        loop {
            match self.try_upload(object, &mut unread).await {
                Ok(()) => return,
                Err(error) if self.given_up.lock().contains(&object.id) => {
                    tracing::error!(object = %object.id, error, "it is not stored: the store has something else in its place, which is another's");
                    self.room.notify_waiters();
                    return;
                }
                Err(error) => {
                    self.counters.upload_errors.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(object = %object.id, %error, "an upload failed and is tried again");
                }
            }
            sluice_run::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_LAST);
        }
    }

    /// `unread` counts how often its slot could not be read; a store that is down says nothing about the slot.
    async fn try_upload(self: &Arc<Self>, object: &Arc<DirtyObject>, unread: &mut u32) -> Result<(), String> {
        if let Some(owner) = &self.settings.owner {
            // Before that it is not known whether what is in the way is this volume's to replace. If not, nothing is.
            let _ = owner.is_ours().await;
        }
        // Held while there are bytes in memory, not while waiting: with a failed cache, a sync waits for all the others.
        let place = self.uploads.begin().await;
        let record = self.ask(object, |metadata, id| metadata.object(id)).await?;
        let dead = record.as_ref().is_none_or(|record| record.live_bytes == 0);
        // Who forgets one after the other would have no metadata shipped: now and then one is stored for nobody.
        let forgets = dead && self.forgotten.has_room();
        if forgets && self.ask(object, |metadata, id| metadata.forget_object(id)).await? {
            // Its last references went before it was stored: nothing to store. But until the log says so durably, a power loss
            // brings them back.
            drop(place);
            let forgotten = self.parts.journal.written();
            self.forgotten.note(object.first_seq, forgotten);
            self.wait_durable(object, forgotten).await?;
            self.settle(object, false);
            return Ok(());
        }
        match record.filter(|record| record.state == ObjectState::Stored) {
            // A process before this one told the server, and was killed before it noted that itself.
            Some(ObjectRecord { segments, stored_bytes, .. }) => {
                self.ask(object, move |metadata, id| metadata.object_stored(id, segments, stored_bytes)).await?;
                drop(place);
            }
            None => {
                let stored = self.store_object(object, unread).await;
                let bytes = if stored.is_ok() { object.end().into() } else { 0 };
                let refusals = self.parts.store.stats().of(RequestKind::Put).errors;
                self.uploads.end(place, self.parts.clock.monotonic(), bytes, refusals);
                stored?;
            }
        }
        // The journal may lose the data only when what says that it is stored cannot be lost.
        self.wait_durable(object, self.parts.journal.written()).await?;
        self.counters.uploaded.fetch_add(object.end().into(), Ordering::Relaxed);
        self.settle(object, true);
        Ok(())
    }

    async fn store_object(self: &Arc<Self>, object: &Arc<DirtyObject>, unread: &mut u32) -> Result<(), String> {
        // Where metadata leaves together with the bytes, what comes back may be the volume of a moment in between.
        let is_behind = matches!(self.settings.durability, Durability::Journal);
        let mut dead = if is_behind && self.forgotten.has_room() { object.dead_segments() } else { 0 };
        // The log goes first: after a power loss replay must find what was stored under this id, not less, and what was overwritten must
        // stay so.
        let written = self.parts.journal.written();
        let mut synced = self.parts.committer.wait_synced(written);
        loop {
            if self.failed_cache().is_some() {
                dead = 0;
                break;
            }
            if let Ok(done) = sluice_run::time::timeout(CACHE_LOOK_INTERVAL, &mut synced).await {
                done.map_err(|e| e.to_string())?;
                break;
            }
        }
        if dead != 0 {
            self.forgotten.note(object.first_seq, written);
        }
        let _room = self.ahead.room_to_upload(object.end() as usize).await;
        let (reader, vfs, give_up) = (object.clone(), self.clone(), *unread >= self.settings.read_tries);
        let read = sluice_run::task::spawn_blocking(move || vfs.segments_of(&reader, give_up)).await;
        let read = read.map_err(|e| e.to_string())?;
        *unread = if read.is_ok() { 0 } else { *unread + 1 };
        let Segments { mut segments, damaged } = read?;
        let is_dead = |index: usize| dead & (1 << index) != 0;
        segments.iter_mut().enumerate().filter(|(index, _)| is_dead(*index)).for_each(|(_, segment)| *segment = None);
        if Bug::LastSegmentForgotten.is_planted() && segments.len() > 1 {
            segments.pop();
        }
        let stored = match self.parts.store.put_object(object.id, &segments).await {
            // An earlier process got this far and was killed before it could note it; what it stored may hold bytes of writes
            // that never committed. Nobody reads the stored object yet. One that we cannot replace as a whole stays.
            Err(StoreError::Exists { .. }) if !damaged => {
                self.confirm(object).await?;
                self.parts.store.delete_object(object.id).await.map_err(|e| e.to_string())?;
                let stored = self.parts.store.put_object(object.id, &segments).await;
                // Somebody may be about to recover the volume without it, whom this is to have look again.
                self.confirm(object).await?;
                stored
            }
            other => other,
        };
        self.store_full.store(matches!(stored, Err(StoreError::Full { .. })), Ordering::Release);
        let stored = stored.map_err(|e| e.to_string())?;
        let (segments, bytes) = (stored.segment_count(), stored.stored_bytes());
        self.ask(object, move |metadata, id| metadata.object_stored(id, segments, bytes)).await
    }

    /// Whether what is in an object's place is this process's to replace: otherwise it is given up.
    async fn confirm(&self, object: &DirtyObject) -> Result<(), String> {
        let Some(owner) = &self.settings.owner else { return Ok(()) };
        let confirmed = owner.confirmed().await;
        if confirmed.is_err() {
            self.given_up.lock().insert(object.id);
        }
        confirmed
    }

    /// What the metadata says of an object.
    async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        object: &DirtyObject,
        ask: impl FnOnce(&dyn Metadata, ObjectId) -> sluice_meta::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let (vfs, id) = (self.clone(), object.id);
        let told = on_thread(move || ask(vfs.namespace(), id)).await.ok_or("asking the metadata failed")?;
        told.map_err(|error| error.to_string())
    }

    /// Waits until the log is durable up to `seq`. With a failed cache that takes until no slot holds what is nowhere else
    /// ([`crate::CacheSync`]); of this object that is true already.
    async fn wait_durable(&self, object: &DirtyObject, seq: Seq) -> Result<(), String> {
        let mut synced = self.parts.committer.wait_synced(seq);
        loop {
            if let Some(cache) = self.failed_cache() {
                // A failed cache gives no slot away, so the bytes stay where a replay would look for them.
                cache.mark_clean(object.id);
            }
            if let Ok(done) = sluice_run::time::timeout(CACHE_LOOK_INTERVAL, &mut synced).await {
                return done.map_err(|e| e.to_string());
            }
        }
    }

    /// All segments, checked. One that is damaged, and not in the journal, becomes absent: reads of it fail, and the rest of the object is saved. One
    /// that cannot be read counts as damaged when it is time to `give_up`, and fails before.
    fn segments_of(&self, object: &DirtyObject, give_up: bool) -> Result<Segments, String> {
        let slot = match &object.body {
            Body::Memory(memory) => {
                let memory = memory.lock();
                return Ok(Segments { segments: memory.segments(), damaged: !memory.lost.is_empty() });
            }
            Body::Slot(slot) => slot,
        };
        match slot.read_all() {
            Ok(all) => Ok(Segments { segments: all.into_iter().map(|s| s.map(Bytes::from)).collect(), damaged: false }),
            Err(ReadError::Io(error)) if !give_up => Err(error.to_string()),
            Err(error) => {
                if let (Some(cache), ReadError::Corrupt { index }) = (&self.parts.cache, &error) {
                    cache.retire(object.id, *index);
                }
                let salvaged = self.salvaged(object).ok_or("the slot is gone")?;
                if salvaged.damaged {
                    tracing::error!(object = %object.id, %error, "bytes were lost before they were stored; reads of them will fail");
                    self.lost.store(true, Ordering::Release);
                }
                Ok(salvaged)
            }
        }
    }

    /// The object is no longer dirty.
    fn settle(&self, object: &DirtyObject, stored: bool) {
        if let Some(cache) = &self.parts.cache {
            if stored {
                cache.mark_clean(object.id);
            } else {
                cache.discard(object.id);
            }
        }
        self.dirty.remove(object.id);
        self.trim_journal();
        self.room.notify_waiters();
    }
}

/// What an object has to store.
pub(crate) struct Segments {
    pub(crate) segments: Vec<Option<Bytes>>,
    /// Some are lost.
    pub(crate) damaged: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirty::Stream;
    use sluice_base::{ManualClock, SeededEntropy};

    #[test]
    fn an_object_that_became_clean_since_it_was_found_ready_is_left_alone() {
        let clock = Arc::new(ManualClock::default());
        let dirty = Dirty::new(None, clock, Arc::new(SeededEntropy::new(1)), 1 << 30);
        drop(dirty.append(&mut Stream::default(), 0, b"bytes", false, Seq(1)).unwrap());
        let ready = dirty.ready(Duration::ZERO, None);
        let ([object], under_way) = (&ready[..], Arc::default()) else { panic!("{} are ready", ready.len()) };
        let first = UnderWay::enter(&under_way, &dirty, object.id).expect("nobody has it");
        assert!(UnderWay::enter(&under_way, &dirty, object.id).is_none(), "twice at once");
        dirty.remove(object.id);
        drop(first);
        assert!(UnderWay::enter(&under_way, &dirty, object.id).is_none(), "again, when its bytes may be gone");
        assert!(under_way.lock().is_empty());
    }
}
