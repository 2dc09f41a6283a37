//! From the open volume to the end of its mount.

use super::{UpArgs, place};
use crate::{
    config::VolumeConfig,
    control::{Server, Socket},
    detach::Detaching,
    directory, format,
    lock::{MountTurn, VolumeLock},
    output::note,
    units::quoted,
    volume::{self, OpenOptions, Volume},
};
use anyhow::{anyhow, bail};
use sluice_fuse::{Config, MountOptions, ServeOptions, Session, StartError, VfsHandler};
use sluice_journal::Committer;
use sluice_meta::store::Checkpointer;
use sluice_store::Cache;
use sluice_vfs::{CacheSync, Parts, Settings, Vfs};
use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};
use tokio::{
    net::UnixStream,
    runtime::{Handle, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
};

/// How long programs that entered a mount whose start failed may keep it.
const TAKE_BACK_WAIT: Duration = Duration::from_secs(5);

/// Opens the volume, mounts it and serves it to its end.
pub fn serve(args: &UpArgs, dir: &Path, mountpoint: &Path, runtime: &Runtime) -> anyhow::Result<ExitCode> {
    let volume = open(args, dir, runtime)?;
    if volume.recovered.damaged_segments > 0 {
        note!(
            "warning: {} damaged segments were found; `sluice fsck` names the files",
            volume.recovered.damaged_segments
        );
    }
    // What can fail is done before the mount.
    let socket = Socket::bind(dir)?;
    let detaching = if args.detach { Some(Detaching::prepare()?) } else { None };
    let config = volume.config.clone();
    let running = Running::start(volume, args.upload_delay, runtime.handle())?;
    let result = running.mount(&config, dir, mountpoint, runtime).and_then(|(mount, has_ended)| {
        let server = Server {
            vfs: running.vfs.clone(),
            mount: mount.clone(),
            mountpoint: mountpoint.to_path_buf(),
            dir: dir.to_path_buf(),
            config,
        };
        let result = runtime.block_on(until_the_end(server, &socket, detaching, has_ended));
        mount.wait();
        result
    });
    running.end()?;
    drop(socket);
    // Those who asked for the umount are told by the end of their connection, which comes with the end of the process.
    let _watchers = result?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the volume, making it first where there is none.
fn open(args: &UpArgs, dir: &Path, runtime: &Runtime) -> anyhow::Result<Volume> {
    let config = match directory::load(dir)? {
        Some(config) => config,
        None => {
            let made = runtime.block_on(format::make(dir, args.store.as_deref().unwrap_or("file:objects"), false));
            match made {
                Ok(config) => config,
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
    runtime.block_on(volume::check_store(&config, dir))?;
    Volume::open(
        dir,
        &OpenOptions { cache_bytes: args.cache_size, journal_bytes: args.journal_size, metadata_only: false },
    )
}

/// A volume at work, apart from its mount. The fields are dropped in this order: the lock goes last.
struct Running {
    vfs: Arc<Vfs>,
    checkpointer: Checkpointer,
    cache: Option<Arc<Cache>>,
    cache_sync: Option<Arc<CacheSync>>,
    committer: Arc<Committer>,
    _lock: VolumeLock,
}

impl Running {
    fn start(volume: Volume, upload_delay: Duration, runtime: &Handle) -> anyhow::Result<Self> {
        let Volume {
            namespace,
            journal,
            committer,
            cache,
            cache_sync,
            store,
            recovered,
            clock,
            entropy,
            config: _,
            lock: _lock,
        } = volume;
        let session = namespace.begin_session()?;
        let metadata = namespace.store().clone();
        let parts = Parts {
            namespace,
            journal,
            committer: committer.clone(),
            cache: cache.clone(),
            store,
            clock,
            entropy,
            session,
            runtime: runtime.clone(),
        };
        let vfs = Vfs::start(parts, Settings { upload_delay, ..Settings::default() }, recovered);
        let trimmer = Arc::downgrade(&vfs);
        let on_persisted = Box::new(move |_| trimmer.upgrade().iter().for_each(|vfs| vfs.trim_journal()));
        let checkpointer = Checkpointer::start(metadata, on_persisted)?;
        Ok(Self { vfs, checkpointer, cache, cache_sync, committer, _lock })
    }

    /// Mounts; the second value becomes true when the mount is gone.
    fn mount(
        &self,
        config: &VolumeConfig,
        dir: &Path,
        mountpoint: &Path,
        runtime: &Runtime,
    ) -> anyhow::Result<(Arc<Session>, watch::Receiver<bool>)> {
        let (ended, has_ended) = watch::channel(false);
        let fuse = Config {
            mount: MountOptions {
                source: format!("local:{}", dir.display()),
                suid_and_devices: true,
                ..MountOptions::default()
            },
            ..Config::default()
        };
        let options = ServeOptions { valid: Duration::from_secs(3600), available_bytes: available(config, dir)? };
        let on_end = Box::new(move || {
            ended.send_replace(true);
        });
        let handler = VfsHandler::new(self.vfs.clone(), options, on_end);
        let _turn = MountTurn::take(mountpoint)?;
        // Another process may have been quicker.
        place::check(mountpoint)?;
        let mounted = Session::start(&fuse, mountpoint, Arc::new(handler), runtime.handle().clone());
        let mount = mounted.map_err(|error| match error {
            StartError::Mount(error) => anyhow!("{error}"),
            other => anyhow!("{other}"),
        })?;
        Ok((Arc::new(mount), has_ended))
    }

    /// Even when the store is unreachable, what is acked is in the journal: the order is for a quick next start.
    fn end(self) -> anyhow::Result<()> {
        self.vfs.stop();
        self.checkpointer.shutdown()?;
        self.vfs.trim_journal();
        if let Some(Err(error)) = self.cache.as_ref().map(|cache| cache.persist_table()) {
            tracing::warn!(%error, "the cache's table was not written: the next start finds a colder cache");
        }
        self.cache_sync.iter().for_each(|sync| sync.end());
        self.committer.shutdown();
        Ok(())
    }
}

/// Says that the volume is mounted, serves it until the mount is gone, and stores what is left. Returns the connections of those
/// who wait for the end.
async fn until_the_end(
    server: Server,
    socket: &Socket,
    detaching: Option<Detaching>,
    mut has_ended: watch::Receiver<bool>,
) -> anyhow::Result<mpsc::Receiver<UnixStream>> {
    let (vfs, mount, dir, mountpoint) =
        (server.vfs.clone(), server.mount.clone(), server.dir.clone(), server.mountpoint.clone());
    let mut started = server.listen(socket);
    if let (Ok(_), Some(detaching)) = (&started, detaching) {
        started = detaching.ready().and(started);
    } else if started.is_ok() {
        let at = quoted(&mountpoint);
        note!("{} is mounted at {}; `sluice umount {at}` ends it", dir.display(), mountpoint.display());
    }
    let (drained, watchers) = match started {
        Ok(started) => started,
        Err(error) => {
            take_back(&mount, &mut has_ended, &error).await;
            return Err(error);
        }
    };
    if let (Ok(term), Ok(int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        tokio::spawn(heed_signals(term, int, mount));
    }
    let _ = has_ended.wait_for(|ended| *ended).await;
    // With the kernel's references gone, what has no name has no user: it is not worth storing.
    let last = vfs.clone();
    let _ = tokio::task::spawn_blocking(move || last.reclaim_rest()).await;
    vfs.drain().await;
    drop(drained);
    Ok(watchers)
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
async fn heed_signals(mut term: Signal, mut int: Signal, mount: Arc<Session>) {
    let mut asked = false;
    loop {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
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
        if let Err(error) = mount.unmount(true) {
            note!("{error}");
        }
    }
}

/// Room for statfs: what the disk of a `file:` store has left; an object store has no end that we know.
fn available(config: &VolumeConfig, dir: &Path) -> anyhow::Result<Box<dyn Fn() -> u64 + Send + Sync>> {
    const UNLIMITED_BYTES: u64 = 1 << 50;
    Ok(match config.store_url(dir)? {
        sluice_object::StoreUrl::File(path) => {
            Box::new(move || rustix::fs::statvfs(&path).map_or(0, |found| found.f_bavail * found.f_frsize))
        }
        _ => Box::new(|| UNLIMITED_BYTES),
    })
}
