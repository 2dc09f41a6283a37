//! A node as its peers see it.

use crate::{
    Group, Node,
    message::{self, READ_SEGMENTS, ReadSegments},
};
use sluice_base::VolumeId;
use sluice_net::{Failure, Peer, Refusal, Service};
use sluice_wire::{Hello, Payload, Request, Welcome};
use std::{net::SocketAddr, sync::Arc};

/// Answers reads. A peer that knows another list of members is told the epoch of ours with the answer.
pub struct NodeService {
    node: Arc<Node>,
    group: Arc<Group>,
    volume: VolumeId,
    name: String,
}

impl NodeService {
    /// Serves `node`, a node called `name`, to peers of `volume`; `group` is what it knows of the others.
    pub fn new(node: Arc<Node>, group: Arc<Group>, volume: VolumeId, name: String) -> Self {
        Self { node, group, volume, name }
    }
}

impl Service for NodeService {
    async fn hello(&self, hello: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        match hello.volume.filter(|volume| *volume != self.volume) {
            Some(other) => Err(Refusal::other_volume(other, self.volume)),
            None => Ok(Welcome { volume: self.volume, session: None, name: self.name.clone() }),
        }
    }

    async fn call(&self, peer: &Arc<Peer>, request: Request) -> Result<Payload, Failure> {
        let epoch = self.group.members().epoch();
        if request.epoch != epoch {
            peer.set_epoch(epoch);
        }
        if request.method != READ_SEGMENTS {
            return Err(malformed(format!("method {} is not known to a node", request.method)));
        }
        let body = request.body.checked().map_err(|error| malformed(error.to_string()))?;
        let ask = ReadSegments::decode(&body).ok_or_else(|| malformed("the request does not parse".into()))?;
        let segments = self.node.read(&ask).await.map_err(|error| Failure::new(error.code(), error.to_string()))?;
        Ok(message::answer(ask.object.id(), &segments))
    }
}

fn malformed(text: String) -> Failure {
    Failure::new(message::FAILED_MALFORMED, text)
}
