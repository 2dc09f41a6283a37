//! A volume at work in this process: from the open parts to their end.

use crate::{
    config::VolumeConfig,
    control::{Asker, Ending, Lacks, Server, Socket, Told},
    detach::Detaching,
    lock::{MountTurn, VolumeLock},
    output::note,
    reading::ReadingArgs,
    tier::Tier,
    units::quoted,
    volume::Volume,
};
use anyhow::anyhow;
use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use sluice_fuse::{Config, LeftMount, MountOptions, ServeOptions, Session, StartError, VfsHandler};
use sluice_join::Work;
use sluice_meta::Namespace;
use sluice_ship::Shipper;
use sluice_vfs::{
    Owner, Parts, Settings, Ship, Vfs,
    gc::{GcParts, GcSettings, Relocate},
};
use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};
use tokio::{
    runtime::{Handle, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
};

/// How long programs that entered a mount whose start failed may keep it.
const TAKE_BACK_WAIT: Duration = Duration::from_secs(5);

/// A volume at work, apart from its mount. The fields are dropped in this order: the lock goes last.
pub struct Running {
    /// What is served.
    pub vfs: Arc<Vfs>,
    /// What takes the metadata to the store, where this process has it.
    pub ship: Option<Arc<Shipper>>,
    /// Resolves when the store has the metadata too, whoever takes it there.
    pub shipped: Arc<Ship>,
    /// The metadata itself, where this process has it.
    pub namespace: Option<Arc<Namespace>>,
    work: Work,
    _lock: VolumeLock,
}

impl Running {
    /// Puts the parts of the volume in `dir` together.
    pub fn of_volume(
        volume: Volume,
        dir: &Path,
        mut settings: Settings,
        tier: Tier,
        runtime: &Handle,
    ) -> anyhow::Result<Self> {
        let ship = volume.shipper(dir, tier == Tier::Object);
        let Volume { namespace, journal, committer, cache, cache_sync, store, recovered, clock, entropy, lock, .. } =
            volume;
        let session = namespace.begin_session()?;
        let tables = namespace.store().clone();
        let runtime = sluice_run::task::handle(runtime);
        let handle = runtime.clone();
        let to_store: Arc<Ship> = match &ship {
            Some(ship) => shipped(ship),
            None => Arc::new(|_| ready(Err("this process does not take the metadata to the store".into())).boxed()),
        };
        tier.put_into(&mut settings, &to_store);
        settings.owner = ship.clone().map(|ship| Arc::new(ShipOwner(ship)) as Arc<dyn Owner>);
        let (others, group, metadata) = (None, None, namespace.clone());
        let parts =
            Parts { namespace, journal, committer, cache, store, clock, entropy, session, others, group, runtime };
        let work = Work::start(parts, settings, recovered, tables, cache_sync)?;
        if let Some(ship) = &ship {
            let vfs = Arc::downgrade(&work.vfs);
            let bound = move |known, end| vfs.upgrade().map_or(known, |vfs| vfs.stored_up_to(known, end));
            ship.begin(Box::new(bound), &handle);
        }
        Ok(Self { ship, namespace: Some(metadata), ..Self::new(work, to_store, lock) })
    }

    /// Gives back what the store holds for nobody, from now on. `relocate` where others change files too.
    pub fn collect_garbage(&self, settings: GcSettings, relocate: Option<Box<Relocate>>) {
        let Some(namespace) = self.namespace.clone() else { return };
        let vfs = self.vfs.clone();
        let relocate = relocate.unwrap_or_else(|| {
            let (vfs, namespace) = (Arc::downgrade(&vfs), namespace.clone());
            Box::new(move |ino, moved| vfs.upgrade().map_or(Ok(0), |vfs| vfs.relocate(&namespace, ino, moved)))
        });
        let ship = self.ship.as_ref().map(shipped);
        self.vfs.collect_garbage(GcParts { vfs, namespace, ship, relocate }, settings);
    }

    /// Work that was started on a volume or a mount whose lock is `lock`.
    pub fn new(work: Work, shipped: Arc<Ship>, lock: VolumeLock) -> Self {
        Self { vfs: work.vfs.clone(), ship: None, shipped, namespace: None, work, _lock: lock }
    }

    /// Mounts, or goes on with a mount that was `taken` over; the second value becomes true when
    /// the mount is gone.
    pub fn mount(
        &self,
        source: String,
        options: ServeOptions,
        reading: &ReadingArgs,
        mountpoint: &Path,
        taken: Option<LeftMount>,
        runtime: &Runtime,
    ) -> anyhow::Result<(Arc<Session>, watch::Receiver<bool>)> {
        let (ended, has_ended) = watch::channel(false);
        let fuse = Config {
            mount: MountOptions { source, suid_and_devices: true, ..MountOptions::default() },
            kernel_locks: options.locks.is_none(),
            passthrough: options.passthrough.is_some(),
            ..Config::default()
        };
        let fuse = reading.put_into(fuse, options.locks.is_some());
        let on_end = Box::new(move || {
            ended.send_replace(true);
        });
        let handler = Arc::new(VfsHandler::new(self.vfs.clone(), options, on_end));
        let mounted = match taken {
            Some(taken) => Session::resume(&fuse, mountpoint, taken, handler, runtime.handle().clone()),
            None => {
                let _turn = MountTurn::take(mountpoint)?;
                // Another process may have been quicker.
                crate::up::place::check(mountpoint)?;
                Session::start(&fuse, mountpoint, handler, runtime.handle().clone())
            }
        };
        let mount = mounted.map_err(|error| match error {
            StartError::Mount(error) => anyhow!("{error}"),
            other => anyhow!("{other}"),
        })?;
        let store = self.vfs.store();
        runtime.spawn(async move { store.keep_connected().await });
        Ok((Arc::new(mount), has_ended))
    }

    /// Stores what is left, bytes and metadata; what it could not.
    pub async fn drain(&self) -> Option<Lacks> {
        drain(&self.vfs, self.ship.as_deref()).await
    }

    /// Ends what has not come to anything: where nothing is left to store, the volume is at rest as before.
    pub fn give_up(self, runtime: &Runtime) {
        const WAIT: Duration = Duration::from_secs(5);
        let _ = runtime.block_on(async { tokio::time::timeout(WAIT, self.drain()).await });
        if let Err(error) = self.end() {
            note!("{error:#}");
        }
    }

    /// Ends what was served with this outcome: an error is told by it alone.
    pub fn end_after<T>(self, outcome: &anyhow::Result<T>, runtime: &Runtime) -> anyhow::Result<()> {
        if outcome.is_ok() {
            return self.end();
        }
        self.give_up(runtime);
        Ok(())
    }

    /// Even when the store is unreachable, what is acked is in the journal: the order is for a quick next start.
    pub fn end(self) -> anyhow::Result<()> {
        self.ship.iter().for_each(|ship| ship.stop());
        self.work.end()
    }
}

/// How a mount's process ends.
pub struct End {
    /// The connections of those who wait for it.
    watchers: mpsc::Receiver<Asker>,
    ending: Arc<Ending>,
    /// What the store does not have.
    pub lacks: Option<Lacks>,
    /// The mount goes on in another process.
    has_left: bool,
}

impl End {
    /// The last word, to those who wait as to who started the process, and its exit status. All but the end itself is done, which the end of the
    /// connections tells: they are returned.
    pub fn tell(mut self, what: &str, runtime: &Runtime) -> (ExitCode, Vec<Asker>) {
        if let Some(lacks) = &self.lacks {
            note!("{what} is unmounted, but the store lacks {}", lacks.what);
        }
        let last = || match self.has_left {
            true => {
                Told::Failed { error: "the mount goes on in another process, which took it over: say it again".into() }
            }
            false => Told::Unmounted { lacks: self.lacks.clone() },
        };
        let code = if self.lacks.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        /// For those who do not take what they are told.
        const PATIENCE: Duration = Duration::from_secs(5);
        let _ = runtime.block_on(async { tokio::time::timeout(PATIENCE, self.ending.nobody_asks()).await });
        let mut watchers: Vec<Asker> = std::iter::from_fn(|| self.watchers.try_recv().ok()).collect();
        for asker in &mut watchers {
            // Who does not listen any more has gone away.
            let _ = runtime.block_on(asker.tell(&last()));
        }
        (code, watchers)
    }
}

/// Says that the volume is mounted, serves it until the mount is gone, and stores what is left.
pub async fn until_the_end(
    server: Server,
    what: &str,
    socket: &Socket,
    detaching: Option<Detaching>,
    mut has_ended: watch::Receiver<bool>,
) -> anyhow::Result<End> {
    let (vfs, ship) = (server.vfs.clone(), server.ship.clone());
    let (mount, mountpoint) = server.mount.clone().expect("this end is a mount's");
    let ending = server.ending.clone();
    let mut started = server.listen(socket);
    if let (Ok(_), Some(detaching)) = (&started, detaching) {
        first_word(ship.as_deref()).await;
        started = detaching.ready().and(started);
    } else if started.is_ok() {
        let at = quoted(&mountpoint);
        note!("{what} is mounted at {}; `sluice umount {at}` ends it", mountpoint.display());
    }
    let (drained, watchers) = match started {
        Ok(started) => started,
        Err(error) => {
            take_back(&mount, &mut has_ended, &error).await;
            return Err(error);
        }
    };
    tokio::spawn(heed_signals(Signals::take()?, mount.clone(), ending.clone()));
    let _ = has_ended.wait_for(|ended| *ended).await;
    if mount.has_left() {
        // Programs wait: what is left to store, and what has no name, is the next process's.
        note!("{what} goes on in the process that took it over");
        return Ok(End { watchers, ending, lacks: None, has_left: true });
    }
    ending.wanted.send_replace(true);
    // With the kernel's references gone, what has no name has no user: it is not worth storing.
    let last = vfs.clone();
    let _ = tokio::task::spawn_blocking(move || last.reclaim_rest()).await;
    let lacks = drain(&vfs, ship.as_deref()).await;
    drop(drained);
    Ok(End { watchers, ending, lacks, has_left: false })
}

/// A moment for the store's first word of who has the volume: until a process is detached, people see what it logs.
pub async fn first_word(ship: Option<&Shipper>) {
    const WAIT: Duration = Duration::from_secs(2);
    if let Some(ship) = ship {
        let _ = tokio::time::timeout(WAIT, ship.is_ours()).await;
    }
}

/// Stores all bytes, however long the store is away, and then the metadata, for which nobody need wait so long: the directory has it. Tells what
/// the store does not have of that.
async fn drain(vfs: &Vfs, ship: Option<&Shipper>) -> Option<Lacks> {
    const SHIP_WAIT: Duration = Duration::from_secs(10);
    /// For what loses nothing where it cannot be said.
    const LEAVE_WAIT: Duration = Duration::from_secs(5);
    vfs.drain().await;
    let given_up = vfs.given_up();
    let left_here = (given_up > 0).then(|| {
        format!("{given_up} objects, which stay in this directory alone: another one goes on with the volume, and has something in their places")
    });
    let ship = ship?;
    let shipped = match ship.finish(SHIP_WAIT).await {
        // Also where nothing was to be shipped the store may be another's meanwhile.
        Ok(()) => tokio::time::timeout(LEAVE_WAIT, ship.confirmed()).await.unwrap_or(Ok(())),
        failed => failed,
    };
    let Err(why) = shipped else {
        if left_here.is_none() {
            ship.leave(LEAVE_WAIT).await;
        }
        return left_here.map(|what| Lacks { what, comes_later: false });
    };
    let status = ship.status();
    let changes = match (status.shipped_seq, status.behind_records) {
        (Some(_), 1) => "the latest change".into(),
        // How many is not known: it was not heard of since the start, or is cut off.
        (None, _) | (Some(_), 0) => "the latest changes".into(),
        (Some(_), changes) => format!("the latest {changes} changes"),
    };
    let what = format!("{changes} of the metadata, with what files of up to 4 KiB have in them: {why}");
    let what = left_here.map_or(what.clone(), |here| format!("{here}; and {what}"));
    Some(Lacks { what, comes_later: !status.stopped })
}

/// Resolves at the first signal to end; a second one ends the process at once, which loses nothing acked.
pub async fn stop_on_signals() -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    signals.next().await;
    tokio::spawn(async move {
        signals.next().await;
        note!("ended at once; what was acked is in the journal");
        std::process::exit(1);
    });
    Ok(())
}

/// What tells this process to end. A write past the limit of file sizes (SIGXFSZ) does not: it is an error like any other.
struct Signals {
    ends: [Signal; 3],
    _file_size: Signal,
}

impl Signals {
    fn take() -> anyhow::Result<Self> {
        const SIGXFSZ: i32 = 25;
        let ends = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];
        Ok(Self { ends, _file_size: signal(SignalKind::from_raw(SIGXFSZ))? })
    }

    async fn next(&mut self) {
        let [term, int, hangup] = &mut self.ends;
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Unmounts after a start that failed. Whoever has a file open already does not keep the process.
async fn take_back(mount: &Session, has_ended: &mut watch::Receiver<bool>, why: &anyhow::Error) {
    if let Err(error) = mount.unmount(true) {
        note!("{error}");
    }
    if tokio::time::timeout(TAKE_BACK_WAIT, has_ended.wait_for(|ended| *ended)).await.is_err() {
        note!("{why:#}; the mount was ended although files were open, what was acked is in the journal");
        std::process::exit(1);
    }
}

/// The first signal unmounts, or says that the drain is under way. A second one ends the process at once, which loses nothing
/// acked.
async fn heed_signals(mut signals: Signals, mount: Arc<Session>, ending: Arc<Ending>) {
    let mut asked = false;
    loop {
        signals.next().await;
        if asked {
            note!("ended at once; what was acked is in the journal");
            std::process::exit(1);
        }
        asked = true;
        if mount.is_over() {
            note!("storing what is left; again to end at once");
            continue;
        }
        note!("unmounting; again to end at once");
        ending.wanted.send_replace(true);
        if let Err(error) = mount.unmount(true) {
            note!("{error}");
        }
    }
}

/// What ships knows whose the store is.
struct ShipOwner(Arc<Shipper>);

impl std::fmt::Debug for ShipOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shipper")
    }
}

impl Owner for ShipOwner {
    fn is_ours(&self) -> BoxFuture<'static, Result<(), String>> {
        let ship = self.0.clone();
        async move { ship.is_ours().await }.boxed()
    }

    fn confirmed(&self) -> BoxFuture<'static, Result<(), String>> {
        let ship = self.0.clone();
        async move { ship.confirmed().await }.boxed()
    }

    fn lost(&self) -> Option<String> {
        self.0.stopped()
    }
}

/// Tells when the store has the metadata up to a record.
fn shipped(ship: &Arc<Shipper>) -> Arc<Ship> {
    let ship = ship.clone();
    Arc::new(move |seq| {
        let ship = ship.clone();
        async move { ship.shipped(seq).await }.boxed()
    })
}

/// Room for statfs: what the disk of a `file:` store has left; an object store has no end that we know.
pub fn available(config: &VolumeConfig, dir: &Path) -> anyhow::Result<Box<dyn Fn() -> u64 + Send + Sync>> {
    const UNLIMITED_BYTES: u64 = 1 << 50;
    Ok(match config.store_url(dir)? {
        sluice_object::StoreUrl::File(path) => {
            Box::new(move || rustix::fs::statvfs(&path).map_or(0, |found| found.f_bavail * found.f_frsize))
        }
        _ => Box::new(|| UNLIMITED_BYTES),
    })
}
