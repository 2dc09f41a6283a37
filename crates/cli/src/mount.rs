//! `sluice mount`: a volume that another host serves.

mod alone;
mod kernel;

use crate::{
    config::VolumeConfig,
    control::{Ending, Server, Socket},
    detach::{self, Detaching},
    guard,
    metrics::{Lease, Metrics, MetricsArgs, Probe, VolumeSource},
    output::note,
    reach::{START_TIME, addresses, reach, told_config},
    reading::ReadingArgs,
    running::{Running, available, until_the_end},
    scrub::ScrubRate,
    units, up,
    volume::{self, OpenOptions},
};
use alone::Alone;
use anyhow::{Context, anyhow, bail};
use clap::builder::ValueParser;
use kernel::MountKernel;
use sluice_base::{Clock, OsEntropy, SystemClock, crc::crc32c};
use sluice_fuse::ServeOptions;
use sluice_join::{Callbacks, NetLink, NodesByThread, Peers, Replayed, Reporter, Work, keep};
use sluice_net::{Client, ClientOptions};
use sluice_node::GroupOptions;
use sluice_run::task;
use sluice_vfs::{
    Parts, Settings,
    remote::{self, Remote},
};
use sluice_wire::{Hello, LaneClass, PeerKind};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};
use tokio::runtime::Runtime;

/// Mount a volume that `sluice serve` offers
///
/// What a call returned success for is in this host's journal; what was closed or synced is seen by every other mount. The
/// journal and the cache are directories of this host, each for one mount; after `sluice umount` nothing in them is needed.
///
/// Locks (flock, fcntl) hold between mounts. Not yet: O_APPEND by several at once without a lock; of two that write a file at the same
/// time, the last to close wins. Bytes that a mount has acked and not stored are gone with it until it is mounted again: others get EIO.
///
/// Objects are read from and written to the volume's store by this host itself: it needs the same credentials as the server.
///
/// Example: sluice mount sluice://10.0.0.5:7700 ~/mnt -d
#[derive(clap::Args)]
pub struct MountArgs {
    /// The volume's server: sluice://HOST:PORT
    #[arg(value_name = "META")]
    pub meta: String,
    /// An empty directory to mount at
    pub mountpoint: PathBuf,
    /// Return once the volume is mounted
    #[arg(short = 'd', long)]
    pub detach: bool,
    /// Where objects are cached and how much, as in /ssd/cache:100G, or none; default: beside the journal, 10G
    #[arg(long, value_name = "DIR:SIZE|none")]
    pub cache: Option<String>,
    /// Where this mount's journal is and how large it is, as in /ssd/journal:4G; default: in the user's cache directory, 1G
    #[arg(long, value_name = "DIR:SIZE")]
    pub journal: Option<String>,
    /// How long an object waits for more data before it is uploaded
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = ValueParser::new(units::parse_time))]
    pub upload_delay: Duration,
    /// Memory for bytes on their way: answers, what is read ahead of programs that read in order, warm-ups, uploads, and what no cache disk
    /// holds. The process itself takes up to 64M more, beyond that only for the names of very many files. One reader of a store at 300 MB/s and 30 ms needs 32M to keep it busy, each further one as
    /// much, if they are to run at the same time at that rate
    #[arg(long, default_value = "256M", value_name = "SIZE", value_parser = ValueParser::new(units::parse_memory))]
    pub memory: u64,
    #[command(flatten)]
    pub reading: ReadingArgs,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    #[command(flatten)]
    pub scrub: ScrubRate,
}

/// Threads that wait for the server at once.
const WAITING_MAX: usize = 128;

/// Where a mount keeps what is its own.
struct Place {
    state: PathBuf,
    journal_bytes: u64,
    cache: Option<PathBuf>,
    cache_bytes: u64,
}

/// What those who watch the mount are told from.
struct Watch {
    metrics: Metrics,
    probe: Probe,
    reporter: Arc<Reporter>,
}

pub fn run(args: &MountArgs) -> anyhow::Result<ExitCode> {
    let mountpoint = up::place::check(&args.mountpoint)?;
    let place = place(args, &mountpoint)?;
    if args.detach && !detach::is_child() {
        fs::create_dir_all(&place.state).with_context(|| format!("making {}", place.state.display()))?;
        return detach::run_detached(&place.state.join("log"));
    }
    up::place::check_device()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(WAITING_MAX)
        .thread_name("sluice-io")
        .enable_all()
        .build()?;
    // What comes from the server is handed on by one thread: where there are several, each frame wakes another one in vain.
    let lanes = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("sluice-lane")
        .enable_all()
        .build()?;
    let result = mount(args, &place, &mountpoint, &runtime, &lanes);
    runtime.shutdown_timeout(Duration::from_secs(1));
    lanes.shutdown_timeout(Duration::from_secs(1));
    result
}

/// `DIR:SIZE`.
pub fn sized(text: &str, option: &str) -> anyhow::Result<(PathBuf, u64)> {
    let parsed = text.rsplit_once(':').filter(|(dir, _)| !dir.is_empty());
    let (dir, size) = parsed.ok_or_else(|| anyhow!("{option} is DIR:SIZE, as in /ssd/sluice:10G, not `{text}`"))?;
    let size = units::parse_size(size).map_err(|error| anyhow!("{option} {text}: {error}"))?;
    Ok((std::path::absolute(dir).with_context(|| format!("the path `{dir}`"))?, size))
}

fn place(args: &MountArgs, mountpoint: &Path) -> anyhow::Result<Place> {
    let (state, journal_bytes) = match &args.journal {
        Some(text) => sized(text, "--journal")?,
        None => (default_state(&args.meta, mountpoint)?, 1 << 30),
    };
    if journal_bytes < up::JOURNAL_BYTES_MIN {
        bail!("--journal is at least {}", units::show_size(up::JOURNAL_BYTES_MIN));
    }
    let (cache, cache_bytes) = match args.cache.as_deref() {
        None => (None, 10 << 30),
        Some("none") => (None, 0),
        Some(text) => sized(text, "--cache").map(|(dir, bytes)| (Some(dir), bytes))?,
    };
    Ok(Place { state, journal_bytes, cache, cache_bytes })
}

/// A directory of this server and mount point alone.
fn default_state(meta: &str, mountpoint: &Path) -> anyhow::Result<PathBuf> {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let base = base.ok_or_else(|| anyhow!("neither XDG_CACHE_HOME nor HOME is set: say --journal DIR:SIZE"))?;
    let name = format!("{meta} {}", mountpoint.display());
    let last = mountpoint.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(base.join("sluice").join(format!("{last}-{:08x}", crc32c(name.as_bytes()))))
}

fn mount(
    args: &MountArgs,
    place: &Place,
    mountpoint: &Path,
    runtime: &Runtime,
    lanes: &Runtime,
) -> anyhow::Result<ExitCode> {
    let dir = &place.state;
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let options = OpenOptions {
        cache_bytes: place.cache_bytes,
        journal_bytes: place.journal_bytes,
        cache_dir: place.cache.clone(),
        metadata_only: false,
        memory_bytes: args.memory,
    };
    let lock = options.lock(dir)?;
    let metrics = runtime.block_on(args.metrics.listen())?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let callbacks = Arc::new(Callbacks::default());
    let client = lanes.block_on(connect(args, mountpoint, &callbacks, &clock))?;
    let client = Arc::new(client);
    let config = runtime.block_on(told_config(&client, &args.meta))?;
    remember(dir, &config)?;
    runtime.block_on(volume::check_store(&config, dir))?;

    let replayed = volume::replay(dir, config.id()?, &options, clock.clone(), |own| Ok(remote::unstored(own)?))?;
    let link = Arc::new(NetLink::new(client.clone(), task::handle(runtime.handle())));
    let name = format!("{}:{}", hostname(), mountpoint.display());
    let session = remote::take_up(&*link, &replayed.store, name.as_bytes(), &OsEntropy)?;
    let id = session.id;
    let metadata = Remote::new(link, session, replayed.store.clone(), clock.clone(), replayed.boot_id)?;
    let metadata = Arc::new(metadata);
    let name = printable(&format!("{}:{}", hostname(), std::process::id()));
    let hello =
        Hello { peer: PeerKind::Mount, lane: LaneClass::Small, volume: Some(config.id()?), session: None, name };
    let (entropy, handle) = (Arc::new(OsEntropy), task::handle(runtime.handle()));
    let store = volume::open_store_of_mount(&config, dir, args.memory)?;
    let options = GroupOptions { pages: store.pages().clone(), ..GroupOptions::new(hello.clone()) };
    let group = sluice_join::group::follow(&client, options, &clock, entropy, &handle);
    let parts = Parts {
        namespace: metadata.clone(),
        journal: replayed.journal.clone(),
        committer: replayed.committer.clone(),
        cache: replayed.cache.clone(),
        store: Arc::new(store),
        clock: clock.clone(),
        entropy: Arc::new(OsEntropy),
        session: id,
        others: Some(Arc::new(Peers(client.clone()))),
        group: Some(Arc::new(NodesByThread::new(group, hello, clock.clone()))),
        runtime: task::handle(runtime.handle()),
    };
    let settings = Settings { upload_delay: args.upload_delay, memory_bytes: args.memory, ..Settings::default() };
    let Replayed { store: own, cache_sync, recovered, .. } = replayed;
    let running = Running::new(Work::start(parts, settings, recovered, own, cache_sync)?, lock);
    args.scrub.start(running.vfs.cache());
    let reporter = Arc::new(Reporter::default());
    let watch = Watch { metrics, probe: Probe::new(&config, dir, clock.clone())?, reporter: reporter.clone() };
    let (reports, told, vfs) = (reporter.clone(), metadata.clone(), running.vfs.clone());
    let reporting = runtime.spawn(async move { reports.run(&client, id, &told, &vfs).await });
    let result = serve(args, dir, mountpoint, runtime, &config, running, &metadata, &callbacks, watch);
    reporting.abort();
    result
}

#[allow(clippy::too_many_arguments, reason = "the parts of one mount")]
fn serve(
    args: &MountArgs,
    dir: &Path,
    mountpoint: &Path,
    runtime: &Runtime,
    config: &VolumeConfig,
    running: Running,
    metadata: &Arc<Remote>,
    callbacks: &Arc<Callbacks>,
    watch: Watch,
) -> anyhow::Result<ExitCode> {
    let socket = Socket::bind(dir)?;
    let detaching = if args.detach { Some(Detaching::prepare()?) } else { None };
    let (leased, ending) = (metadata.clone(), Arc::new(Ending::default()));
    let options = ServeOptions {
        valid: Box::new(move || leased.valid()),
        locks: Some(metadata.clone()),
        passthrough: None,
        verify: args.reading.verify(),
        available_bytes: available(config, dir)?,
    };
    let source = format!("{}#{}", args.meta, dir.display());
    let result = running.mount(source, options, &args.reading, mountpoint, None, runtime).and_then(|(mount, has_ended)| {
        let kernel = Arc::new(MountKernel(mount.notifier()));
        callbacks.start(metadata, &running.vfs, kernel, task::handle(runtime.handle()));
        match guard::start(mountpoint) {
            Ok(guard) => {
                let mut has_ended = has_ended.clone();
                runtime.spawn(async move {
                    let _ = has_ended.wait_for(|ended| *ended).await;
                    drop(guard);
                });
            }
            Err(error) => {
                note!("warning: if this process is killed, programs that use the mount may hang until it is unmounted by force: {error:#}");
            }
        }
        let keeping = runtime.spawn(keep(metadata.clone()));
        let Watch { metrics, probe, reporter } = watch;
        let lease = Some(Lease { metadata: metadata.clone(), reporter });
        let (vfs, watched) = (running.vfs.clone(), Some(mount.clone()));
        let source = VolumeSource { role: "mount", vfs, probe, mount: watched, lease, service: None };
        let _monitor = runtime.block_on(async { metrics.serve(source) });
        let server = Server {
            vfs: running.vfs.clone(),
            mount: Some((mount.clone(), mountpoint.to_path_buf())),
            server: Some(args.meta.clone()),
            service: None,
            dir: dir.to_path_buf(),
            config: config.clone(),
            ending: ending.clone(),
        };
        let (server_name, journal) = (args.meta.clone(), dir.display().to_string());
        let (metadata, clock) = (metadata.clone(), Arc::new(SystemClock::default()));
        runtime.spawn(Alone { metadata, mount: mount.clone(), ending, clock, server: server_name, journal }.watch());
        let result = runtime.block_on(until_the_end(server, &args.meta, &socket, detaching, has_ended));
        mount.wait();
        keeping.abort();
        result
    });
    if let Err(error) = sluice_vfs::waiting(|| metadata.end()) {
        note!("the session was not ended: {error}");
    }
    running.end()?;
    drop(socket);
    let _watchers = result?;
    Ok(ExitCode::SUCCESS)
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

/// As a peer's name may be.
pub fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(60).collect()
}

pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
