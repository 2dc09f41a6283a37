//! A node as its peers see it.
//!
//! **What a peer may hold is bounded**: an answer counts against the share of its connection until the last of it was given to the
//! socket, be it memory or slots that are kept in place. A peer that does not read waits for itself alone, because reads run in tasks of
//! their own: what a handler holds while its lane is full is the peer's share, never a turn at the disk or at the store. A peer
//! that takes nothing at all for half a minute loses its connection, and so what it holds.

use crate::{
    Group, Node, NodeError,
    message::{
        self, CHECK_SEGMENTS, CheckSegments, FILL, HELD, READ_RANGE, READ_SEGMENTS, Read, ReadRange, ReadSegments,
    },
};
use futures::future::FutureExt;
use sluice_base::{
    Clock, VolumeId,
    crc::crc32c,
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use sluice_net::{
    Failure, Peer, Refusal, Service,
    port::{Answer as Reply, DataPeer, DataService},
};
use sluice_object::StoredObject;
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use sluice_run::{task::JoinSet, time::timeout};
use sluice_wire::{ConnectionError, Hello, Payload, Request, RequestRef, Welcome};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The asker is told so long before it stops waiting that the store is slow: it would believe that the node is.
const EARLY: Duration = Duration::from_millis(250);

/// Settings of a [`NodeService`].
#[derive(Clone, Debug)]
pub struct NodeServiceOptions {
    /// Segments of answers that one connection may have under way until they are with the socket.
    pub segments_max: usize,
    /// What memory has is answered at once, on the thread that took the request; without it every read is a task's, and waits for the disk
    /// where it has to.
    pub at_once: bool,
}

impl Default for NodeServiceOptions {
    /// Four whole objects, 16 MiB.
    fn default() -> Self {
        Self { segments_max: 4 * SEGMENTS_PER_OBJECT, at_once: true }
    }
}

/// Answers reads. A peer that knows another list of members is told the epoch of ours with the answer.
pub struct NodeService {
    node: Arc<Node>,
    group: Arc<Group>,
    clock: Arc<dyn Clock>,
    volume: VolumeId,
    name: String,
    options: NodeServiceOptions,
    /// Segments of answers that are being read or wait to be taken.
    held: Arc<AtomicUsize>,
    /// By the number of the connection, of those that tasks serve; those of threads have theirs by them ([`DataPeer::kept`]).
    shares: Mutex<HashMap<u64, Share>>,
    of_threads: AtomicUsize,
}

/// What one connection may have under way.
#[derive(Clone)]
struct Share {
    segments: Arc<Semaphore>,
    /// Checks read the disk and gain the asker nothing: one at a time.
    checks: Arc<Semaphore>,
    /// Objects to be filled that it may be waiting for.
    fills: Arc<Semaphore>,
}

/// Fills that one connection may wait for: a mount asks for eight at once.
const FILLS_MAX: usize = 16;

impl NodeService {
    /// Serves `node`, called `name`, to peers of `volume`; `group` is what it knows of the others, `clock` that of the server
    /// which runs this.
    pub fn new(node: Arc<Node>, group: Arc<Group>, clock: Arc<dyn Clock>, volume: VolumeId, name: String) -> Self {
        let (options, held, of_threads) = (NodeServiceOptions::default(), Arc::default(), AtomicUsize::new(0));
        Self { node, group, clock, volume, name, options, held, shares: Mutex::default(), of_threads }
    }

    /// The same, with other settings than the usual ones.
    pub fn with(self, options: NodeServiceOptions) -> Self {
        Self { options, ..self }
    }

    /// Bytes of answers that are being read or wait to be taken by their peers, in memory or kept in their slots: in whole segments.
    pub fn held_bytes(&self) -> usize {
        self.held.load(Relaxed) * SEGMENT_BYTES
    }

    /// Peers that are connected.
    pub fn connections(&self) -> usize {
        self.shares.lock().len() + self.of_threads.load(Relaxed)
    }

    /// The answer to a request. What can be answered at once is.
    fn answer(&self, share: &Share, method: u16, body: &[u8], deadline: Option<Duration>) -> Reply {
        let read = match method {
            READ_RANGE => ReadRange::decode(body).map(Read::Range),
            READ_SEGMENTS => ReadSegments::decode(body).map(Read::Segments),
            CHECK_SEGMENTS => match CheckSegments::decode(body) {
                Some(check) => return self.check(share, check),
                None => None,
            },
            FILL => match message::decode_fill(body) {
                Some(object) => return self.fill(share, object, deadline),
                None => None,
            },
            HELD => match message::decode_objects(body) {
                Some(objects) => return Reply::Now(message::encode_sets(&self.node.held(&objects)).into()),
                None => None,
            },
            other => return Reply::Failed(self.no_method(other)),
        };
        let Some(read) = read else { return Reply::Failed(malformed("the request does not parse".into())) };
        let count = room_for(&read);
        let permit = share.segments.clone().try_acquire_many_owned(count).ok().filter(|_| self.options.at_once);
        let Some(permit) = permit else { return self.read_later(share, read, deadline) };
        let room = Room::new(permit, count, &self.held);
        match self.node.answer_now(&read) {
            None => self.read_later(share, read, deadline),
            Some(Ok(answer)) => Reply::Now(answer.holding(room).into_payload()),
            Some(Err(error)) => Reply::Failed(failure(&error)),
        }
    }

    fn read_later(&self, share: &Share, read: Read, deadline: Option<Duration>) -> Reply {
        let (node, clock, segments) = (self.node.clone(), self.clock.clone(), share.segments.clone());
        let (count, held) = (room_for(&read), self.held.clone());
        let is_cached_only = read.cached_only();
        let later = async move {
            let Ok(permit) = segments.acquire_many_owned(count).await else {
                return Err(failure(&NodeError::Busy));
            };
            let room = Room::new(permit, count, &held);
            // Ends with this future.
            let mut task = JoinSet::new();
            task.spawn(async move { node.answer(&read).await });
            // Who asks for what is cached only does not make the store wait.
            let early = if is_cached_only { Duration::ZERO } else { EARLY };
            let patience = deadline.map_or(Duration::MAX, |at| at.saturating_sub(clock.monotonic() + early));
            let answer = match timeout(patience, task.join_next()).await {
                Ok(Some(Ok(answer))) => answer,
                Ok(_) => Err(NodeError::Store("reading it failed".into())),
                Err(_) => Err(NodeError::Store("the store takes long".into())),
            };
            answer.map(|answer| answer.holding(room).into_payload()).map_err(|error| failure(&error))
        };
        Reply::Later(later.boxed())
    }

    fn check(&self, share: &Share, check: CheckSegments) -> Reply {
        let Ok(turn) = share.checks.clone().try_acquire_owned() else {
            return Reply::Failed(Failure::new(message::FAILED_BUSY, "one check at a time"));
        };
        let node = self.node.clone();
        let later = async move {
            let damaged = node.check(check).await;
            drop(turn);
            Ok(message::encode_set(damaged).into())
        };
        Reply::Later(later.boxed())
    }

    /// It goes on when the asker stops waiting.
    fn fill(&self, share: &Share, object: StoredObject, deadline: Option<Duration>) -> Reply {
        let Ok(turn) = share.fills.clone().try_acquire_owned() else {
            return Reply::Failed(Failure::new(message::FAILED_BUSY, "too many fills at once"));
        };
        let (node, patience) = (self.node.clone(), self.patience(deadline));
        let later = async move {
            let task = sluice_run::task::spawn(async move { node.fill(object).await });
            let filled = match timeout(patience, task).await {
                Ok(Ok(filled)) => filled,
                Ok(Err(_)) => Err(NodeError::Store("fetching it failed".into())),
                Err(_) => Err(NodeError::Store("the store takes long".into())),
            };
            drop(turn);
            filled.map(|filled| message::encode_filled(filled).into()).map_err(|error| failure(&error))
        };
        Reply::Later(later.boxed())
    }

    /// How long an asker with this deadline is made to wait.
    fn patience(&self, deadline: Option<Duration>) -> Duration {
        deadline.map_or(Duration::MAX, |at| at.saturating_sub(self.clock.monotonic() + EARLY))
    }

    fn no_method(&self, method: u16) -> Failure {
        malformed(format!("this is the node `{}`, which knows no method {method}: ask the volume's server", self.name))
    }

    fn let_in(&self, hello: &Hello) -> Result<Welcome, Refusal> {
        match hello.volume.filter(|volume| *volume != self.volume) {
            Some(other) => Err(Refusal::other_volume(other, self.volume)),
            None => Ok(Welcome { volume: self.volume, session: None, name: self.name.clone() }),
        }
    }
}

/// What an answer takes of its connection's share, until the last of it is with the socket.
struct Room {
    _permit: OwnedSemaphorePermit,
    count: u32,
    held: Arc<AtomicUsize>,
}

impl Room {
    fn new(permit: OwnedSemaphorePermit, count: u32, held: &Arc<AtomicUsize>) -> Self {
        held.fetch_add(count as usize, Relaxed);
        Self { _permit: permit, count, held: held.clone() }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.fetch_sub(self.count as usize, Relaxed);
    }
}

impl Share {
    fn new(options: &NodeServiceOptions) -> Self {
        Self {
            segments: Arc::new(Semaphore::new(options.segments_max)),
            checks: Arc::new(Semaphore::new(1)),
            fills: Arc::new(Semaphore::new(FILLS_MAX)),
        }
    }
}

fn gone() -> Failure {
    malformed("the connection is gone".into())
}

/// What of a connection's share a read takes.
fn room_for(read: &Read) -> u32 {
    read.segments().len() as u32
}

fn failure(error: &NodeError) -> Failure {
    Failure::new(error.code(), error.to_string())
}

/// On a runtime of tasks: where it is simulated.
impl Service for NodeService {
    async fn hello(&self, hello: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        self.let_in(hello)
    }

    fn opened(&self, peer: &Arc<Peer>) {
        self.shares.lock().insert(peer.number(), Share::new(&self.options));
    }

    async fn call(&self, peer: &Arc<Peer>, request: Request) -> Result<Payload, Failure> {
        let epoch = self.group.members().epoch();
        if request.epoch != epoch {
            peer.set_epoch(epoch);
        }
        let share = self.shares.lock().get(&peer.number()).cloned().ok_or_else(gone)?;
        let body = request.body.checked().map_err(|error| malformed(error.to_string()))?;
        match self.answer(&share, request.method, &body, request.deadline) {
            Reply::Now(payload) => Ok(payload),
            Reply::Failed(failure) => Err(failure),
            Reply::Later(later) => later.await,
        }
    }

    fn gone(&self, peer: &Arc<Peer>, _: &ConnectionError) {
        self.shares.lock().remove(&peer.number());
    }
}

/// On threads of their own, without a runtime for what memory has.
impl DataService for NodeService {
    fn hello(&self, hello: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        self.let_in(hello)
    }

    fn opened(&self, peer: &DataPeer) {
        peer.keep(Share::new(&self.options));
        self.of_threads.fetch_add(1, Relaxed);
    }

    fn call(&self, peer: &DataPeer, request: RequestRef<'_>) -> Reply {
        let Some(share) = peer.kept::<Share>() else { return Reply::Failed(gone()) };
        if request.body.unchecked && crc32c(request.body.bytes) != request.body.crc {
            return Reply::Failed(malformed("the checksum of a body does not match".into()));
        }
        self.answer(share, request.method, request.body.bytes, request.deadline)
    }

    fn gone(&self, _: &DataPeer, _: &ConnectionError) {
        self.of_threads.fetch_sub(1, Relaxed);
    }

    fn epoch(&self) -> u32 {
        self.group.members().epoch()
    }
}

fn malformed(text: String) -> Failure {
    Failure::new(message::FAILED_MALFORMED, text)
}
