//! A mount's way to the nodes of its volume.

use futures::future::{BoxFuture, FutureExt};
use sluice_base::{Clock, Entropy, ObjectId};
use sluice_net::Client;
use sluice_node::{GroupOptions, message::Segment};
use sluice_object::StoredObject;
use sluice_run::task::Handle;
use sluice_vfs::{Group, Piece};
use std::{ops::Range, sync::Arc};

/// The nodes, as a mount asks them.
pub struct Nodes(pub Arc<sluice_node::Group>);

impl Group for Nodes {
    fn segments(&self, object: StoredObject, range: Range<u32>) -> BoxFuture<'_, Option<Vec<Piece>>> {
        let piece = |segment: Segment| Piece { index: segment.index, bytes: segment.bytes, crc: segment.crc };
        async move { Some(self.0.read(object, range).await.ok()?.into_iter().map(piece).collect()) }.boxed()
    }

    fn fill(&self, object: StoredObject) -> BoxFuture<'_, Result<u64, String>> {
        self.0.fill(object).boxed()
    }

    fn held<'a>(&'a self, objects: &'a [ObjectId]) -> BoxFuture<'a, Vec<(String, Vec<u128>)>> {
        self.0.held(objects).boxed()
    }
}

/// The group as the server knows it, from now on.
pub fn follow(
    client: &Arc<Client>,
    options: GroupOptions,
    clock: &Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    runtime: &Handle,
) -> Arc<Nodes> {
    let group = sluice_node::Group::new(options, clock.clone(), entropy);
    let (group, client) = (Arc::new(group), client.clone());
    // The first reads are to find it.
    runtime.block_on(sluice_node::refresh(&client, &group));
    let followed = group.clone();
    runtime.spawn(async move { sluice_node::follow(&client, &followed).await });
    Arc::new(Nodes(group))
}
