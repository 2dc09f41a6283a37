//! A volume at work in a process: from the open parts to their end.

use sluice_journal::Committer;
use sluice_meta::store::{Checkpointer, MetaStore};
use sluice_store::Cache;
use sluice_vfs::{CacheSync, Parts, Recovered, Settings, Vfs};
use std::sync::Arc;

/// The work on a volume's parts, apart from who uses them.
pub struct Work {
    /// What is served.
    pub vfs: Arc<Vfs>,
    checkpointer: Checkpointer,
    cache: Option<Arc<Cache>>,
    cache_sync: Option<Arc<CacheSync>>,
    committer: Arc<Committer>,
}

impl Work {
    /// Starts the work on `parts`, whose journal is that of `tables`.
    pub fn start(
        parts: Parts,
        settings: Settings,
        recovered: Recovered,
        tables: Arc<MetaStore>,
        cache_sync: Option<Arc<CacheSync>>,
    ) -> anyhow::Result<Self> {
        let (cache, committer) = (parts.cache.clone(), parts.committer.clone());
        let vfs = Vfs::start(parts, settings, recovered);
        let trimmer = Arc::downgrade(&vfs);
        let on_persisted = Box::new(move |_| trimmer.upgrade().iter().for_each(|vfs| vfs.trim_journal()));
        let checkpointer = Checkpointer::start(tables, on_persisted)?;
        Ok(Self { vfs, checkpointer, cache, cache_sync, committer })
    }

    /// Even when the store is unreachable, what is acked is in the journal: the order is for a quick next start.
    pub fn end(self) -> anyhow::Result<()> {
        self.vfs.stop();
        // Before whatever syncs: a sync that waits for the cache to be drained would wait for ever.
        self.cache_sync.iter().for_each(|sync| sync.end());
        self.checkpointer.shutdown()?;
        self.vfs.trim_journal();
        if let Some(cache) = &self.cache {
            cache.stop_scrub();
            let persisted = cache.persist_table();
            if let Err(error) = &persisted {
                tracing::warn!(%error, "the cache's table was not written: the next start finds a colder cache");
            }
            cache.end_scrub(persisted.is_ok());
        }
        self.committer.shutdown();
        Ok(())
    }
}
