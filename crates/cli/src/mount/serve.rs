//! From the server's first word to the end of the mount.

use super::{
    MountArgs, Place,
    alone::Alone,
    kept::{self, Record},
    kernel::MountKernel,
    open::{AtWork, Inherited, Opening, Reached, Runtimes},
    takeover,
};
use crate::{
    config::VolumeConfig,
    control::{Ending, Lacks, Served, Server, Socket, Taken},
    detach::Detaching,
    directory,
    format::{Traces, empty_dir},
    guard,
    lock::VolumeLock,
    metrics::{Lease, Metrics, Probe, VolumeSource},
    output::note,
    recover,
    running::{available, until_the_end},
    takeover::are_one,
    units::quoted,
    volume::{self, OpenOptions},
};
use anyhow::{Context, bail};
use sluice_base::SystemClock;
use sluice_fuse::{LeftMount, ServeOptions, Session};
use sluice_join::{KEEP_INTERVAL, Reporter, keep};
use sluice_run::task;
use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};
use tokio::{runtime::Runtime, sync::watch};

/// A mount's own part of the volume at work, with what speaks of it.
struct Opened {
    work: AtWork,
    socket: Socket,
    metrics: Metrics,
    probe: Probe,
    detaching: Option<Detaching>,
}

/// That, mounted.
struct Mounted {
    opened: Opened,
    mount: Arc<Session>,
    has_ended: watch::Receiver<bool>,
}

/// Mounts, or goes on with a mount, and serves it to its end.
pub fn serve(args: &MountArgs, place: &Place, mountpoint: &Path, runtimes: &Runtimes) -> anyhow::Result<ExitCode> {
    let mut traces = Traces::default();
    match start(args, place, mountpoint, runtimes, &mut traces) {
        Ok((reached, mounted)) => run(args, place, mountpoint, &runtimes.io, reached, mounted),
        Err(error) => {
            place.remove(traces);
            Err(error)
        }
    }
}

/// Mounts, or goes on with a mount.
fn start(
    args: &MountArgs,
    place: &Place,
    mountpoint: &Path,
    runtimes: &Runtimes,
    traces: &mut Traces,
) -> anyhow::Result<(Reached, Mounted)> {
    let (dir, runtime) = (&place.state, &runtimes.io);
    traces.make_dir(dir)?;
    place.options(args).cache(dir).map_or(Ok(()), |cache| traces.make_dir(&cache))?;
    let (lock, metrics) = if args.takeover {
        // Somebody else's yet.
        (None, None)
    } else {
        (Some(place.options(args).lock(dir)?), Some(runtime.block_on(args.metrics.listen())?))
    };
    let reached = Reached::connect(&args.meta, &mountpoint.display().to_string(), runtimes)?;
    remember(dir, &reached.config)?;
    if !args.takeover {
        place.check_cache(args, &reached.config)?;
        recover::warn_of_others(&args.meta, &reached.config, dir);
    }
    kept::note(dir, &reached.config, &place.record(args, mountpoint));
    runtime.block_on(volume::check_store(&reached.config, dir))?;
    let mounted = match lock.zip(metrics) {
        Some((lock, metrics)) => begin(args, place, mountpoint, runtime, &reached, lock, metrics, None)?,
        None => {
            let taken = takeover::take(args, place, mountpoint)?;
            let metrics = runtime.block_on(args.metrics.listen()).unwrap_or_else(|error| {
                note!("warning: no metrics: {error:#}");
                Metrics::default()
            });
            let lock = place.options(args).lock(dir);
            lock.and_then(|lock| begin(args, place, mountpoint, runtime, &reached, lock, metrics, Some(taken)))
                .with_context(|| takeover::lost(args, mountpoint))?
        }
    };
    Ok((reached, mounted))
}

impl Place {
    /// Takes away what a start that failed has made: nothing was acked in it.
    fn remove(&self, traces: Traces) {
        let dir = &self.state;
        if traces.has_made(dir) {
            // Another process may have begun here meanwhile.
            let Ok(Ok(_lock)) = VolumeLock::look(dir) else { return };
            if let Ok(Some(config)) = directory::load(dir) {
                kept::forget(&config.id, dir);
            }
            let cache = self.cache.as_ref().filter(|cache| traces.has_made(cache));
            for made in cache.into_iter().chain([dir]) {
                let _ = empty_dir(made);
            }
        }
        traces.remove(dir);
    }

    /// For who recovers what this mount may leave.
    fn record(&self, args: &MountArgs, mountpoint: &Path) -> Record {
        let cache = self.options(args).cache(&self.state);
        let (cache_bytes, journal_bytes) = (self.cache_bytes, self.journal_bytes);
        Record { server: args.meta.clone(), mountpoint: mountpoint.to_path_buf(), cache, cache_bytes, journal_bytes }
    }

    /// What is not stored yet may lie in the cache that the last mount with this journal had.
    fn check_cache(&self, args: &MountArgs, config: &VolumeConfig) -> anyhow::Result<()> {
        let dir = &self.state;
        let before = Record::load(dir).and_then(|record| record.cache);
        let Some(before) = before.filter(|before| before.is_dir()) else { return Ok(()) };
        if self.options(args).cache(dir).is_some_and(|cache| are_one(&cache, &before)) {
            return Ok(());
        }
        if !volume::look(dir, config.id()?)?.0.objects.is_empty() {
            bail!(
                "what {} has and the store does not may lie in the cache {}: mount with --cache {}:SIZE, or `sluice recover {} --journal {}` first",
                dir.display(),
                before.display(),
                quoted(&before),
                quoted(&args.meta),
                quoted(dir)
            );
        }
        Ok(())
    }

    fn options(&self, args: &MountArgs) -> OpenOptions {
        OpenOptions {
            cache_bytes: self.cache_bytes,
            journal_bytes: self.journal_bytes,
            cache_dir: self.cache.clone(),
            metadata_only: false,
            ship: false,
            memory_bytes: args.memory,
        }
    }
}

/// Opens what is the mount's own, and mounts, or serves the mount that was taken over.
#[allow(clippy::too_many_arguments, reason = "the parts of one mount")]
fn begin(
    args: &MountArgs,
    place: &Place,
    mountpoint: &Path,
    runtime: &Runtime,
    reached: &Reached,
    lock: VolumeLock,
    metrics: Metrics,
    taken: Option<Taken>,
) -> anyhow::Result<Mounted> {
    let (left, taken) = match taken {
        Some(Taken { mount, open, session }) => {
            (Some(mount), Some((open, session.context("the other process told of no session")?)))
        }
        None => (None, None),
    };
    let opened = open(args, place, runtime, reached, mountpoint, lock, metrics, taken)?;
    match enter(args, place, mountpoint, runtime, reached, &opened, left) {
        Ok((mount, has_ended)) => Ok(Mounted { opened, mount, has_ended }),
        Err(error) => {
            opened.work.end()?;
            Err(error)
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "the parts of one mount")]
fn open(
    args: &MountArgs,
    place: &Place,
    runtime: &Runtime,
    reached: &Reached,
    mountpoint: &Path,
    lock: VolumeLock,
    metrics: Metrics,
    inherited: Option<Inherited>,
) -> anyhow::Result<Opened> {
    let (dir, Reached { config, clock, .. }) = (&place.state, reached);
    let name = mountpoint.display().to_string();
    let (options, upload_delay) = (place.options(args), args.upload_delay);
    volume::warn_of_small_disk(dir, options.journal_bytes);
    let tier = args.durability.unwrap_or(config.durability);
    let work = AtWork::begin(
        Opening { dir, options, upload_delay, tier, name: &name, takes_damaged: true, inherited },
        reached,
        runtime,
        lock,
    )?;
    args.scrub.start(work.running.vfs.cache());
    // What can fail is done before the mount.
    let (socket, probe) = (Socket::bind(dir)?, Probe::new(config, dir, clock.clone())?);
    let detaching = if args.detach { Some(Detaching::prepare()?) } else { None };
    Ok(Opened { work, socket, metrics, probe, detaching })
}

fn enter(
    args: &MountArgs,
    place: &Place,
    mountpoint: &Path,
    runtime: &Runtime,
    reached: &Reached,
    opened: &Opened,
    left: Option<LeftMount>,
) -> anyhow::Result<(Arc<Session>, watch::Receiver<bool>)> {
    let leased = opened.work.metadata.clone();
    let options = ServeOptions {
        valid: Box::new(move || leased.valid()),
        locks: Some(opened.work.metadata.clone()),
        passthrough: None,
        verify: args.reading.verify(),
        available_bytes: available(&reached.config, &place.state)?,
    };
    let source = format!("{}#{}", args.meta, place.state.display());
    let running = &opened.work.running;
    let (mount, has_ended) = running.mount(source, options, &args.reading, mountpoint, left, runtime)?;
    let kernel = Arc::new(MountKernel(mount.notifier()));
    reached.callbacks.start(&opened.work.metadata, &running.vfs, kernel, task::handle(runtime.handle()));
    Ok((mount, has_ended))
}

/// Serves the mount to its end.
fn run(
    args: &MountArgs,
    place: &Place,
    mountpoint: &Path,
    runtime: &Runtime,
    reached: Reached,
    mounted: Mounted,
) -> anyhow::Result<ExitCode> {
    let (dir, Reached { client, callbacks, config, .. }) = (&place.state, reached);
    let volume = config.id.clone();
    let Mounted { opened, mount, has_ended } = mounted;
    let Opened { work, socket, metrics, probe, detaching } = opened;
    let AtWork { running, metadata, session, .. } = &work;
    let session = *session;
    let reporter = Arc::new(Reporter::default());
    let (reports, told, vfs) = (reporter.clone(), metadata.clone(), running.vfs.clone());
    let reporting = runtime.spawn(async move { reports.run(&client, session, &told, &vfs).await });
    // A session that another process has left is to be resumed before its lease ends.
    let first = if args.takeover { Duration::ZERO } else { KEEP_INTERVAL };
    let keeping = runtime.spawn(keep(metadata.clone(), first));
    let lease = Some(Lease { metadata: metadata.clone(), reporter });
    let (vfs, watched) = (running.vfs.clone(), Some(mount.clone()));
    let source = VolumeSource { role: "mount", vfs, probe, mount: watched, lease, service: None, ship: None };
    let _monitor = runtime.block_on(async { metrics.serve(source) });
    let (guards, guarding) = guard::guards();
    let (ending, at) = (Arc::new(Ending::default()), mountpoint.to_path_buf());
    let server = Server {
        vfs: running.vfs.clone(),
        mount: Some((mount.clone(), at)),
        server: Some(args.meta.clone()),
        service: None,
        dir: dir.clone(),
        cache_dir: place.cache.clone().unwrap_or_else(|| dir.join("cache")),
        served: Some(Arc::new(Served { metadata: metadata.clone(), callbacks, guards })),
        namespace: None,
        ship: None,
        shipped: running.shipped.clone(),
        config,
        ending: ending.clone(),
    };
    let (server_name, journal) = (args.meta.clone(), dir.display().to_string());
    let (told, clock) = (metadata.clone(), Arc::new(SystemClock::default()));
    runtime.spawn(Alone { metadata: told, mount: mount.clone(), ending, clock, server: server_name, journal }.watch());
    let mut result = runtime.block_on(async {
        let guarding = guarding.keep(mountpoint, has_ended.clone());
        tokio::select! {
            biased;
            never = guarding => match never {},
            result = until_the_end(server, &args.meta, &socket, detaching, has_ended) => result,
        }
    });
    mount.wait();
    keeping.abort();
    if mount.has_left() {
        // The session goes on elsewhere.
        work.running.end()?;
    } else {
        let left = work.end()?;
        if left.is_nothing() {
            kept::forget(&volume, dir);
        } else if let Ok(end) = &mut result {
            let (changes, files) = (left.changes, left.files);
            let objects = left.objects.len();
            let what = format!("{changes} changes of {files} files, and {objects} objects");
            end.lacks = Some(Lacks { what, comes_later: true });
        }
    }
    reporting.abort();
    drop(socket);
    let (code, _watchers) = result?.tell(&args.meta, runtime);
    Ok(code)
}

/// A mount's directory is of one volume; its journal begins with the first mount.
fn remember(dir: &Path, config: &VolumeConfig) -> anyhow::Result<()> {
    match directory::load(dir)? {
        Some(known) if known.id != config.id => bail!(
            "{} has the journal of a mount of volume {}, the server has volume {}: choose another --journal",
            dir.display(),
            known.id,
            config.id
        ),
        Some(_) => Ok(()),
        None => {
            volume::begin_journal(dir, config, sluice_base::Seq(1))?;
            config.save(dir)
        }
    }
}
