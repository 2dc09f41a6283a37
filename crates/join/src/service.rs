//! A volume's metadata over sockets: requests to the sessions' server, its answers and pushes to their peers.

use crate::{
    methods::{self, Unstored, encode_pieces},
    nodes::Nodes,
    overview::Watched,
};
use sluice_base::{Clock, Errno, Ino, Seq, SessionId, VolumeId};
use sluice_journal::Committer;
use sluice_meta::{
    Moved,
    rpc::{self, Event, Fault, Outcome, Token, message},
};
use sluice_net::{CallError, Failure, Peer, Refusal, Service};
use sluice_node::message as group;
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use sluice_vfs::{Ship, Vfs};
use sluice_wire::{ConnectionError, Hello, Payload, Request, Welcome};
use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// Held answers whose asker is gone, at most; a retry is answered without them.
const EARLY_MAX: usize = 4096;
/// How long a mount may take to give bytes that it has not stored.
const UNSTORED_TIME: Duration = Duration::from_secs(10);
/// How long a writer that lost its connection, or was started again, is waited for; within [`UNSTORED_TIME`] of the asker.
const WRITER_WAIT: Duration = Duration::from_secs(4);
const WRITER_LOOK: Duration = Duration::from_millis(100);
/// The longest sleep of the one who looks what is due.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Who speaks over a connection, by its number.
type Connections = HashMap<u64, (Arc<Peer>, Option<rpc::Peer>)>;

/// See the module.
pub struct MetaService {
    pub(crate) server: rpc::Server,
    vfs: Arc<Vfs>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) clock: Arc<dyn Clock>,
    volume: VolumeId,
    told: Vec<u8>,
    ship: OnceLock<Arc<Ship>>,
    pub(crate) connections: Mutex<Connections>,
    /// The connection over which a session spoke last.
    pub(crate) sessions: Mutex<HashMap<SessionId, Arc<Peer>>>,
    held: Mutex<Held>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) watched: Watched,
    pub(crate) due: Notify,
}

/// Answers that wait for other mounts.
#[derive(Default)]
struct Held {
    askers: HashMap<Token, oneshot::Sender<rpc::Reply>>,
    /// Came before their asker was noted.
    early: VecDeque<(Token, rpc::Reply)>,
}

impl MetaService {
    /// The service of `volume`; who asks for its configuration is given `told`.
    pub fn new(
        server: rpc::Server,
        vfs: Arc<Vfs>,
        committer: Arc<Committer>,
        clock: Arc<dyn Clock>,
        volume: VolumeId,
        told: Vec<u8>,
    ) -> Arc<Self> {
        let nodes = Nodes::open(server.namespace(), &*clock);
        Arc::new(Self {
            nodes,
            server,
            vfs,
            committer,
            clock,
            volume,
            told,
            ship: OnceLock::new(),
            connections: Mutex::default(),
            sessions: Mutex::default(),
            held: Mutex::default(),
            watched: Watched::default(),
            due: Notify::new(),
        })
    }

    /// Lets bytes of a file be found where they were moved to ([`rpc::Server::relocate`]).
    pub fn relocate(&self, ino: Ino, moved: &[Moved]) -> sluice_meta::Result<u64> {
        let bytes = self.server.relocate(self.clock.monotonic(), ino, moved)?;
        if self.server.is_due() {
            self.due.notify_one();
        }
        Ok(bytes)
    }

    /// What takes the metadata to the store; the first word counts. Without it, who waits for that is refused.
    pub fn ship_with(&self, ship: Arc<Ship>) {
        let _ = self.ship.set(ship);
    }

    /// Resolves when the store has the log up to `seq`, which is synced.
    async fn shipped(&self, seq: Seq) -> Result<(), String> {
        match self.ship.get() {
            Some(ship) => ship(seq).await,
            None => Err("this server does not take the metadata to the store".into()),
        }
    }

    /// Does what is due, for as long as it is polled.
    pub async fn run(self: Arc<Self>) {
        loop {
            let now = self.clock.monotonic();
            let service = self.clone();
            let events = sluice_run::task::spawn_blocking(move || service.server.poll(now)).await.unwrap_or_default();
            events.into_iter().for_each(|event| self.event(event));
            self.nodes.registry.lock().expire(now);
            if let Err(error) = self.keep_nodes().await {
                tracing::warn!(%error, "the list of nodes was not kept; it is tried again");
            }
            let until = self.server.poll_at().map_or(LOOK_INTERVAL, |at| at.saturating_sub(self.clock.monotonic()));
            let _ = sluice_run::time::timeout(until.min(LOOK_INTERVAL), self.due.notified()).await;
        }
    }

    fn event(self: &Arc<Self>, event: Event) {
        match event {
            Event::Push { peer, body } => self.push(peer, body),
            Event::Reply { token, peer: _, reply } => {
                let mut held = self.held.lock();
                match held.askers.remove(&token) {
                    Some(asker) => drop(asker.send(reply)),
                    None => {
                        if held.early.len() >= EARLY_MAX {
                            held.early.pop_front();
                        }
                        held.early.push_back((token, reply));
                    }
                }
            }
            Event::Fenced(peer) => {
                let connections = self.connections.lock();
                let fenced = connections.values().filter(|(_, bound)| *bound == Some(peer));
                fenced.for_each(|(connection, _)| connection.close("the session was taken over"));
            }
            Event::Expired(session) => {
                tracing::warn!(%session, "the lease of a session ended");
                self.watched.expired();
            }
            Event::Ended(session) => {
                self.sessions.lock().remove(&session);
                self.watched.ended(session);
            }
        }
    }

    fn push(self: &Arc<Self>, peer: rpc::Peer, body: Vec<u8>) {
        let connection = self.sessions.lock().get(&peer.session).cloned();
        let (Some(connection), Ok(push)) = (connection, message::Push::decode(&body)) else { return };
        let service = self.clone();
        sluice_run::task::spawn(async move {
            // Without an ack the lease ends, and the push goes again when the session is back.
            if connection.push(body, service.server.lease()).await.is_ok() {
                service.server.acked(service.clock.monotonic(), peer, push.number);
                service.due.notify_one();
            }
        });
    }

    async fn metadata(&self, from: &Arc<Peer>, request: Request) -> Result<Payload, Failure> {
        let body = request.body.checked().map_err(|error| Failure::new(methods::FAILED_OTHER, error.to_string()))?;
        let bound = self.connections.lock().get(&from.number()).and_then(|(_, bound)| *bound);
        let outcome = self.server.handle(self.clock.monotonic(), bound, request.method, &body);
        // A look costs three changes of threads, more than most requests themselves.
        if self.server.is_due() {
            self.due.notify_one();
        }
        let reply = match outcome {
            Outcome::Reply(reply) => reply,
            Outcome::Wait(token) => {
                let answer = self.held(token);
                answer.await.map_err(|_| Failure::new(methods::FAILED_OTHER, "asked again since"))?
            }
        };
        if let Some(peer) = reply.bind {
            if let Some((_, bound)) = self.connections.lock().get_mut(&from.number()) {
                *bound = Some(peer);
            }
            let mut sessions = self.sessions.lock();
            sessions.insert(peer.session, from.clone());
            // Under the lock, as the end of a connection is told.
            self.server.connected(peer);
            drop(sessions);
            self.due.notify_one();
        }
        if reply.durable > Seq(0) {
            let synced = self.committer.wait_synced(reply.durable).await;
            synced.map_err(|error| Failure::new(methods::FAILED_OTHER, error.to_string()))?;
        }
        if reply.stored
            && let Err(why) = self.shipped(reply.durable).await
        {
            return Ok(rpc::refusal(&Fault::Server(why)).into());
        }
        Ok(reply.body.into())
    }

    /// The connection of a session, which gets until then to come back.
    async fn connected(&self, session: SessionId, until: Duration) -> Option<Arc<Peer>> {
        loop {
            let found = self.sessions.lock().get(&session).cloned();
            if found.is_some() || self.clock.monotonic() >= until {
                return found;
            }
            sluice_run::time::sleep(WRITER_LOOK).await;
        }
    }

    fn held(&self, token: Token) -> oneshot::Receiver<rpc::Reply> {
        let (sender, receiver) = oneshot::channel();
        let mut held = self.held.lock();
        match held.early.iter().position(|(early, _)| *early == token) {
            Some(at) => {
                if let Some((_, reply)) = held.early.remove(at) {
                    let _ = sender.send(reply);
                }
            }
            None => drop(held.askers.insert(token, sender)),
        }
        receiver
    }

    /// From this process, or from the mount that has them.
    async fn unstored(&self, request: Request) -> Result<Payload, Failure> {
        let other = |text: String| Failure::new(methods::FAILED_OTHER, text);
        let body = request.body.checked().map_err(|error| other(error.to_string()))?;
        let ask = Unstored::decode(&body).ok_or_else(|| other("the request does not parse".into()))?;
        let vfs = self.vfs.clone();
        let (object, range) = (ask.object, ask.range.clone());
        let ours = sluice_run::task::spawn_blocking(move || vfs.unstored_segments(object, range)).await;
        match ours.unwrap_or(Err(Errno::EIO)) {
            Ok(pieces) => return Ok(encode_pieces(&pieces).into()),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(other(format!("reading object {object} failed: {errno}"))),
        }
        let gone = || other(format!("session {}, which has not stored object {object}, is not connected", ask.session));
        let until = self.clock.monotonic() + WRITER_WAIT;
        loop {
            let writer = self.connected(ask.session, until).await.ok_or_else(gone)?;
            match writer.call(methods::UNSTORED, body.clone(), UNSTORED_TIME).await {
                Ok(reply) => return Ok(reply.body.checked().map_err(|error| other(error.to_string()))?.into()),
                Err(CallError::Failed { code, text }) => return Err(Failure::new(code, text)),
                // It went while it was asked.
                Err(CallError::NotSent(_) | CallError::Unknown(_)) if self.clock.monotonic() < until => {
                    sluice_run::time::sleep(WRITER_LOOK).await;
                }
                Err(error) => {
                    return Err(other(format!("session {} does not give object {object}: {error}", ask.session)));
                }
            }
        }
    }
}

impl Service for MetaService {
    async fn hello(&self, hello: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        match hello.volume.filter(|volume| *volume != self.volume) {
            Some(other) => Err(Refusal::other_volume(other, self.volume)),
            None => Ok(Welcome { volume: self.volume, session: None, name: "server".into() }),
        }
    }

    fn opened(&self, peer: &Arc<Peer>) {
        self.connections.lock().insert(peer.number(), (peer.clone(), None));
    }

    async fn call(&self, peer: &Arc<Peer>, request: Request) -> Result<Payload, Failure> {
        match request.method {
            methods::VOLUME => Ok(self.told.clone().into()),
            methods::UNSTORED => self.unstored(request).await,
            methods::REPORT => self.report(request),
            methods::STATUS => self.answer_status().await,
            method if group::is_for_server(method) => self.group(peer, request).await,
            _ => self.metadata(peer, request).await,
        }
    }

    fn gone(&self, peer: &Arc<Peer>, why: &ConnectionError) {
        tracing::debug!(name = peer.hello().name, %why, "a connection ended");
        let Some((_, Some(bound))) = self.connections.lock().remove(&peer.number()) else { return };
        let mut sessions = self.sessions.lock();
        if sessions.get(&bound.session).is_some_and(|last| Arc::ptr_eq(last, peer)) {
            sessions.remove(&bound.session);
            self.server.disconnected(bound);
        }
        self.due.notify_one();
    }
}
