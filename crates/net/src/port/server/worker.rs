//! A thread of a server.

use super::{Answer, DataPeer, DataServerOptions, DataService, Inbox, Message};
use crate::{
    Failure,
    port::{
        socket::{EVENTS_MAX, Poller, Ready, Socket, TIMER, WAKE},
        stats::{Shared, add},
        stream::{SCRATCH_BYTES, Stream},
    },
};
use futures::FutureExt;
use rustix::fd::OwnedFd;
use sluice_base::Clock;
use sluice_wire::{Clear, Connection, ConnectionError, Event, ReplyRef, RequestId, RequestRef, Visitor};
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::task::AbortHandle;

/// Between looks at deadlines.
const LOOK: Duration = Duration::from_secs(1);
/// Numbers of connections, over all threads.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

pub(super) struct Worker<D> {
    service: Arc<D>,
    options: DataServerOptions,
    clock: Arc<dyn Clock>,
    runtime: tokio::runtime::Handle,
    poller: Poller,
    inbox: Arc<Inbox>,
    stats: Shared,
    lanes: Vec<Option<Lane>>,
    free: Vec<usize>,
    touched: Vec<usize>,
    messages: Vec<Message>,
    scratch: Box<[u8]>,
    connections: Arc<AtomicUsize>,
    looked: Duration,
    /// Nothing more is taken; what is under way may take until then.
    closing: Option<Duration>,
}

/// A connection of this thread.
struct Lane {
    stream: Stream,
    peer: DataPeer,
    let_in: bool,
    later: HashMap<RequestId, AbortHandle>,
    touched: bool,
}

impl<D: DataService> Worker<D> {
    pub(super) fn new(
        service: Arc<D>,
        options: DataServerOptions,
        clock: Arc<dyn Clock>,
        runtime: tokio::runtime::Handle,
        connections: Arc<AtomicUsize>,
    ) -> io::Result<Self> {
        let poller = Poller::new()?;
        let inbox = Arc::new(Inbox::new(&poller)?);
        Ok(Self {
            service,
            options,
            clock,
            runtime,
            inbox,
            poller,
            stats: Shared::default(),
            lanes: Vec::new(),
            free: Vec::new(),
            touched: Vec::new(),
            messages: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into(),
            connections,
            looked: Duration::ZERO,
            closing: None,
        })
    }

    pub(super) fn inbox(&self) -> Arc<Inbox> {
        self.inbox.clone()
    }

    pub(super) fn stats(&self) -> Shared {
        self.stats.clone()
    }

    pub(super) fn run(mut self) {
        self.poller.set_timer(Some(LOOK));
        while !self.is_over() {
            if let Err(error) = self.turn() {
                tracing::error!(%error, "a thread for data cannot wait and ends");
                break;
            }
        }
        for place in 0..self.lanes.len() {
            self.end(place);
        }
    }

    fn is_over(&self) -> bool {
        let is_idle = |lane: &Lane| lane.later.is_empty() && lane.stream.connection.output_bytes() == 0;
        self.closing.is_some_and(|until| self.clock.monotonic() >= until || self.lanes.iter().flatten().all(is_idle))
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut ready = [Ready { key: 0, readable: false, writable: false }; EVENTS_MAX];
        let within = self.closing.map(|_| Duration::from_millis(10));
        let count = self.poller.wait(within, &mut ready)?;
        add(&self.stats.wakeups, usize::from(count > 0));
        let now = self.clock.monotonic();
        let epoch = self.service.epoch();
        for ready in &ready[..count] {
            match ready.key {
                key @ (TIMER | WAKE) => self.poller.lower(key),
                place => self.handle(place as usize, *ready, now, epoch),
            }
        }
        self.told(now);
        if now >= self.looked + LOOK {
            self.look(now);
        }
        self.settle(now);
        Ok(())
    }

    fn handle(&mut self, place: usize, ready: Ready, now: Duration, epoch: u32) {
        let Some(lane) = self.lanes[place].as_mut() else { return };
        lane.stream.connection.set_epoch(epoch);
        if ready.writable {
            lane.stream.writable();
        }
        if ready.readable && self.closing.is_none() {
            let mut later = Vec::new();
            let mut serve = Serve { service: &*self.service, peer: &lane.peer, later: &mut later, stats: &self.stats };
            lane.stream.read(now, &mut self.scratch, &mut serve);
            for (id, future) in later {
                add(&self.stats.later, 1);
                let (inbox, number) = (self.inbox.clone(), lane.peer.number);
                let answer = AssertUnwindSafe(future).catch_unwind();
                let task = self.runtime.spawn(async move {
                    let answer = answer.await.unwrap_or_else(|_| Err(failed()));
                    inbox.push(Message::Answered { place, number, id, answer });
                });
                lane.later.insert(id, task.abort_handle());
            }
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

    /// Acts on what others say.
    fn told(&mut self, now: Duration) {
        let mut messages = std::mem::take(&mut self.messages);
        self.inbox.drain(&mut messages);
        for message in messages.drain(..) {
            match message {
                Message::Connection(fd, address) => self.begin(fd, address, now),
                Message::Close { grace } => self.closing = Some(now + grace),
                Message::Answered { place, number, id, answer } => {
                    let Some(lane) = self.lanes[place].as_mut().filter(|lane| lane.peer.number == number) else {
                        continue;
                    };
                    lane.later.remove(&id);
                    answered(&mut lane.stream.connection, id, answer);
                    add(&self.stats.answers, 1);
                    self.touch(place);
                }
            }
        }
        self.messages = messages;
    }

    fn begin(&mut self, fd: OwnedFd, address: SocketAddr, now: Duration) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        let connection = Connection::acceptor(now, self.options.connection.clone(), Box::new(Clear));
        let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        let begun = Socket::accepted(fd).and_then(|socket| {
            let settings = (self.options.techniques, &self.stats);
            let stream = Stream::new(socket, connection, place as u64, false, settings);
            self.poller.add(&stream.socket, place as u64, stream.interest())?;
            Ok(stream)
        });
        match begun {
            Ok(mut stream) => {
                stream.took_at = now;
                let peer = DataPeer::new(number, unnamed(), address);
                let lane = Lane { stream, peer, let_in: false, later: HashMap::new(), touched: false };
                self.lanes[place] = Some(lane);
            }
            Err(error) => {
                tracing::warn!(%address, %error, "a connection cannot be served");
                self.free.push(place);
                self.connections.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Sends, and does what the connections say, for every lane that was touched.
    fn settle(&mut self, now: Duration) {
        while let Some(place) = self.touched.pop() {
            let Some(lane) = self.lanes[place].as_mut() else { continue };
            lane.touched = false;
            lane.events(&*self.service);
            lane.stream.flush(now, &mut self.scratch);
            lane.events(&*self.service);
            if lane.stream.connection.is_closed() {
                self.end(place);
            } else {
                lane.stream.watch(&self.poller);
            }
        }
    }

    fn end(&mut self, place: usize) {
        let Some(mut lane) = self.lanes[place].take() else { return };
        if !lane.stream.connection.is_closed() {
            lane.stream.connection.close("this node ends");
            lane.stream.flush(self.clock.monotonic(), &mut self.scratch);
            lane.events(&*self.service);
        }
        lane.stream.socket.shutdown();
        self.free.push(place);
        self.connections.fetch_sub(1, Ordering::AcqRel);
    }

    /// Looks after deadlines and peers that take nothing.
    fn look(&mut self, now: Duration) {
        self.looked = now;
        self.poller.set_timer(Some(LOOK));
        for place in 0..self.lanes.len() {
            let Some(lane) = self.lanes[place].as_mut() else { continue };
            let connection = &mut lane.stream.connection;
            if connection.poll_timeout().is_some_and(|at| at <= now) {
                connection.handle_timeout(now);
            }
            if connection.output_bytes() == 0 {
                lane.stream.took_at = now;
            } else if now >= lane.stream.took_at + self.options.stall_max {
                tracing::info!(peer = %lane.peer.address, "a peer takes nothing of what it asked for, and is left");
                connection.handle_lost("the peer took nothing for too long");
            }
            self.touch(place);
        }
    }
}

impl Lane {
    fn events<D: DataService>(&mut self, service: &D) {
        while let Some(event) = self.stream.connection.poll_event() {
            match event {
                Event::Hello(hello) => match service.hello(&hello, self.peer.address) {
                    Ok(welcome) => {
                        self.peer.hello = hello;
                        self.let_in = true;
                        service.opened(&self.peer);
                        self.stream.connection.accept(welcome);
                    }
                    Err(refusal) => self.stream.connection.refuse(refusal.code, refusal.text),
                },
                Event::Cancelled { id } => {
                    add(&self.stream.stats().cancelled, 1);
                    if let Some(task) = self.later.remove(&id) {
                        task.abort();
                    }
                }
                Event::Closed { why } => self.gone(service, &why),
                _ => {}
            }
        }
    }

    fn gone<D: DataService>(&mut self, service: &D, why: &ConnectionError) {
        self.later.drain().for_each(|(_, task)| task.abort());
        if std::mem::take(&mut self.let_in) {
            service.gone(&self.peer, why);
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.later.drain().for_each(|(_, task)| task.abort());
    }
}

/// Answers requests while they lie in the receive buffer.
struct Serve<'a, D> {
    service: &'a D,
    peer: &'a DataPeer,
    later: &'a mut Vec<(RequestId, futures::future::BoxFuture<'static, Result<sluice_wire::Payload, Failure>>)>,
    stats: &'a Shared,
}

impl<D: DataService> Visitor for Serve<'_, D> {
    fn request(&mut self, connection: &mut Connection, request: RequestRef<'_>) {
        add(&self.stats.requests, 1);
        let answer = catch_unwind(AssertUnwindSafe(|| self.service.call(self.peer, request)));
        let answer = match answer.unwrap_or_else(|_| Answer::Failed(failed())) {
            Answer::Now(payload) => Ok(payload),
            Answer::Failed(failure) => Err(failure),
            Answer::Later(future) => return self.later.push((request.id, future)),
        };
        answered(connection, request.id, answer);
        add(&self.stats.answers, 1);
    }

    fn reply(&mut self, _: ReplyRef<'_>) {}
}

fn answered(connection: &mut Connection, id: RequestId, answer: Result<sluice_wire::Payload, Failure>) {
    match answer {
        Ok(payload) => connection.reply(id, &payload),
        Err(failure) => connection.fail(id, failure.code, &failure.text),
    }
}

fn failed() -> Failure {
    Failure::internal("the handler of this request failed")
}

/// Until it says who it is.
fn unnamed() -> sluice_wire::Hello {
    sluice_wire::Hello {
        peer: sluice_wire::PeerKind::Admin,
        lane: sluice_wire::LaneClass::Small,
        volume: None,
        session: None,
        name: String::new(),
    }
}
