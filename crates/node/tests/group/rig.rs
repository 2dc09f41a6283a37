//! A store, nodes on it, and a server that knows them.

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_base::{
    Clock, ManualClock, ObjectId, OsEntropy, SystemClock, VolumeId, disk::MemoryDisk, limits::SEGMENT_BYTES,
};
use sluice_net::{Client, ClientOptions, Failure, NoCallbacks, Peer, Refusal, Server, ServerOptions, Service};
use sluice_node::{
    Elsewhere, Group, GroupOptions, Member, Membership, Node, NodeName, NodeParts, NodeService, Registry, State,
    follow,
    message::{Join, Segment},
};
use sluice_object::{FaultyBackend, MemoryBackend, Store, StoreOptions, StoredObject, backend::RequestKind};
use sluice_store::{Cache, CacheOptions};
use sluice_wire::{Hello, LaneClass, Payload, PeerKind, Request, Welcome};
use std::{net::SocketAddr, sync::Arc, time::Duration};
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
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
        let options = CacheOptions { dir: "/cache".into(), capacity_bytes: 256 << 20, volume: VOLUME };
        let cache = Cache::open(Arc::new(disk.clone()), options, clock.clone()).expect("a cache");
        Arc::new(Node::new(NodeParts { cache, store: self.store.clone(), elsewhere, clock }))
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
