//! `sluice serve sluice://...`: a node that lends its cache disk to a volume of another host.

use super::{GRACE, ServeArgs};
use crate::{
    config::VolumeConfig,
    detach::{self, Detaching},
    lock::VolumeLock,
    metrics::{NodeSource, Probe},
    mount::{START_TIME, addresses, hostname, printable, sized, told_config},
    output::note,
    running::stop_on_signals,
    volume,
};
use anyhow::{Context, anyhow, bail};
use sluice_base::{Clock, Entropy, OsEntropy, SystemClock, crc::crc32c, disk::RealDisk};
use sluice_net::{Client, ClientOptions, NoCallbacks, Server, ServerOptions};
use sluice_node::{
    Group, GroupOptions, Membership, Node, NodeName, NodeParts, NodeService, follow,
    message::{Join, Numbers},
};
use sluice_store::{Cache, CacheOptions};
use sluice_wire::{Hello, LaneClass, PeerKind};
use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};
use tokio::runtime::Runtime;

/// How often the slot table is written: what was cached since is fetched again after a crash.
const PERSIST_INTERVAL: Duration = Duration::from_secs(60);
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
    let result = runtime.block_on(serve(args, meta, &place, &runtime));
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

async fn serve(args: &ServeArgs, meta: &str, place: &Place, runtime: &Runtime) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let mut hello = Hello {
        peer: PeerKind::Node,
        lane: LaneClass::Small,
        volume: None,
        session: None,
        name: place.name.to_string(),
    };
    let (callbacks, options, entropy) = (Arc::new(NoCallbacks), ClientOptions::default(), Arc::new(OsEntropy));
    let client = Client::new(addresses(meta).await?, hello.clone(), callbacks, options, clock.clone(), entropy);
    let client = Arc::new(client);
    if let Err(error) = client.connected(START_TIME).await {
        bail!("{meta} does not let this node in: {error}");
    }
    let config = told_config(&client, meta).await?;
    volume::check_store(&config, &place.dir).await?;
    hello.volume = Some(config.id()?);
    let options = GroupOptions { own: Some(place.name.clone()), ..GroupOptions::new(hello) };
    let group = Arc::new(Group::new(options, clock.clone(), Arc::new(OsEntropy)));
    let node = open(place, &config, &group, &clock)?;
    let service = NodeService::new(node.clone(), group.clone(), clock.clone(), config.id()?, place.name.to_string());
    let service = Arc::new(service);
    let metrics = args.metrics.listen().await?;
    let probe = Probe::new(&config, &place.dir, clock.clone())?;
    let listening = Server::bind(args.listen, service.clone(), ServerOptions::default(), clock.clone()).await;
    let listening = listening.with_context(|| format!("listening at {}", args.listen))?;
    let detaching = if args.detach { Some(Detaching::prepare()?) } else { None };
    let join = Join {
        name: place.name.clone(),
        instance: instance(),
        address: listening.address(),
        weight: place.weight,
        capacity_bytes: place.cache_bytes,
    };
    let membership = Arc::new(Membership::new(client, join, group, clock));
    membership.join_first().await?;
    let source = NodeSource { node: node.clone(), service, membership: membership.clone(), probe };
    let _monitor = metrics.serve(source);
    note!("node `{}` of {meta} listens at {}, weight {}", place.name, listening.address(), place.weight);
    if let Some(detaching) = detaching {
        detaching.ready()?;
    }
    let working = runtime.spawn(work(membership.clone(), node.clone()));
    let ended = stop_on_signals().await;
    working.abort();
    membership.leave().await;
    listening.shutdown(GRACE).await;
    tell(&node.numbers());
    let persisted = tokio::task::spawn_blocking(move || node.cache().persist_table()).await;
    if let Ok(Err(error)) = persisted {
        tracing::warn!(%error, "the cache's table was not written: the next start finds a colder cache");
    }
    ended
}

fn open(place: &Place, config: &VolumeConfig, group: &Arc<Group>, clock: &Arc<dyn Clock>) -> anyhow::Result<Arc<Node>> {
    let options = CacheOptions { dir: place.dir.clone(), capacity_bytes: place.cache_bytes, volume: config.id()? };
    let cache = Cache::open(Arc::new(RealDisk), options, clock.clone());
    let cache = cache.with_context(|| format!("opening the cache {}", place.dir.display()))?;
    let store = volume::open_store(config, &place.dir, true)?;
    let elsewhere = Some(group.clone() as Arc<dyn sluice_node::Elsewhere>);
    Ok(Arc::new(Node::new(NodeParts { cache, store, elsewhere, clock: clock.clone() })))
}

/// A number that no other process has.
fn instance() -> u64 {
    let mut bytes = [0; 8];
    OsEntropy.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

async fn work(membership: Arc<Membership>, node: Arc<Node>) {
    let keep = membership.keep(|| node.numbers());
    let persist = async {
        loop {
            tokio::time::sleep(PERSIST_INTERVAL).await;
            let node = node.clone();
            let persisted = tokio::task::spawn_blocking(move || node.cache().persist_table()).await;
            if let Ok(Err(error)) = persisted {
                tracing::warn!(%error, "the cache's table was not written");
            }
        }
    };
    tokio::join!(keep, follow(&membership.client, &membership.group), persist);
}

fn tell(numbers: &Numbers) {
    let Numbers { hits, misses, failures, served_bytes, filled_bytes, .. } = numbers;
    note!(
        "no longer in the group; {hits} reads from the cache, {misses} from the store, {failures} failed; \
         {served_bytes} bytes sent, {filled_bytes} fetched"
    );
}
