//! The parts joined, and the work that goes on in the background.

use crate::{
    Durability, Failure, Group, Metadata, OpenState, Others, Owner, ahead::Ahead, away::on_thread, brake::Brake,
    direct, dirty::Dirty, durability::Forgotten, fetch::Fetches, files::Files, handles::Handles, status::Counters,
    upload, warm::Warming,
};
use futures::FutureExt;
use sluice_base::{Clock, Entropy, Errno, ObjectId, SessionId};
use sluice_journal::{Committer, Journal};
use sluice_object::Store;
use sluice_run::Bug;
use sluice_run::collections::HashSet;
use sluice_run::lock::Mutex;
use sluice_run::task::Handle;
use sluice_store::Cache;
use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, Semaphore};

/// How long a writer waits for a full journal disk or a full store before it gets ENOSPC: time for what is dirty to be uploaded and
/// its segments to be freed.
const DISK_FULL_WAIT: Duration = Duration::from_secs(10);

/// Memory for reads, unless told otherwise: one reader of a store at 300 MB/s and 30 ms needs 20 MiB to keep it busy, one at 2 GB/s
/// and 100 ms less than what this leaves for it.
pub const MEMORY_BYTES: u64 = 256 << 20;
/// The least: the largest read of the kernel, for each of a few programs.
pub const MEMORY_BYTES_MIN: u64 = 32 << 20;

/// Numbers that decide how data moves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// An object to which nobody adds is sealed after this time. Long enough that a file rewritten at once is not uploaded
    /// twice, short enough that the store is seconds behind.
    pub upload_delay: Duration,
    /// Objects uploaded at once at first, 4 MiB of memory each: how many there are follows what the store takes.
    pub uploads: usize,
    /// Memory for bytes on their way: answers, what is read ahead, warm-ups, uploads, and objects that no cache disk holds until they are
    /// stored.
    pub memory_bytes: u64,
    /// Tries at reading bytes that only a cache disk has, while that gives errors, before they count as lost. With 16 that
    /// is a minute.
    pub read_tries: u32,
    /// Orphans of earlier runs are nobody's: whoever may use them comes through this process.
    pub reclaim_orphans: bool,
    /// When fsync returns.
    pub durability: Durability,
    /// Whose the store is, where this process knows.
    pub owner: Option<Arc<dyn Owner>>,
    /// What programs have open from the beginning: of the process that served the mount before. Its orphans are theirs.
    pub inherited: OpenState,
}

impl Default for Settings {
    fn default() -> Self {
        let upload_delay = Duration::from_secs(2);
        Self {
            upload_delay,
            uploads: 4,
            memory_bytes: MEMORY_BYTES,
            read_tries: 16,
            reclaim_orphans: true,
            durability: Durability::Journal,
            owner: None,
            inherited: OpenState::default(),
        }
    }
}

/// What a [`Vfs`] is made of.
pub struct Parts {
    /// The metadata.
    pub namespace: Arc<dyn Metadata>,
    /// The log.
    pub journal: Arc<Journal>,
    /// Syncs the log.
    pub committer: Arc<Committer>,
    /// The cache disk, unless there is none.
    pub cache: Option<Arc<Cache>>,
    /// The object store.
    pub store: Arc<Store>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Who writes.
    pub session: SessionId,
    /// Who has what is not stored yet and not here, where there may be somebody.
    pub others: Option<Arc<dyn Others>>,
    /// Who is asked for what is stored and not here, before the store is.
    pub group: Option<Arc<dyn Group>>,
    /// Where what must wait runs.
    pub runtime: Handle,
}

/// A mounted volume, without its front end.
pub struct Vfs {
    pub(crate) parts: Parts,
    pub(crate) settings: Settings,
    pub(crate) files: Files,
    pub(crate) handles: Handles,
    pub(crate) dirty: Dirty,
    pub(crate) forgotten: Forgotten,
    pub(crate) fetches: Fetches,
    pub(crate) warming: Warming,
    pub(crate) ahead: Ahead,
    pub(crate) counters: Counters,
    pub(crate) direct: direct::Registry,
    /// Reads that wait for the cache disk.
    pub(crate) cold: Semaphore,
    /// Who fills the cache, one at a time: a file takes one write at a time, and threads that wait for it only spin on its lock.
    pub(crate) filling: Semaphore,
    /// Told whenever journal or cache got room.
    pub(crate) room: Notify,
    /// Told when the uploader should look at once.
    pub(crate) upload_now: Notify,
    pub(crate) uploads: upload::Turns,
    pub(crate) draining: AtomicBool,
    /// Dirty objects in whose place the store has something else, which is not this process's to replace.
    pub(crate) given_up: Mutex<HashSet<ObjectId>>,
    /// Who has everything published, one at a time.
    pub(crate) flushing: Arc<Semaphore>,
    /// Holds small writes back when the journal fills up.
    /// Holds small writes back when the journal fills up; goes by the time since it began.
    pub(crate) brake: Mutex<Brake>,
    pub(crate) brake_began: sluice_run::time::Instant,
    /// Operations that wait for room: while there are any, no object waits for its age.
    pub(crate) waiting: AtomicUsize,
    /// The last upload found no room in the store: waiting may not help.
    pub(crate) store_full: AtomicBool,
    /// Bytes were lost before they were stored: a sync must say so, once.
    pub(crate) lost: Arc<AtomicBool>,
    /// What collects the garbage, in the process that has the metadata.
    pub(crate) gc: Mutex<Option<Arc<crate::gc::Gc>>>,
    pub(crate) tasks: Mutex<Vec<sluice_run::task::JoinHandle<()>>>,
}

impl Vfs {
    /// Joins the parts and starts the background work. `recovered` are the dirty objects that replay found.
    pub fn start(parts: Parts, mut settings: Settings, recovered: crate::Recovered) -> Arc<Self> {
        let inherited = std::mem::take(&mut settings.inherited);
        let dirty = Dirty::new(parts.cache.clone(), parts.clock.clone(), parts.entropy.clone(), settings.memory_bytes);
        recovered.objects.into_iter().for_each(|object| dirty.adopt(object));
        let vfs = Arc::new(Self {
            files: Files::default(),
            handles: Handles::default(),
            dirty,
            forgotten: Forgotten::default(),
            fetches: Fetches::default(),
            warming: Warming::default(),
            ahead: Ahead::new(settings.memory_bytes, parts.cache.is_some()),
            counters: Counters::default(),
            direct: direct::Registry::default(),
            cold: Semaphore::new(direct::COLD_READS_MAX),
            filling: Semaphore::new(1),
            room: Notify::new(),
            upload_now: Notify::new(),
            uploads: upload::Turns::new(settings.uploads),
            draining: false.into(),
            given_up: Mutex::default(),
            flushing: Arc::new(Semaphore::new(1)),
            brake: Mutex::default(),
            brake_began: sluice_run::time::now(),
            waiting: AtomicUsize::new(0),
            store_full: false.into(),
            lost: Arc::default(),
            gc: Mutex::default(),
            tasks: Mutex::default(),
            parts,
            settings,
        });
        // Before anybody can make new ones that are in use.
        let found = if vfs.settings.reclaim_orphans { vfs.namespace().orphans() } else { Ok(Vec::new()) };
        let mut left = found.unwrap_or_else(|error| {
            tracing::error!(%error, "orphans of earlier runs were not found");
            Vec::new()
        });
        left.retain(|ino| inherited.orphans.binary_search_by_key(ino, |orphan| orphan.ino).is_err());
        vfs.inherit(inherited);
        let runtime = vfs.parts.runtime.clone();
        let tasks = [
            runtime.spawn(upload::run(Arc::downgrade(&vfs))),
            runtime.spawn(crate::names::reclaim(Arc::downgrade(&vfs), left)),
            runtime.spawn(crate::access::run(Arc::downgrade(&vfs))),
        ];
        vfs.tasks.lock().extend(tasks);
        vfs
    }

    /// The metadata, for operations that concern nothing else.
    pub fn namespace(&self) -> &dyn Metadata {
        &*self.parts.namespace
    }

    /// Runs `operation` until there is room for it, on a thread that may wait. It waits as long as uploads may make room, however
    /// long the store is down; for a full journal disk or a full store only ten seconds.
    pub async fn make_room<T: Send + 'static>(
        &self,
        mut operation: impl FnMut() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Errno> {
        let started = self.parts.clock.monotonic();
        loop {
            // Before the attempt, so that room made meanwhile is not missed.
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            let tried = on_thread(move || {
                let outcome = operation();
                (operation, outcome)
            });
            let outcome;
            (operation, outcome) = tried.await.ok_or(Errno::EIO)?;
            match outcome {
                Ok(value) => return Ok(value),
                Err(Failure::Errno(errno)) => return Err(errno),
                Err(Failure::Away) => return Err(Errno::EIO),
                Err(Failure::DiskFull) => {}
                Err(Failure::Wait) if self.store_full.load(Ordering::Acquire) => {}
                Err(Failure::Wait) => {
                    self.wait_for_room(room).await;
                    continue;
                }
            }
            if self.parts.clock.monotonic() - started >= DISK_FULL_WAIT {
                return Err(Errno::ENOSPC);
            }
            self.wait_for_room(room).await;
        }
    }

    /// Resolves when journal or cache may have room again, or after a second: who waits tries again then.
    pub(crate) async fn wait_for_room(&self, room: impl Future<Output = ()>) {
        struct Waiting<'a>(&'a AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::AcqRel);
            }
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let _waiting = Waiting(&self.waiting);
        self.upload_now.notify_one();
        let _ = sluice_run::time::timeout(Duration::from_secs(1), room).await;
    }

    /// Everything acked before this call survives power loss when the future ends well; `None` when it already does.
    /// In tier `object` it is also in the store then.
    pub fn sync(self: &Arc<Self>) -> Option<impl Future<Output = Result<(), Errno>> + Send + 'static> {
        if Bug::FsyncDoesNotSync.is_planted() {
            return None;
        }
        // The committer's position, not the journal's own: slabs are synced beside the journal, which may be done before them.
        let written = self.parts.journal.written();
        let mut synced = self.parts.committer.wait_synced(written);
        let at_once = (&mut synced).now_or_never();
        let to_store = match &self.settings.durability {
            Durability::Journal => None,
            Durability::Object(ship) => Some(self.clone().in_the_store(ship.clone(), written)),
        };
        if at_once == Some(Ok(())) && to_store.is_none() && !self.lost.load(Ordering::Acquire) {
            return None;
        }
        let lost = self.lost.clone();
        Some(async move {
            let outcome = match at_once {
                Some(outcome) => outcome,
                None => synced.await,
            };
            outcome.map_err(|error| {
                tracing::error!(%error, "a sync failed");
                Errno::EIO
            })?;
            if let Some(to_store) = to_store {
                to_store.await?;
            }
            if lost.swap(false, Ordering::AcqRel) { Err(Errno::EIO) } else { Ok(()) }
        })
    }

    /// Frees what the journal no longer needs: metadata is checkpointed and data stored.
    pub fn trim_journal(&self) {
        let persisted = sluice_base::Seq(self.namespace().settled().0 + 1);
        let needed = self.dirty.first_seq().map_or(persisted, |first| first.min(persisted));
        let freed = self.parts.journal.free_before(needed).unwrap_or_else(|error| {
            tracing::warn!(%error, "freeing journal segments failed");
            0
        });
        // Who waits asks for this in turn: woken for nothing, they would spin.
        if freed > 0 {
            self.brake.lock().freed(self.brake_time(), freed);
            self.room.notify_waiters();
        }
    }

    /// Objects that stay unstored, as another process goes on with the volume and has something in their places.
    pub fn given_up(&self) -> usize {
        self.given_up.lock().len()
    }

    /// Uploads everything, whatever its age. Resolves when nothing is dirty, but what is given up.
    pub async fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        loop {
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            if self.dirty.totals().0 <= self.given_up() {
                return;
            }
            // However long the store is down or full.
            self.wait_for_room(room).await;
        }
    }

    /// Ends the background work; nothing may be called afterwards.
    pub fn stop(&self) {
        self.write_accesses();
        if let Some(gc) = self.gc.lock().take() {
            gc.stop();
        }
        self.tasks.lock().drain(..).for_each(|task| task.abort());
    }
}
