//! A node's process.

use super::{Host, VOLUME};
use sluice_join::node::{Listening, NodeSetup, NodeWork, hello};
use sluice_net::{NoCallbacks, ServerOptions};
use sluice_node::{Membership, NodeName};
use sluice_run::{lock::Mutex, net::address_of, simulation};
use sluice_store::SLOT_BYTES;
use std::{net::SocketAddr, sync::Arc, time::Duration};

/// A run takes about a minute.
const PERSIST_INTERVAL: Duration = Duration::from_secs(5);
/// How long requests under way may take at the end.
const GRACE: Duration = Duration::from_secs(2);

/// A running node.
pub struct Node {
    pub node: Arc<sluice_node::Node>,
    pub membership: Arc<Membership>,
    work: Mutex<Option<NodeWork>>,
}

impl Node {
    /// Ends as `sluice serve` does when it is told to.
    pub fn end(&self) {
        let work = self.work.lock().take();
        work.into_iter().for_each(|work| simulation::block_on(work.end(GRACE)));
    }
}

/// What the node of a host is called.
pub fn name(host: &Host) -> NodeName {
    NodeName::new(&format!("node {}", host.process)).expect("it is short")
}

/// Lends the cache disk of `host`, as `sluice serve sluice://...` does.
pub fn lend(host: &Host) -> anyhow::Result<Arc<Node>> {
    let name = name(host);
    let setup = NodeSetup {
        client: host.connect(hello(&name, None), Arc::new(NoCallbacks)),
        volume: VOLUME,
        name,
        weight: 1 + host.process % 2,
        listen: SocketAddr::new(address_of(host.process), 7701),
        listening: Listening::Tasks(ServerOptions::default()),
        cache: host.cache(host.opened_disk())?,
        capacity_bytes: host.slots * SLOT_BYTES,
        // It has others who can answer.
        store: host.store(3, Duration::from_secs(10)),
        persist_interval: PERSIST_INTERVAL,
        clock: host.clock.clone(),
        entropy: host.entropy.clone(),
    };
    let work = simulation::block_on(NodeWork::start(setup))?;
    let (node, membership) = (work.node.clone(), work.membership.clone());
    Ok(Arc::new(Node { node, membership, work: Mutex::new(Some(work)) }))
}
