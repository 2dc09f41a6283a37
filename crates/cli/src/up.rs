//! `sluice up`: a volume in one process: metadata, cache, journal and mount.

use crate::{
    config::{VolumeConfig, volume_dir},
    control::{Ask, Told, short_path},
    detach, units,
    volume::{self, OpenOptions, Volume},
};
use anyhow::{Context, anyhow, bail};
use clap::builder::ValueParser;
use serde_json::json;
use sluice_fuse::{Config, MountOptions, ServeOptions, Session, StartError, VfsHandler};
use sluice_meta::store::Checkpointer;
use sluice_vfs::{Parts, Settings, Vfs};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{mpsc, watch},
};

/// Mount a volume of this host, all in one process
///
/// DIR holds the volume: meta/, journal/, cache/ and, unless --store says otherwise, objects/. It is made on first use.
/// The command stays in the foreground until the volume is unmounted; -d returns once the mount is ready.
///
/// What a call returned success for survives the end of this process. What fsync returned for survives power loss; a timer
/// syncs the rest every second.
///
/// Example: sluice up ~/volume ~/mnt -d
#[derive(clap::Args)]
pub struct UpArgs {
    /// The volume's directory
    pub dir: String,
    /// An empty directory to mount at
    pub mountpoint: PathBuf,
    /// Return once the volume is mounted
    #[arg(short = 'd', long)]
    pub detach: bool,
    /// Where a new volume keeps its objects: file:DIR or s3://BUCKET/PREFIX?endpoint=...
    #[arg(long)]
    pub store: Option<String>,
    /// Room for cached objects; 0 goes without a cache disk
    #[arg(long, default_value = "10G", value_name = "SIZE", value_parser = ValueParser::new(units::parse_size))]
    pub cache_size: u64,
    /// Room for the journal
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = ValueParser::new(units::parse_size))]
    pub journal_size: u64,
    /// How long an object waits for more data before it is uploaded
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = ValueParser::new(units::parse_time))]
    pub upload_delay: Duration,
}

/// Smallest journal: eight segments, so that most of it can be freed while the last one is written.
const JOURNAL_BYTES_MIN: u64 = 16 << 20;

pub fn run(args: UpArgs) -> anyhow::Result<ExitCode> {
    if args.detach && !detach::is_child() {
        let log = volume_dir(&args.dir)?.join("log");
        return detach::run_detached(&log);
    }
    if args.journal_size < JOURNAL_BYTES_MIN {
        bail!("--journal-size is at least {}", units::show_size(JOURNAL_BYTES_MIN));
    }
    let dir = volume_dir(&args.dir)?;
    let mountpoint = check_mountpoint(&args.mountpoint)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("sluice-io").enable_all().build()?;
    let result = serve(&args, &dir, &mountpoint, &runtime);
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// An existing, empty directory; a mount that a killed process left is taken away first.
fn check_mountpoint(path: &Path) -> anyhow::Result<PathBuf> {
    if let Err(error) = fs::metadata(path)
        && error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error())
    {
        sluice_fuse::unmount(path, true)
            .with_context(|| format!("taking away the dead mount at {}", path.display()))?;
    }
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("the mount point {} does not exist: create the directory first", path.display())
        }
        Err(error) => return Err(error).with_context(|| format!("the mount point {}", path.display())),
        Ok(found) if !found.is_dir() => bail!("the mount point {} is not a directory", path.display()),
        Ok(_) => {}
    }
    let path = path.canonicalize().with_context(|| format!("the mount point {}", path.display()))?;
    if let Some(volume) = crate::mounts::volume_at(&path) {
        bail!("{} is mounted already, with the volume {}; `sluice umount` ends it", path.display(), volume.display());
    }
    let mut entries = fs::read_dir(&path).with_context(|| format!("the mount point {}", path.display()))?;
    if entries.next().is_some() {
        bail!("the mount point {} is not empty: choose an empty directory", path.display());
    }
    Ok(path)
}

/// Opens the volume, making it first where there is none.
fn open(args: &UpArgs, dir: &Path, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Volume> {
    let config = match VolumeConfig::load(dir)? {
        Some(config) => {
            if let Some(store) = args.store.as_ref().filter(|store| **store != config.store) {
                bail!(
                    "the volume in {} keeps its objects in {}, not in {store}; leave --store out",
                    dir.display(),
                    config.store
                );
            }
            config
        }
        None => runtime.block_on(volume::format(dir, args.store.as_deref().unwrap_or("file:objects"), false))?,
    };
    runtime.block_on(volume::check_store(&config, dir))?;
    Volume::open(
        dir,
        &OpenOptions { cache_bytes: args.cache_size, journal_bytes: args.journal_size, metadata_only: false },
    )
}

fn serve(args: &UpArgs, dir: &Path, mountpoint: &Path, runtime: &tokio::runtime::Runtime) -> anyhow::Result<ExitCode> {
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
        config,
        lock: _lock,
        ..
    } = open(args, dir, runtime)?;
    if recovered.damaged_segments > 0 {
        eprintln!(
            "sluice: warning: {} damaged segments were found; `sluice fsck` names the files",
            recovered.damaged_segments
        );
    }
    let session = namespace.begin_session()?;
    let handle = runtime.handle().clone();
    let parts = Parts {
        namespace,
        journal,
        committer: committer.clone(),
        cache: cache.clone(),
        store,
        clock,
        entropy,
        session,
        runtime: handle,
    };
    let metadata = parts.namespace.store().clone();
    let vfs = Vfs::start(parts, Settings { upload_delay: args.upload_delay, ..Settings::default() }, recovered);
    let trimmer = Arc::downgrade(&vfs);
    let on_persisted = Box::new(move |_| trimmer.upgrade().iter().for_each(|vfs| vfs.trim_journal()));
    let checkpointer = Checkpointer::start(metadata, on_persisted)?;

    let (ended, mut has_ended) = watch::channel(false);
    let fuse = Config {
        mount: MountOptions {
            source: format!("local:{}", dir.display()),
            suid_and_devices: true,
            ..MountOptions::default()
        },
        ..Config::default()
    };
    let options = ServeOptions { valid: Duration::from_secs(3600), available_bytes: available(&config, dir)? };
    let handler = VfsHandler::new(
        vfs.clone(),
        options,
        Box::new(move || {
            ended.send_replace(true);
        }),
    );
    let mounted = Session::start(&fuse, mountpoint, Arc::new(handler), runtime.handle().clone());
    let mount = Arc::new(mounted.map_err(|error| match error {
        StartError::Mount(error) => anyhow!("{error}"),
        other => anyhow!("{other}"),
    })?);

    let result = runtime.block_on(async {
        let control = Server {
            vfs: vfs.clone(),
            mount: mount.clone(),
            mountpoint: mountpoint.to_path_buf(),
            config: config.clone(),
        };
        let (drained, watchers) = control.listen(dir)?;
        if args.detach {
            detach::ready()?;
        } else {
            eprintln!(
                "sluice: {} is mounted at {}; `sluice umount {}` ends it",
                dir.display(),
                mountpoint.display(),
                mountpoint.display()
            );
        }
        wait_for_the_end(&mount, &mut has_ended).await;
        // With the kernel's references gone, what has no name has no user: it is not worth storing.
        let last = vfs.clone();
        let _ = tokio::task::spawn_blocking(move || last.reclaim_rest()).await;
        vfs.drain().await;
        drop(drained);
        Ok::<_, anyhow::Error>(watchers)
    });
    // Even when the store is unreachable, what is acked is in the journal: the order below is for a quick next start.
    mount.wait();
    vfs.stop();
    checkpointer.shutdown()?;
    vfs.trim_journal();
    if let Some(Err(error)) = cache.as_ref().map(|cache| cache.persist_table()) {
        tracing::warn!(%error, "the cache's table was not written: the next start finds a colder cache");
    }
    cache_sync.iter().for_each(|sync| sync.end());
    committer.shutdown();
    let _ = fs::remove_file(crate::control::socket_path(dir));
    // Those who asked for the umount are told by the end of their connection, which comes with the end of the process.
    let _watchers = result?;
    Ok(ExitCode::SUCCESS)
}

/// Until the mount is gone: by our own command, by umount(8), or by a signal. A second signal ends the process at once, which
/// loses nothing acked.
async fn wait_for_the_end(mount: &Session, has_ended: &mut watch::Receiver<bool>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        let _ = has_ended.wait_for(|ended| *ended).await;
        return;
    };
    let mut asked = false;
    loop {
        tokio::select! {
            _ = has_ended.wait_for(|ended| *ended) => return,
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        if asked {
            eprintln!("sluice: ended at once; what was acked is in the journal");
            std::process::exit(1);
        }
        asked = true;
        eprintln!("sluice: unmounting; again to end at once");
        if let Err(error) = mount.unmount(true) {
            eprintln!("sluice: {error}");
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

/// Answers `status` and `umount`.
#[derive(Clone)]
struct Server {
    vfs: Arc<Vfs>,
    mount: Arc<Session>,
    mountpoint: PathBuf,
    config: VolumeConfig,
}

/// Connections served at once.
const CONNECTIONS_MAX: usize = 16;

impl Server {
    /// Listens in the volume's directory. The first value, dropped, says that the drain is over; the second keeps the
    /// connections of those who wait for the end of the process.
    fn listen(self, dir: &Path) -> anyhow::Result<(watch::Sender<()>, mpsc::Receiver<UnixStream>)> {
        let path = crate::control::socket_path(dir);
        let _ = fs::remove_file(&path);
        let held = fs::File::open(dir)?;
        let listener =
            UnixListener::bind(short_path(&held)).with_context(|| format!("listening at {}", path.display()))?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let (drained, is_drained) = watch::channel(());
        let (keep, kept) = mpsc::channel(CONNECTIONS_MAX);
        let places = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
        tokio::spawn(async move {
            loop {
                let Ok(place) = places.clone().acquire_owned().await else { return };
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (server, is_drained, keep) = (self.clone(), is_drained.clone(), keep.clone());
                tokio::spawn(async move {
                    if let Err(error) = server.answer(stream, is_drained, keep).await {
                        tracing::debug!(%error, "a control connection ended");
                    }
                    drop(place);
                });
            }
        });
        Ok((drained, kept))
    }

    async fn answer(
        &self,
        stream: UnixStream,
        mut drained: watch::Receiver<()>,
        keep: mpsc::Sender<UnixStream>,
    ) -> anyhow::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        tokio::time::timeout(Duration::from_secs(5), reader.read_line(&mut line)).await??;
        let ask: Ask = serde_json::from_str(&line)?;
        let mut stream = reader.into_inner();
        match ask {
            Ask::Status => tell(&mut stream, &Told::Status { status: self.status() }).await,
            Ask::Umount { lazy } => {
                if let Err(error) = self.mount.unmount(lazy) {
                    return tell(&mut stream, &Told::Failed { error: error.to_string() }).await;
                }
                loop {
                    let (objects, bytes) = self.vfs.dirty_totals();
                    let trouble = self
                        .vfs
                        .status()
                        .ok()
                        .filter(|s| s.upload_errors > 0)
                        .map(|s| format!("{} uploads failed so far", s.upload_errors));
                    tell(&mut stream, &Told::Draining { objects, bytes, trouble }).await?;
                    match tokio::time::timeout(Duration::from_millis(300), drained.changed()).await {
                        Err(_) => {}
                        Ok(_) => break,
                    }
                }
                let _ = keep.send(stream).await;
                Ok(())
            }
        }
    }

    fn status(&self) -> serde_json::Value {
        let counts = self.mount.counts();
        json!({
            "volume": self.config.id,
            "store": self.config.store,
            "mountpoint": self.mountpoint,
            "pid": std::process::id(),
            "running": true,
            "requests": format!("{counts:?}"),
            "numbers": self.vfs.status().ok(),
        })
    }
}

async fn tell(stream: &mut UnixStream, told: &Told) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    Ok(stream.write_all(&line).await?)
}
