//! `sluice recover --from-store`: a volume whose host is gone, on another host.

use crate::{
    config::VolumeConfig,
    directory,
    format::{Traces, check_free, empty_dir},
    fsck::{byte_bar, report::Item},
    lock::VolumeLock,
    mount::hostname,
    output::{note, out},
    units::{self, quoted},
    volume::{begin_journal, open_store, random_line},
};
use anyhow::{Context, anyhow, bail};
use futures::{StreamExt, stream};
use serde_json::json;
use sluice_base::{Clock, ObjectId, Seq, SystemClock};
use sluice_meta::{
    Namespace, fsck,
    records::ObjectState,
    store::{Log, LogClass, LogError, LsmOptions, LsmTables, MetaStore, Options},
};
use sluice_object::{Store, StoreError, StoreUrl, VOLUME_MARKER};
use sluice_run::collections::HashMap;
use sluice_ship::{InUse, Line, Place, RestoreError, Restored, Taking};
use std::{
    ffi::OsStr,
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Requests that run at once.
const REQUESTS_MAX: usize = 16;
/// Files that are named; `sluice fsck` names them all.
const FILES_SHOWN: usize = 20;

/// Makes the volume whose metadata and objects are in `store` in the directory that `meta` names; with `force` also when a process elsewhere may
/// have it.
pub fn run(meta: &OsStr, store: &str, force: bool, json: bool) -> anyhow::Result<ExitCode> {
    let dir = directory::volume_dir(meta)?;
    let mut restored = None;
    let made = make(&dir, store, async |store, config, tables, line| {
        let place = || format!("the metadata in {}", store.place());
        // Before all of it is read.
        if !force && let Some(found) = sluice_ship::in_use(store).await.with_context(place)? {
            return Err(in_use(&found, store, config));
        }
        let bar = byte_bar(0, "reading the metadata");
        let now = SystemClock::default().wall().secs as u64;
        let taking = Taking { line, wall_secs: now, is_forced: force };
        let restored_now = sluice_ship::restore(store, tables, taking, |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        });
        let found = match restored_now.await {
            Err(RestoreError::InUse(found)) => return Err(in_use(&found, store, config)),
            found => found.with_context(place)?,
        };
        bar.finish_and_clear();
        restored = Some(found);
        Ok(Filled { seq: found.seq, is_shipped: true })
    })?;
    show(&dir, &made, &restored.expect("it was"), json)
}

/// Whether the directory of whoever may have the volume is on this host.
fn is_here(InUse { place, .. }: &InUse, config: &VolumeConfig) -> bool {
    let is_the_volume = |found: Option<VolumeConfig>| found.is_some_and(|found| found.id == config.id);
    place.host == hostname() && directory::load(Path::new(&place.dir)).is_ok_and(is_the_volume)
}

/// The process that has the volume, where that is on this host.
pub fn holder_here(found: &InUse, config: &VolumeConfig) -> Option<String> {
    is_here(found, config).then(|| VolumeLock::holder(Path::new(&found.place.dir)))?
}

/// Why a volume that somebody may have is not recovered without force.
fn in_use(found: &InUse, store: &Store, config: &VolumeConfig) -> anyhow::Error {
    let InUse { place: Place { host, dir }, since_secs, heard_secs } = found;
    let now = SystemClock::default().wall().secs as u64;
    let ago = |secs: u64| format!("{} ago", units::show_time(Duration::from_secs(now.saturating_sub(secs))));
    let since = since_secs.map(|secs| format!("started {}, ", ago(secs))).unwrap_or_default();
    let at = if dir.is_empty() { "at a place that is not known".to_owned() } else { format!("in {dir} on {host}") };
    let perhaps = format!("perhaps in use: {since}last heard of {} {at}, and was not unmounted", ago(*heard_secs));
    let (state, instead) = if let Some(holder) = holder_here(found, config) {
        (format!("in use here, in {dir}, by {holder}"), "Unmount it first; --force recovers all the same".to_owned())
    } else if is_here(found, config) {
        let up = format!("`sluice up {}` goes on with it, and loses nothing", quoted(dir));
        (perhaps, format!("That directory is on this host: {up}; --force leaves it behind"))
    } else {
        let there = "If it goes on there, unmount it there first, or stop its server";
        (perhaps, format!("{there}. If it is lost, --force makes the volume of what the store has"))
    };
    anyhow!(
        "the volume in {} is {state}. A recovery takes the store away from whoever has the volume: what is written there from then on is not \
         kept in the store. {instead}",
        store.place()
    )
}

/// About a volume that is where another one is to be made.
const CHOOSE: &str = "choose another directory, or move that one away: nothing replaces it";

/// What was put into tables.
pub struct Filled {
    /// The last change of it.
    pub seq: Seq,
    /// The store has the same.
    pub is_shipped: bool,
}

/// Makes the directory of the volume whose objects are in `store`: `fill` puts its metadata into the tables, which are of another line from then on.
/// A failure leaves nothing behind.
pub fn make(
    dir: &Path,
    store: &str,
    fill: impl AsyncFnOnce(&Store, &VolumeConfig, &LsmTables, Line) -> anyhow::Result<Filled>,
) -> anyhow::Result<Made> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("sluice-io").enable_all().build()?;
    if !directory::is_recovering(dir) {
        check_free(dir, false, CHOOSE)?;
    }
    let mut traces = Traces::default();
    match runtime.block_on(write(dir, store, &mut traces, fill)) {
        Ok(made) => Ok(made),
        Err(error) => {
            if traces.has_lock() && directory::is_recovering(dir) {
                let _ = empty_dir(&dir.join("journal")).and_then(|()| empty_dir(&dir.join("meta")));
            }
            traces.remove(dir);
            Err(error)
        }
    }
}

/// A volume that was made.
pub struct Made {
    pub config: VolumeConfig,
    pub namespace: Namespace,
    pub settled: Settled,
}

async fn write(
    dir: &Path,
    url: &str,
    traces: &mut Traces,
    fill: impl AsyncFnOnce(&Store, &VolumeConfig, &LsmTables, Line) -> anyhow::Result<Filled>,
) -> anyhow::Result<Made> {
    let nobody = VolumeConfig::nobody(url);
    if let StoreUrl::File(path) = nobody.store_url(dir)?
        && !path.is_dir()
    {
        bail!("{} is no directory, so no store: a relative file: path counts from {}", path.display(), dir.display());
    }
    traces.make_dir(dir)?;
    traces.take_lock(dir)?;
    if directory::is_recovering(dir) {
        note!("a recovery into {} was interrupted: it begins anew", dir.display());
        ["journal", "meta"].iter().try_for_each(|part| empty_dir(&dir.join(part)))?;
    } else {
        check_free(dir, true, CHOOSE)?;
    }
    let store = open_store(&nobody, dir, true)?;
    let marker = match store.get_blob(VOLUME_MARKER).await {
        Ok(marker) => marker,
        Err(StoreError::NotFound { .. }) => {
            bail!(crate::volume::no_volume(&store))
        }
        Err(error) => return Err(error).with_context(|| format!("the store {}", store.place())),
    };
    let found = crate::volume::parse_marker(&marker, &store, dir)?;
    let config = VolumeConfig { store: url.into(), ..found };
    let path = dir.join("meta/tables");
    traces.make_dir(&path)?;
    // Until all of it is there nobody takes it for a volume.
    directory::begin_recovery(dir)?;
    let tables = Arc::new(LsmTables::open(&path, LsmOptions::default()).context("making the metadata's tables")?);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    // Whoever else has a directory of this volume is told apart from now on, also should this be interrupted.
    let line = Line(random_line());
    let Filled { seq, is_shipped } = fill(&store, &config, &tables, line).await?;
    let log = Arc::new(NoLog(AtomicU64::new(seq.0)));
    let meta = Arc::new(MetaStore::new(tables.clone(), log.clone(), seq, Options::default()));
    let namespace = Namespace::new(meta.clone(), clock);
    namespace.begin_line(line.0)?;
    if is_shipped {
        namespace.note_shipped(line.0)?;
    }
    let settled = settle(&namespace, &store).await?;
    let last = meta.checkpoint()?;
    begin_journal(dir, &config, Seq(last.0 + 1))?;
    config.save(dir)?;
    directory::end_recovery(dir)?;
    Ok(Made { config, namespace, settled })
}

/// Numbers, for changes that go to the tables at once.
struct NoLog(AtomicU64);

impl Log for NoLog {
    fn append(&self, _: LogClass, _: &[&[u8]]) -> Result<Seq, LogError> {
        Ok(Seq(self.0.fetch_add(1, Ordering::SeqCst) + 1))
    }

    fn ensure_synced(&self, _: Seq) -> Result<(), LogError> {
        Ok(())
    }

    fn synced(&self) -> Seq {
        Seq(self.0.load(Ordering::SeqCst))
    }
}

/// What became of objects that the metadata did not know as stored.
#[derive(Default)]
pub struct Settled {
    pub stored: usize,
    pub lost: HashMap<ObjectId, Vec<std::ops::Range<u32>>>,
}

/// Objects that were on their way to the store when the metadata was shipped: they have arrived since, or are lost.
async fn settle(namespace: &Namespace, store: &Store) -> anyhow::Result<Settled> {
    let mut unstored = Vec::new();
    fsck::objects(namespace.store(), &mut |id, record| {
        let is_unstored = |state| matches!(state, ObjectState::Open | ObjectState::Sealed);
        if record.is_some_and(|record| is_unstored(record.state)) {
            unstored.push(id);
        }
    })?;
    let find = |id| async move {
        match store.find_object(id).await {
            Err(StoreError::Corrupt { .. }) => (id, Ok(None)),
            found => (id, found),
        }
    };
    let mut found = stream::iter(unstored).map(find).buffer_unordered(REQUESTS_MAX);
    let mut settled = Settled::default();
    while let Some((id, object)) = found.next().await {
        let place = || format!("looking for object {id} in {}", store.place());
        match object.with_context(place)? {
            Some(object) => {
                namespace.object_stored(id, object.segment_count(), object.stored_bytes())?;
                settled.stored += 1;
            }
            None => drop(settled.lost.insert(id, std::iter::once(0..u32::MAX).collect())),
        }
    }
    Ok(settled)
}

impl Made {
    /// Which bytes of which files are lost.
    pub fn lost(&self) -> anyhow::Result<Vec<String>> {
        let users = fsck::users(self.namespace.store(), &self.settled.lost)?;
        Ok(users.iter().map(|user| Item::unreadable(user, "was not stored").text).collect())
    }

    /// The end of what is told of a volume that was made.
    pub fn tell_rest(&self, dir: &Path) -> anyhow::Result<()> {
        let lost = self.lost()?;
        if !self.settled.lost.is_empty() {
            note!(
                "{} objects had not arrived in the store, so reads of these bytes fail with EIO:",
                self.settled.lost.len()
            );
            lost.iter().take(FILES_SHOWN).for_each(|text| note!("  {text}"));
            if lost.len() > FILES_SHOWN {
                note!("  and {} more: `sluice fsck {}` names them", lost.len() - FILES_SHOWN, quoted(dir));
            }
        }
        out!(
            "a directory or a process that has the volume elsewhere can ship nothing to the store any more: do not go on with it"
        );
        if let StoreUrl::File(path) = self.config.store_url(dir)?
            && let Some(other) = path.parent().filter(|other| *other != dir && other.join("meta").is_dir())
        {
            out!(
                "its bytes stay in {}: of {} remove nothing but meta, journal and cache",
                path.display(),
                other.display()
            );
        }
        out!("whether the store has every object: sluice fsck {}", quoted(dir));
        out!("mount it with: sluice up {} MOUNTPOINT, or offer it: sluice serve {0} --listen HOST:PORT", quoted(dir));
        Ok(())
    }
}

fn show(dir: &Path, made: &Made, restored: &Restored, json: bool) -> anyhow::Result<ExitCode> {
    let Made { config, namespace, settled } = made;
    let age_secs = (SystemClock::default().wall().secs as u64).saturating_sub(restored.shipped_secs);
    let usage = namespace.usage()?;
    if json {
        out!(
            "{}",
            json!({
                "volume": config.id, "dir": dir.to_string_lossy(), "store": config.store, "seq": restored.seq.0,
                "shipped_secs": restored.shipped_secs, "inodes": usage.inodes, "held_bytes": usage.bytes,
                "changes_left_out": restored.left_out, "objects_found": settled.stored, "objects_lost": settled.lost.len(),
                "lost": made.lost()?,
            })
        );
        return Ok(ExitCode::SUCCESS);
    }
    out!(
        "recovered volume {} in {}: {} inodes, {}",
        config.id,
        dir.display(),
        usage.inodes,
        units::show_size(usage.bytes.max(0) as u64)
    );
    out!(
        "as of {age_secs} s ago, when the store got its latest changes; of a host that was lost those of its last few seconds are missing"
    );
    if restored.left_out > 0 {
        out!(
            "{} changes behind that were left out, as the bytes that they speak of had not arrived; no fsync had returned for any of them",
            restored.left_out
        );
    }
    made.tell_rest(dir)?;
    Ok(ExitCode::SUCCESS)
}
