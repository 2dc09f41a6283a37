//! Connections. In a simulation a host is a process of it, and its address is 10.0.x.y.

use super::{
    current,
    scheduler::{Number, Scheduler, lock},
    time,
};
use bytes::{BufMut, Bytes};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::poll_fn,
    hash::{DefaultHasher, Hasher},
    io::{self, ErrorKind, IoSlice},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::io::{Interest, Ready};

/// What a connection holds that was written and not read.
const WINDOW_BYTES: usize = 64 << 10;
/// How often a connect looks whether its packets arrive.
const CONNECT_LOOK: Duration = Duration::from_millis(200);

/// Who may reach whom, and what is on its way.
pub(super) struct Network {
    rng: SmallRng,
    latency_max: Duration,
    parted: BTreeSet<(u32, u32)>,
    listeners: BTreeMap<SocketAddr, Listening>,
    connections: Vec<Arc<Mutex<Connection>>>,
    next_port: u16,
}

struct Listening {
    process: u32,
    waiting: VecDeque<(End, SocketAddr)>,
    waker: Option<Waker>,
}

/// Listeners of a killed process.
pub(super) struct Gone {
    _listening: Vec<(SocketAddr, Listening)>,
}

struct Connection {
    processes: [u32; 2],
    /// What each end is sent.
    pipes: [Pipe; 2],
}

#[derive(Default)]
struct Pipe {
    /// When it arrives; not before the hosts reach each other again, if it is `None`.
    chunks: VecDeque<(Option<Duration>, Bytes)>,
    bytes: usize,
    last: Duration,
    /// Nothing comes behind what is on its way.
    ended: bool,
    /// The end that reads was reset.
    reset: bool,
    /// What is written is lost in silence.
    black_hole: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn wakers(&mut self) -> impl Iterator<Item = Waker> + use<> {
        self.reader.take().into_iter().chain(self.writer.take())
    }
}

fn pair(a: u32, b: u32) -> (u32, u32) {
    (a.min(b), a.max(b))
}

impl Network {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed ^ 0x6e65_7477),
            latency_max: Duration::from_millis(2),
            parted: BTreeSet::new(),
            listeners: BTreeMap::new(),
            connections: Vec::new(),
            next_port: 40_000,
        }
    }

    pub(super) fn set_latency(&mut self, max: Duration) {
        self.latency_max = max;
    }

    fn latency(&mut self) -> Duration {
        // Most are quick, a few are not.
        let share = self.rng.random_range(0.0..1.0f64).powi(4);
        Duration::from_micros(50) + self.latency_max.mul_f64(share)
    }

    pub(super) fn part(&mut self, a: u32, b: u32) {
        self.parted.insert(pair(a, b));
        let among = self.connections.iter().filter(|connection| joins(connection, a, b));
        // What is on its way does not arrive either.
        among.for_each(|connection| {
            let mut connection = lock(connection);
            connection.pipes.iter_mut().flat_map(|pipe| pipe.chunks.iter_mut()).for_each(|chunk| chunk.0 = None);
        });
    }

    pub(super) fn heal(&mut self, a: u32, b: u32, now: Duration) -> Vec<Waker> {
        self.parted.remove(&pair(a, b));
        let again = now + self.latency();
        let mut wakers = Vec::new();
        for connection in self.connections.iter().filter(|connection| joins(connection, a, b)) {
            for pipe in &mut lock(connection).pipes {
                pipe.chunks.iter_mut().for_each(|chunk| chunk.0 = chunk.0.or(Some(again)));
                pipe.last = pipe.last.max(again);
                wakers.extend(pipe.wakers());
            }
        }
        wakers
    }

    pub(super) fn cut(&mut self, a: u32, b: u32) -> Vec<Waker> {
        let among = self.connections.iter().filter(|connection| joins(connection, a, b));
        among.flat_map(reset).collect()
    }

    pub(super) fn kill(&mut self, process: u32, host_too: bool, now: Duration) -> (Vec<Waker>, Gone) {
        // Connections that nobody has taken are dropped by the caller, outside the lock.
        let gone = self.listeners.extract_if(.., |_, listening| listening.process == process).collect();
        let again = now + self.latency();
        let mut wakers = Vec::new();
        for connection in &self.connections {
            let mut connection = lock(connection);
            let Some(dead) = connection.processes.iter().position(|of| *of == process) else { continue };
            // What it had written still arrives, then its host says that there is nobody; a host that is gone says nothing.
            connection.pipes[dead].black_hole = true;
            if !host_too {
                let out = &mut connection.pipes[1 - dead];
                out.ended = true;
                out.last = out.last.max(again);
            } else {
                connection.pipes[1 - dead].chunks.clear();
            }
            wakers.extend(connection.pipes[1 - dead].wakers());
            wakers.extend(connection.pipes[dead].writer.take());
        }
        (wakers, Gone { _listening: gone })
    }

    /// Connections of hosts that were gone are reset once the host is there again.
    fn revive(&mut self, process: u32) -> Vec<Waker> {
        let dead = self.connections.iter().filter(|connection| {
            let connection = lock(connection);
            (0..2).any(|end| connection.processes[end] == process && connection.pipes[end].black_hole)
        });
        let dead: Vec<_> = dead.cloned().collect();
        self.connections.retain(|connection| !dead.iter().any(|gone| Arc::ptr_eq(gone, connection)));
        dead.iter().flat_map(reset).collect()
    }
}

/// Tells what is sent from what another run sends.
fn sum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn joins(connection: &Arc<Mutex<Connection>>, a: u32, b: u32) -> bool {
    let [one, other] = lock(connection).processes;
    pair(one, other) == pair(a, b)
}

fn reset(connection: &Arc<Mutex<Connection>>) -> Vec<Waker> {
    let mut wakers = Vec::new();
    for pipe in &mut lock(connection).pipes {
        pipe.reset = true;
        pipe.chunks.clear();
        wakers.extend(pipe.wakers());
    }
    wakers
}

/// One end of a simulated connection.
struct End {
    scheduler: Arc<Scheduler>,
    connection: Arc<Mutex<Connection>>,
    end: usize,
}

impl End {
    fn readable(&self) -> Result<(), Option<Duration>> {
        let connection = lock(&self.connection);
        let pipe = &connection.pipes[self.end];
        let now = self.scheduler.now();
        match pipe.chunks.front() {
            _ if pipe.reset => Ok(()),
            Some((Some(at), _)) if *at <= now => Ok(()),
            Some((at, _)) => Err(*at),
            None if pipe.ended && pipe.last <= now => Ok(()),
            None => Err(pipe.ended.then_some(pipe.last)),
        }
    }

    fn writable(&self) -> bool {
        let connection = lock(&self.connection);
        let (own, pipe) = (&connection.pipes[self.end], &connection.pipes[1 - self.end]);
        own.reset || pipe.ended || pipe.bytes < WINDOW_BYTES
    }

    fn poll_ready(&self, interest: Interest, context: &mut Context<'_>) -> Poll<Ready> {
        let mut ready = Ready::EMPTY;
        if interest.is_readable() {
            match self.readable() {
                Ok(()) => ready |= Ready::READABLE,
                Err(at) => {
                    lock(&self.connection).pipes[self.end].reader = Some(context.waker().clone());
                    if let Some(at) = at {
                        self.scheduler.timer(at, context.waker().clone());
                    }
                }
            }
        }
        if interest.is_writable() {
            if self.writable() {
                ready |= Ready::WRITABLE;
            } else {
                lock(&self.connection).pipes[1 - self.end].writer = Some(context.waker().clone());
            }
        }
        if ready.is_empty() { Poll::Pending } else { Poll::Ready(ready) }
    }

    fn read(&self, most: usize) -> io::Result<Bytes> {
        if self.readable().is_err() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut connection = lock(&self.connection);
        let pipe = &mut connection.pipes[self.end];
        if pipe.reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let Some((_, chunk)) = pipe.chunks.front_mut() else { return Ok(Bytes::new()) };
        let bytes = chunk.split_to(most.min(chunk.len()));
        if chunk.is_empty() {
            pipe.chunks.pop_front();
        }
        pipe.bytes -= bytes.len();
        let writer = pipe.writer.take();
        drop(connection);
        writer.into_iter().for_each(Waker::wake);
        Ok(bytes)
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let (now, mut network) = (self.scheduler.now(), lock(&self.scheduler.network));
        let latency = network.latency();
        let mut connection = lock(&self.connection);
        let [a, b] = connection.processes;
        let parted = network.parted.contains(&pair(a, b));
        drop(network);
        if connection.pipes[self.end].reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let pipe = &mut connection.pipes[1 - self.end];
        if pipe.ended {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let room = WINDOW_BYTES.saturating_sub(pipe.bytes);
        if room == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut bytes = Vec::new();
        for slice in slices {
            bytes.extend_from_slice(&slice[..slice.len().min(room - bytes.len())]);
        }
        let count = bytes.len();
        self.scheduler
            .note(sum(&bytes), || format!("{count} bytes from {} to {}", [a, b][self.end], [a, b][1 - self.end]));
        pipe.bytes += count;
        if pipe.black_hole {
            return Ok(count);
        }
        pipe.last = pipe.last.max(now + latency);
        let at = (!parted).then_some(pipe.last);
        pipe.chunks.push_back((at, bytes.into()));
        let reader = pipe.reader.clone();
        drop(connection);
        if let (Some(at), Some(reader)) = (at, reader) {
            self.scheduler.timer(at, reader);
        }
        Ok(count)
    }

    /// Nothing more is sent.
    fn end(&self, reading_too: bool) {
        let now = self.scheduler.now();
        let mut connection = lock(&self.connection);
        let mut wakers = Vec::new();
        let out = &mut connection.pipes[1 - self.end];
        if !out.ended {
            out.ended = true;
            out.last = out.last.max(now);
            wakers.extend(out.wakers());
        }
        if reading_too {
            let own = &mut connection.pipes[self.end];
            (own.ended, own.black_hole) = (true, true);
            own.chunks.clear();
            own.last = now;
            wakers.extend(own.wakers());
        }
        drop(connection);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.end(true);
        let gone = self.connection.clone();
        let mut network = lock(&self.scheduler.network);
        let over = lock(&gone).pipes.iter().all(|pipe| pipe.ended && pipe.chunks.is_empty());
        if over {
            network.connections.retain(|connection| !Arc::ptr_eq(connection, &gone));
        }
    }
}

/// As `tokio::net::TcpStream`.
pub struct TcpStream(Stream);

enum Stream {
    Real(tokio::net::TcpStream),
    Simulated(End),
}

impl TcpStream {
    /// Connects to `address`.
    pub async fn connect(address: &SocketAddr) -> io::Result<Self> {
        match current() {
            None => Ok(Self(Stream::Real(tokio::net::TcpStream::connect(address).await?))),
            Some((scheduler, me)) => Ok(Self(Stream::Simulated(connect(&scheduler, me, *address).await?))),
        }
    }

    /// Small segments go at once.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        match &self.0 {
            Stream::Real(stream) => stream.set_nodelay(on),
            Stream::Simulated(_) => Ok(()),
        }
    }

    /// Waits until something of `interest` can be tried.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match &self.0 {
            Stream::Real(stream) => stream.ready(interest).await,
            Stream::Simulated(end) => Ok(poll_fn(|context| end.poll_ready(interest, context)).await),
        }
    }

    /// Waits until it can be read.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits until it can be written.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// Reads what is there.
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match &self.0 {
            Stream::Real(stream) => stream.try_read(into),
            Stream::Simulated(end) => {
                let bytes = end.read(into.len())?;
                into[..bytes.len()].copy_from_slice(&bytes);
                Ok(bytes.len())
            }
        }
    }

    /// Reads what is there.
    pub fn try_read_buf<B: BufMut>(&self, into: &mut B) -> io::Result<usize> {
        match &self.0 {
            Stream::Real(stream) => stream.try_read_buf(into),
            Stream::Simulated(end) => {
                let bytes = end.read(into.chunk_mut().len())?;
                into.put_slice(&bytes);
                Ok(bytes.len())
            }
        }
    }

    /// Writes what goes.
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.0 {
            Stream::Real(stream) => stream.try_write_vectored(slices),
            Stream::Simulated(end) => end.write(slices),
        }
    }
}

/// No more is written.
pub fn shutdown_write(stream: &TcpStream) -> io::Result<()> {
    match &stream.0 {
        Stream::Real(stream) => Ok(rustix::net::shutdown(stream, rustix::net::Shutdown::Write)?),
        Stream::Simulated(end) => {
            end.end(false);
            Ok(())
        }
    }
}

/// Nothing is read or written any more.
pub fn shutdown_both(stream: &TcpStream) -> io::Result<()> {
    match &stream.0 {
        Stream::Real(stream) => Ok(rustix::net::shutdown(stream, rustix::net::Shutdown::Both)?),
        Stream::Simulated(end) => {
            end.end(true);
            Ok(())
        }
    }
}

async fn connect(scheduler: &Arc<Scheduler>, me: Number, to: SocketAddr) -> io::Result<End> {
    let process = scheduler.process_of(me);
    let way = lock(&scheduler.network).latency();
    time::sleep(way).await;
    loop {
        let reached = lock(&scheduler.network).reach(scheduler, process, to)?;
        if let Some((end, waker)) = reached {
            waker.into_iter().for_each(Waker::wake);
            return Ok(end);
        }
        time::sleep(CONNECT_LOOK).await;
    }
}

impl Network {
    /// `None`: nobody answers.
    fn reach(
        &mut self,
        scheduler: &Arc<Scheduler>,
        from: u32,
        to: SocketAddr,
    ) -> io::Result<Option<(End, Option<Waker>)>> {
        if self.parted.contains(&pair(from, process_at(to))) {
            return Ok(None);
        }
        self.next_port = self.next_port.wrapping_add(1).max(1024);
        let address = SocketAddr::new(address_of(from), self.next_port);
        let listening = self.listeners.get_mut(&to).ok_or(ErrorKind::ConnectionRefused)?;
        let processes = [from, listening.process];
        let connection = Arc::new(Mutex::new(Connection { processes, pipes: Default::default() }));
        let ends = [0, 1].map(|end| End { scheduler: scheduler.clone(), connection: connection.clone(), end });
        let [own, theirs] = ends;
        listening.waiting.push_back((theirs, address));
        let waker = listening.waker.take();
        self.connections.push(connection);
        Ok(Some((own, waker)))
    }
}

/// The address of a process's host.
pub fn address_of(process: u32) -> IpAddr {
    let [_, _, high, low] = process.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(10, 0, high, low))
}

fn process_at(address: SocketAddr) -> u32 {
    match address.ip() {
        IpAddr::V4(address) => u32::from_be_bytes([0, 0, address.octets()[2], address.octets()[3]]),
        IpAddr::V6(_) => u32::MAX,
    }
}

/// As `tokio::net::TcpListener`.
pub struct TcpListener(Listener);

enum Listener {
    Real(tokio::net::TcpListener),
    Simulated(Arc<Scheduler>, SocketAddr),
}

impl TcpListener {
    /// Listens at `address`.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let Some((scheduler, me)) = current() else {
            return Ok(Self(Listener::Real(tokio::net::TcpListener::bind(address).await?)));
        };
        let process = scheduler.process_of(me);
        let wakers = {
            let mut network = lock(&scheduler.network);
            let listening = Listening { process, waiting: VecDeque::new(), waker: None };
            if network.listeners.insert(address, listening).is_some() {
                return Err(ErrorKind::AddrInUse.into());
            }
            network.revive(process)
        };
        wakers.into_iter().for_each(Waker::wake);
        Ok(Self(Listener::Simulated(scheduler, address)))
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            Listener::Real(listener) => listener.local_addr(),
            Listener::Simulated(_, address) => Ok(*address),
        }
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match &self.0 {
            Listener::Real(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((TcpStream(Stream::Real(stream)), address))
            }
            Listener::Simulated(scheduler, at) => {
                let (end, address) = poll_fn(|context| {
                    let mut network = lock(&scheduler.network);
                    let Some(listening) = network.listeners.get_mut(at) else { return Poll::Pending };
                    listening.waker = Some(context.waker().clone());
                    listening.waiting.pop_front().map_or(Poll::Pending, Poll::Ready)
                })
                .await;
                Ok((TcpStream(Stream::Simulated(end)), address))
            }
        }
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        if let Listener::Simulated(scheduler, address) = &self.0 {
            let gone = lock(&scheduler.network).listeners.remove(address);
            drop(gone);
        }
    }
}
