//! `sluice gc`: objects that no file needs any more.

use crate::{
    fsck::{list, open_for_repair, spinner},
    mounts,
    output::{note, out},
    units,
    volume::{Volume, check_store},
};
use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::builder::ValueParser;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::json;
use sluice_base::{ObjectId, Timestamp};
use sluice_meta::{fsck, records::ObjectState};
use sluice_object::{PutMode, StoreError, backend::ListEntry};
use sluice_vfs::gc::GcSettings;
use std::{ffi::OsString, path::Path, process::ExitCode, time::Duration};

/// Delete objects that no file needs any more
///
/// Overwritten and deleted files leave objects in the store. This command finds
///
/// - objects that the volume knows nothing of: left by an upload that a crash cut off, or by a volume that was made anew;
///
/// - objects in which no file has bytes any more: they become tombstones, and are deleted after --min-age as such;
///
/// - parts of checkpoints and of the log below meta/ in the store that recovering would not read.
///
/// `sluice up` and `sluice serve` do the second while they run (--gc-interval), and rewrite objects with less than half of their bytes alive.
///
/// It only lists, unless --delete is given; as tombstones take their time, the second run with --delete frees what the first
/// one buried. The metadata is checked first, and nothing is deleted by metadata that is damaged. Run it now and then, and after
/// much was deleted; the volume must not be mounted. A directory whose volume was recovered elsewhere since deletes nothing: it does not know
/// what the other one has stored.
///
/// Example: sluice gc ~/volume, look at the sum, then: sluice gc ~/volume --delete
#[derive(clap::Args)]
pub struct GcArgs {
    /// The volume: local:DIR or DIR
    pub meta: OsString,
    /// Delete, instead of only listing
    #[arg(long)]
    pub delete: bool,
    /// Leave alone what is younger, by the store's clock
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = ValueParser::new(units::parse_time))]
    pub min_age: Duration,
    /// Name each object
    #[arg(short, long)]
    pub verbose: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `--gc-interval` and `--gc-min-age` of `up` and `serve`.
#[derive(clap::Args)]
pub struct GcOptions {
    /// How often objects that no file needs are looked for: they are deleted --gc-min-age later, and those with less than half of their
    /// bytes alive are rewritten. 0 leaves all that to `sluice gc`
    #[arg(long = "gc-interval", default_value = "10m", value_name = "TIME", value_parser = ValueParser::new(units::parse_time))]
    interval: Duration,
    /// How long an object must be without users before it is deleted, as seen by a process that runs all the time; `serve` takes at
    /// least twice --lease
    #[arg(long = "gc-min-age", default_value = "1h", value_name = "TIME", value_parser = ValueParser::new(units::parse_time))]
    min_age: Duration,
}

impl GcOptions {
    /// As the volume takes them.
    pub fn settings(&self) -> GcSettings {
        GcSettings { interval: self.interval, min_age: self.min_age, ..GcSettings::default() }
    }
}

/// Deletions that run at once.
const DELETES_MAX: usize = 16;
/// A blob whose time of storing tells the store's clock.
const CLOCK_BLOB: (&str, &str) = ("gc", "gc/clock");

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// In the store, without a record.
    Unknown,
    /// Without users: a tombstone from now on.
    Bury,
    /// A tombstone long enough.
    Expired,
    /// A record without users of something that never was stored.
    Forget,
    /// Too young for any of that.
    Young,
}

impl Fate {
    const ALL: [(Fate, &'static str, &'static str); 5] = [
        (Fate::Unknown, "unknown", "in the store, known to no record"),
        (Fate::Expired, "expired", "unreferenced, tombstones long enough"),
        (Fate::Bury, "unreferenced", "unreferenced, to become tombstones"),
        (Fate::Forget, "unstored", "records of what never was stored and nothing refers to"),
        (Fate::Young, "young", "younger than --min-age, left alone"),
    ];

    /// Whether bytes leave the store.
    fn deletes(self) -> bool {
        matches!(self, Fate::Unknown | Fate::Expired)
    }
}

struct Found {
    id: ObjectId,
    bytes: u64,
    fate: Fate,
}

/// Runs the command.
pub fn run(args: &GcArgs) -> anyhow::Result<ExitCode> {
    let dir = mounts::unmounted_dir(&args.meta, "gc")?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("sluice-io").enable_all().build()?;
    let mut damage = Vec::new();
    let Some(volume) = open_for_repair(&dir, false, &mut damage)? else {
        bail!("{}; run `sluice fsck` first", damage.first().map_or("the journal is damaged", |item| &item.text));
    };
    runtime.block_on(check_store(&volume.config, &dir))?;
    let shipped = runtime.block_on(shipped(&volume, args.min_age, args.delete))?;
    let spinner = spinner("checking the metadata");
    let report = fsck::check(volume.namespace.store(), &mut |_| {})?;
    if !report.is_clean() {
        bail!(
            "the metadata has {} problems, so nothing is deleted by it: run `sluice fsck --repair` first",
            report.findings.len()
        );
    }
    spinner.set_message("listing the objects in the store");
    let found = runtime.block_on(find(&volume, args))?;
    spinner.finish_and_clear();
    let deleted = if args.delete { runtime.block_on(delete(&volume, &dir, &found, &shipped))? } else { (0, 0) };
    print(args, &found, &shipped, deleted)?;
    Ok(ExitCode::SUCCESS)
}

/// Blobs of the shipped metadata that nothing needs. What the store has must be this directory's: to another one its objects are unknown.
async fn shipped(volume: &Volume, min_age: Duration, delete: bool) -> anyhow::Result<Vec<ListEntry>> {
    let place = || format!("the metadata in {}", volume.store.place());
    let found = sluice_ship::survey(&volume.store).await.with_context(place)?;
    let why = match (found.line.map(|line| line.check(volume.line)), found.damage) {
        (Some(Err(other)), _) => other.to_string(),
        (_, Some(damage)) => format!("{damage}; the next `sluice up` makes a new checkpoint"),
        _ => {
            let now = store_clock(volume).await.with_context(place)?;
            let is_old = |entry: &ListEntry| now.seconds_since(entry.modified) >= min_age.as_secs() as i64;
            return Ok(found.unneeded.into_iter().filter(is_old).collect());
        }
    };
    if delete {
        bail!("{why}. It would be wrong to delete here what is unknown here, so nothing was deleted");
    }
    note!("warning: {why}. What is listed is what is unknown here; --delete is refused");
    Ok(Vec::new())
}

async fn find(volume: &Volume, args: &GcArgs) -> anyhow::Result<Vec<Found>> {
    let place = || format!("listing {}", volume.store.place());
    let now = store_clock(volume).await.with_context(place)?;
    let mut listing = list(&volume.store).await.with_context(place)?;
    let old = |now: Timestamp, since: Timestamp| now.seconds_since(since) >= args.min_age.as_secs() as i64;
    let here = volume.clock.wall();
    let mut found = Vec::new();
    fsck::objects(volume.namespace.store(), &mut |id, record| {
        let listed = listing.remove(&id);
        let Some(record) = record.filter(|record| record.live_bytes == 0) else { return };
        let fate = match record.state {
            ObjectState::Tombstone if old(here, record.since) => Fate::Expired,
            ObjectState::Tombstone => Fate::Young,
            ObjectState::Stored => Fate::Bury,
            // An upload that a crash cut off may have stored it all the same: the next run finds it unknown.
            ObjectState::Open | ObjectState::Sealed => Fate::Forget,
        };
        found.push(Found { id, bytes: listed.map_or(0, |listed| listed.stored_bytes), fate });
    })?;
    found.extend(listing.into_values().map(|listed| {
        let fate = if old(now, listed.modified) { Fate::Unknown } else { Fate::Young };
        Found { id: listed.id, bytes: listed.stored_bytes, fate }
    }));
    found.sort_unstable_by_key(|found| found.id);
    Ok(found)
}

/// Now, by the clock that dates the objects: a blob is stored and its time read.
async fn store_clock(volume: &Volume) -> Result<Timestamp, StoreError> {
    let (directory, name) = CLOCK_BLOB;
    volume.store.put_blob(name, Bytes::from_static(b"clock"), PutMode::Overwrite).await?;
    let listed = volume.store.list_blobs(directory).await?;
    volume.store.delete_blob(name).await?;
    // Not listed: then nothing is old enough.
    Ok(listed.iter().find(|entry| entry.key == name).map_or_else(Timestamp::default, |entry| entry.modified))
}

/// Does what was found; returns the objects and bytes deleted.
async fn delete(volume: &Volume, dir: &Path, found: &[Found], shipped: &[ListEntry]) -> anyhow::Result<(u64, u64)> {
    for entry in shipped {
        volume
            .store
            .delete_blob(&entry.key)
            .await
            .with_context(|| format!("deleting from {}", volume.store.place()))?;
    }
    for found in found {
        match found.fate {
            Fate::Bury => drop(volume.namespace.bury_object(found.id)?),
            Fate::Forget => drop(volume.namespace.forget_object(found.id)?),
            _ => {}
        }
    }
    let due: Vec<&Found> = found.iter().filter(|found| found.fate.deletes()).collect();
    if !due.is_empty() {
        ship(volume, dir).await?;
    }
    let deleted: Vec<&Found> = stream::iter(due)
        .map(|found| async move {
            volume.store.delete_object(found.id).await?;
            // The object first: a record without an object is deleted again, an object without a record is found again.
            if found.fate == Fate::Expired {
                volume.namespace.forget_object(found.id)?;
            }
            anyhow::Ok(found)
        })
        .buffer_unordered(DELETES_MAX)
        .try_collect()
        .await
        .with_context(|| format!("deleting from {}; run gc again, nothing is half done", volume.store.place()))?;
    volume.namespace.store().checkpoint()?;
    Ok((deleted.len() as u64, deleted.iter().map(|found| found.bytes).sum()))
}

/// Brings the metadata to the store: what comes back from there must not refer to what is deleted.
async fn ship(volume: &Volume, dir: &Path) -> anyhow::Result<()> {
    const SHIP_WAIT: Duration = Duration::from_secs(60);
    if !volume.recovered.is_empty() {
        bail!(
            "there is data that only this directory has, so the store cannot have all changes by which objects are deleted, and none was: \
             `sluice up` stores it"
        );
    }
    let shipper = volume.shipper(dir, false).context("the volume was opened without what ships")?;
    shipper.begin(Box::new(|_, end| end), &sluice_run::task::handle(&tokio::runtime::Handle::current()));
    let shipped = shipper.finish(SHIP_WAIT).await;
    if shipped.is_ok() {
        shipper.leave(SHIP_WAIT).await;
    }
    shipper.stop();
    shipper.ended().await;
    shipped.map_err(|why| anyhow!("the store lacks changes by which objects are deleted, so none was: {why}"))
}

fn print(args: &GcArgs, found: &[Found], shipped: &[ListEntry], (objects, bytes): (u64, u64)) -> anyhow::Result<()> {
    let shipped_bytes: u64 = shipped.iter().map(|entry| entry.bytes).sum();
    let of = |fate: Fate| found.iter().filter(move |found| found.fate == fate);
    let sum = |fate: Fate| (of(fate).count(), of(fate).map(|found| found.bytes).sum::<u64>());
    if args.json {
        let mut all = serde_json::Map::new();
        for (fate, key, _) in Fate::ALL {
            let (count, bytes) = sum(fate);
            let ids: Vec<String> = of(fate).map(|found| found.id.to_string()).collect();
            let ids = if args.verbose { json!(ids) } else { json!(null) };
            all.insert(key.into(), json!({ "objects": count, "bytes": bytes, "ids": ids }));
        }
        all.insert("metadata".into(), json!({ "blobs": shipped.len(), "bytes": shipped_bytes }));
        all.insert("deleted".into(), json!({ "objects": objects, "bytes": bytes }));
        out!("{}", serde_json::to_string(&all)?);
        return Ok(());
    }
    for (fate, _, text) in Fate::ALL {
        let (count, bytes) = sum(fate);
        if count > 0 {
            out!("{count:>8} objects, {:>10}: {text}", units::show_size(bytes));
        }
        if args.verbose {
            of(fate).for_each(|found| out!("         {} {}", found.id, found.bytes));
        }
    }
    if !shipped.is_empty() {
        out!(
            "{:>8} blobs,   {:>10}: shipped metadata that no checkpoint needs",
            shipped.len(),
            units::show_size(shipped_bytes)
        );
    }
    if args.delete {
        out!("deleted {objects} objects, {}", units::show_size(bytes));
        let (marked, _) = sum(Fate::Bury);
        if marked > 0 {
            let later = units::show_time(args.min_age);
            out!("marked {marked}, which the same command deletes once that is {later} ago");
        }
    } else if found.iter().any(|found| found.fate != Fate::Young) || !shipped.is_empty() {
        out!("nothing was changed: --delete does it");
    } else {
        out!("nothing to delete");
    }
    Ok(())
}
