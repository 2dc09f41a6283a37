//! The side that connects, and connects again.

use crate::{CallError, Failure, Reply, lane::Lane};
use sluice_base::{Clock, Entropy, Pages};
use sluice_run::lock::Mutex;
use sluice_run::{net::TcpStream, task::JoinSet, time::timeout, watch};
use sluice_wire::{Hello, LaneClass, Options, Payload, Push, RefusalCode, Refused, Request, Session, Welcome};
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

mod outbound;

use outbound::Outbound;

/// What the server may ask of a client.
pub trait Callbacks: Send + Sync + 'static {
    /// The answer to a request of the server.
    fn call(&self, request: Request) -> impl Future<Output = Result<Payload, Failure>> + Send;

    /// Acts on a push: the server is told once the future is done. Pushes of a lane begin in their order, and may end in
    /// another.
    fn push(&self, push: Push) -> impl Future<Output = ()> + Send;
}

/// For clients that are asked nothing.
pub struct NoCallbacks;

impl Callbacks for NoCallbacks {
    async fn call(&self, _: Request) -> Result<Payload, Failure> {
        Err(Failure::internal("this client answers nothing"))
    }
    async fn push(&self, _: Push) {}
}

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Lanes for requests, at least 1.
    pub lanes_small: usize,
    /// Lanes for payloads; 0 sends them over the others.
    pub lanes_bulk: usize,
    /// Time for TCP to connect to one address.
    pub connect_timeout: Duration,
    /// The wait before try n + 1 is random between 0 and `backoff_base` x 2^n...
    pub backoff_base: Duration,
    /// ... but at most this. After a refusal it is between half of this and this.
    pub backoff_max: Duration,
    /// Where the buffers for bodies of bulk lanes come from. Without them bodies are gathered in the lane's own.
    pub pages: Option<Arc<Pages>>,
    /// Settings of each connection.
    pub connection: Options,
}

impl Default for ClientOptions {
    /// A server that restarts is found again within a second or two.
    fn default() -> Self {
        Self {
            lanes_small: 1,
            lanes_bulk: 0,
            connect_timeout: Duration::from_secs(5),
            backoff_base: Duration::from_millis(20),
            backoff_max: Duration::from_secs(2),
            pages: None,
            connection: Options::default(),
        }
    }
}

/// How it stands with one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// The first try is under way.
    Connecting,
    /// Calls go through.
    Connected(Welcome),
    /// The server says no. It is asked again now and then.
    Refused(Refused),
    /// Not connected, for this reason; tries go on.
    Disconnected(String),
}

/// Lanes to one peer, kept up until the client is dropped.
pub struct Client {
    shared: Arc<Shared>,
    closing: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

struct Shared {
    addresses: Vec<SocketAddr>,
    /// What the next connection says; the session is the one that the server gave last.
    hello: Mutex<Hello>,
    options: ClientOptions,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    /// Small ones first. `Some` while open.
    lanes: Mutex<Vec<Option<Arc<Lane>>>>,
    states: watch::Sender<Vec<LaneState>>,
    next: AtomicUsize,
    epoch: AtomicU32,
}

impl Client {
    /// Begins to connect; returns at once. `addresses` are those of one peer, tried in turn. Lanes after the first wait for it, so
    /// that all of them belong to the session that it is given.
    pub fn new<C: Callbacks>(
        addresses: Vec<SocketAddr>,
        hello: Hello,
        callbacks: Arc<C>,
        options: ClientOptions,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let count = options.lanes_small.max(1) + options.lanes_bulk;
        let shared = Arc::new(Shared {
            addresses,
            hello: Mutex::new(hello),
            options,
            clock,
            entropy,
            lanes: Mutex::new(vec![None; count]),
            states: watch::Sender::new(vec![LaneState::Connecting; count]),
            next: AtomicUsize::new(0),
            epoch: AtomicU32::new(0),
        });
        let (closing, watching) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for index in 0..count {
            let outbound =
                Outbound { shared: shared.clone(), callbacks: callbacks.clone(), index, lane: Mutex::new(None) };
            tasks.spawn(outbound.keep(watching.clone()));
        }
        Self { shared, closing, tasks }
    }

    /// Asks over a small lane. `within` is the time for connecting, room and answer together; dropping the future cancels the
    /// request.
    pub async fn call(&self, method: u16, body: impl Into<Payload>, within: Duration) -> Result<Reply, CallError> {
        self.call_on(LaneClass::Small, method, body, within).await
    }

    /// Asks over a lane of `class`, or another if there is none.
    pub async fn call_on(
        &self,
        class: LaneClass,
        method: u16,
        body: impl Into<Payload>,
        within: Duration,
    ) -> Result<Reply, CallError> {
        self.call_watched(class, method, body, within, None).await
    }

    /// As [`Self::call_on`]; sets `begun` when the first of an answer comes that is received in parts (bulk lanes).
    pub async fn call_watched(
        &self,
        class: LaneClass,
        method: u16,
        body: impl Into<Payload>,
        within: Duration,
        begun: Option<&Arc<AtomicBool>>,
    ) -> Result<Reply, CallError> {
        let deadline = self.shared.clock.monotonic() + within;
        let body = body.into().summed();
        loop {
            let lane = self.shared.open_lane(class, deadline).await?;
            match lane.call(method, body.clone(), deadline, begun).await {
                // It has just ended: nothing was sent, so another may be asked.
                Err(CallError::NotSent(_)) => self.shared.forget(&lane),
                done => return done,
            }
        }
    }

    /// How it stands with each lane, small ones first.
    pub fn states(&self) -> watch::Receiver<Vec<LaneState>> {
        self.shared.states.subscribe()
    }

    /// Waits for a connection.
    pub async fn connected(&self, within: Duration) -> Result<Welcome, CallError> {
        self.shared.open_lane(LaneClass::Small, self.shared.clock.monotonic() + within).await?;
        let states = self.shared.states.borrow();
        let welcome = states.iter().find_map(|state| match state {
            LaneState::Connected(welcome) => Some(welcome.clone()),
            _ => None,
        });
        welcome.ok_or_else(|| CallError::NotSent("the connection ended at once".into()))
    }

    /// The session that later connections ask for; what the server gives with a welcome replaces it.
    pub fn set_session(&self, session: Option<Session>) {
        self.shared.hello.lock().session = session;
    }

    /// The epoch of the member list that frames carry from now on.
    pub fn set_epoch(&self, epoch: u32) {
        self.shared.epoch.store(epoch, Ordering::Relaxed);
        for lane in self.shared.lanes.lock().iter().flatten() {
            lane.state.lock().connection.set_epoch(epoch);
        }
    }

    /// Takes leave of the server; calls under way end with [`CallError::Unknown`].
    pub async fn close(mut self) {
        let _ = self.closing.send(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // They take leave by themselves.
        let _ = self.closing.send(true);
        self.tasks.detach_all();
    }
}

impl Shared {
    /// An open lane, of `class` if there is one.
    async fn open_lane(&self, class: LaneClass, deadline: Duration) -> Result<Arc<Lane>, CallError> {
        let mut states = self.states.subscribe();
        loop {
            states.mark_unchanged();
            if let Some(lane) = self.pick(class) {
                return Ok(lane);
            }
            if let Some(why) = refused_by_all(&states.borrow()) {
                return Err(CallError::NotSent(why));
            }
            let wait = deadline.saturating_sub(self.clock.monotonic());
            match timeout(wait, states.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(CallError::Closed),
                Err(_) => return Err(CallError::NotSent(self.why_not())),
            }
        }
    }

    /// In turn, so that lanes of a class share the work.
    fn pick(&self, class: LaneClass) -> Option<Arc<Lane>> {
        let lanes = self.lanes.lock();
        let small = self.options.lanes_small.max(1);
        let (first, second) = lanes.split_at(small);
        let (preferred, other) = if class == LaneClass::Small { (first, second) } else { (second, first) };
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let open = |lanes: &[Option<Arc<Lane>>]| {
            (0..lanes.len()).find_map(|step| lanes[turn.wrapping_add(step) % lanes.len()].clone())
        };
        open(preferred).or_else(|| open(other))
    }

    fn forget(&self, lane: &Arc<Lane>) {
        for place in self.lanes.lock().iter_mut() {
            if place.as_ref().is_some_and(|known| Arc::ptr_eq(known, lane)) {
                *place = None;
            }
        }
    }

    fn why_not(&self) -> String {
        match &self.states.borrow()[0] {
            LaneState::Disconnected(why) => why.clone(),
            LaneState::Refused(refused) => refused.to_string(),
            LaneState::Connecting | LaneState::Connected(_) => "not connected yet".into(),
        }
    }

    fn set_state(&self, index: usize, state: LaneState) {
        self.states.send_modify(|states| states[index] = state);
    }

    /// A connection to the first address that answers.
    async fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address is known");
        for address in &self.addresses {
            match timeout(self.options.connect_timeout, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
                Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, format!("{address}: no answer in time")),
            }
        }
        Err(last)
    }

    /// Full jitter: <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>
    fn backoff(&self, tries: u32) -> Duration {
        let doubled = self.options.backoff_base.saturating_mul(1 << tries.min(20));
        doubled.min(self.options.backoff_max).mul_f64(self.random())
    }

    fn random(&self) -> f64 {
        let mut bytes = [0; 4];
        self.entropy.fill(&mut bytes);
        f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
    }
}

/// Waiting helps nobody whom the server has refused.
fn refused_by_all(states: &[LaneState]) -> Option<String> {
    let mut why = None;
    for state in states {
        match state {
            LaneState::Refused(refused) if refused.code != RefusalCode::Busy => why = Some(refused.to_string()),
            // It waits for the first.
            LaneState::Connecting if why.is_some() => {}
            _ => return None,
        }
    }
    why
}
