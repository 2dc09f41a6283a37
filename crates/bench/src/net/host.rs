//! The side that is read from: a node as the product has it, with a full cache and an empty store.

mod far;
mod served;

use super::{
    case::{Case, Change},
    control::{MEMBERS, NodeCounts, OBJECT_BYTES, OPEN, RAW, RAW_USAGE, USAGE, Usage},
    raw,
};
use anyhow::Context;
use far::Far;
use rand::{RngCore, SeedableRng, rngs::SmallRng};
use served::Served;
use sluice_base::{
    Clock, ObjectId, OsEntropy, VolumeId,
    crc::segment_crc,
    disk::RealDisk,
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use sluice_net::{
    Failure, Refusal,
    port::{Answer, DataPeer, DataServer, DataServerOptions, DataService, PortStats},
};
use sluice_node::{Group, GroupOptions, Members, Node, NodeName, NodeParts, NodeService, NodeServiceOptions};
use sluice_object::{Store, StoreOptions, StoreUrl, StoredObject, format::tail_len};
use sluice_store::{Cache, CacheOptions};
use sluice_wire::{Hello, LaneClass, Limits, Options, Payload, PeerKind, RequestRef, Welcome};
use std::{
    fs::File,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::Semaphore;

/// The volume that hosts pretend to serve, so that nothing else connects to them by mistake.
pub(super) const VOLUME: VolumeId = VolumeId(*b"sluice bench net");

/// A process that is read from.
pub struct Host {
    control: DataServer,
}

impl Host {
    /// Fills a cache of `bytes` below `dir` and listens at `address`.
    pub fn start(
        dir: &Path,
        bytes: u64,
        address: SocketAddr,
        clock: Arc<dyn Clock>,
        runtime: tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        let objects = (bytes / OBJECT_BYTES as u64).max(1) as u32;
        let cache = cache_for(dir, objects, clock.clone())?;
        (0..objects).try_for_each(|number| fill(&cache, number))?;
        let service = Control {
            cache,
            counters: Arc::default(),
            objects,
            slab: dir.join("slab-00000"),
            clock: clock.clone(),
            runtime: runtime.clone(),
            open: Mutex::default(),
            raw_us: Arc::default(),
            address,
        };
        let options = DataServerOptions { threads: 1, ..DataServerOptions::default() };
        Ok(Self { control: DataServer::bind(address, Arc::new(service), options, clock, runtime)? })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.control.address()
    }
}

/// Room for so many objects, and a slot more, as a full cache makes room.
fn cache_for(dir: &Path, objects: u32, clock: Arc<dyn Clock>) -> anyhow::Result<Cache> {
    let capacity_bytes = (u64::from(objects) + 1) * OBJECT_BYTES as u64;
    Ok(Cache::open(Arc::new(RealDisk), CacheOptions { dir: dir.into(), capacity_bytes, volume: VOLUME }, clock)?)
}

/// Object number so many.
pub(super) fn object(number: u32) -> StoredObject {
    // Ids are random elsewhere too, and places hang on them.
    let mut id = [0; 16];
    SmallRng::seed_from_u64(u64::from(number) << 32).fill_bytes(&mut id);
    let segments = SEGMENTS_PER_OBJECT as u32;
    StoredObject::new(ObjectId(id), segments, (OBJECT_BYTES + tail_len(segments)) as u64).expect("an object can be so")
}

/// Who speaks here.
pub(super) fn hello(peer: PeerKind) -> Hello {
    Hello { peer, lane: LaneClass::Small, volume: Some(VOLUME), session: None, name: "bench".into() }
}

fn fill(cache: &Cache, number: u32) -> anyhow::Result<()> {
    let (object, mut bytes) = (object(number).id(), vec![0; SEGMENT_BYTES]);
    let mut random = SmallRng::seed_from_u64(number.into());
    for index in 0..SEGMENTS_PER_OBJECT as u32 {
        random.fill_bytes(&mut bytes);
        cache.fill(object, index, &bytes, segment_crc(object, index, &bytes))?;
    }
    Ok(())
}

/// Answers the client's questions of how, and opens data ports.
struct Control {
    /// It has every object.
    cache: Cache,
    counters: Arc<Counters>,
    objects: u32,
    slab: PathBuf,
    clock: Arc<dyn Clock>,
    runtime: tokio::runtime::Handle,
    /// The node of now, and what the lanes of former ones counted.
    open: Mutex<Opened>,
    raw_us: Arc<AtomicU64>,
    address: SocketAddr,
}

/// Over all cases; see [`NodeCounts`].
#[derive(Default)]
struct Counters {
    summed: AtomicU64,
    moved: AtomicU64,
    fetched: AtomicU64,
}

#[derive(Default)]
struct Opened {
    node: Option<OpenNode>,
    before: PortStats,
}

/// A node as a case wants it.
struct OpenNode {
    server: DataServer,
    service: Arc<Served>,
    group: Arc<Group>,
    /// Of a cache of its own.
    _dir: Option<tempfile::TempDir>,
}

impl Control {
    /// As the host of this number among all.
    fn open(&self, number: u8, case: &Case) -> anyhow::Result<u16> {
        let mut open = self.open.lock().expect("nobody panicked");
        if let Some(former) = open.node.take() {
            open.before = open.before.plus(&former.server.stats());
        }
        let node = self.node(number, case)?;
        let port = node.server.address().port();
        open.node = Some(node);
        Ok(port)
    }

    fn node(&self, number: u8, case: &Case) -> anyhow::Result<OpenNode> {
        let name = node_name(number.into());
        let options = GroupOptions { own: Some(name.clone()), ..GroupOptions::new(hello(PeerKind::Node)) };
        let group = Arc::new(Group::new(options, self.clock.clone(), Arc::new(OsEntropy)));
        let is_empty = number > 0 && case.group.is_some_and(|group| group.change != Change::None);
        let dir = is_empty.then(|| tempfile::tempdir_in(self.slab.parent().unwrap_or(Path::new("."))));
        let dir = dir.transpose().context("making a directory for an empty cache")?;
        let cache = match &dir {
            Some(dir) => cache_for(dir.path(), self.objects, self.clock.clone())?,
            None => self.cache.clone(),
        };
        let previous = case.group.is_none_or(|group| group.previous).then(|| group.clone());
        let far = Far { previous, cache: self.cache.clone(), counters: self.counters.clone() };
        // What it misses is had elsewhere.
        let store = Store::open(&StoreUrl::Memory, StoreOptions::default())?;
        let parts = NodeParts { cache, store, elsewhere: Some(Arc::new(far)), clock: self.clock.clone() };
        let node = Arc::new(Node::new(parts));
        let mut options = NodeServiceOptions { at_once: case.at_once, ..NodeServiceOptions::default() };
        let mut connection = connection();
        if !case.bound {
            options.segments_max = Semaphore::MAX_PERMITS;
            connection.output_bytes_max = usize::MAX;
        }
        let service = NodeService::new(node, group.clone(), self.clock.clone(), VOLUME, name.to_string());
        let service = Served::new(service.with(options), case.clone(), number, self.counters.clone());
        let service = Arc::new(service);
        let options = DataServerOptions { techniques: case.techniques, connection, ..Default::default() };
        let any = SocketAddr::new(self.address.ip(), 0);
        let server = DataServer::bind(any, service.clone(), options, self.clock.clone(), self.runtime.clone())?;
        Ok(OpenNode { server, service, group, _dir: dir })
    }

    fn members(&self, members: Members) {
        if let Some(node) = &self.open.lock().expect("nobody panicked").node {
            node.group.update(members);
        }
    }

    fn usage(&self) -> Usage {
        let open = self.open.lock().expect("nobody panicked");
        let now = open.node.as_ref().map_or_else(PortStats::default, |node| node.server.stats());
        let held_bytes = open.node.as_ref().map_or(0, |node| node.service.held_bytes());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { summed, moved, fetched } = &*self.counters;
        let (summed, moved, fetched) = (count(summed), count(moved), count(fetched));
        Usage::now(open.before.plus(&now), NodeCounts { summed, moved, fetched, held_bytes })
    }

    fn raw(&self, body: &[u8]) -> Option<io::Result<u16>> {
        let body: &[u8; 16] = body.try_into().ok()?;
        let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("8 bytes"));
        let (total, step, file_bytes) = (number(0), number(8) as usize, u64::from(self.objects) * OBJECT_BYTES as u64);
        if step == 0 || step as u64 > file_bytes {
            return None;
        }
        self.raw_us.store(0, Ordering::Release);
        let file = File::open(&self.slab);
        Some(file.and_then(|file| raw::serve(file, file_bytes, total, step, self.raw_us.clone(), self.address)))
    }
}

/// Of a host and of its client: as much under way as a measurement asks for.
pub(super) fn connection() -> Options {
    Options {
        limits: Limits { requests_max: 1024, bytes_max: 16 << 20 },
        output_bytes_max: 64 << 20,
        ..Options::default()
    }
}

impl DataService for Control {
    fn hello(&self, hello: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        welcome(hello)
    }

    fn call(&self, _: &DataPeer, request: RequestRef<'_>) -> Answer {
        let body = request.body.bytes;
        let port = |port: anyhow::Result<u16>| match port {
            Ok(port) => Answer::Now(port.to_le_bytes().to_vec().into()),
            Err(error) => Answer::Failed(Failure::new(2, format!("{error:#}"))),
        };
        match request.method {
            OPEN => open_of(body).map_or_else(malformed, |(number, case)| port(self.open(number, &case))),
            MEMBERS => match Members::decode(body) {
                Ok(members) => {
                    self.members(members);
                    Answer::Now(Payload::default())
                }
                Err(_) => malformed(),
            },
            USAGE => Answer::Now(self.usage().encode().into()),
            RAW => self.raw(body).map_or_else(malformed, |raw| port(raw.map_err(Into::into))),
            RAW_USAGE => Answer::Now(self.raw_us.load(Ordering::Acquire).to_le_bytes().to_vec().into()),
            _ => malformed(),
        }
    }
}

/// What OPEN says.
fn open_of(body: &[u8]) -> Option<(u8, Case)> {
    let (number, name) = body.split_first()?;
    Some((*number, Case::find(std::str::from_utf8(name).ok()?)?))
}

/// How a host is called in lists of members.
pub(super) fn node_name(number: usize) -> NodeName {
    NodeName::new(&format!("node-{number}")).expect("a name may be so")
}

fn welcome(hello: &Hello) -> Result<Welcome, Refusal> {
    match hello.volume {
        Some(VOLUME) => Ok(Welcome { volume: VOLUME, session: None, name: "bench".into() }),
        other => Err(Refusal::other_volume(other.unwrap_or(VolumeId([0; 16])), VOLUME)),
    }
}

fn malformed() -> Answer {
    Answer::Failed(Failure::new(1, "the request does not parse"))
}
