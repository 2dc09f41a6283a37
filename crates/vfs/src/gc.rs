//! What the store holds and no file has any more goes: objects without users are deleted, those that are mostly dead are rewritten.
//!
//! An object without users becomes a tombstone first and is deleted an hour later, as somebody may still read by what he knew before. Of objects
//! with less than half of their bytes alive these go into new objects, which are stored before any file refers to them; file by file, and only
//! as far as the file still has them where they were. Old objects then have no users.
//!
//! Only the process that has the metadata does this, in passes; it is the last to get what the disks and the network give.

mod find;
mod repack;

use crate::{Failure, Ship, Vfs, away::on_thread};
use futures::{StreamExt, stream};
use serde::Serialize;
use sluice_base::{Errno, Ino, ObjectId, Seq};
use sluice_meta::{Moved, Namespace};
use sluice_run::{
    collections::{HashMap, HashSet},
    lock::Mutex,
    task::JoinHandle,
};
use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// Deletions that are under way at once.
const DELETES_MAX: usize = 16;
/// Objects whose deletion failed and is tried again by the next pass; beyond, `sluice gc` finds them.
const UNDELETED_MAX: usize = 16 << 10;
/// How long a pass waits for the store to have the metadata before it deletes nothing.
const SHIP_TIME: Duration = Duration::from_secs(60);

/// When what is of no use goes.
#[derive(Clone, Copy, Debug)]
pub struct GcSettings {
    /// Between passes; zero for none.
    pub interval: Duration,
    /// How long an object has no users before it is deleted: longer than anybody reads by what he knew before.
    pub min_age: Duration,
    /// Most bytes that are rewritten in a second.
    pub bytes_per_second: u64,
}

impl Default for GcSettings {
    fn default() -> Self {
        let (interval, min_age) = (Duration::from_secs(600), Duration::from_secs(3600));
        Self { interval, min_age, bytes_per_second: 32 << 20 }
    }
}

/// Lets a file find bytes where they were moved to, as [`Namespace::relocate`] does, while nobody else changes the file.
pub type Relocate = dyn Fn(Ino, &[Moved]) -> sluice_meta::Result<u64> + Send + Sync;

/// What a [`Gc`] works with.
pub struct GcParts {
    /// The volume at work.
    pub vfs: Arc<Vfs>,
    /// Its metadata.
    pub namespace: Arc<Namespace>,
    /// Tells when the store has the metadata: before that nothing is deleted that it may still refer to there.
    pub ship: Option<Arc<Ship>>,
    /// Who changes files.
    pub relocate: Box<Relocate>,
}

/// What was done since the start, and what the last pass found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GcStatus {
    /// Passes that came to their end.
    pub passes: u64,
    /// When the last one did: seconds since 1970, 0 for never.
    pub ended_secs: u64,
    /// Why the last one did not, if it did not.
    pub trouble: Option<String>,
    /// Bytes of all objects that the metadata calls stored.
    pub stored_bytes: u64,
    /// Of them, bytes that no file has.
    pub dead_bytes: u64,
    /// Objects without users that wait for their time.
    pub tombstones: u64,
    /// Objects that were deleted.
    pub deleted_objects: u64,
    /// Objects that were found to have too few users.
    pub worn_objects: u64,
    /// Objects that were written instead.
    pub repacked_objects: u64,
    /// Bytes that moved into them.
    pub repacked_bytes: u64,
}

/// What ends a pass.
#[derive(Debug, thiserror::Error)]
enum GcError {
    #[error(transparent)]
    Meta(#[from] sluice_meta::Error),
    #[error(transparent)]
    Store(#[from] sluice_object::StoreError),
    #[error("bytes of object {0} were not read: {1}")]
    Unread(ObjectId, Errno),
    #[error("the store does not have the metadata: {0}")]
    NotShipped(String),
    #[error("a step of it failed")]
    Panicked,
    #[error("the volume is being stopped")]
    Stopping,
}

/// Collects the garbage of a volume.
pub struct Gc {
    parts: GcParts,
    settings: GcSettings,
    /// When this process has seen a tombstone first, by a clock that nobody sets.
    seen: Mutex<HashMap<ObjectId, Duration>>,
    status: Mutex<GcStatus>,
    deleted: AtomicU64,
    undeleted: Mutex<Vec<ObjectId>>,
    /// Objects of which not all is there: left as they are.
    unread: Mutex<HashSet<ObjectId>>,
    stopping: AtomicBool,
    /// Held by what works on a thread.
    at_work: Mutex<()>,
    now: Notify,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Gc {
    /// One that does nothing yet.
    pub fn new(parts: GcParts, settings: GcSettings) -> Arc<Self> {
        Arc::new(Self {
            parts,
            settings,
            seen: Mutex::default(),
            status: Mutex::default(),
            deleted: AtomicU64::new(0),
            undeleted: Mutex::default(),
            unread: Mutex::default(),
            stopping: false.into(),
            at_work: Mutex::default(),
            now: Notify::new(),
            task: Mutex::default(),
        })
    }

    /// Begins to make passes.
    pub fn begin(self: &Arc<Self>) {
        if self.settings.interval > Duration::ZERO {
            *self.task.lock() =
                Some(self.parts.vfs.parts.runtime.spawn(run(Arc::downgrade(self), self.settings.interval)));
        }
    }

    /// Ends: on return nothing is changed any more.
    pub fn stop(&self) {
        self.stopping.store(true, Relaxed);
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
        drop(self.at_work.lock());
    }

    /// How it stands.
    pub fn status(&self) -> GcStatus {
        GcStatus { deleted_objects: self.deleted.load(Relaxed), ..self.status.lock().clone() }
    }

    /// One pass, to its end: what was done is in [`Gc::status`].
    pub async fn pass(self: &Arc<Self>) {
        let before = self.status();
        let outcome = self.try_pass().await;
        let after = self.status();
        let deleted = after.deleted_objects - before.deleted_objects;
        let (objects, bytes) =
            (after.repacked_objects - before.repacked_objects, after.repacked_bytes - before.repacked_bytes);
        if deleted + objects > 0 {
            tracing::info!(deleted, repacked_objects = objects, repacked_bytes = bytes, "garbage was collected");
        }
        let mut status = self.status.lock();
        status.trouble = match outcome {
            Ok(()) => {
                (status.passes, status.ended_secs) =
                    (status.passes + 1, self.parts.vfs.parts.clock.wall().secs.try_into().unwrap_or(0));
                None
            }
            Err(GcError::Stopping) => None,
            Err(error) => {
                tracing::warn!(%error, "collecting garbage came to no end and is tried again");
                Some(error.to_string())
            }
        };
    }

    async fn try_pass(self: &Arc<Self>) -> Result<(), GcError> {
        let upto = self.parts.vfs.parts.journal.written();
        let found = self.on_thread(|gc| gc.find()).await??;
        {
            let mut status = self.status.lock();
            (status.stored_bytes, status.dead_bytes) = (found.stored_bytes, found.dead_bytes);
            (status.tombstones, status.worn_objects) = (found.tombstones, found.worn.len() as u64);
        }
        let dead = found.dead.clone();
        self.on_thread(move |gc| dead.iter().try_for_each(|id| gc.checked(|names| names.bury_object(*id)).map(drop)))
            .await??;
        let deleted = self.delete(found.expired.clone(), upto).await;
        if matches!(deleted, Err(GcError::Stopping)) || !found.is_worth_a_repack() {
            return deleted;
        }
        // A store that does not delete may well take new objects.
        self.repack(found.worn).await.and(deleted)
    }

    /// Deletes tombstones whose time has come. `upto` is a record behind which all of them were made ones.
    async fn delete(self: &Arc<Self>, expired: Vec<ObjectId>, upto: Seq) -> Result<(), GcError> {
        let mut due = std::mem::take(&mut *self.undeleted.lock());
        if let (Some(ship), false) = (&self.parts.ship, expired.is_empty()) {
            // What comes back from the store must not refer to them any more: a volume may have to begin from there.
            let comes_back = self.parts.vfs.comes_back(ship.clone(), upto);
            let shipped = sluice_run::time::timeout(SHIP_TIME, comes_back).await;
            let shipped = shipped.unwrap_or_else(|_| Err("it takes long".into()));
            shipped.inspect_err(|_| self.undeleted.lock().append(&mut due)).map_err(GcError::NotShipped)?;
        }
        // Record first: who refers to it at this moment keeps it, who comes later finds that it is gone.
        let dropped = self.on_thread(move |gc| {
            let mut dropped = Vec::new();
            for id in expired {
                match gc.checked(|names| names.drop_tombstone(id)) {
                    Ok(is_dropped) => dropped.extend(is_dropped.then_some(id)),
                    Err(error) => return (dropped, Err(error)),
                }
            }
            (dropped, Ok(()))
        });
        let (mut dropped, outcome) = dropped.await?;
        due.append(&mut dropped);
        let Vfs { parts, .. } = &*self.parts.vfs;
        let synced = parts.committer.wait_synced(parts.journal.written()).await;
        if synced.is_err() {
            *self.undeleted.lock() = due;
            return Err(GcError::Panicked);
        }
        let delete = |id| async move { (id, parts.store.delete_object(id).await) };
        let mut deletions = stream::iter(due).map(delete).buffer_unordered(DELETES_MAX);
        let mut failed = None;
        while let Some((id, outcome)) = deletions.next().await {
            match outcome {
                Ok(()) => drop(self.deleted.fetch_add(1, Relaxed)),
                Err(error) => {
                    failed = Some(error);
                    let mut undeleted = self.undeleted.lock();
                    if undeleted.len() < UNDELETED_MAX {
                        undeleted.push(id);
                    }
                }
            }
        }
        outcome.and(failed.map_or(Ok(()), |error| Err(error.into())))
    }

    /// A change of the metadata, unless everything ends.
    fn checked<T>(&self, change: impl FnOnce(&Namespace) -> sluice_meta::Result<T>) -> Result<T, GcError> {
        if self.is_stopping() { Err(GcError::Stopping) } else { Ok(change(&self.parts.namespace)?) }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed) || self.parts.vfs.draining.load(Relaxed)
    }

    async fn on_thread<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, GcError> {
        let gc = self.clone();
        let done = on_thread(move || {
            let _at_work = gc.at_work.lock();
            (!gc.stopping.load(Relaxed)).then(|| work(&gc))
        });
        done.await.ok_or(GcError::Panicked)?.ok_or(GcError::Stopping)
    }
}

async fn run(gc: Weak<Gc>, interval: Duration) {
    loop {
        let Some(alive) = gc.upgrade() else { return };
        let _ = sluice_run::time::timeout(interval, alive.now.notified()).await;
        alive.pass().await;
    }
}

impl Vfs {
    /// Collects garbage from now on, until [`Vfs::stop`]; `parts` are of this one.
    pub fn collect_garbage(&self, parts: GcParts, settings: GcSettings) {
        let gc = Gc::new(parts, settings);
        gc.begin();
        *self.gc.lock() = Some(gc);
    }

    /// [`Relocate`] where all that changes files passes through here.
    pub fn relocate(&self, namespace: &Namespace, ino: Ino, moved: &[Moved]) -> sluice_meta::Result<u64> {
        let held = self.files.with(ino);
        // On a thread that may wait nobody has it for too long.
        let mut data = held.file.exclusive().map_err(|_: Failure| sluice_meta::Error::Away)?;
        namespace.relocate(ino, &mut data.extents, moved)
    }
}
