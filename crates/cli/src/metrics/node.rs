//! What a node tells.

use super::{Probe, common};
use futures::future::{BoxFuture, FutureExt};
use sluice_monitor::{Page, Source};
use sluice_node::{Membership, Node, NodeService};
use sluice_store::CacheState;
use std::sync::Arc;

/// A node of a volume's group.
pub struct NodeSource {
    pub node: Arc<Node>,
    pub service: Arc<NodeService>,
    pub membership: Arc<Membership>,
    pub probe: Probe,
}

impl Source for NodeSource {
    fn metrics(&self, page: &mut Page) {
        common::process(page, "node");
        common::store(page, &self.node.store_stats());
        common::cache(page, self.node.cache());
        let numbers = self.node.numbers();
        page.counter(
            "sluice_node_requests_total",
            "Reads that peers asked for: answered from the cache, fetched for, failed.",
        )
        .sample(&[("result", "hit")], numbers.hits)
        .sample(&[("result", "miss")], numbers.misses)
        .sample(&[("result", "failure")], numbers.failures);
        page.counter("sluice_node_sent_bytes_total", "Bytes of segments sent to peers.").is(numbers.served_bytes);
        page.counter("sluice_node_fetched_bytes_total", "Bytes of segments fetched, by who had them.")
            .sample(&[("from", "store")], numbers.filled_bytes)
            .sample(&[("from", "nodes")], numbers.moved_bytes);
        let (begun, under_way) = self.node.fills();
        page.counter("sluice_node_fills_total", "Fetches of an object into the cache, each for all who wait.")
            .is(begun);
        page.gauge("sluice_node_fills_in_flight", "Fetches that have not ended.").is(under_way);
        page.gauge("sluice_connections", "Peers that are connected.").is(self.service.connections());
        page.gauge("sluice_group_epoch", "Number of the list of nodes.").is(self.membership.group.members().epoch());
    }

    fn troubles(&self) -> BoxFuture<'_, Vec<String>> {
        async move {
            let mut troubles: Vec<String> = self.probe.trouble().await.into_iter().collect();
            if let Some(silence) = self.membership.silence() {
                let seconds = silence.as_secs();
                troubles.push(format!(
                    "the volume's server has not confirmed this node's place in the group for {seconds} s"
                ));
            }
            if self.node.cache().stats().state == CacheState::Failed {
                troubles.push("the cache disk has failed".into());
            }
            troubles.extend(common::rot(self.node.cache()));
            troubles
        }
        .boxed()
    }
}
