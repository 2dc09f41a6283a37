//! `sluice serve sluice://...`: a node that lends its cache disk to a volume of another host.

use super::{GRACE, ServeArgs};
use crate::{
    control::{NodeServer, Socket},
    descriptors,
    detach::{self, Detaching},
    lock::VolumeLock,
    metrics::{NodeSource, Probe},
    mount::{hostname, printable, sized},
    output::note,
    reach::{START_TIME, addresses, reach, told_config},
    running::stop_on_signals,
    volume,
};
use anyhow::{Context, anyhow};
use sluice_base::{Clock, OsEntropy, SystemClock, crc::crc32c, disk::RealDisk};
use sluice_join::node::{Listening, NodeSetup, NodeWork, PERSIST_INTERVAL, hello};
use sluice_net::{Client, ClientOptions, NoCallbacks, port::DataServerOptions};
use sluice_node::{NodeName, message::Numbers};
use sluice_store::{Cache, CacheOptions};
use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

/// Threads for the cache disk: 16 reads and 8 fills at once, and the table.
const DISK_THREADS_MAX: usize = 32;

struct Place {
    dir: PathBuf,
    cache_bytes: u64,
    name: NodeName,
    weight: u32,
}

pub fn run(args: &ServeArgs, meta: &str) -> anyhow::Result<ExitCode> {
    let place = place(args)?;
    fs::create_dir_all(&place.dir).with_context(|| format!("making {}", place.dir.display()))?;
    if args.detach && !detach::is_child() {
        return detach::run_detached(&place.dir.join("log"));
    }
    let _lock = VolumeLock::take_cache(&place.dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(DISK_THREADS_MAX)
        .thread_name("sluice-io")
        .enable_all()
        .build()?;
    let result = runtime.block_on(serve(args, meta, &place));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result?;
    Ok(ExitCode::SUCCESS)
}

fn place(args: &ServeArgs) -> anyhow::Result<Place> {
    let cache = args.cache.as_deref();
    let cache =
        cache.ok_or_else(|| anyhow!("a node needs room for its cache: --cache DIR:SIZE, as in /ssd/node:100G"))?;
    let (dir, cache_bytes) = sized(cache, "--cache")?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => default_name(&dir),
    };
    let name = NodeName::new(&name).ok_or_else(|| anyhow!("--name is 1 to 64 bytes without control characters"))?;
    let by_size = u32::try_from(cache_bytes >> 30).unwrap_or(u32::MAX).max(1);
    Ok(Place { dir, cache_bytes, name, weight: args.weight.unwrap_or(by_size) })
}

/// The same after a restart, and another for each cache directory of a host.
fn default_name(dir: &Path) -> String {
    let host: String = printable(&hostname()).chars().filter(char::is_ascii).take(40).collect();
    format!("{host}-{:08x}", crc32c(dir.as_os_str().as_bytes()))
}

async fn serve(args: &ServeArgs, meta: &str, place: &Place) -> anyhow::Result<()> {
    let (clock, entropy): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::default()), Arc::new(OsEntropy));
    let (hello, callbacks, options) = (hello(&place.name, None), Arc::new(NoCallbacks), ClientOptions::default());
    let client = Client::new(addresses(meta).await?, hello, callbacks, options, clock.clone(), entropy.clone());
    let client = Arc::new(client);
    reach(&client, meta, START_TIME).await?;
    let config = told_config(&client, meta).await?;
    volume::check_store(&config, &place.dir).await?;
    let (volume, capacity_bytes) = (config.id()?, place.cache_bytes);
    let cache = CacheOptions { dir: place.dir.clone(), capacity_bytes, volume };
    let cache = Cache::open(Arc::new(RealDisk), cache, clock.clone());
    let cache = cache.with_context(|| format!("opening the cache {}", place.dir.display()))?;
    args.scrub.start(Some(&cache));
    let store = volume::open_store(&config, &place.dir, true)?;
    let metrics = args.metrics.listen().await?;
    let probe = Probe::new(&config, &place.dir, clock.clone())?;
    let socket = Socket::bind(&place.dir)?;
    let detaching = if args.detach { Some(Detaching::prepare()?) } else { None };
    let setup = NodeSetup {
        client,
        volume,
        name: place.name.clone(),
        weight: place.weight,
        listen: args.listen,
        listening: Listening::Threads { options: listening(args), runtime: tokio::runtime::Handle::current() },
        cache,
        capacity_bytes,
        store,
        persist_interval: PERSIST_INTERVAL,
        clock,
        entropy,
    };
    let work = NodeWork::start(setup).await?;
    let (node, service, membership) = (work.node.clone(), work.service.clone(), work.membership.clone());
    let (name, at) = (place.name.to_string(), work.address().to_string());
    NodeServer { node: node.clone(), membership: membership.clone(), name, at, server: meta.into() }.listen(&socket)?;
    let _monitor = metrics.serve(NodeSource { node: node.clone(), service, membership, probe });
    note!("node `{}` of {meta} listens at {}, weight {}", place.name, work.address(), place.weight);
    if let Some(detaching) = detaching {
        detaching.ready()?;
    }
    let ended = stop_on_signals().await;
    work.end(GRACE).await;
    tell(&node.numbers());
    ended
}

fn listening(args: &ServeArgs) -> DataServerOptions {
    let options =
        DataServerOptions { connections_max: descriptors::server_options().connections_max, ..Default::default() };
    DataServerOptions { threads: args.io_threads.map_or(options.threads, usize::from), ..options }
}

fn tell(numbers: &Numbers) {
    let Numbers { hits, misses, failures, served_bytes, filled_bytes, .. } = numbers;
    note!(
        "no longer in the group; {hits} reads from the cache, {misses} from the store, {failures} failed; \
         {served_bytes} bytes sent, {filled_bytes} fetched"
    );
}
