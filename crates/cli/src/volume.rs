//! Opening a volume that lives in a local directory: lock, tables, journal replay, cache, store.

use crate::{
    config::VolumeConfig,
    directory,
    lock::VolumeLock,
    mount::hostname,
    output::{explained, note},
    units::show_size,
};
use anyhow::{Context, anyhow, bail};
use sluice_base::{Clock, Entropy, ObjectId, OsEntropy, Pages, Seq, SystemClock, VolumeId, disk::RealDisk};
use sluice_join::{Kept, Replayed};
use sluice_journal::{Committer, Journal, JournalError, JournalOptions};
use sluice_meta::{
    Caller, Namespace, fsck,
    records::{ObjectRecord, ObjectState},
    store::{LsmOptions, LsmTables, MetaStore},
};
use sluice_object::{AwsSettings, Store, StoreError, StoreOptions, StoreUrl, VOLUME_MARKER};
use sluice_run::collections::HashSet;
use sluice_ship::{Line, Place, Shipper, ShipperParts, Tee};
use sluice_store::{Cache, CacheOptions};
use sluice_vfs::{CacheSync, MEMORY_BYTES, Recovered, idle_bytes, remote::Left, unstored};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Room for the cache; 0 goes without.
    pub cache_bytes: u64,
    /// Room for the journal.
    pub journal_bytes: u64,
    /// Where the cache is, when not in the volume's directory.
    pub cache_dir: Option<PathBuf>,
    /// For a look at the metadata: data that is not stored yet stays where it is.
    pub metadata_only: bool,
    /// What is committed is to be shipped to the store.
    pub ship: bool,
    /// Memory of the mount, of which the store's answers are a part.
    pub memory_bytes: u64,
}

impl Default for OpenOptions {
    fn default() -> Self {
        let (cache_bytes, journal_bytes, memory_bytes) = (10 << 30, 1 << 30, MEMORY_BYTES);
        Self { cache_bytes, journal_bytes, cache_dir: None, metadata_only: false, ship: false, memory_bytes }
    }
}

impl OpenOptions {
    /// Where the cache is, if there is to be one.
    pub fn cache(&self, dir: &Path) -> Option<PathBuf> {
        (self.cache_bytes > 0).then(|| self.cache_path(dir))
    }

    fn cache_path(&self, dir: &Path) -> PathBuf {
        self.cache_dir.clone().unwrap_or_else(|| dir.join("cache"))
    }

    /// Takes the lock of `dir`, and of the cache if there is to be one.
    pub fn lock(&self, dir: &Path) -> anyhow::Result<VolumeLock> {
        let lock = VolumeLock::take(dir)?;
        if self.cache_bytes == 0 { Ok(lock) } else { lock.with_cache(&self.cache_path(dir)) }
    }
}

/// Says it when the disk of the journal in `dir` cannot hold one of `journal_bytes`: writes would meet a full disk, not the journal's brake.
pub fn warn_of_small_disk(dir: &Path, journal_bytes: u64) {
    let journal = dir.join("journal");
    let Ok(disk) = rustix::fs::statvfs(&journal) else { return };
    let room = bytes_in(&journal).saturating_add(disk.f_bavail.saturating_mul(disk.f_frsize));
    if room < journal_bytes {
        note!(
            "warning: the journal may grow to {}, but on its disk {} has room for {}: writes fail when that is full. With a smaller \
             --journal-size they wait for the store before",
            show_size(journal_bytes),
            journal.display(),
            show_size(room)
        );
    }
}

/// An open volume. The fields are dropped in this order: the lock goes last.
pub struct Volume {
    /// Its rules over its tables.
    pub namespace: Arc<Namespace>,
    /// Its log.
    pub journal: Arc<Journal>,
    /// Syncs the log.
    pub committer: Arc<Committer>,
    /// Its cache disk.
    pub cache: Option<Arc<Cache>>,
    /// Makes the cache disk durable; told at the end that nobody drains it any more.
    pub cache_sync: Option<Arc<CacheSync>>,
    /// Its object store.
    pub store: Arc<Store>,
    /// What the journal held that is not stored yet.
    pub recovered: Recovered,
    /// What is to be shipped.
    pub tee: Option<Arc<Tee>>,
    /// Whose changes it has.
    pub line: Line,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Who it is.
    pub config: VolumeConfig,
    /// Held as long as anything above is used.
    pub lock: VolumeLock,
}

impl Volume {
    /// What takes the metadata of this volume, which is in `dir`, to the store; none where it was not opened for that.
    pub fn shipper(&self, dir: &Path, is_ahead: bool) -> Option<Arc<Shipper>> {
        let tee = self.tee.clone()?;
        let (noted, line) = (self.namespace.clone(), self.line);
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        Some(Shipper::new(ShipperParts {
            tables: self.namespace.store().clone(),
            tee,
            store: (*self.store).clone(),
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
            line,
            on_checkpoint: Box::new(move || noted.note_shipped(line.0)),
            is_ahead,
            place: Place { host: hostname(), dir: dir.to_string_lossy().into_owned() },
        }))
    }
}

/// The number of a new line of changes.
pub fn random_line() -> u64 {
    let mut number = [0; 8];
    OsEntropy.fill(&mut number);
    u64::from_le_bytes(number)
}

/// The store of a volume, with `short` for somebody who waits at a terminal.
pub fn open_store(config: &VolumeConfig, dir: &Path, short: bool) -> anyhow::Result<Store> {
    open_store_with(config, dir, short, StoreOptions::default())
}

/// The store as a mount with so much memory uses it: what is idle, and what a request has beside its answer, is bounded by that.
pub fn open_store_of_mount(config: &VolumeConfig, dir: &Path, memory_bytes: u64) -> anyhow::Result<Store> {
    /// Requests of 1 MiB, of which each has some 400 KiB besides: a fifth of the memory, and the largest number from 128 MiB on.
    const BYTES_PER_GET: u64 = 2 << 20;
    let usual = StoreOptions::default();
    let gets_max = usual.gets_max.min((memory_bytes / BYTES_PER_GET) as usize);
    let pages = Pages::new(idle_bytes(memory_bytes) as usize);
    open_store_with(config, dir, false, StoreOptions { gets_max, pages, ..usual })
}

fn open_store_with(config: &VolumeConfig, dir: &Path, short: bool, options: StoreOptions) -> anyhow::Result<Store> {
    let url = config.store_url(dir)?;
    if let StoreUrl::File(path) = &url {
        fs::create_dir_all(path).map_err(|error| explained(&format!("making {}", path.display()), &error))?;
    }
    let mut options = StoreOptions { aws: AwsSettings::from_process(), ..options };
    // A mount outlives restarts of its store: a read waits for the deadline, not for a number of tries.
    (options.attempts_max, options.backoff_max) = (u32::MAX, Duration::from_secs(2));
    if short {
        // Somebody waits at a terminal: a store that does not answer is reported, not waited for.
        (options.attempts_max, options.deadline, options.attempt_timeout) =
            (3, Duration::from_secs(10), Duration::from_secs(5));
    }
    Store::open(&url, options).with_context(|| format!("the store {}", config.store))
}

/// That the store holds this volume and lets us in. A store that is down is no obstacle: cached reads and journalled writes
/// go on without it.
pub async fn check_store(config: &VolumeConfig, dir: &Path) -> anyhow::Result<()> {
    if let Some(error) = ask_store(config, dir).await? {
        tracing::warn!(%error, "the store does not answer; going on with what is cached");
        note!("warning: {} does not answer ({error}); going on with what is cached", config.store);
    }
    Ok(())
}

/// Why a store that answers has no volume.
pub fn no_volume(store: &Store) -> String {
    no_volume_at(store.place())
}

fn no_volume_at(place: &str) -> String {
    format!(
        "{place} holds no volume ({VOLUME_MARKER} is missing): the wrong bucket or prefix, or a disk that is not mounted?"
    )
}

/// That the store holds this volume and lets us in, or why it does not answer.
pub async fn ask_store(config: &VolumeConfig, dir: &Path) -> anyhow::Result<Option<StoreError>> {
    if let StoreUrl::File(path) = config.store_url(dir)?
        && !path.try_exists().map_err(|error| explained(&format!("looking at {}", path.display()), &error))?
    {
        // To open it would make it.
        bail!(no_volume_at(&format!("file:{}", path.display())));
    }
    let store = open_store(config, dir, true)?;
    match store.get_blob(VOLUME_MARKER).await {
        Ok(bytes) => {
            let found = parse_marker(&bytes, &store, dir)?;
            if found.id != config.id {
                bail!("{} holds volume {}, not {}: the wrong bucket or prefix?", store.place(), found.id, config.id);
            }
            Ok(None)
        }
        Err(StoreError::NotFound { .. }) => {
            bail!(no_volume(&store))
        }
        Err(error) if error.is_retryable() => Ok(Some(error)),
        Err(error) => Err(error).with_context(|| format!("the store {}", store.place())),
    }
}

/// The configuration's copy in the store.
pub fn parse_marker(bytes: &[u8], store: &Store, dir: &Path) -> anyhow::Result<VolumeConfig> {
    let place = format!("{VOLUME_MARKER} in {}", store.place());
    directory::parse_copy(&String::from_utf8_lossy(bytes), &place, dir)
}

fn journal_options(dir: &Path, id: VolumeId, bytes: u64, first_seq: Seq) -> JournalOptions {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().replace('-', "");
    let boot_id = boot.trim().parse::<VolumeId>().map_or([0; 16], |id| id.0);
    // A crossing of segments syncs; many small ones would do it often, few large ones free late. The largest record, 1 MiB of
    // data and its metadata, must fit into one.
    let segment_bytes = (bytes / 16).clamp(2 << 20, 64 << 20) & !4095;
    JournalOptions {
        segment_bytes,
        capacity_bytes: bytes,
        first_seq,
        boot_id,
        ..JournalOptions::new(dir.join("journal"), id)
    }
}

/// Makes the journal of a volume whose metadata has every record before `first`. There is one from the beginning, so that a
/// volume without a journal is one that lost it.
pub fn begin_journal(dir: &Path, config: &VolumeConfig, first: Seq) -> anyhow::Result<()> {
    /// The least that a journal may have: its first segment is small, and fits whatever room it is given later.
    const ROOM_BYTES: u64 = 16 << 20;
    let options = journal_options(dir, config.id()?, ROOM_BYTES, first);
    Journal::open(Arc::new(RealDisk), options, &mut |_, _| Ok(()))?;
    Ok(())
}

/// The journal's options, for `fsck --repair` to cut a damaged one.
pub fn journal_repair_options(dir: &Path, config: &VolumeConfig, bytes: u64) -> anyhow::Result<JournalOptions> {
    Ok(journal_options(dir, config.id()?, bytes, Seq(1)))
}

/// A damaged journal, as an error that `fsck` can recognize.
pub fn is_corrupt_journal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<JournalError>(), Some(JournalError::Corrupt { .. }))
}

/// No journal at all, likewise.
pub fn is_missing_journal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<JournalError>(), Some(JournalError::Missing { .. }))
}

impl Volume {
    /// Opens the volume in `dir`: replays the journal into the tables, finds data that is not stored yet.
    pub fn open(dir: &Path, options: &OpenOptions) -> anyhow::Result<Self> {
        let config = directory::load(dir)?;
        let config = config
            .ok_or_else(|| anyhow!("{} holds no volume; `sluice up` or `sluice format` makes one", dir.display()))?;
        let lock = options.lock(dir)?;
        let (id, clock): (_, Arc<dyn Clock>) = (config.id()?, Arc::new(SystemClock::default()));
        let tee = options.ship.then(|| Tee::new(clock.clone()));
        let replayed = replay(dir, id, options, clock.clone(), tee.clone(), |view| {
            let names = Namespace::new(view.clone(), clock.clone());
            Ok(unstored(&names)?)
        })?;
        let namespace = Arc::new(Namespace::new(replayed.store.clone(), clock.clone()));
        let process = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        namespace.format(Caller { uid: process.0, gid: process.1 })?;
        let objects = Arc::new(open_store_of_mount(&config, dir, options.memory_bytes)?);
        let Replayed { store: _, journal, committer, cache, cache_sync, recovered, boot_id: _ } = replayed;
        let entropy = Arc::new(OsEntropy);
        let line = Line(namespace.line(random_line())?);
        Ok(Self {
            namespace,
            journal,
            committer,
            cache,
            cache_sync,
            store: objects,
            recovered,
            tee,
            line,
            clock,
            entropy,
            config,
            lock,
        })
    }
}

/// Replays the journal in `dir` into the tables there; `wanted` tells from them which objects are not stored yet.
pub fn replay(
    dir: &Path,
    id: VolumeId,
    options: &OpenOptions,
    clock: Arc<dyn Clock>,
    tee: Option<Arc<Tee>>,
    wanted: impl FnOnce(&Arc<MetaStore>) -> anyhow::Result<HashSet<ObjectId>>,
) -> anyhow::Result<Replayed> {
    let kept = Kept {
        disk: Arc::new(RealDisk),
        tables: open_tables(dir)?,
        cache: open_cache(dir, id, options, clock)?,
        journal: journal_options(dir, id, options.journal_bytes, Seq(1)),
        metadata_only: options.metadata_only,
        tee,
    };
    Replayed::open(kept, dir, wanted)
}

/// What a mount of a served volume has left in `dir`, and the bytes of the objects among it. Nobody else may use `dir` meanwhile.
pub fn look(dir: &Path, id: VolumeId) -> anyhow::Result<(Left, u64)> {
    let bytes = journal_bytes_at_least(dir);
    sluice_join::look(Arc::new(RealDisk), open_tables(dir)?, journal_options(dir, id, bytes, Seq(1)), dir)
}

/// Objects, and bytes of files in them, that the volume in `dir` has and its store lacks. Nobody else may use `dir` meanwhile.
pub fn look_unstored(dir: &Path, id: VolumeId) -> anyhow::Result<Unstored> {
    let bytes = journal_bytes_at_least(dir);
    let view = sluice_join::view(Arc::new(RealDisk), open_tables(dir)?, journal_options(dir, id, bytes, Seq(1)), dir)?;
    let mut found = Vec::new();
    fsck::objects(&view, &mut |_, record| {
        let is_unstored = |record: &ObjectRecord| matches!(record.state, ObjectState::Open | ObjectState::Sealed);
        found.extend(record.filter(|record| is_unstored(record) && record.live_bytes > 0));
    })?;
    let mut unstored = Unstored::default();
    for record in found {
        if fsck::is_session(&view, record.session)? {
            unstored.elsewhere_bytes += record.live_bytes;
        } else {
            unstored.objects += 1;
            unstored.bytes += record.live_bytes;
        }
    }
    Ok(unstored)
}

/// What the store does not have of a volume.
#[derive(Default)]
pub struct Unstored {
    /// Objects whose bytes are in its directory.
    pub objects: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Bytes that journals of mounts have.
    pub elsewhere_bytes: u64,
}

/// Room for the journal in `dir` as it is, and for what is written to end with it.
pub fn journal_bytes_at_least(dir: &Path) -> u64 {
    /// Some 200,000 small transactions.
    const FURTHER_BYTES: u64 = 128 << 20;
    bytes_in(&dir.join("journal")) + FURTHER_BYTES
}

/// Length of all files in a directory.
pub fn bytes_in(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(|meta| meta.is_file()).map(|meta| meta.len()).sum()
}

fn open_tables(dir: &Path) -> anyhow::Result<Arc<LsmTables>> {
    let tables = LsmTables::open(&dir.join("meta/tables"), LsmOptions::default());
    let damaged =
        || format!("the metadata in {}/meta cannot be opened; restore meta/ and journal/ from a copy", dir.display());
    Ok(Arc::new(tables.with_context(damaged)?))
}

fn open_cache(
    dir: &Path,
    volume: VolumeId,
    options: &OpenOptions,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Option<Arc<Cache>>> {
    if options.cache_bytes == 0 {
        return Ok(None);
    }
    let path = options.cache_path(dir);
    fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
    let capacity_bytes = options.cache_bytes;
    let cache = Cache::open(Arc::new(RealDisk), CacheOptions { dir: path.clone(), capacity_bytes, volume }, clock);
    let cache = cache.with_context(|| format!("opening the cache {}", path.display()))?;
    Ok(Some(Arc::new(cache)))
}
