//! `sluice format`, and what `sluice up` does where there is no volume yet.

use crate::{
    config::{FORMAT_VERSION, VolumeConfig},
    directory,
    lock::VolumeLock,
    output::{explained, out},
    tier::Tier,
    units::quoted,
    volume::{begin_journal, open_store, parse_marker},
};
use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use futures::StreamExt;
use sluice_base::{OsEntropy, Seq, VolumeId};
use sluice_object::{PutMode, Store, StoreError, StoreUrl, VOLUME_MARKER};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Make a volume
///
/// META is local:DIR, the directory on this host that will hold the volume's metadata, journal and cache; it is made when
/// it is missing. STORE is where the files' bytes go: file:DIR, a relative one counting from META's DIR, or
/// s3://BUCKET/PREFIX with credentials from the usual AWS variables and files.
///
/// Example: sluice format local:/srv/vol --store 's3://bucket/vol?endpoint=http://127.0.0.1:9000'
#[derive(clap::Args)]
pub struct FormatArgs {
    /// The volume: local:DIR
    pub meta: OsString,
    /// The object store: file:DIR or s3://BUCKET/PREFIX?endpoint=...&region=...
    #[arg(long)]
    pub store: String,
    /// When fsync returns in mounts of it that are not told otherwise: `journal`, when the disks of the mount's host and of the volume's server
    /// have what it is for; `object`, when the store has it too
    #[arg(long, default_value = "journal", value_name = "TIER")]
    pub durability: Tier,
    /// Make a new volume where there is one already, and forget every file of the old one
    #[arg(long)]
    pub force: bool,
    /// Print the volume's configuration as JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &FormatArgs) -> anyhow::Result<ExitCode> {
    let dir = directory::volume_dir(&args.meta)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let config = runtime.block_on(make(&dir, &args.store, args.durability, args.force))?;
    if args.json {
        out!("{}", config.to_json().trim_end());
    } else {
        let VolumeConfig { id, store, durability, .. } = &config;
        out!("made volume {id} in {}, objects in {store}, tier {durability}", dir.display());
        out!("mount it with: sluice up {} MOUNTPOINT", quoted(&dir));
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a volume in `dir`. With `force`, a volume that is there is replaced: its metadata, journal and cache go, the objects
/// stay in the store for `gc`. A failure leaves nothing behind.
pub async fn make(dir: &Path, store: &str, durability: Tier, force: bool) -> anyhow::Result<VolumeConfig> {
    if !force {
        check_free(dir, false, REPLACE)?;
    }
    let id = VolumeId::random(&OsEntropy);
    let (id, store) = (id.to_string(), store.to_string());
    let config = VolumeConfig { format_version: FORMAT_VERSION, id, store, durability };
    config.store_url(dir)?;
    let mut traces = Traces::default();
    let made = write(dir, &config, force, &mut traces).await;
    if made.is_err() {
        traces.remove(dir);
    }
    made
}

/// What `sluice format` can do about a volume that is there.
const REPLACE: &str = "`sluice format --force` makes a new one and forgets every file of the old one";

/// No volume, and nothing that a volume would mix with; `advice` is what to do about a volume.
pub fn check_free(dir: &Path, is_locked: bool, advice: &str) -> anyhow::Result<()> {
    if let Some(existing) = directory::load(dir)? {
        bail!("{} holds volume {} already; {advice}", dir.display(), existing.id);
    }
    // Until we hold the lock, they may be what another process makes at this moment.
    if is_locked && directory::has_parts(dir) {
        bail!(
            "{} has parts of a volume, but meta/volume.json is missing: `sluice fsck --repair {}` restores it from its copy in the store. Where \
             it cannot, `sluice recover --from-store STORE NEWDIR` makes a new directory of what the store has",
            dir.display(),
            quoted(dir)
        );
    }
    // Disks may have been mounted for its parts already.
    let ours = |name: &OsString| {
        ["lock", "log", "control.sock", "meta", "cache", "journal", "objects"].iter().any(|part| name == *part)
    };
    let names = fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
    if let Some(name) = names.into_iter().find(|name| !ours(name)) {
        bail!(
            "{} is not empty (it holds {}) and no volume; choose an empty directory",
            dir.display(),
            name.to_string_lossy()
        );
    }
    Ok(())
}

async fn write(dir: &Path, config: &VolumeConfig, force: bool, traces: &mut Traces) -> anyhow::Result<VolumeConfig> {
    traces.make_dir(dir)?;
    traces.take_lock(dir)?;
    if !force {
        // Another process may have been quicker.
        check_free(dir, true, REPLACE)?;
    }
    if let StoreUrl::File(path) = config.store_url(dir)? {
        traces.make_dir(&path)?;
    }
    let store = open_store(config, dir, true)?;
    store.probe().await.map_err(|error| anyhow!("{error}"))?;
    let mode = if force { PutMode::Overwrite } else { PutMode::Create };
    let config = match store.put_blob(VOLUME_MARKER, Bytes::from(config.to_json()), mode).await {
        Ok(()) => config.clone(),
        Err(StoreError::Exists { .. }) => match half_made(dir, config, &store).await? {
            // The id that it was given then.
            Some(found) => {
                let config = VolumeConfig { id: found.id, ..config.clone() };
                store.put_blob(VOLUME_MARKER, Bytes::from(config.to_json()), PutMode::Overwrite).await?;
                config
            }
            None => bail!(
                "{} holds a volume already; choose another prefix. If the directory of that volume is lost, \
                 `sluice recover --from-store` makes it again; `sluice format --force` makes a new volume there, and forgets the old one",
                store.place()
            ),
        },
        Err(error) => return Err(error).with_context(|| format!("writing to {}", store.place())),
    };
    if !force && sluice_ship::has_any(&store).await? {
        store.delete_blob(VOLUME_MARKER).await?;
        bail!(
            "{} holds the metadata of a volume, whose {VOLUME_MARKER} is missing; choose another prefix, or `sluice format --force` to make \
             a new volume there and forget the old one",
            store.place()
        );
    }
    sluice_ship::forget(&store).await.with_context(|| format!("removing old metadata from {}", store.place()))?;
    for part in ["meta", "journal", "cache"] {
        empty_dir(&dir.join(part)).with_context(|| format!("removing the old {part} of {}", dir.display()))?;
    }
    begin_journal(dir, &config, Seq(1))?;
    config.save(dir)?;
    Ok(config)
}

/// The volume that a process began to make here and did not end, being killed or without power: its store is in the directory of which we
/// have the lock, and has the marker, no object and no metadata; of the directory itself it is known that it has no metadata.
async fn half_made(dir: &Path, config: &VolumeConfig, store: &Store) -> anyhow::Result<Option<VolumeConfig>> {
    let StoreUrl::File(path) = config.store_url(dir)? else { return Ok(None) };
    let has_objects = || async { std::pin::pin!(store.list_objects()).next().await.is_some() };
    if !path.starts_with(dir) || has_objects().await || sluice_ship::has_any(store).await? {
        return Ok(None);
    }
    let bytes = store.get_blob(VOLUME_MARKER).await.with_context(|| format!("the store {}", store.place()))?;
    let found = parse_marker(&bytes, store, dir)?;
    Ok((found.store == config.store).then_some(found))
}

/// What a start that fails takes away again.
#[derive(Default)]
pub struct Traces {
    dirs: Vec<PathBuf>,
    lock: Option<VolumeLock>,
    lock_is_new: bool,
}

impl Traces {
    pub fn make_dir(&mut self, path: &Path) -> anyhow::Result<()> {
        let missing = path.ancestors().take_while(|ancestor| !ancestor.as_os_str().is_empty() && !ancestor.exists());
        let mut missing: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
        missing.reverse();
        self.dirs.extend(missing);
        fs::create_dir_all(path).map_err(|error| explained(&format!("making {}", path.display()), &error))
    }

    /// Whether the directory was not there before.
    pub fn has_made(&self, path: &Path) -> bool {
        self.dirs.iter().any(|made| made == path)
    }

    pub fn take_lock(&mut self, dir: &Path) -> anyhow::Result<()> {
        let is_new = !dir.join("lock").exists();
        self.lock = Some(VolumeLock::take(dir)?);
        self.lock_is_new = is_new;
        Ok(())
    }

    /// Whether the directory is ours.
    pub fn has_lock(&self) -> bool {
        self.lock.is_some()
    }

    /// Only directories that are empty go; in those that were made, what the store keeps for its own use is nothing either.
    pub fn remove(self, dir: &Path) {
        let inside = |made: &PathBuf| [made.join(".tmp"), made.join("sluice-probe")];
        self.dirs.iter().flat_map(inside).for_each(|path| drop(fs::remove_dir(path)));
        if self.lock.is_some() && self.lock_is_new {
            let _ = fs::remove_file(dir.join("lock"));
        }
        self.dirs.iter().rev().for_each(|path| drop(fs::remove_dir(path)));
    }
}

/// Removes what is in a directory, not the directory, which may be a mount point. `lost+found` is the disk's own.
pub fn empty_dir(path: &Path) -> std::io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == "lost+found" {
            continue;
        }
        if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
    }
    Ok(())
}
