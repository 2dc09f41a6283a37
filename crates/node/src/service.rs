//! A node as its peers see it.
//!
//! **Memory per peer is bounded**: by segments that it has asked for and that its lane has not taken yet, and behind that by
//! the lane. A peer that does not read waits for itself alone, because reads run in tasks of their own: what a handler holds
//! while its lane is full is the peer's share, never a turn at the disk or at the store.

use crate::{
    Group, Node, NodeError,
    message::{self, CHECK_SEGMENTS, CheckSegments, READ_SEGMENTS, ReadSegments},
};
use sluice_base::{Clock, VolumeId, limits::SEGMENTS_PER_OBJECT};
use sluice_net::{Failure, Peer, Refusal, Service};
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use sluice_run::{task::JoinSet, time::timeout};
use sluice_wire::{ConnectionError, Hello, Payload, Request, Welcome};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Segments of answers that one connection may have under way before its lane takes them: four whole objects, 16 MiB.
const SEGMENTS_MAX: usize = 4 * SEGMENTS_PER_OBJECT;
/// The asker is told so long before it stops waiting that the store is slow: it would believe that the node is.
const EARLY: Duration = Duration::from_millis(250);

/// Answers reads. A peer that knows another list of members is told the epoch of ours with the answer.
pub struct NodeService {
    node: Arc<Node>,
    group: Arc<Group>,
    clock: Arc<dyn Clock>,
    volume: VolumeId,
    name: String,
    /// By the number of the connection.
    shares: Mutex<HashMap<u64, Share>>,
}

/// What one connection may have under way.
#[derive(Clone)]
struct Share {
    segments: Arc<Semaphore>,
    /// Checks read the disk and gain the asker nothing: one at a time.
    checks: Arc<Semaphore>,
}

impl NodeService {
    /// Serves `node`, called `name`, to peers of `volume`; `group` is what it knows of the others, `clock` that of the server
    /// which runs this.
    pub fn new(node: Arc<Node>, group: Arc<Group>, clock: Arc<dyn Clock>, volume: VolumeId, name: String) -> Self {
        Self { node, group, clock, volume, name, shares: Mutex::default() }
    }

    /// Peers that are connected.
    pub fn connections(&self) -> usize {
        self.shares.lock().len()
    }

    async fn read(&self, ask: ReadSegments, deadline: Option<Duration>) -> Result<Payload, NodeError> {
        let (object, node) = (ask.object.id(), self.node.clone());
        // Ends with this future.
        let mut task = JoinSet::new();
        task.spawn(async move { node.read(&ask).await });
        let patience = deadline.map_or(Duration::MAX, |at| at.saturating_sub(self.clock.monotonic() + EARLY));
        match timeout(patience, task.join_next()).await {
            Ok(Some(Ok(read))) => Ok(message::answer(object, &read?)),
            Ok(_) => Err(NodeError::Store("reading it failed".into())),
            Err(_) => Err(NodeError::Store("the store takes long".into())),
        }
    }
}

impl Service for NodeService {
    async fn hello(&self, hello: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        match hello.volume.filter(|volume| *volume != self.volume) {
            Some(other) => Err(Refusal::other_volume(other, self.volume)),
            None => Ok(Welcome { volume: self.volume, session: None, name: self.name.clone() }),
        }
    }

    fn opened(&self, peer: &Arc<Peer>) {
        let share = Share { segments: Arc::new(Semaphore::new(SEGMENTS_MAX)), checks: Arc::new(Semaphore::new(1)) };
        self.shares.lock().insert(peer.number(), share);
    }

    async fn call(&self, peer: &Arc<Peer>, request: Request) -> Result<Payload, Failure> {
        let epoch = self.group.members().epoch();
        if request.epoch != epoch {
            peer.set_epoch(epoch);
        }
        let share = self.shares.lock().get(&peer.number()).cloned();
        let share = share.ok_or_else(|| malformed("the connection is gone".into()))?;
        let body = request.body.checked().map_err(|error| malformed(error.to_string()))?;
        let unparsed = || malformed("the request does not parse".into());
        match request.method {
            READ_SEGMENTS => {
                let ask = ReadSegments::decode(&body).ok_or_else(unparsed)?;
                let _room = share.segments.acquire_many(ask.range.len() as u32).await;
                let read = self.read(ask, request.deadline).await;
                read.map_err(|error| Failure::new(error.code(), error.to_string()))
            }
            CHECK_SEGMENTS => {
                let check = CheckSegments::decode(&body).ok_or_else(unparsed)?;
                let Ok(_turn) = share.checks.try_acquire() else {
                    return Err(Failure::new(message::FAILED_BUSY, "one check at a time"));
                };
                Ok(message::encode_set(self.node.check(check).await).into())
            }
            other => Err(malformed(format!(
                "this is the node `{}`, which knows no method {other}: ask the volume's server",
                self.name
            ))),
        }
    }

    fn gone(&self, peer: &Arc<Peer>, _: &ConnectionError) {
        self.shares.lock().remove(&peer.number());
    }
}

fn malformed(text: String) -> Failure {
    Failure::new(message::FAILED_MALFORMED, text)
}
