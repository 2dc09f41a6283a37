//! What one writer keeps on its disks, brought up to the end of its journal.

use anyhow::bail;
use sluice_base::{Disk, ObjectId, Seq};
use sluice_journal::{Committer, Journal, JournalError, JournalOptions, Syncable};
use sluice_meta::store::{Log, MemoryLog, MetaStore, Options, Record, Tables, replay};
use sluice_run::collections::HashSet;
use sluice_ship::{Tee, TeeLog};
use sluice_store::Cache;
use sluice_vfs::{CacheSync, JournalLog, Recovered, Replay};
use std::{path::Path, sync::Arc, time::Duration};

/// What is replayed.
pub struct Kept {
    /// The disk of the journal.
    pub disk: Arc<dyn Disk>,
    /// The metadata's tables, as they are.
    pub tables: Arc<dyn Tables>,
    /// The cache disk, unless there is none.
    pub cache: Option<Arc<Cache>>,
    /// Where the journal is and its size; where it begins is the tables' word.
    pub journal: JournalOptions,
    /// For a look at the metadata: data that is not stored yet stays where it is.
    pub metadata_only: bool,
    /// What is committed goes here as well, to be shipped to the store.
    pub tee: Option<Arc<Tee>>,
}

/// What one writer keeps in a directory: tables, journal and cache, brought up to the end of the journal.
pub struct Replayed {
    /// Transactions over the tables and the journal.
    pub store: Arc<MetaStore>,
    /// The log.
    pub journal: Arc<Journal>,
    /// Syncs the log.
    pub committer: Arc<Committer>,
    /// The cache disk.
    pub cache: Option<Arc<Cache>>,
    /// Makes the cache disk durable.
    pub cache_sync: Option<Arc<CacheSync>>,
    /// What the journal held that is not stored yet.
    pub recovered: Recovered,
    /// Tells this boot of the host from every other one; all zero: not known.
    pub boot_id: [u8; 16],
}

impl Replayed {
    /// Replays the journal into the tables; `wanted` tells from them which objects are not stored yet. `dir` is for messages.
    pub fn open(
        kept: Kept,
        dir: &Path,
        wanted: impl FnOnce(&Arc<MetaStore>) -> anyhow::Result<HashSet<ObjectId>>,
    ) -> anyhow::Result<Self> {
        let Kept { disk, tables, cache, journal, metadata_only, tee } = kept;
        // First the metadata of every record, then, when it is known which objects are not stored yet, their data.
        let first_seq = Seq(tables.persisted().0 + 1);
        let boot_id = journal.boot_id;
        let journal_options = JournalOptions { needed_from: Some(first_seq), first_seq, ..journal };
        let mut apply = |seq, record: &[u8]| {
            tee.iter().for_each(|tee| tee.push(seq, record));
            replay(&*tables, seq, record, &mut |_, _, _| {})
                .map_err(|error| JournalError::Replay { seq, source: error.into() })
        };
        let (journal, found) = Journal::open(disk.clone(), journal_options.clone(), &mut apply)?;
        check_last(dir, found.last_seq, tables.persisted())?;
        drop(journal);
        let log = Arc::new(MemoryLog::default());
        let view = Arc::new(MetaStore::new(tables.clone(), log, found.last_seq, Options::default()));
        let mut data = Replay::new(wanted(&view)?, cache.as_deref());
        let mut restore = |seq, record: &[u8]| {
            let parsed = Record::parse(record);
            let parsed = parsed.map_err(|error| JournalError::Replay { seq, source: error.into() })?;
            parsed.attachments().iter().for_each(|(header, bytes)| data.attachment(seq, header, bytes));
            Ok(())
        };
        let (journal, _) = Journal::open(disk, journal_options, &mut restore)?;
        let recovered = data.finish();
        if !metadata_only {
            check_cached(dir, &recovered)?;
        }
        let journal = Arc::new(journal);
        let cache_sync = cache.as_ref().map(|cache| CacheSync::new(cache.clone(), journal.clone()));
        let also_sync = cache_sync.iter().map(|sync| sync.clone() as Arc<dyn Syncable>).collect();
        let committer = Committer::start(journal.clone(), also_sync, Duration::from_secs(1));
        let mut log: Arc<dyn Log> = Arc::new(JournalLog::new(journal.clone(), committer.clone()));
        if let Some(tee) = tee {
            log = Arc::new(TeeLog::new(log, tee));
        }
        let store = Arc::new(MetaStore::new(tables, log, found.last_seq, Options::default()));
        Ok(Self { store, journal, committer, cache, cache_sync, recovered, boot_id })
    }
}

fn check_last(dir: &Path, last: Seq, persisted: Seq) -> anyhow::Result<()> {
    if last < persisted {
        bail!(
            "the journal of {} ends at record {last}, the metadata has seen {persisted}: is this the journal of an older copy?",
            dir.display()
        );
    }
    Ok(())
}

fn check_cached(dir: &Path, recovered: &Recovered) -> anyhow::Result<()> {
    if recovered.without_cache > 0 {
        bail!(
            "{} writes that are not stored yet lie in the cache of {}: start with --cache-size, and let them be stored first",
            recovered.without_cache,
            dir.display()
        );
    }
    Ok(())
}
