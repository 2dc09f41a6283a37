//! A store, nodes on it, and a server that knows them.

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use sluice_base::{
    Clock, Disk, ManualClock, ObjectId, OsEntropy, SystemClock, VolumeId,
    disk::{FaultPlan, FaultyDisk, MemoryDisk, RealDisk},
    limits::SEGMENT_BYTES,
};
use sluice_net::{
    Client, ClientOptions, Failure, NoCallbacks, Peer, Refusal, Server, ServerOptions, Service,
    port::{DataServer, DataServerOptions},
};
use sluice_node::{
    Elsewhere, Group, GroupOptions, Member, Membership, Node, NodeError, NodeName, NodeParts, NodeService, Registry,
    State, follow,
    message::{Answer, Join, Read, ReadSegments, Segment},
};
use sluice_object::{FaultyBackend, MemoryBackend, Store, StoreOptions, StoredObject, backend::RequestKind};
use sluice_store::{Cache, CacheOptions};
use sluice_wire::{Hello, LaneClass, Payload, PeerKind, Piece, Request, Welcome};
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::task::JoinHandle;

pub const VOLUME: VolumeId = VolumeId([6; 16]);
pub const SEG: usize = SEGMENT_BYTES;

pub struct Rig {
    pub backend: Arc<FaultyBackend<MemoryBackend>>,
    pub store: Store,
}

impl Rig {
    pub fn new() -> Self {
        let backend = Arc::new(FaultyBackend::new(MemoryBackend::default(), 1));
        let options = StoreOptions { attempts_max: 1, ..StoreOptions::default() };
        let store = Store::with_backend(backend.clone(), "memory:", options, Arc::new(OsEntropy));
        Self { backend, store }
    }

    pub fn gets(&self) -> u64 {
        self.backend.count(RequestKind::Get)
    }

    /// An object of full segments, or absent ones where `present` says no.
    pub async fn object(&self, number: u8, present: &[bool]) -> StoredObject {
        let id = ObjectId([number; 16]);
        let segments: Vec<_> =
            (0..present.len() as u32).map(|index| present[index as usize].then(|| content(id, index))).collect();
        self.store.put_object(id, &segments).await.expect("the store takes it")
    }

    pub fn node(&self, disk: &MemoryDisk, elsewhere: Option<Arc<dyn Elsewhere>>) -> Arc<Node> {
        self.node_on(Arc::new(disk.clone()), elsewhere)
    }

    /// One whose disk fails as the plan says.
    pub fn faulty_node(&self) -> (Arc<Node>, Arc<FaultPlan>) {
        let plan = Arc::new(FaultPlan::default());
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::default()), plan.clone());
        (self.node_on(Arc::new(disk), None), plan)
    }

    fn node_on(&self, disk: Arc<dyn Disk>, elsewhere: Option<Arc<dyn Elsewhere>>) -> Arc<Node> {
        self.node_in("/cache".as_ref(), 256 << 20, disk, elsewhere)
    }

    fn node_in(
        &self,
        dir: &Path,
        capacity_bytes: u64,
        disk: Arc<dyn Disk>,
        elsewhere: Option<Arc<dyn Elsewhere>>,
    ) -> Arc<Node> {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
        let options = CacheOptions { dir: dir.into(), capacity_bytes, volume: VOLUME };
        let cache = Cache::open(disk, options, clock.clone()).expect("a cache");
        Arc::new(Node::new(NodeParts { cache, store: self.store.clone(), elsewhere, clock }))
    }

    /// A node as the binary has it: on threads, and with so many slots of a real disk.
    pub fn threads(&self, name: &str, slots: u64, stall_max: Duration) -> Threads {
        let options = GroupOptions { own: Some(named(name)), ..GroupOptions::new(hello(PeerKind::Node, name)) };
        let group = Arc::new(Group::new(options, clock(), Arc::new(OsEntropy)));
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory");
        let node = self.node_in(dir.path(), slots << 22, Arc::new(RealDisk), Some(group.clone()));
        let service = Arc::new(NodeService::new(node.clone(), group, clock(), VOLUME, name.into()));
        let options = DataServerOptions { threads: 2, stall_max, ..DataServerOptions::default() };
        let server = DataServer::bind(local(), service, options, clock(), tokio::runtime::Handle::current());
        Threads { name: named(name), node, server: server.expect("a free port"), _dir: dir }
    }

    /// A node on a port of its own, not yet a member.
    pub async fn host(&self, name: &str) -> Host {
        let options = GroupOptions { own: Some(named(name)), ..GroupOptions::new(hello(PeerKind::Node, name)) };
        let group = Arc::new(Group::new(options, clock(), Arc::new(OsEntropy)));
        let disk = MemoryDisk::default();
        let node = self.node(&disk, Some(group.clone()));
        let clock = clock();
        let service = NodeService::new(node.clone(), group.clone(), clock.clone(), VOLUME, name.into());
        let server = Server::bind(local(), Arc::new(service), ServerOptions::default(), clock).await;
        let server = server.expect("a free port");
        Host { name: named(name), disk, node, group, server }
    }
}

pub struct Host {
    pub name: NodeName,
    pub disk: MemoryDisk,
    pub node: Arc<Node>,
    pub group: Arc<Group>,
    pub server: Server,
}

pub struct Threads {
    pub name: NodeName,
    pub node: Arc<Node>,
    pub server: DataServer,
    _dir: tempfile::TempDir,
}

impl Threads {
    pub fn member(&self) -> Member {
        let (name, address) = (self.name.clone(), self.server.address());
        Member { name, address, weight: 1, capacity_bytes: 0, state: State::Active }
    }
}

impl Host {
    pub fn member(&self, weight: u32) -> Member {
        Member {
            name: self.name.clone(),
            address: self.server.address(),
            weight,
            capacity_bytes: 0,
            state: State::Active,
        }
    }

    /// Joins the group of the server at `address`; the task keeps the node in it.
    pub async fn join(&self, address: SocketAddr, instance: u64) -> JoinHandle<()> {
        let join =
            Join { name: self.name.clone(), instance, address: self.server.address(), weight: 1, capacity_bytes: 0 };
        let client = Arc::new(client(address, hello(PeerKind::Node, self.name.as_str())));
        let membership = Membership::new(client, join, self.group.clone(), clock());
        membership.join_first().await.expect("the server takes it");
        let node = self.node.clone();
        tokio::spawn(async move {
            tokio::join!(membership.keep(|| node.numbers()), follow(&membership.client, &membership.group));
        })
    }
}

/// The part of a volume's server that knows the members.
pub struct Registrar(pub Mutex<Registry>);

impl Service for Registrar {
    async fn hello(&self, _: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        Ok(Welcome { volume: VOLUME, session: None, name: "server".into() })
    }

    async fn call(&self, peer: &Arc<Peer>, request: Request) -> Result<Payload, Failure> {
        let body = request.body.checked().expect("sound");
        let now = Duration::from_secs(100);
        let answer = self.0.lock().handle(now, peer.address().ip(), request.method, &body).expect("a method of ours");
        answer.map(Payload::from).map_err(|error| Failure::new(error.code(), error.to_string()))
    }
}

pub async fn registrar() -> (Arc<Registrar>, Server) {
    let registrar = Arc::new(Registrar(Mutex::new(Registry::new(Duration::ZERO, 1))));
    let server = Server::bind(local(), registrar.clone(), ServerOptions::default(), clock()).await;
    (registrar, server.expect("a free port"))
}

/// One whom a busy machine does not drive to the store.
pub fn reader() -> Arc<Group> {
    reader_with(Duration::from_secs(30))
}

/// One that gives all nodes together so long.
pub fn reader_with(try_time: Duration) -> Arc<Group> {
    let options = GroupOptions { try_time, ..GroupOptions::new(hello(PeerKind::Mount, "reader")) };
    Arc::new(Group::new(options, clock(), Arc::new(OsEntropy)))
}

pub fn client(address: SocketAddr, hello: Hello) -> Client {
    let options = ClientOptions::default();
    Client::new(vec![address], hello, Arc::new(NoCallbacks), options, clock(), Arc::new(OsEntropy))
}

pub fn hello(peer: PeerKind, name: &str) -> Hello {
    Hello { peer, lane: LaneClass::Small, volume: Some(VOLUME), session: None, name: name.into() }
}

pub fn named(text: &str) -> NodeName {
    NodeName::new(text).expect("a name")
}

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

fn local() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// What a node answers, as its disk gives it.
pub async fn read(node: &Node, ask: &ReadSegments) -> Result<Vec<Segment>, NodeError> {
    let answer = node.answer(&Read::Segments(ask.clone())).await?;
    let mut bytes = bytes_of(&answer);
    let mut head = bytes.split_to(8 * ask.range.len());
    let segment = |index| {
        let (len, crc) = (head.get_u32_le() as usize, head.get_u32_le());
        Segment { index, bytes: bytes.split_to(len), crc }
    };
    Ok(ask.range.clone().map(segment).collect())
}

pub fn bytes_of(answer: &Answer) -> Bytes {
    let bytes = answer.pieces().iter().map(|piece| match piece {
        Piece::Bytes(bytes) => bytes.clone(),
        Piece::Region(region) => {
            let mut bytes = vec![0; region.len()];
            region.read_at(0, &mut bytes).expect("a disk that works");
            bytes.into()
        }
    });
    bytes.collect::<Vec<Bytes>>().concat().into()
}

/// Rot that memory has and nobody has looked at: somebody else brought it back from the disk.
pub fn rot_unseen(disk: &MemoryDisk, offset: u64) {
    let slab = "/cache/slab-00000".as_ref();
    assert!(disk.flip_bit(slab, offset));
    disk.open(slab).unwrap().read_exact_at(&mut [0; SEG], offset / SEG as u64 * SEG as u64).unwrap();
}

/// Bytes of one place only.
pub fn content(object: ObjectId, index: u32) -> Bytes {
    (0..SEG).map(|at| (at / 64) as u8 ^ object.0[0].wrapping_mul(31) ^ index as u8).collect::<Vec<_>>().into()
}

pub fn assert_right(object: StoredObject, first: u32, segments: &[Segment]) {
    for (index, segment) in (first..).zip(segments) {
        assert_eq!(segment.index, index);
        assert!(segment.is_sound(object.id()));
        assert!(segment.bytes == content(object.id(), index), "segment {index}");
    }
}

/// Waits for what other tasks bring about.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..12_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain for: {what}");
}
