//! A node in a process: from its open cache to its end.

use anyhow::Context;
use sluice_base::{Clock, Entropy, VolumeId};
use sluice_net::{
    Client, Server, ServerOptions,
    port::{DataServer, DataServerOptions, PortStats},
};
use sluice_node::{
    Elsewhere, Group, GroupOptions, Membership, Node, NodeName, NodeParts, NodeService, follow, message::Join,
};
use sluice_object::Store;
use sluice_run::task::{self, JoinHandle};
use sluice_store::Cache;
use sluice_wire::{Hello, LaneClass, PeerKind};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};

/// How often the slot table is written: what was cached since is fetched again after a crash.
pub const PERSIST_INTERVAL: Duration = Duration::from_secs(60);

/// How a node says hello, to its server and to other nodes.
pub fn hello(name: &NodeName, volume: Option<VolumeId>) -> Hello {
    Hello { peer: PeerKind::Node, lane: LaneClass::Small, volume, session: None, name: name.to_string() }
}

/// What a node is started with.
pub struct NodeSetup {
    /// The connection to the volume's server.
    pub client: Arc<Client>,
    /// The volume.
    pub volume: VolumeId,
    /// What the node is called.
    pub name: NodeName,
    /// Its share of the objects.
    pub weight: u32,
    /// Where it listens.
    pub listen: SocketAddr,
    /// On what, and to how many.
    pub listening: Listening,
    /// Its disk.
    pub cache: Cache,
    /// Room of its cache in bytes.
    pub capacity_bytes: u64,
    /// Where misses go.
    pub store: Store,
    /// How often the slot table is written.
    pub persist_interval: Duration,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
}

/// What answers a node's peers.
pub enum Listening {
    /// Tasks of the runtime that starts it: where connections are simulated.
    Tasks(ServerOptions),
    /// Threads of its own, so that nothing else delays what memory has. What must wait runs on `runtime`.
    Threads {
        /// How many, and for how many peers.
        options: DataServerOptions,
        /// For what must wait.
        runtime: tokio::runtime::Handle,
    },
}

enum Listener {
    Tasks(Server),
    Threads(DataServer),
}

impl Listener {
    async fn bind(
        listening: Listening,
        address: SocketAddr,
        service: Arc<NodeService>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        Ok(match listening {
            Listening::Tasks(options) => Self::Tasks(Server::bind(address, service, options, clock).await?),
            Listening::Threads { options, runtime } => {
                Self::Threads(DataServer::bind(address, service, options, clock, runtime)?)
            }
        })
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Tasks(server) => server.address(),
            Self::Threads(server) => server.address(),
        }
    }

    async fn shutdown(self, grace: Duration) {
        match self {
            Self::Tasks(server) => server.shutdown(grace).await,
            Self::Threads(server) => {
                let _ = task::spawn_blocking(move || server.shutdown(grace)).await;
            }
        }
    }
}

/// A node that is a member of its volume's group.
pub struct NodeWork {
    /// What it reads from.
    pub node: Arc<Node>,
    /// It as its peers see it.
    pub service: Arc<NodeService>,
    /// It as the server sees it.
    pub membership: Arc<Membership>,
    listening: Listener,
    working: JoinHandle<()>,
}

impl NodeWork {
    /// Listens, joins the group, and keeps at it. Fails where it cannot listen, or the server does not take it in.
    pub async fn start(setup: NodeSetup) -> anyhow::Result<Self> {
        let NodeSetup { client, volume, name, clock, entropy, cache, store, .. } = setup;
        let options = GroupOptions { own: Some(name.clone()), ..GroupOptions::new(hello(&name, Some(volume))) };
        let group = Arc::new(Group::new(options, clock.clone(), entropy.clone()));
        let elsewhere = Some(group.clone() as Arc<dyn Elsewhere>);
        let node = Arc::new(Node::new(NodeParts { cache, store, elsewhere, clock: clock.clone() }));
        let service = NodeService::new(node.clone(), group.clone(), clock.clone(), volume, name.to_string());
        let service = Arc::new(service);
        let listening = Listener::bind(setup.listening, setup.listen, service.clone(), clock.clone()).await;
        let listening = listening.with_context(|| format!("listening at {}", setup.listen))?;
        let (weight, capacity_bytes) = (setup.weight, setup.capacity_bytes);
        let join = Join { name, instance: instance(&*entropy), address: listening.address(), weight, capacity_bytes };
        let membership = Arc::new(Membership::new(client, join, group, clock));
        membership.join_first().await?;
        let working = task::spawn(work(membership.clone(), node.clone(), setup.persist_interval));
        Ok(Self { node, service, membership, listening, working })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Counts of the threads that answer peers, if there are such threads.
    pub fn port_stats(&self) -> Option<PortStats> {
        match &self.listening {
            Listener::Tasks(_) => None,
            Listener::Threads(server) => Some(server.stats()),
        }
    }

    /// Leaves the group, gives requests under way the time of `grace`, and writes the slot table.
    pub async fn end(self, grace: Duration) {
        self.working.abort();
        self.membership.leave().await;
        self.listening.shutdown(grace).await;
        self.node.cache().stop_scrub();
        let persisted = persist(&self.node).await;
        self.node.cache().end_scrub(persisted);
    }
}

/// A number that no other process has.
fn instance(entropy: &dyn Entropy) -> u64 {
    let mut bytes = [0; 8];
    entropy.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

async fn work(membership: Arc<Membership>, node: Arc<Node>, persist_interval: Duration) {
    let keep = membership.keep(|| node.numbers());
    let persist = async {
        loop {
            sluice_run::time::sleep(persist_interval).await;
            let _ = persist(&node).await;
        }
    };
    tokio::join!(keep, follow(&membership.client, &membership.group), persist);
}

/// Whether it was written.
async fn persist(node: &Arc<Node>) -> bool {
    let node = node.clone();
    let persisted = task::spawn_blocking(move || node.cache().persist_table()).await;
    if let Ok(Err(error)) = &persisted {
        tracing::warn!(%error, "the cache's table was not written: after a start the cache is colder");
    }
    matches!(persisted, Ok(Ok(())))
}
