//! `sluice serve`: the metadata of a volume for mounts on other hosts, or a cache disk for its group.

mod node;

use crate::{
    control::{Ending, Server, Socket},
    descriptors,
    detach::{self, Detaching},
    directory,
    gc::GcOptions,
    metrics::{MetricsArgs, Probe, VolumeSource},
    output::note,
    running::{Running, first_word, stop_on_signals},
    scrub::ScrubRate,
    units,
    volume::{self, OpenOptions, Volume},
};
use anyhow::{Context, anyhow, bail};
use clap::builder::ValueParser;
use sluice_join::MetaService;
use sluice_meta::rpc;
use sluice_object::StoreUrl;
use sluice_vfs::{Settings, gc::GcSettings};
use std::{ffi::OsString, net::SocketAddr, path::Path, process::ExitCode, sync::Arc, time::Duration};
use tokio::runtime::Runtime;

/// Serve a volume of this host to mounts on other hosts, or lend a cache disk to one
///
/// The volume in DIR is one that `sluice format` or `sluice up` made; while it is served, nobody else opens it. Mounts keep what
/// they read under a lease and are told of every change; what they write is theirs until the store has it.
///
/// SIGTERM or Ctrl-C ends it once what it holds is stored; mounts wait, and go on when it is started again at the same address.
///
/// With META sluice://HOST:PORT this is a node of that server's volume: it keeps objects on its cache disk and gives them to the
/// volume's mounts. It needs the same credentials for the store as the server.
///
/// Connections are not encrypted and peers are not authenticated yet: listen on loopback, or on a network that you trust.
///
/// Example: sluice serve ~/volume --listen 127.0.0.1:7700
///
/// Example: sluice serve sluice://127.0.0.1:7700 --listen 127.0.0.1:7701 --cache /ssd/node:100G
#[derive(clap::Args)]
pub struct ServeArgs {
    /// The volume: local:DIR or DIR; or its server, sluice://HOST:PORT, for a node
    #[arg(value_name = "META")]
    pub meta: OsString,
    /// Address and port to listen at; port 0 takes a free one, which is told on standard error
    #[arg(long, value_name = "ADDR", value_parser = ValueParser::new(units::parse_listen))]
    pub listen: SocketAddr,
    /// Return once mounts are served
    #[arg(short = 'd', long)]
    pub detach: bool,
    /// Where objects are cached and how much, as in /ssd/cache:100G; a node needs it
    #[arg(long, value_name = "DIR:SIZE", conflicts_with = "cache_size")]
    pub cache: Option<String>,
    /// What a node is called: its objects are placed by it; default: from host and cache directory
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// A node's share of the objects; 0 takes none, default: 1 for each GiB of its cache
    #[arg(long, value_name = "N")]
    pub weight: Option<u32>,
    /// Threads of a node that answer what its memory has, each some 5 GB/s; default: half of the cores, 2 to 8
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub io_threads: Option<u8>,
    /// How long a mount that is not heard of keeps its locks and holds up others' changes; a node has none. 2s to 10m
    #[arg(long, default_value = "15s", value_name = "TIME", value_parser = ValueParser::new(parse_lease))]
    pub lease: Duration,
    /// Room for cached objects; 0 goes without a cache disk
    #[arg(long, default_value = "10G", value_name = "SIZE", value_parser = ValueParser::new(units::parse_size))]
    pub cache_size: u64,
    /// Room for the journal
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = ValueParser::new(units::parse_size))]
    pub journal_size: u64,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    #[command(flatten)]
    pub scrub: ScrubRate,
    #[command(flatten)]
    pub gc: GcOptions,
}

/// How long requests under way may take when the server ends.
const GRACE: Duration = Duration::from_secs(2);

/// Mounts renew their leases every second; a lease of many minutes makes a mount that vanished felt as long.
fn parse_lease(text: &str) -> Result<Duration, String> {
    let lease = units::parse_time(text)?;
    let sound = Duration::from_secs(2)..=Duration::from_secs(600);
    if sound.contains(&lease) { Ok(lease) } else { Err("a lease is between 2s and 10m".into()) }
}

pub fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    if let Some(meta) = args.meta.to_str().filter(|meta| meta.starts_with("sluice://")) {
        return node::run(args, meta);
    }
    if args.name.is_some() || args.weight.is_some() || args.io_threads.is_some() {
        bail!("--name, --weight and --io-threads are a node's: name the server, sluice://HOST:PORT");
    }
    let dir = directory::volume_dir(&args.meta)?;
    if args.detach && !detach::is_child() {
        return detach::run_detached(&dir.join("log"));
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("sluice-io").enable_all().build()?;
    let result = serve(args, &dir, &runtime);
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

fn serve(args: &ServeArgs, dir: &Path, runtime: &Runtime) -> anyhow::Result<ExitCode> {
    let config =
        directory::load(dir)?.ok_or_else(|| anyhow!("{} holds no volume; `sluice format` makes one", dir.display()))?;
    runtime.block_on(volume::check_store(&config, dir))?;
    let (cache_dir, cache_bytes) = match &args.cache {
        Some(text) => crate::mount::sized(text, "--cache").map(|(dir, bytes)| (Some(dir), bytes))?,
        None => (None, args.cache_size),
    };
    let journal_bytes = args.journal_size;
    let options = OpenOptions { cache_bytes, journal_bytes, cache_dir, ship: true, ..OpenOptions::default() };
    volume::warn_of_small_disk(dir, journal_bytes);
    let volume = Volume::open(dir, &options)?;
    let socket = Socket::bind(dir)?;
    let detaching = if args.detach { Some(Detaching::prepare()?) } else { None };
    let (namespace, committer, clock) = (volume.namespace.clone(), volume.committer.clone(), volume.clock.clone());
    // Orphans may be in use by mounts that come back.
    let settings = Settings { reclaim_orphans: false, ..Settings::default() };
    // What can fail is done before the volume is at work, as far as it can be.
    // A mount elsewhere must be told a place that means the same there.
    let mut told = config.clone();
    if let StoreUrl::File(path) = config.store_url(dir)? {
        told.store = format!("file:{}", std::path::absolute(&path).unwrap_or(path).display());
    }
    let (id, told) = (config.id()?, told.to_json().into_bytes());
    let probe = Probe::new(&config, dir, clock.clone())?;
    let running = Running::of_volume(volume, dir, settings, config.durability, runtime.handle())?;
    let opened =
        rpc::Server::open(namespace, rpc::Settings { lease: args.lease, ..Default::default() }, clock.monotonic());
    let sessions = match opened {
        Ok(sessions) => sessions,
        Err(error) => {
            running.give_up(runtime);
            return Err(error.into());
        }
    };
    args.scrub.start(running.vfs.cache());
    let service = MetaService::new(sessions, running.vfs.clone(), committer, clock.clone(), id, told);
    let files = Arc::downgrade(&service);
    let relocate = move |ino, moved: &[_]| files.upgrade().map_or(Ok(0), |service| service.relocate(ino, moved));
    // Longer than a mount believes what it knew before.
    let collecting = args.gc.settings();
    let min_age = collecting.min_age.max(2 * args.lease);
    running.collect_garbage(GcSettings { min_age, ..collecting }, Some(Box::new(relocate)));
    service.ship_with(running.shipped.clone());
    let result = runtime.block_on(async {
        let listening =
            sluice_net::Server::bind(args.listen, service.clone(), descriptors::server_options(), clock).await;
        let listening = listening.with_context(|| format!("listening at {}", args.listen))?;
        let metrics = args.metrics.listen().await?;
        let due = tokio::spawn(service.clone().run());
        let address = Some(format!("sluice://{}", listening.address()));
        let (vfs, shown, dir) = (running.vfs.clone(), dir, dir.to_path_buf());
        let known = Some(Arc::downgrade(&service));
        let (watched, service_known, ship) = (running.vfs.clone(), known.clone(), running.ship.clone());
        let ship_known = ship.clone();
        let source = VolumeSource {
            role: "server",
            vfs: watched,
            probe,
            mount: None,
            lease: None,
            service: service_known,
            ship: ship_known,
        };
        let _monitor = metrics.serve(source);
        let (shipped, namespace) = (running.shipped.clone(), running.namespace.clone());
        let (mount, served, cache_dir, ending) = (None, None, dir.join("cache"), Arc::<Ending>::default());
        let ends = ending.clone();
        let server = Server {
            vfs,
            mount,
            server: address,
            service: known,
            dir,
            cache_dir,
            served,
            namespace,
            ship,
            shipped,
            config,
            ending,
        };
        let asked = server.clone();
        service.answer_status_with(move || serde_json::to_vec(&asked.status()).unwrap_or_default());
        let (drained, _watchers) = server.listen(&socket)?;
        note!("{} is served at sluice://{}", shown.display(), listening.address());
        if let Some(detaching) = detaching {
            first_word(running.ship.as_deref()).await;
            detaching.ready()?;
        }
        stop_on_signals().await?;
        ends.wanted.send_replace(true);
        note!("no longer served; storing what is left");
        listening.shutdown(GRACE).await;
        due.abort();
        let lacks = running.drain().await;
        drop(drained);
        Ok::<_, anyhow::Error>(lacks)
    });
    running.end_after(&result, runtime)?;
    drop(socket);
    let Some(lacks) = result? else { return Ok(ExitCode::SUCCESS) };
    note!("{} is not served any more, but the store lacks {}", dir.display(), lacks.what);
    Ok(ExitCode::FAILURE)
}
