//! The uploader: dirty objects leave for the store, oldest first, and their slots become clean.

use crate::{
    Vfs,
    dirty::{Body, DirtyObject},
};
use bytes::Bytes;
use sluice_base::{ObjectId, limits::SEGMENT_BYTES};
use sluice_store::ReadError;
use std::{
    collections::HashSet,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

/// How often the uploader looks for objects that became old enough.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The wait after a failed upload doubles from here to the last.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// Runs until the volume goes.
pub(crate) async fn run(vfs: Weak<Vfs>) {
    let under_way: Arc<parking_lot::Mutex<HashSet<ObjectId>>> = Arc::default();
    loop {
        let Some(alive) = vfs.upgrade() else { return };
        let _ = tokio::time::timeout(LOOK_INTERVAL, alive.upload_now.notified()).await;
        let pressed = alive.draining.load(Ordering::Acquire) || alive.journal_is_filling();
        let mut ready = alive.dirty.ready(if pressed { Duration::ZERO } else { alive.settings.upload_delay });
        ready.sort_by_key(|object| object.first_seq);
        for object in ready {
            if !under_way.lock().insert(object.id) {
                continue;
            }
            let Ok(permit) = alive.uploading.clone().acquire_owned().await else { return };
            let (vfs, under_way) = (alive.clone(), under_way.clone());
            alive.parts.runtime.spawn(async move {
                vfs.upload(&object).await;
                under_way.lock().remove(&object.id);
                drop(permit);
                vfs.upload_now.notify_one();
            });
        }
        if pressed {
            alive.checkpoint_if_due().await;
        }
    }
}

impl Vfs {
    fn journal_is_filling(&self) -> bool {
        let usage = self.parts.journal.usage();
        usage.used_bytes > usage.capacity_bytes / 2
    }

    /// When the journal fills up although data is stored, it is metadata that keeps its segments: bring it to its tables.
    async fn checkpoint_if_due(&self) {
        let persisted = self.namespace().store().persisted();
        let behind = self.parts.journal.written().0.saturating_sub(persisted.0);
        if self.journal_is_filling() && behind > 0 && self.dirty.first_seq().is_none_or(|first| first > persisted) {
            self.namespace().store().request_checkpoint();
        }
        self.trim_journal();
    }

    /// Takes one object to the store, or drops it when nothing refers to it. Ends only when that is done.
    async fn upload(self: &Arc<Self>, object: &Arc<DirtyObject>) {
        let mut wait = RETRY_FIRST;
        loop {
            match self.try_upload(object).await {
                Ok(()) => return,
                Err(error) => {
                    self.counters.upload_errors.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(object = %object.id, %error, "an upload failed and is tried again");
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_LAST);
        }
    }

    async fn try_upload(self: &Arc<Self>, object: &Arc<DirtyObject>) -> Result<(), String> {
        let record = self.namespace().object(object.id).map_err(|e| e.to_string())?;
        let dead = record.is_none_or(|record| record.live_bytes == 0);
        if dead && self.namespace().forget_object(object.id).map_err(|e| e.to_string())? {
            // Its last references went before it was stored: nothing to store.
            self.settle(object, false);
            return Ok(());
        }
        let (reader, vfs) = (object.clone(), self.clone());
        let segments = tokio::task::spawn_blocking(move || vfs.segments_of(&reader)).await.map_err(|e| e.to_string())??;
        let stored = self.parts.store.put_object(object.id, &segments).await.map_err(|e| e.to_string())?;
        let done = self.namespace().object_stored(object.id, stored.segment_count(), stored.stored_bytes());
        let seq = done.map_err(|e| e.to_string())?.seq;
        // The journal may lose the data only when what says that it is stored cannot be lost.
        self.parts.committer.wait_synced(seq).await.map_err(|e| e.to_string())?;
        self.counters.uploaded.fetch_add(object.end().into(), Ordering::Relaxed);
        self.settle(object, true);
        Ok(())
    }

    /// All segments, checked. One that is damaged beyond the journal's help becomes absent: reads of it fail, and the rest of
    /// the object is saved.
    fn segments_of(&self, object: &DirtyObject) -> Result<Vec<Option<Bytes>>, String> {
        let slot = match &object.body {
            Body::Memory(memory) => {
                let bytes = Bytes::from(memory.lock().clone());
                let piece = |at: usize| Some(bytes.slice(at..(at + SEGMENT_BYTES).min(bytes.len())));
                return Ok((0..bytes.len()).step_by(SEGMENT_BYTES).map(piece).collect());
            }
            Body::Slot(slot) => slot,
        };
        loop {
            match slot.read_all() {
                Ok(segments) => return Ok(segments.into_iter().map(|segment| segment.map(Bytes::from)).collect()),
                Err(ReadError::Corrupt { index }) => {
                    tracing::error!(object = %object.id, index, "a segment was damaged before it was stored; reads of it will fail");
                    if let Some(cache) = &self.parts.cache {
                        cache.retire(object.id, index);
                    }
                    return self.salvage(object);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// What can still be read of a damaged object.
    fn salvage(&self, object: &DirtyObject) -> Result<Vec<Option<Bytes>>, String> {
        let pin = self.parts.cache.as_ref().and_then(|cache| cache.pin(object.id)).ok_or("the slot is gone")?;
        let end = object.end() as usize;
        let piece = |at: usize| {
            let mut bytes = vec![0; SEGMENT_BYTES.min(end - at)];
            pin.read_at(at as u32, &mut bytes).ok().map(|()| Bytes::from(bytes))
        };
        Ok((0..end).step_by(SEGMENT_BYTES).map(piece).collect())
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
    }
}
