//! The side that asks.

mod lane;
mod peer;

use super::{
    LaneLimits, PortStats, Techniques,
    policy::{Change, INTERVAL, Measured},
    sink::Sink,
    socket::{EVENTS_MAX, Poller, Ready, Socket, TIMER},
    stats::{Shared, add},
    stream::{SCRATCH_BYTES, Stream},
};
use lane::Lane;
use peer::Peer;
use rustix::fd::{AsFd, BorrowedFd};
use sluice_base::Clock;
use sluice_wire::{Clear, Connection, Hello, LaneClass, Options};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};

/// Answers of less than this go over small lanes.
const BULK_BYTES_MIN: usize = 64 << 10;
/// Lanes of a port. A lane's key in the poller is its place.
const LANES_MAX: usize = 4096;
/// Between looks at traffic and deadlines while anything is under way.
const LOOK: Duration = INTERVAL;

/// Settings of a port.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// What is used.
    pub techniques: Techniques,
    /// Bulk lanes to each peer.
    pub bulk: LaneLimits,
    /// Small lanes to each peer.
    pub small: usize,
    /// The wait after a connection that failed, doubled each time...
    pub backoff_base: Duration,
    /// ... up to this.
    pub backoff_max: Duration,
    /// Settings of each connection.
    pub connection: Options,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            techniques: Techniques::default(),
            bulk: LaneLimits::default(),
            small: 1,
            backoff_base: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            connection: Options::default(),
        }
    }
}

/// A peer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerKey {
    at: usize,
    number: u64,
}

/// A request of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    lane: usize,
    number: u64,
    id: sluice_wire::RequestId,
}

/// A request.
#[derive(Debug)]
pub struct Ask<'a, S> {
    /// What is asked for.
    pub method: u16,
    /// Arguments; copied.
    pub body: &'a [u8],
    /// Length of the answer, as far as it is known: chooses the lane.
    pub answer_bytes: usize,
    /// When the answer is of no use any more, on the port's clock.
    pub deadline: Duration,
    /// Comes back with the answer.
    pub token: u64,
    /// Where the answer goes.
    pub into: S,
}

/// It was not asked; the sink comes back.
#[derive(Debug)]
pub struct NotSent<S> {
    /// As it was given.
    pub sink: S,
    /// Why.
    pub why: NotSentWhy,
}

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSentWhy {
    /// Connections are being made, for the first time or again.
    #[error("not connected yet")]
    Connecting,
    /// As much is under way as the peer takes.
    #[error("as much is under way as the peer takes")]
    Full,
    /// The peer was forgotten.
    #[error("this peer is not known")]
    Unknown,
}

/// An answer that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its bytes.
    pub len: usize,
    /// The CRC-32C that they must have: nobody has compared.
    pub crc: u32,
    /// Epoch of the member list that the peer knows.
    pub epoch: u32,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The peer says so.
    #[error("{text} (code {code})")]
    Failed {
        /// For programs.
        code: u32,
        /// For people.
        text: String,
        /// Epoch of the member list that the peer knows.
        epoch: u32,
    },
    /// The deadline has passed.
    #[error("no answer in time")]
    TimedOut,
    /// The connection is gone.
    #[error("{0}")]
    Lost(String),
    /// The sink does not take an answer of this length.
    #[error("an answer of {0} bytes was not expected")]
    BadLength(usize),
}

/// The end of a request.
#[derive(Debug)]
pub struct Done<S> {
    /// As it was given.
    pub token: u64,
    /// As it was given, filled if there is an answer.
    pub sink: S,
    /// What came.
    pub outcome: Result<Arrived, AskError>,
}

/// One thread's lanes to its peers.
pub struct Port<S> {
    options: PortOptions,
    clock: Arc<dyn Clock>,
    poller: Poller,
    stats: Shared,
    peers: Vec<Option<Peer>>,
    lanes: Vec<Option<Lane<S>>>,
    /// Places of lanes that are free.
    free: Vec<usize>,
    /// Lanes that have something to send, or whose connection may have events.
    touched: Vec<usize>,
    scratch: Box<[u8]>,
    done: Vec<Done<S>>,
    /// Of peers and lanes, so that an old key is not taken for a new one.
    number: u64,
    /// Requests under way.
    under_way: usize,
    looked: Duration,
    armed: Option<Duration>,
}

impl<S: Sink> Port<S> {
    /// A port without peers.
    pub fn new(options: PortOptions, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Ok(Self {
            options,
            clock,
            poller: Poller::new()?,
            stats: Shared::default(),
            peers: Vec::new(),
            lanes: Vec::new(),
            free: Vec::new(),
            touched: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into(),
            done: Vec::new(),
            number: 0,
            under_way: 0,
            looked: Duration::ZERO,
            armed: None,
        })
    }

    /// A peer, to which connections are made at once. `hello` but for the lane.
    pub fn peer(&mut self, address: SocketAddr, hello: Hello) -> PeerKey {
        self.number += 1;
        let number = self.number;
        let at = self.peers.iter().position(Option::is_none).unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() - 1
        });
        let small = if self.options.techniques.small_lanes { self.options.small.max(1) } else { 0 };
        self.peers[at] = Some(Peer::new(number, address, hello, small, self.options.bulk));
        self.connect_missing(at, self.clock.monotonic());
        PeerKey { at, number }
    }

    /// Ends the connections to a peer; what is under way to it fails.
    pub fn forget(&mut self, key: PeerKey) {
        let Some(peer) = self.known(key).and_then(|at| self.peers[at].take()) else { return };
        for lane in peer.lanes() {
            if let Some(lane) = self.lanes[lane].as_mut() {
                lane.stream.connection.close("this peer is not spoken to any more");
            }
            self.touch(lane);
        }
        self.settle();
    }

    fn known(&self, key: PeerKey) -> Option<usize> {
        let peer = self.peers.get(key.at)?.as_ref()?;
        (peer.number == key.number).then_some(key.at)
    }

    /// Whether there is an open lane of each class.
    pub fn is_connected(&self, key: PeerKey) -> bool {
        let Some(at) = self.known(key) else { return false };
        let peer = self.peers[at].as_ref().expect("it is known");
        let open = |lanes: &[usize]| lanes.iter().any(|lane| self.lanes[*lane].as_ref().is_some_and(Lane::is_open));
        open(&peer.bulk) && (peer.small_wanted == 0 || open(&peer.small))
    }

    /// Asks a peer. It is sent with what else is asked, at [`Self::flush`] or [`Self::turn`].
    pub fn ask(&mut self, key: PeerKey, ask: Ask<'_, S>) -> Result<Ticket, NotSent<S>> {
        let Some(at) = self.known(key) else { return Err(NotSent { sink: ask.into, why: NotSentWhy::Unknown }) };
        let now = self.clock.monotonic();
        let is_bulk = ask.answer_bytes >= BULK_BYTES_MIN || !self.options.techniques.small_lanes;
        let place = match self.pick(at, is_bulk) {
            Some(place) => place,
            None => {
                let peer = self.peers[at].as_ref().expect("it is known");
                let is_open = |lane: &usize| self.lanes[*lane].as_ref().is_some_and(Lane::is_open);
                let why =
                    if peer.lanes().any(|lane| is_open(&lane)) { NotSentWhy::Full } else { NotSentWhy::Connecting };
                return Err(NotSent { sink: ask.into, why });
            }
        };
        let lane = self.lanes[place].as_mut().expect("it was picked");
        let id = match lane.ask(now, ask) {
            Ok(id) => id,
            Err(sink) => return Err(NotSent { sink, why: NotSentWhy::Full }),
        };
        self.under_way += 1;
        add(&self.stats.requests, 1);
        let (number, is_due) = (lane.number, lane.stream.is_due());
        if is_due {
            lane.stream.flush(now, &mut self.scratch);
            lane.stream.watch(&self.poller);
        }
        self.touch(place);
        self.arm(now);
        Ok(Ticket { lane: place, number, id })
    }

    /// The open lane with the least under way, of the class if there is one.
    fn pick(&self, at: usize, is_bulk: bool) -> Option<usize> {
        let peer = self.peers[at].as_ref().expect("it is known");
        let (first, second) = if is_bulk { (&peer.bulk, &peer.small) } else { (&peer.small, &peer.bulk) };
        let most = if self.options.techniques.multiplex { usize::MAX } else { 1 };
        let open = |lanes: &[usize]| {
            let free = lanes
                .iter()
                .copied()
                .filter(|lane| self.lanes[*lane].as_ref().is_some_and(|lane| lane.is_open() && lane.requests() < most));
            free.min_by_key(|lane| self.lanes[*lane].as_ref().map(|lane| lane.under_way_bytes))
        };
        open(first).or_else(|| open(second))
    }

    /// No answer is wanted any more; the sink comes back unless it is being filled.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<S> {
        let lane = self.lanes.get_mut(ticket.lane)?.as_mut().filter(|lane| lane.number == ticket.number)?;
        let sink = lane.cancel(ticket.id)?;
        self.under_way -= 1;
        self.touch(ticket.lane);
        Some(sink)
    }

    /// Requests without an answer.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// The epoch of the member list that frames carry from now on.
    pub fn set_epoch(&mut self, epoch: u32) {
        self.lanes.iter_mut().flatten().for_each(|lane| lane.stream.connection.set_epoch(epoch));
    }

    /// Counts since the start.
    pub fn stats(&self) -> PortStats {
        self.stats.read()
    }

    /// Open lanes to a peer: small, bulk.
    pub fn open_lanes(&self, key: PeerKey) -> (usize, usize) {
        let is_open = |lane: &&usize| self.lanes[**lane].as_ref().is_some_and(Lane::is_open);
        let count = |lanes: &[usize]| lanes.iter().filter(is_open).count();
        let peer = self.known(key).and_then(|at| self.peers[at].as_ref());
        peer.map_or((0, 0), |peer| (count(&peer.small), count(&peer.bulk)))
    }

    /// Sends what was asked.
    pub fn flush(&mut self) {
        if !self.touched.is_empty() {
            self.settle();
        }
    }

    /// Sends what was asked, waits for something to happen, at most so long, and hands out what has ended.
    pub fn turn(&mut self, within: Option<Duration>, mut done: impl FnMut(Done<S>)) -> io::Result<()> {
        self.flush();
        let within = if self.done.is_empty() { within } else { Some(Duration::ZERO) };
        let mut ready = [Ready { key: 0, readable: false, writable: false }; EVENTS_MAX];
        let count = self.poller.wait(within, &mut ready)?;
        if count > 0 {
            add(&self.stats.wakeups, 1);
        }
        let now = self.clock.monotonic();
        for ready in &ready[..count] {
            match ready.key {
                key if key as usize >= LANES_MAX => self.poller.lower(key),
                place => self.handle(place as usize, *ready, now),
            }
            if ready.key == TIMER {
                self.armed = None;
            }
        }
        if now >= self.looked + LOOK {
            self.look(now);
        }
        self.settle();
        self.arm(now);
        self.done.drain(..).for_each(&mut done);
        Ok(())
    }

    fn handle(&mut self, place: usize, ready: Ready, now: Duration) {
        let Some(lane) = self.lanes[place].as_mut() else { return };
        if ready.writable {
            lane.stream.writable();
        }
        if ready.readable && !lane.stream.connecting {
            let before = self.done.len();
            lane.read(now, &mut self.scratch, &mut self.done);
            let answers = self.done.len() - before;
            self.under_way -= answers;
            add(&self.stats.answers, answers);
        }
        self.touch(place);
    }

    fn touch(&mut self, place: usize) {
        if let Some(lane) = self.lanes[place].as_mut()
            && !lane.touched
        {
            lane.touched = true;
            self.touched.push(place);
        }
    }

    /// Sends, and does what the connections say, for every lane that was touched.
    fn settle(&mut self) {
        let now = self.clock.monotonic();
        while let Some(place) = self.touched.pop() {
            let Some(lane) = self.lanes[place].as_mut() else { continue };
            lane.touched = false;
            lane.stream.flush(now, &mut self.scratch);
            let before = self.done.len();
            lane.events(&mut self.done);
            let ended = self.done.len() - before;
            self.under_way -= ended;
            add(&self.stats.answers, ended);
            if lane.stream.connection.is_closed() {
                self.end(place, now);
            } else {
                lane.stream.watch(&self.poller);
            }
        }
    }

    /// A connection is over; another one is made later, unless it was one too many.
    fn end(&mut self, place: usize, now: Duration) {
        let Some(lane) = self.lanes[place].take() else { return };
        lane.stream.socket.shutdown();
        self.free.push(place);
        let Some(peer) = self.peers.iter_mut().flatten().find(|peer| peer.number == lane.peer) else { return };
        peer.ended(place, now, lane.was_open, &self.options);
    }

    /// Makes the connections that a peer should have.
    fn connect_missing(&mut self, at: usize, now: Duration) {
        loop {
            let Some(peer) = self.peers[at].as_mut() else { return };
            let Some(class) = peer.missing(now) else { return };
            let (number, address) = (peer.number, peer.address);
            let hello = Hello { lane: class, ..peer.hello.clone() };
            let place = match self.free.pop() {
                Some(place) => place,
                None if self.lanes.len() < LANES_MAX => {
                    self.lanes.push(None);
                    self.lanes.len() - 1
                }
                None => return,
            };
            match self.connect(place, address, hello, now) {
                Ok(stream) => {
                    self.number += 1;
                    self.lanes[place] = Some(Lane::new(stream, number, self.number, class));
                    let peer = self.peers[at].as_mut().expect("it was there");
                    if class == LaneClass::Small {
                        peer.small.push(place)
                    } else {
                        peer.bulk.push(place)
                    }
                    self.touch(place);
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "not connected");
                    self.free.push(place);
                    self.peers[at].as_mut().expect("it was there").ended(place, now, false, &self.options);
                    return;
                }
            }
        }
    }

    fn connect(&self, place: usize, address: SocketAddr, hello: Hello, now: Duration) -> io::Result<Stream> {
        let socket = Socket::connect(address)?;
        let connection = Connection::initiator(now, hello, self.options.connection.clone(), Box::new(Clear));
        let stream = Stream::new(socket, connection, place as u64, true, (self.options.techniques, &self.stats));
        self.poller.add(&stream.socket, place as u64, stream.interest())?;
        Ok(stream)
    }

    /// Looks after deadlines, traffic and connections.
    fn look(&mut self, now: Duration) {
        self.looked = now;
        for place in 0..self.lanes.len() {
            let Some(lane) = self.lanes[place].as_mut() else { continue };
            let connection = &mut lane.stream.connection;
            if connection.poll_timeout().is_some_and(|at| at <= now) {
                connection.handle_timeout(now);
                self.touch(place);
            }
        }
        for at in 0..self.peers.len() {
            self.measure(at, now);
            self.connect_missing(at, now);
        }
    }

    fn measure(&mut self, at: usize, now: Duration) {
        let Some(peer) = self.peers[at].as_mut() else { return };
        let mut measured = Measured { bytes: 0, under_way: 0 };
        for place in &peer.bulk {
            let Some(lane) = self.lanes[*place].as_mut() else { continue };
            measured.bytes += std::mem::take(&mut lane.came_bytes);
            measured.under_way += lane.under_way_bytes;
        }
        match peer.count.handle_interval(now, measured) {
            Change::Keep => {}
            Change::Add => add(&self.stats.lanes_added, 1),
            Change::Remove => {
                add(&self.stats.lanes_removed, 1);
                let last = peer.bulk.last().copied();
                if let Some(lane) = last.and_then(|place| self.lanes[place].as_mut()) {
                    lane.retire();
                    self.touch(last.expect("it has a lane"));
                }
            }
        }
    }

    /// Has the timer ring for the next look: soon while something is under way, else when a connection has something due.
    fn arm(&mut self, now: Duration) {
        let is_busy = self.under_way > 0 || self.peers.iter().flatten().any(Peer::is_wanting);
        let next = if is_busy {
            Some(self.looked.max(now) + LOOK)
        } else {
            let due = self.lanes.iter().flatten().filter_map(|lane| lane.stream.connection.poll_timeout());
            let measures = self.peers.iter().flatten().any(Peer::has_spare).then_some(now + Duration::from_secs(1));
            due.chain(measures).min()
        };
        let Some(next) = next else { return };
        if self.armed.is_none_or(|armed| next < armed) {
            self.armed = Some(next);
            self.poller.set_timer(Some(next.saturating_sub(now)));
        }
    }
}

impl<S> AsFd for Port<S> {
    /// Readable when [`Port::turn`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
