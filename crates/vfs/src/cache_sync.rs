//! What accompanies a sync of the journal: the slabs, as far as they have bytes that the journal has not, and what becomes of the sync when
//! their disk fails.
//!
//! After a failed fdatasync nothing that was written to the slabs before can be believed to survive power loss, and no later
//! fdatasync tells anything. The bytes can still be read, as a rule, so the uploader takes everything dirty to the store at once,
//! new writes go through the journal alone, and a sync that was asked for meanwhile ends when no slot holds anything that is
//! nowhere else. From then on syncs are the journal's alone.

use sluice_journal::{Journal, Syncable};
use sluice_run::lock::{Condvar, Mutex};
use sluice_store::{Cache, CacheState};
use std::{io, sync::Arc, time::Duration};

/// How often the number of dirty slots is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Makes slabs durable, or waits until that does not matter any more. For [`sluice_journal::Committer::start`].
pub struct CacheSync {
    cache: Arc<Cache>,
    journal: Arc<Journal>,
    ended: Mutex<bool>,
    changed: Condvar,
}

impl CacheSync {
    /// For the slabs of `cache`, which `journal` speaks of.
    pub fn new(cache: Arc<Cache>, journal: Arc<Journal>) -> Arc<Self> {
        Arc::new(Self { cache, journal, ended: Mutex::new(false), changed: Condvar::new() })
    }

    /// Nobody drains the cache any more: a sync that waits for it fails, now and later.
    pub fn end(&self) {
        *self.ended.lock() = true;
        self.changed.notify_all();
    }
}

impl Syncable for CacheSync {
    fn is_due(&self) -> bool {
        self.cache.is_relied_on()
    }

    fn sync(&self) -> io::Result<()> {
        let Err(error) = self.cache.sync_relied_on() else { return Ok(()) };
        let dirty = || self.cache.stats().dirty_slots > 0;
        if self.cache.stats().state != CacheState::Failed {
            return Err(error);
        }
        if dirty() {
            tracing::error!(%error, "the cache disk failed; syncs wait until what only it holds is stored");
        }
        let mut ended = self.ended.lock();
        while dirty() {
            if *ended {
                return Err(error);
            }
            self.changed.wait_for(&mut ended, LOOK_INTERVAL);
        }
        drop(ended);
        // The records that say that the objects are stored came after the sync began. Without them a replay would look into the
        // slots.
        self.journal.sync().map(drop).map_err(io::Error::other)
    }
}
