//! A server for tests: what it does is in the method's number.

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_base::{Clock, OsEntropy, SessionId, SystemClock, VolumeId};
use sluice_net::{
    Callbacks, Client, ClientOptions, Failure, NoCallbacks, Peer, Refusal, Server, ServerOptions, Service,
};
use sluice_wire::{ConnectionError, Hello, LaneClass, Payload, PeerKind, Push, Request, Session, Welcome};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::sync::{Notify, Semaphore, watch};

pub const VOLUME: VolumeId = VolumeId([6; 16]);
pub const LONG: Duration = Duration::from_secs(20);
/// Answers with the body.
pub const ECHO: u16 = 1;
/// Fails with the code 5 and the body as text.
pub const FAIL: u16 = 2;
/// Answers once [`Toy::gate`] has a permit.
pub const WAIT: u16 = 3;
/// Panics.
pub const PANIC: u16 = 4;
/// Asks the client for [`ECHO`] of the body, and answers with that.
pub const ASK_BACK: u16 = 5;
/// Answers with a MiB for each byte of the body.
pub const MANY: u16 = 6;

pub struct Toy {
    pub gate: Semaphore,
    /// Requests of [`WAIT`] that have begun less those that have ended or were dropped.
    pub waiting: watch::Sender<usize>,
    pub peers: Mutex<Vec<Arc<Peer>>>,
    pub gone: watch::Sender<Vec<ConnectionError>>,
    pub sessions: Mutex<Vec<Option<Session>>>,
}

impl Toy {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            gate: Semaphore::new(0),
            waiting: watch::Sender::new(0),
            peers: Mutex::default(),
            gone: watch::Sender::new(Vec::new()),
            sessions: Mutex::default(),
        })
    }

    pub async fn waiting_is(&self, count: usize) {
        let mut waiting = self.waiting.subscribe();
        let reached = tokio::time::timeout(LONG, waiting.wait_for(|waiting| *waiting == count)).await.is_ok();
        assert!(reached, "{} are waiting, not {count}", *self.waiting.borrow());
    }

    /// Waits for a connection that ends for such a reason.
    pub async fn one_gone(&self, reason: impl Fn(&ConnectionError) -> bool) {
        let mut gone = self.gone.subscribe();
        let found = tokio::time::timeout(LONG, gone.wait_for(|gone| gone.iter().any(&reason))).await.is_ok();
        assert!(found, "{:?}", *self.gone.borrow());
    }
}

/// Counts one as waiting while it lives.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Service for Toy {
    async fn hello(&self, hello: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        self.sessions.lock().push(hello.session);
        if let Some(expected) = hello.volume.filter(|expected| *expected != VOLUME) {
            return Err(Refusal::other_volume(expected, VOLUME));
        }
        let session = hello.session.or(Some(Session { id: SessionId(41), epoch: 1 }));
        Ok(Welcome { volume: VOLUME, session, name: "toy".into() })
    }

    fn opened(&self, peer: &Arc<Peer>) {
        self.peers.lock().push(peer.clone());
    }

    async fn call(&self, peer: &Arc<Peer>, request: Request) -> Result<Payload, Failure> {
        let body = request.body.checked().map_err(|bad| Failure::new(9, bad.to_string()))?;
        match request.method {
            ECHO => Ok(body.into()),
            FAIL => Err(Failure::new(5, String::from_utf8_lossy(&body))),
            WAIT => {
                let _waiting = Waiting::new(&self.waiting);
                self.gate.acquire().await.expect("the gate stays").forget();
                Ok(body.into())
            }
            PANIC => panic!("as asked"),
            ASK_BACK => match peer.call(ECHO, body, LONG).await {
                Ok(reply) => Ok(reply.body.checked().expect("sound").into()),
                Err(error) => Err(Failure::new(6, error.to_string())),
            },
            MANY => Ok(vec![Bytes::from(vec![1; 1 << 20]); body.len()].into()),
            other => Err(Failure::new(1, format!("no method {other}"))),
        }
    }

    fn gone(&self, _: &Arc<Peer>, why: &ConnectionError) {
        self.gone.send_modify(|gone| gone.push(why.clone()));
    }
}

/// Answers [`ECHO`]; keeps pushes until it is told.
#[derive(Default)]
pub struct Mount {
    pub pushed: Mutex<Vec<Bytes>>,
    pub acted: Notify,
}

impl Callbacks for Mount {
    async fn call(&self, request: Request) -> Result<Payload, Failure> {
        Ok(request.body.checked().expect("sound").into())
    }
    async fn push(&self, push: Push) {
        self.pushed.lock().push(push.body);
        self.acted.notified().await;
    }
}

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

pub fn local() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

pub async fn server(toy: &Arc<Toy>) -> Server {
    Server::bind(local(), toy.clone(), ServerOptions::default(), clock()).await.expect("a free port")
}

pub fn hello() -> Hello {
    Hello { peer: PeerKind::Mount, lane: LaneClass::Small, volume: None, session: None, name: "test".into() }
}

pub fn client(address: SocketAddr) -> Client {
    client_with(address, hello(), Arc::new(NoCallbacks), ClientOptions::default())
}

pub fn client_with<C: Callbacks>(
    address: SocketAddr,
    hello: Hello,
    callbacks: Arc<C>,
    options: ClientOptions,
) -> Client {
    Client::new(vec![address], hello, callbacks, options, clock(), Arc::new(OsEntropy))
}
