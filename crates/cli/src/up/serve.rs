//! From the open volume to the end of its mount.

use super::{UpArgs, takeover};
use crate::{
    config::VolumeConfig,
    control::{Server, Socket, Taken},
    detach::Detaching,
    directory, format,
    metrics::{Metrics, Probe, VolumeSource},
    output::note,
    running::{Running, available, until_the_end},
    volume::{self, OpenOptions, Volume},
};
use anyhow::{Context, bail};
use sluice_fuse::{PassthroughOptions, ServeOptions, Session};
use sluice_vfs::Settings;
use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};
use tokio::{runtime::Runtime, sync::watch};

/// The mount is the volume's only one, so everything that changes passes through it.
const VALID: Duration = Duration::from_secs(3600);

/// A volume that is mounted.
struct Mounted {
    running: Running,
    mount: Arc<Session>,
    has_ended: watch::Receiver<bool>,
    socket: Socket,
    metrics: Metrics,
    probe: Probe,
    detaching: Option<Detaching>,
    config: VolumeConfig,
}

/// Opens the volume, mounts it and serves it to its end.
pub fn serve(args: &UpArgs, dir: &Path, mountpoint: &Path, runtime: &Runtime) -> anyhow::Result<ExitCode> {
    let passthrough = args.passthrough(dir)?;
    configure(args, dir, runtime)?;
    let mounted = if args.takeover {
        let taken = takeover::take(args, dir, mountpoint)?;
        begin(args, dir, mountpoint, None, Some(taken), runtime).with_context(|| takeover::lost(dir, mountpoint))?
    } else {
        begin(args, dir, mountpoint, passthrough, None, runtime)?
    };
    let Mounted { running, mount, has_ended, socket, metrics, probe, detaching, config } = mounted;
    let (vfs, watched) = (running.vfs.clone(), Some(mount.clone()));
    let ship = running.ship.clone();
    let source = VolumeSource { role: "up", vfs, probe, mount: watched, lease: None, service: None, ship };
    let monitor = runtime.block_on(async { metrics.serve(source) });
    let server = Server {
        vfs: running.vfs.clone(),
        mount: Some((mount.clone(), mountpoint.to_path_buf())),
        server: None,
        service: None,
        dir: dir.to_path_buf(),
        cache_dir: dir.join("cache"),
        served: None,
        namespace: running.namespace.clone(),
        ship: running.ship.clone(),
        shipped: running.shipped.clone(),
        config,
        ending: Arc::default(),
    };
    let what = dir.display().to_string();
    let result = runtime.block_on(until_the_end(server, &what, &socket, detaching, has_ended));
    mount.wait();
    drop((monitor, mount));
    running.end_after(&result, runtime)?;
    drop(socket);
    let (code, _watchers) = result?.tell(&what, runtime);
    Ok(code)
}

/// Opens the volume and mounts it, or serves the mount that was taken over.
fn begin(
    args: &UpArgs,
    dir: &Path,
    mountpoint: &Path,
    passthrough: Option<PassthroughOptions>,
    taken: Option<Taken>,
    runtime: &Runtime,
) -> anyhow::Result<Mounted> {
    let options = OpenOptions {
        cache_bytes: args.cache_size,
        journal_bytes: args.journal_size,
        memory_bytes: args.memory,
        ship: true,
        ..OpenOptions::default()
    };
    volume::warn_of_small_disk(dir, options.journal_bytes);
    let volume = Volume::open(dir, &options)?;
    if volume.recovered.damaged_segments > 0 {
        note!(
            "warning: {} damaged segments were found; `sluice fsck` names the files",
            volume.recovered.damaged_segments
        );
    }
    // What can fail is done before the mount.
    let socket = Socket::bind(dir)?;
    let metrics = match runtime.block_on(args.metrics.listen()) {
        Err(error) if taken.is_some() => {
            note!("warning: no metrics: {error:#}");
            Metrics::default()
        }
        other => other?,
    };
    let probe = Probe::new(&volume.config, dir, volume.clock.clone())?;
    let detaching = if args.detach { Some(Detaching::prepare()?) } else { None };
    let config = volume.config.clone();
    let (taken, inherited) = match taken {
        Some(taken) => (Some(taken.mount), taken.open),
        None => Default::default(),
    };
    let settings =
        Settings { upload_delay: args.upload_delay, memory_bytes: args.memory, inherited, ..Settings::default() };
    let tier = args.durability.unwrap_or(config.durability);
    let available_bytes = available(&config, dir)?;
    let running = Running::of_volume(volume, dir, settings, tier, runtime.handle())?;
    args.scrub.start(running.vfs.cache());
    running.collect_garbage(args.gc.settings(), None);
    let options = ServeOptions {
        valid: Box::new(|| VALID),
        locks: None,
        passthrough,
        verify: args.reading.verify(),
        available_bytes,
    };
    let source = format!("local:{}", dir.display());
    match running.mount(source, options, &args.reading, mountpoint, taken, runtime) {
        Ok((mount, has_ended)) => Ok(Mounted { running, mount, has_ended, socket, metrics, probe, detaching, config }),
        Err(error) => {
            running.give_up(runtime);
            Err(error)
        }
    }
}

/// Looks at the volume and its store, making it first where there is none.
fn configure(args: &UpArgs, dir: &Path, runtime: &Runtime) -> anyhow::Result<()> {
    let config = match directory::load(dir)? {
        Some(config) => config,
        None if args.takeover => bail!("{} holds no volume", dir.display()),
        None => {
            let store = args.store.as_deref().unwrap_or("file:objects");
            let made = runtime.block_on(format::make(dir, store, args.durability.unwrap_or_default(), false));
            match made {
                Ok(config) => {
                    let VolumeConfig { store, durability, .. } = &config;
                    note!("{} had no volume: made one, with its objects in {store}, tier {durability}", dir.display());
                    config
                }
                // Another process may have made it meanwhile; the lock tells which of the two mounts it.
                Err(error) => directory::load(dir)?.ok_or(error)?,
            }
        }
    };
    if let Some(store) = args.store.as_ref().filter(|store| **store != config.store) {
        bail!(
            "the volume in {} keeps its objects in {}, not in {store}; leave --store out",
            dir.display(),
            config.store
        );
    }
    runtime.block_on(volume::check_store(&config, dir))
}
