//! From the server's first word to the end of the mount.

use super::{MountArgs, Place, alone::Alone, hostname, kernel::MountKernel, printable, takeover};
use crate::{
    config::VolumeConfig,
    control::{Ending, Served, Server, Socket, Taken},
    detach::Detaching,
    guard,
    lock::VolumeLock,
    metrics::{Lease, Metrics, Probe, VolumeSource},
    output::note,
    reach::{START_TIME, addresses, reach, told_config},
    running::{Running, available, until_the_end},
    volume::{self, OpenOptions},
};
use anyhow::{Context, bail};
use sluice_base::{Clock, OsEntropy, SessionId, SystemClock};
use sluice_fuse::{LeftMount, ServeOptions, Session};
use sluice_join::{Callbacks, KEEP_INTERVAL, NetLink, NodesByThread, Peers, Replayed, Reporter, Work, keep};
use sluice_net::{Client, ClientOptions};
use sluice_node::GroupOptions;
use sluice_run::task;
use sluice_vfs::{
    Parts, Settings,
    remote::{self, Remote},
};
use sluice_wire::{Hello, LaneClass, PeerKind};
use std::{fs, path::Path, process::ExitCode, sync::Arc, time::Duration};
use tokio::{runtime::Runtime, sync::watch};

/// The volume's server, which has let this process in.
struct Reached {
    client: Arc<Client>,
    callbacks: Arc<Callbacks>,
    config: VolumeConfig,
    clock: Arc<dyn Clock>,
}

/// A mount's own part of the volume, at work.
struct Opened {
    running: Running,
    metadata: Arc<Remote>,
    session: SessionId,
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
pub fn serve(
    args: &MountArgs,
    place: &Place,
    mountpoint: &Path,
    runtime: &Runtime,
    lanes: &Runtime,
) -> anyhow::Result<ExitCode> {
    let dir = &place.state;
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let (lock, metrics) = if args.takeover {
        // Somebody else's yet.
        (None, None)
    } else {
        (Some(place.options(args).lock(dir)?), Some(runtime.block_on(args.metrics.listen())?))
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let callbacks = Arc::new(Callbacks::default());
    let client = Arc::new(lanes.block_on(connect(args, mountpoint, &callbacks, &clock))?);
    let config = runtime.block_on(told_config(&client, &args.meta))?;
    remember(dir, &config)?;
    runtime.block_on(volume::check_store(&config, dir))?;
    let reached = Reached { client, callbacks, config, clock };
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
    run(args, place, mountpoint, runtime, reached, mounted)
}

impl Place {
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
            end(opened.running, &opened.metadata)?;
            Err(error)
        }
    }
}

/// What programs have open, and the session of the process that has served the mount.
type Inherited = (sluice_vfs::OpenState, remote::SessionState);

#[allow(clippy::too_many_arguments, reason = "the parts of one mount")]
fn open(
    args: &MountArgs,
    place: &Place,
    runtime: &Runtime,
    reached: &Reached,
    mountpoint: &Path,
    lock: VolumeLock,
    metrics: Metrics,
    taken: Option<Inherited>,
) -> anyhow::Result<Opened> {
    let (dir, Reached { client, config, clock, .. }) = (&place.state, reached);
    let options = place.options(args);
    let replayed = volume::replay(dir, config.id()?, &options, clock.clone(), None, |own| Ok(remote::unstored(own)?))?;
    let link = Arc::new(NetLink::new(client.clone(), task::handle(runtime.handle())));
    let (own, boot) = (replayed.store.clone(), replayed.boot_id);
    let (inherited, session, metadata) = match taken {
        Some((inherited, state)) => (inherited, state.session, Remote::inherit(link, state, own, clock.clone(), boot)?),
        None => {
            let name = format!("{}:{}", hostname(), mountpoint.display());
            let session = remote::take_up(&*link, &own, name.as_bytes(), &OsEntropy)?;
            (Default::default(), session.id, Remote::new(link, session, own, clock.clone(), boot)?)
        }
    };
    let metadata = Arc::new(metadata);
    let name = printable(&format!("{}:{}", hostname(), std::process::id()));
    let hello =
        Hello { peer: PeerKind::Mount, lane: LaneClass::Small, volume: Some(config.id()?), session: None, name };
    let (entropy, handle) = (Arc::new(OsEntropy), task::handle(runtime.handle()));
    let store = volume::open_store_of_mount(config, dir, args.memory)?;
    let options = GroupOptions { pages: store.pages().clone(), ..GroupOptions::new(hello.clone()) };
    let group = sluice_join::group::follow(client, options, clock, entropy, &handle);
    let parts = Parts {
        namespace: metadata.clone(),
        journal: replayed.journal.clone(),
        committer: replayed.committer.clone(),
        cache: replayed.cache.clone(),
        store: Arc::new(store),
        clock: clock.clone(),
        entropy: Arc::new(OsEntropy),
        session,
        others: Some(Arc::new(Peers(client.clone()))),
        group: Some(Arc::new(NodesByThread::new(group, hello, clock.clone()))),
        runtime: task::handle(runtime.handle()),
    };
    let settings =
        Settings { upload_delay: args.upload_delay, memory_bytes: args.memory, inherited, ..Settings::default() };
    let Replayed { store: own, cache_sync, recovered, .. } = replayed;
    let running = Running::new(Work::start(parts, settings, recovered, own, cache_sync)?, lock);
    args.scrub.start(running.vfs.cache());
    // What can fail is done before the mount.
    let (socket, probe) = (Socket::bind(dir)?, Probe::new(config, dir, clock.clone())?);
    let detaching = if args.detach { Some(Detaching::prepare()?) } else { None };
    Ok(Opened { running, metadata, session, socket, metrics, probe, detaching })
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
    let leased = opened.metadata.clone();
    let options = ServeOptions {
        valid: Box::new(move || leased.valid()),
        locks: Some(opened.metadata.clone()),
        passthrough: None,
        verify: args.reading.verify(),
        available_bytes: available(&reached.config, &place.state)?,
    };
    let source = format!("{}#{}", args.meta, place.state.display());
    let running = &opened.running;
    let (mount, has_ended) = running.mount(source, options, &args.reading, mountpoint, left, runtime)?;
    let kernel = Arc::new(MountKernel(mount.notifier()));
    reached.callbacks.start(&opened.metadata, &running.vfs, kernel, task::handle(runtime.handle()));
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
    let Mounted { opened, mount, has_ended } = mounted;
    let Opened { running, metadata, session, socket, metrics, probe, detaching } = opened;
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
        ship: None,
        config,
        ending: ending.clone(),
    };
    let (server_name, journal) = (args.meta.clone(), dir.display().to_string());
    let (told, clock) = (metadata.clone(), Arc::new(SystemClock::default()));
    runtime.spawn(Alone { metadata: told, mount: mount.clone(), ending, clock, server: server_name, journal }.watch());
    let result = runtime.block_on(async {
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
        running.end()?;
    } else {
        end(running, &metadata)?;
    }
    reporting.abort();
    drop(socket);
    let _watchers = result?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the session, and what is the mount's own.
fn end(running: Running, metadata: &Arc<Remote>) -> anyhow::Result<()> {
    if let Err(error) = sluice_vfs::waiting(|| metadata.end()) {
        note!("the session was not ended: {error}");
    }
    running.end()
}

async fn connect(
    args: &MountArgs,
    mountpoint: &Path,
    callbacks: &Arc<Callbacks>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Client> {
    let hello = Hello {
        peer: PeerKind::Mount,
        lane: LaneClass::Small,
        volume: None,
        session: None,
        name: printable(&format!("{}:{}", hostname(), mountpoint.display())),
    };
    let (found, entropy) = (addresses(&args.meta).await?, Arc::new(OsEntropy));
    let client = Client::new(found, hello, callbacks.clone(), ClientOptions::default(), clock.clone(), entropy);
    reach(&client, &args.meta, START_TIME).await?;
    Ok(client)
}

/// A mount's directory is of one volume; its journal begins with the first mount.
fn remember(dir: &Path, config: &VolumeConfig) -> anyhow::Result<()> {
    match crate::directory::load(dir)? {
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
