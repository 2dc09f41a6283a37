//! Opening a volume that may be damaged.

use super::report::Item;
use crate::{
    directory,
    lock::VolumeLock,
    volume::{
        OpenOptions, Volume, begin_journal, bytes_in, is_corrupt_journal, is_missing_journal, journal_bytes_at_least,
        journal_repair_options,
    },
};
use anyhow::{Context, anyhow, bail};
use sluice_base::{Seq, disk::RealDisk};
use sluice_journal::{Journal, JournalError, JournalOptions};
use sluice_meta::{
    fsck::Severity,
    store::{LsmOptions, LsmTables, Tables, replay},
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Smallest cache that unstored data is looked for with, when there is none.
const CACHE_BYTES: u64 = 1 << 30;

/// Opens the volume without its cache, with its lock held. A damaged journal is a finding, as is a missing one; `repair` cuts
/// it at the damage, or begins an empty one. `None` when it stays as it is.
pub fn open_for_repair(dir: &Path, repair: bool, items: &mut Vec<Item>) -> anyhow::Result<Option<Volume>> {
    let options = OpenOptions {
        cache_bytes: 0,
        journal_bytes: journal_bytes_at_least(dir),
        metadata_only: true,
        ship: true,
        ..OpenOptions::default()
    };
    let error = match Volume::open(dir, &options) {
        Ok(volume) => return Ok(Some(volume)),
        Err(error) if is_corrupt_journal(&error) || is_missing_journal(&error) => error,
        Err(error) => return Err(error),
    };
    let item = Item { repairable: true, ..Item::lasting("journal", Severity::Loss, error.to_string()) };
    if !repair {
        items.push(item);
        return Ok(None);
    }
    let did = if is_missing_journal(&error) { new_journal(dir)? } else { cut_journal(dir)? };
    items.push(Item { mended: true, text: format!("{}: {did}", item.text), ..item });
    Volume::open(dir, &options).map(Some)
}

/// Begins a journal behind what the tables have.
fn new_journal(dir: &Path) -> anyhow::Result<String> {
    let config = directory::load(dir)?.ok_or_else(|| anyhow!("{} holds no volume", dir.display()))?;
    let _lock = VolumeLock::take(dir)?;
    let persisted = LsmTables::open(&dir.join("meta/tables"), LsmOptions::default())?.persisted();
    begin_journal(dir, &config, Seq(persisted.0 + 1))?;
    Ok(format!("BEGAN an empty one; the tables have everything up to record {persisted}"))
}

/// Drops the damaged record of the journal and all after it; tells what was dropped.
fn cut_journal(dir: &Path) -> anyhow::Result<String> {
    let config = directory::load(dir)?.ok_or_else(|| anyhow!("{} holds no volume", dir.display()))?;
    let _lock = VolumeLock::take(dir)?;
    let options = journal_repair_options(dir, &config, journal_bytes_at_least(dir))?;
    let report = Journal::truncate_at_corruption(Arc::new(RealDisk), options.clone())?;
    let Some(from) = report.dropped_from else {
        bail!("the journal of {} is sound after all; run fsck again", dir.display())
    };
    let mut did = format!(
        "DROPPED record {from} and all after it ({} segment files removed, {} bytes of one zeroed)",
        report.removed_segments, report.zeroed_bytes
    );
    if let Some(persisted) = tables_ahead(dir, options)? {
        let aside = set_aside(dir)?;
        did += &format!(
            ". The tables have all metadata up to record {persisted}, which is later: the rest of the journal, which ends before \
             that, is kept in {} and no longer read",
            aside.display()
        );
        begin_journal(dir, &config, Seq(persisted.0 + 1))?;
    }
    Ok(did)
}

/// What the tables have seen, when the journal ends before that. Numbers given out again would hide new records from the
/// tables, so such a journal cannot go on.
fn tables_ahead(dir: &Path, options: JournalOptions) -> anyhow::Result<Option<Seq>> {
    let tables = LsmTables::open(&dir.join("meta/tables"), LsmOptions::default())?;
    let persisted = tables.persisted();
    let options = JournalOptions { first_seq: Seq(persisted.0 + 1), ..options };
    let mut apply = |seq, record: &[u8]| {
        let applied = replay(&tables, seq, record, &mut |_, _, _| {});
        applied.map_err(|error| JournalError::Replay { seq, source: error.into() })
    };
    let (_, found) = Journal::open(Arc::new(RealDisk), options, &mut apply)?;
    Ok((found.last_seq < persisted).then_some(persisted))
}

fn set_aside(dir: &Path) -> anyhow::Result<PathBuf> {
    let free = (1..).map(|number| dir.join(format!("journal.damaged-{number}"))).find(|path| !path.exists());
    let aside = free.expect("numbers do not end");
    let journal = dir.join("journal");
    fs::rename(&journal, &aside).with_context(|| format!("moving {} to {}", journal.display(), aside.display()))?;
    fs::create_dir(&journal).with_context(|| format!("making {}", journal.display()))?;
    fs::File::open(dir).and_then(|dir| dir.sync_all()).with_context(|| format!("syncing {}", dir.display()))?;
    Ok(aside)
}

/// Looks for the data of objects that are not stored yet, as a start of the volume does.
pub fn unstored(dir: &Path) -> anyhow::Result<Option<Item>> {
    let cache_bytes = bytes_in(&dir.join("cache")).max(CACHE_BYTES);
    let volume = Volume::open(
        dir,
        &OpenOptions { cache_bytes, journal_bytes: journal_bytes_at_least(dir), ..OpenOptions::default() },
    )?;
    let damaged = volume.recovered.damaged_segments;
    Ok((damaged > 0).then(|| {
        let text = format!(
            "{damaged} pieces of data that are not in the store yet match neither journal nor cache: reads of them fail"
        );
        Item::lasting("unstored-data", Severity::Loss, text)
    }))
}

/// The files of the metadata that are damaged.
pub fn damaged_tables(dir: &Path) -> anyhow::Result<Vec<Item>> {
    let tables = LsmTables::open(&dir.join("meta/tables"), LsmOptions::default())?;
    let item = |file: &PathBuf| {
        let text = format!(
            "{} is damaged, a table of the metadata, which was not checked to its end: restore meta/ and journal/ from a copy, or have \
             `sluice recover --from-store` make the volume of what the store has",
            file.display()
        );
        Item::lasting("metadata-table", Severity::Loss, text)
    };
    Ok(tables.damaged_files().iter().map(item).collect())
}
