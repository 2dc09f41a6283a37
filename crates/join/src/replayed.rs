//! What one writer keeps on its disks, brought up to the end of its journal.

use anyhow::bail;
use sluice_base::{Disk, ObjectId, Seq};
use sluice_journal::{Committer, Journal, JournalError, JournalOptions, Syncable};
use sluice_meta::store::{Log, MemoryLog, MetaStore, Options, Record, Tables, replay};
use sluice_run::collections::HashSet;
use sluice_ship::{Tee, TeeLog};
use sluice_store::Cache;
use sluice_vfs::{CacheSync, DataNote, JournalLog, Recovered, Replay, remote::Left};
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
        let boot_id = journal.boot_id;
        // First the metadata of every record, then, when it is known which objects are not stored yet, their data.
        let push = |seq, record: &[u8]| tee.iter().for_each(|tee| tee.push(seq, record));
        let (view, journal_options, last_seq) = applied(&disk, &tables, journal, dir, push)?;
        let mut data = Replay::new(wanted(&view)?, cache.as_deref());
        let mut restore = each_attachment(|seq, header: &[u8], bytes: &[u8]| data.attachment(seq, header, bytes));
        let (journal, _) = Journal::open(disk, journal_options, &mut restore)?;
        drop(restore);
        let recovered = data.finish()?;
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
        let store = Arc::new(MetaStore::new(tables, log, last_seq, Options::default()));
        Ok(Self { store, journal, committer, cache, cache_sync, recovered, boot_id })
    }
}

/// Looks at what a mount's directory has for others, without taking anything up: what is left, and the bytes of the objects among it.
pub fn look(
    disk: Arc<dyn Disk>,
    tables: Arc<dyn Tables>,
    journal: JournalOptions,
    dir: &Path,
) -> anyhow::Result<(Left, u64)> {
    let (view, options, _) = applied(&disk, &tables, journal, dir, |_, _| {})?;
    let (left, mut bytes) = (Left::of(&view)?, 0);
    if !left.objects.is_empty() {
        let mut count = each_attachment(|_, header: &[u8], _: &[u8]| {
            let note = DataNote::decode(header).filter(|note| left.objects.contains(&note.object));
            bytes += note.map_or(0, |note| u64::from(note.len));
        });
        Journal::open(disk, options, &mut count)?;
    }
    Ok((left, bytes))
}

/// The metadata in a volume's directory, brought up to the end of its journal in memory, without taking anything up.
pub fn view(
    disk: Arc<dyn Disk>,
    tables: Arc<dyn Tables>,
    journal: JournalOptions,
    dir: &Path,
) -> anyhow::Result<Arc<MetaStore>> {
    Ok(applied(&disk, &tables, journal, dir, |_, _| {})?.0)
}

/// Brings `tables` up to the end of the journal, of which `each` hears every record; a view of them then, with what opens the journal once more, and its last record.
fn applied(
    disk: &Arc<dyn Disk>,
    tables: &Arc<dyn Tables>,
    journal: JournalOptions,
    dir: &Path,
    each: impl Fn(Seq, &[u8]),
) -> anyhow::Result<(Arc<MetaStore>, JournalOptions, Seq)> {
    let first_seq = Seq(tables.persisted().0 + 1);
    let options = JournalOptions { needed_from: Some(first_seq), first_seq, ..journal };
    let mut apply = |seq, record: &[u8]| {
        each(seq, record);
        replay(&**tables, seq, record, &mut |_, _, _| {})
            .map_err(|error| JournalError::Replay { seq, source: error.into() })
    };
    let (_, found) = Journal::open(disk.clone(), options.clone(), &mut apply)?;
    check_last(dir, found.last_seq, tables.persisted())?;
    let log = Arc::new(MemoryLog::default());
    let view = Arc::new(MetaStore::new(tables.clone(), log, found.last_seq, Options::default()));
    Ok((view, options, found.last_seq))
}

/// Hands each attachment of each record on.
fn each_attachment(mut each: impl FnMut(Seq, &[u8], &[u8])) -> impl FnMut(Seq, &[u8]) -> Result<(), JournalError> {
    move |seq, record| {
        let parsed = Record::parse(record);
        let parsed = parsed.map_err(|error| JournalError::Replay { seq, source: error.into() })?;
        parsed.attachments().iter().for_each(|(header, bytes)| each(seq, header, bytes));
        Ok(())
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
