//! A mount's way to the nodes of its volume.

use super::{hostname, printable};
use crate::config::VolumeConfig;
use futures::future::{BoxFuture, FutureExt};
use sluice_base::{Clock, OsEntropy};
use sluice_net::Client;
use sluice_node::{GroupOptions, message::Segment};
use sluice_object::StoredObject;
use sluice_vfs::{Group, Piece};
use sluice_wire::{Hello, LaneClass, PeerKind};
use std::{ops::Range, sync::Arc};
use tokio::runtime::Handle;

struct Nodes(Arc<sluice_node::Group>);

impl Group for Nodes {
    fn segments(&self, object: StoredObject, range: Range<u32>) -> BoxFuture<'_, Option<Vec<Piece>>> {
        let piece = |segment: Segment| Piece { index: segment.index, bytes: segment.bytes, crc: segment.crc };
        async move { Some(self.0.read(object, range).await.ok()?.into_iter().map(piece).collect()) }.boxed()
    }
}

/// The group as the server knows it, from now on.
pub fn follow(
    client: &Arc<Client>,
    config: &VolumeConfig,
    clock: &Arc<dyn Clock>,
    runtime: &Handle,
) -> anyhow::Result<Arc<dyn Group>> {
    let name = printable(&format!("{}:{}", hostname(), std::process::id()));
    let hello =
        Hello { peer: PeerKind::Mount, lane: LaneClass::Small, volume: Some(config.id()?), session: None, name };
    let group = sluice_node::Group::new(GroupOptions::new(hello), clock.clone(), Arc::new(OsEntropy));
    let (group, client) = (Arc::new(group), client.clone());
    // The first reads are to find it.
    runtime.block_on(sluice_node::refresh(&client, &group));
    let followed = group.clone();
    runtime.spawn(async move { sluice_node::follow(&client, &followed).await });
    Ok(Arc::new(Nodes(group)))
}
