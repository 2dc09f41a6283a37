//! The side that is read from: a node as the product has it, with a full cache and an empty store.

use super::{
    case::{Case, LATE_BY, LATE_ONE_IN},
    control::{OBJECT_BYTES, OPEN, RAW, RAW_USAGE, USAGE, Usage},
    raw,
};
use bytes::Bytes;
use rand::{RngCore, SeedableRng, rngs::SmallRng};
use sluice_base::{
    Clock, ObjectId, OsEntropy, Pages, VolumeId,
    crc::{crc32c, segment_crc},
    disk::RealDisk,
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use sluice_net::{
    Failure, Refusal,
    port::{Answer, DataPeer, DataServer, DataServerOptions, DataService, PortStats},
};
use sluice_node::{Group, GroupOptions, Node, NodeParts, NodeService};
use sluice_object::{Store, StoreOptions, StoreUrl, StoredObject, format::tail_len};
use sluice_store::{Cache, CacheOptions};
use sluice_wire::{ConnectionError, Hello, LaneClass, Limits, Options, Payload, PeerKind, Piece, RequestRef, Welcome};
use std::{
    fs::File,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

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
        // A slot more than there are objects, as a full cache makes room.
        let capacity_bytes = (u64::from(objects) + 1) * OBJECT_BYTES as u64;
        let options = CacheOptions { dir: dir.into(), capacity_bytes, volume: VOLUME };
        let cache = Cache::open(Arc::new(RealDisk), options, clock.clone())?;
        (0..objects).try_for_each(|number| fill(&cache, number))?;
        // Nothing is ever missing, so nothing is asked of it.
        let store = Store::open(&StoreUrl::Memory, StoreOptions::default())?;
        let service = Control {
            node: Arc::new(Node::new(NodeParts { cache, store, elsewhere: None, clock: clock.clone() })),
            summed: Arc::default(),
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
    node: Arc<Node>,
    summed: Arc<AtomicU64>,
    objects: u32,
    slab: PathBuf,
    clock: Arc<dyn Clock>,
    runtime: tokio::runtime::Handle,
    /// The data port of now, and what former ones counted.
    open: Mutex<Opened>,
    raw_us: Arc<AtomicU64>,
    address: SocketAddr,
}

#[derive(Default)]
struct Opened {
    server: Option<DataServer>,
    before: PortStats,
}

impl Control {
    fn open(&self, case: &Case) -> io::Result<u16> {
        let options = GroupOptions::new(hello(PeerKind::Node));
        let group = Arc::new(Group::new(options, self.clock.clone(), Arc::new(OsEntropy)));
        let service = Served {
            node: NodeService::new(self.node.clone(), group, self.clock.clone(), VOLUME, "bench".into()),
            case: case.clone(),
            pages: Pages::new(64 << 20),
            calls: AtomicU32::new(0),
            summed: self.summed.clone(),
        };
        let options = DataServerOptions { techniques: case.techniques, connection: connection(), ..Default::default() };
        let any = SocketAddr::new(self.address.ip(), 0);
        let server = DataServer::bind(any, Arc::new(service), options, self.clock.clone(), self.runtime.clone())?;
        let port = server.address().port();
        let mut open = self.open.lock().expect("nobody panicked");
        if let Some(former) = open.server.replace(server) {
            open.before = open.before.plus(&former.stats());
        }
        Ok(port)
    }

    fn usage(&self) -> Usage {
        let open = self.open.lock().expect("nobody panicked");
        let now = open.server.as_ref().map_or_else(PortStats::default, DataServer::stats);
        Usage::now(open.before.plus(&now), self.summed.load(Ordering::Relaxed))
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
        let port = |port: io::Result<u16>| match port {
            Ok(port) => Answer::Now(port.to_le_bytes().to_vec().into()),
            Err(error) => Answer::Failed(Failure::new(2, error.to_string())),
        };
        match request.method {
            OPEN => Case::decode(body).map_or_else(malformed, |case| port(self.open(&case))),
            USAGE => Answer::Now(self.usage().encode().into()),
            RAW => self.raw(body).map_or_else(malformed, port),
            RAW_USAGE => Answer::Now(self.raw_us.load(Ordering::Acquire).to_le_bytes().to_vec().into()),
            _ => malformed(),
        }
    }
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

/// The node, with what a case has otherwise.
struct Served {
    node: NodeService,
    case: Case,
    /// For bytes that are read to be sent or summed.
    pages: Arc<Pages>,
    calls: AtomicU32,
    summed: Arc<AtomicU64>,
}

impl Served {
    /// The answer with a CRC that is computed from its bytes now. Where they are not sent from the file, they are read only once.
    fn summed(&self, payload: Payload) -> io::Result<Payload> {
        self.summed.fetch_add(1, Ordering::Relaxed);
        let mut page = self.pages.take(payload.len());
        let mut rest = page.as_mut();
        for piece in payload.pieces() {
            let part = rest.split_off_mut(..piece.len()).expect("all pieces are as long as the payload");
            match piece {
                Piece::Bytes(bytes) => part.copy_from_slice(bytes),
                Piece::Region(region) => region.read_at(0, part)?,
            }
        }
        let crc = crc32c(page.as_ref());
        if self.case.techniques.sendfile {
            return Ok(payload.with_crc(crc));
        }
        Ok(Payload::from(Bytes::from_owner(page)).with_crc(crc).unchecked())
    }
}

impl DataService for Served {
    fn hello(&self, hello: &Hello, address: SocketAddr) -> Result<Welcome, Refusal> {
        DataService::hello(&self.node, hello, address)
    }

    fn opened(&self, peer: &DataPeer) {
        DataService::opened(&self.node, peer);
    }

    fn call(&self, peer: &DataPeer, request: RequestRef<'_>) -> Answer {
        let answer = match DataService::call(&self.node, peer, request) {
            Answer::Now(payload) if !self.case.combine => match self.summed(payload) {
                Ok(payload) => Answer::Now(payload),
                Err(error) => Answer::Failed(Failure::new(2, error.to_string())),
            },
            answer => answer,
        };
        let is_late = self.case.group.is_some_and(|group| group.late)
            && self.calls.fetch_add(1, Ordering::Relaxed) % LATE_ONE_IN == LATE_ONE_IN - 1;
        if !is_late {
            return answer;
        }
        Answer::Later(Box::pin(async move {
            tokio::time::sleep(LATE_BY).await;
            match answer {
                Answer::Now(payload) => Ok(payload),
                Answer::Failed(failure) => Err(failure),
                Answer::Later(later) => later.await,
            }
        }))
    }

    fn gone(&self, peer: &DataPeer, why: &ConnectionError) {
        DataService::gone(&self.node, peer, why);
    }

    fn epoch(&self) -> u32 {
        DataService::epoch(&self.node)
    }
}
