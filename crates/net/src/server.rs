//! The side that is connected to.

use crate::{
    CallError, Failure, Reply,
    driver::{Handler, drive},
    lane::Lane,
};
use sluice_base::{Clock, VolumeId};
use sluice_run::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
    watch,
};
use sluice_wire::{Clear, Connection, ConnectionError, Hello, Options, Payload, Push, RefusalCode, Request, Welcome};
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections beyond the limit that are told so at once; others are dropped without a word.
const REFUSALS_MAX: usize = 16;
/// After a failed accept, most likely for lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What is served.
pub trait Service: Send + Sync + 'static {
    /// Whether to let an initiator in. It has as long as the handshake.
    fn hello(&self, hello: &Hello, address: SocketAddr) -> impl Future<Output = Result<Welcome, Refusal>> + Send;

    /// A peer was let in. `peer` may be kept to ask it or push to it, until [`Self::gone`].
    fn opened(&self, peer: &Arc<Peer>) {
        let _ = peer;
    }

    /// The answer to a request. Requests of one peer run at once but on one thread; a cancelled one is dropped at its next await.
    fn call(&self, peer: &Arc<Peer>, request: Request) -> impl Future<Output = Result<Payload, Failure>> + Send;

    /// A peer that was let in is gone; its requests that had no answer were dropped.
    fn gone(&self, peer: &Arc<Peer>, why: &ConnectionError) {
        let _ = (peer, why);
    }
}

/// Why an initiator is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people.
    pub text: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// For who expects another volume than the one that is served.
    pub fn other_volume(expected: VolumeId, served: VolumeId) -> Self {
        Self::new(RefusalCode::Volume, format!("volume {expected} was expected, {served} is served here"))
    }
}

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Most connections at once: a few lanes each for some hundred peers. One takes 64 KiB when idle.
    pub connections_max: usize,
    /// Settings of each.
    pub connection: Options,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { connections_max: 2048, connection: Options::default() }
    }
}

/// A connected peer that was let in.
pub struct Peer {
    lane: Arc<Lane>,
    number: u64,
    hello: Hello,
    welcome: Welcome,
    address: SocketAddr,
}

impl Peer {
    /// Of all connections of this server it is this one; none gets the number again.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What it said.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// What it was told.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Where it connected from.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks it, over the connection that it opened. `within` is the time for room and answer together.
    pub async fn call(&self, method: u16, body: impl Into<Payload>, within: Duration) -> Result<Reply, CallError> {
        self.lane.call(method, body.into(), self.lane.clock.monotonic() + within, None).await
    }

    /// Says something unasked; returns once it has acted on it.
    pub async fn push(&self, body: impl Into<Payload>, within: Duration) -> Result<(), CallError> {
        self.lane.push(body.into(), self.lane.clock.monotonic() + within).await
    }

    /// The epoch of the member list that frames to it carry from now on.
    pub fn set_epoch(&self, epoch: u32) {
        self.lane.state.lock().connection.set_epoch(epoch);
    }

    /// Ends the connection and tells it why.
    pub fn close(&self, text: &str) {
        self.lane.close(text);
    }
}

/// A listening socket and the connections that it has taken.
pub struct Server {
    address: SocketAddr,
    closing: watch::Sender<bool>,
    accepting: JoinHandle<JoinSet<()>>,
}

impl Server {
    /// Listens on `address`, where port 0 is any free one, and serves until [`Self::shutdown`] or until it is dropped.
    pub async fn bind<S: Service>(
        address: SocketAddr,
        service: Arc<S>,
        options: ServerOptions,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (closing, watching) = watch::channel(false);
        let acceptor = Acceptor {
            places: Arc::new(Semaphore::new(options.connections_max)),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            service,
            options,
            clock,
            closing: watching,
            taken: AtomicU64::new(0),
        };
        Ok(Self { address, closing, accepting: sluice_run::task::spawn(acceptor.accept(listener)) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections and requests, and lets those that run end, for `grace` at most.
    pub async fn shutdown(self, grace: Duration) {
        let _ = self.closing.send(true);
        let Ok(mut connections) = self.accepting.await else { return };
        let ended = async { while connections.join_next().await.is_some() {} };
        if timeout(grace, ended).await.is_err() {
            connections.shutdown().await;
        }
    }
}

struct Acceptor<S> {
    service: Arc<S>,
    options: ServerOptions,
    clock: Arc<dyn Clock>,
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    closing: watch::Receiver<bool>,
    /// Connections that were taken so far.
    taken: AtomicU64,
}

impl<S: Service> Acceptor<S> {
    async fn accept(mut self, listener: TcpListener) -> JoinSet<()> {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                // Also when the server was dropped.
                _ = self.closing.changed() => return connections,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => self.begin(&mut connections, stream, address),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(ACCEPT_RETRY).await;
                    }
                }
            }
        }
    }

    fn begin(&self, connections: &mut JoinSet<()>, stream: TcpStream, address: SocketAddr) {
        let place = self.places.clone().try_acquire_owned();
        let turned_away = place.is_err();
        let Ok(permit) = place.or_else(|_| self.refusals.clone().try_acquire_owned()) else {
            tracing::debug!(%address, "too many connections, and too many refusals");
            return;
        };
        let _ = stream.set_nodelay(true);
        let connection = Connection::acceptor(self.clock.monotonic(), self.options.connection.clone(), Box::new(Clear));
        let lane = Lane::new(self.clock.clone(), stream, connection);
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        let (service, peer) = (self.service.clone(), OnceLock::new());
        let inbound = Inbound { lane: lane.clone(), service, number, address, turned_away, peer };
        connections.spawn(serve(lane, inbound, self.closing.clone(), permit));
    }
}

async fn serve<S: Service>(
    lane: Arc<Lane>,
    inbound: Inbound<S>,
    closing: watch::Receiver<bool>,
    _: OwnedSemaphorePermit,
) {
    let why = drive(lane, &inbound, closing, None).await;
    tracing::debug!(address = %inbound.address, %why, "connection ended");
}

/// What one connection asks of the service.
struct Inbound<S: Service> {
    lane: Arc<Lane>,
    service: Arc<S>,
    number: u64,
    address: SocketAddr,
    turned_away: bool,
    peer: OnceLock<Arc<Peer>>,
}

impl<S: Service> Drop for Inbound<S> {
    /// However the connection's task ended.
    fn drop(&mut self) {
        if let Some(peer) = self.peer.get() {
            let why = self.lane.ended().unwrap_or_else(|| ConnectionError::Lost("its task was ended".into()));
            self.service.gone(peer, &why);
        }
    }
}

impl<S: Service> Handler for Inbound<S> {
    async fn hello(&self, hello: Hello) -> Result<Welcome, (RefusalCode, String)> {
        if self.turned_away {
            return Err((RefusalCode::Busy, "as many connections as are allowed".into()));
        }
        let decided = self.service.hello(&hello, self.address).await;
        let welcome = decided.map_err(|refusal| (refusal.code, refusal.text))?;
        let (lane, number, address) = (self.lane.clone(), self.number, self.address);
        let _ = self.peer.set(Arc::new(Peer { lane, number, hello, welcome: welcome.clone(), address }));
        Ok(welcome)
    }

    async fn call(&self, request: Request) -> Result<Payload, Failure> {
        match self.peer.get() {
            Some(peer) => self.service.call(peer, request).await,
            None => Err(Failure::internal("a request came before the handshake")),
        }
    }

    async fn push(&self, _: Push) {}

    fn open(&self, _: Welcome) {
        if let Some(peer) = self.peer.get() {
            self.service.opened(peer);
        }
    }
}
