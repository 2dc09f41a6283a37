//! The side that answers: a few threads, each with its share of the connections.

mod inbox;
mod worker;

use super::{PortStats, Techniques, stats::Shared};
use crate::{Failure, Refusal};
use futures::future::BoxFuture;
use inbox::{Inbox, Message};
use sluice_base::Clock;
use sluice_wire::{ConnectionError, Hello, Options, Payload, RequestRef, Welcome};
use std::{
    any::Any,
    io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use worker::Worker;

/// What is served.
pub trait DataService: Send + Sync + 'static {
    /// Whether to let an initiator in. Must not wait.
    fn hello(&self, hello: &Hello, address: SocketAddr) -> Result<Welcome, Refusal>;

    /// A peer was let in.
    fn opened(&self, peer: &DataPeer) {
        let _ = peer;
    }

    /// Answers a request, or says who will. Runs on the thread of the connection, which serves nobody else meanwhile: must not wait for a
    /// disk, nor for the network.
    fn call(&self, peer: &DataPeer, request: RequestRef<'_>) -> Answer;

    /// A peer that was let in is gone.
    fn gone(&self, peer: &DataPeer, why: &ConnectionError) {
        let _ = (peer, why);
    }

    /// The epoch of the member list that frames carry.
    fn epoch(&self) -> u32 {
        0
    }
}

/// How a request is answered.
pub enum Answer {
    /// With this.
    Now(Payload),
    /// Not.
    Failed(Failure),
    /// By this future, which runs on the runtime and is dropped when the request is cancelled or its peer goes.
    Later(BoxFuture<'static, Result<Payload, Failure>>),
}

/// A connected peer that was let in.
#[derive(Clone, Debug)]
pub struct DataPeer {
    /// Of all connections of this server it is this one; none gets the number again.
    pub number: u64,
    /// What it said.
    pub hello: Hello,
    /// Where it connected from.
    pub address: SocketAddr,
    kept: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl DataPeer {
    fn new(number: u64, hello: Hello, address: SocketAddr) -> Self {
        Self { number, hello, address, kept: OnceLock::new() }
    }

    /// Keeps what a service has of this peer, if nothing is kept yet: found again without a lock.
    pub fn keep<T: Any + Send + Sync>(&self, own: T) {
        let _ = self.kept.set(Arc::new(own));
    }

    /// What is kept.
    pub fn kept<T: Any>(&self) -> Option<&T> {
        self.kept.get()?.downcast_ref()
    }
}

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct DataServerOptions {
    /// Threads, at least 1.
    pub threads: usize,
    /// Most connections at once.
    pub connections_max: usize,
    /// A peer that takes nothing of what waits for it for so long is gone: what waits may keep places on a disk.
    pub stall_max: Duration,
    /// What is used.
    pub techniques: Techniques,
    /// Settings of each connection.
    pub connection: Options,
}

impl Default for DataServerOptions {
    /// A thread sends some 50 Gbit/s from the page cache, so few are needed: half of the cores, at most 8. Two at least: while one is in
    /// the kernel with a megabyte for one peer, others would wait for it with cores idle.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: (cores / 2).clamp(2, 8),
            connections_max: 4096,
            stall_max: Duration::from_secs(30),
            techniques: Techniques::default(),
            connection: Options::default(),
        }
    }
}

/// A listening socket and the threads that serve its connections.
pub struct DataServer {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    inboxes: Vec<Arc<Inbox>>,
    stats: Vec<Shared>,
    accepting: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl DataServer {
    /// Listens on `address`, where port 0 is any free one, and serves until it is dropped. What is answered later runs on `runtime`.
    pub fn bind<D: DataService>(
        address: SocketAddr,
        service: Arc<D>,
        options: DataServerOptions,
        clock: Arc<dyn Clock>,
        runtime: tokio::runtime::Handle,
    ) -> io::Result<Self> {
        let listener = Arc::new(TcpListener::bind(address)?);
        let address = listener.local_addr()?;
        let (mut inboxes, mut stats, mut workers) = (Vec::new(), Vec::new(), Vec::new());
        let connections = Arc::new(AtomicUsize::new(0));
        for index in 0..options.threads.max(1) {
            let worker =
                Worker::new(service.clone(), options.clone(), clock.clone(), runtime.clone(), connections.clone())?;
            inboxes.push(worker.inbox());
            stats.push(worker.stats());
            let named = std::thread::Builder::new().name(format!("sluice-data-{index}"));
            workers.push(named.spawn(move || worker.run())?);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (taken, told) = (listener.clone(), stop.clone());
        let acceptor = Acceptor { listener: taken, inboxes: inboxes.clone(), stop: told, connections, options };
        let accepting = std::thread::Builder::new().name("sluice-accept".into()).spawn(move || acceptor.run())?;
        Ok(Self { address, listener, inboxes, stats, accepting: Some(accepting), workers, stop })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts of all threads since the start.
    pub fn stats(&self) -> PortStats {
        self.stats.iter().fold(PortStats::default(), |sum, stats| sum.plus(&stats.read()))
    }

    /// Takes no more connections and requests, lets what is under way end for `grace` at most, then ends. Blocks.
    pub fn shutdown(mut self, grace: Duration) {
        self.end(grace);
    }

    fn end(&mut self, grace: Duration) {
        self.stop.store(true, Ordering::Release);
        // Wakes it out of accept, also where there is no descriptor left for a connection to it.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.inboxes.iter().for_each(|inbox| inbox.push(Message::Close { grace }));
        self.workers.drain(..).chain(self.accepting.take()).for_each(|thread| drop(thread.join()));
    }
}

impl Drop for DataServer {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

struct Acceptor {
    listener: Arc<TcpListener>,
    inboxes: Vec<Arc<Inbox>>,
    stop: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    options: DataServerOptions,
}

impl Acceptor {
    /// Gives connections to the threads in turn, each round from the next one on: peers connect small and bulk lanes by turns, and no thread
    /// shall have the bulk lanes of all. Those beyond the limit are closed without a word.
    fn run(self) {
        /// After a failed accept, most likely for lack of file descriptors.
        const RETRY: Duration = Duration::from_millis(100);
        let mut next = 0;
        loop {
            let accepted = self.listener.accept();
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            match accepted {
                Ok((stream, address)) => {
                    if self.connections.fetch_add(1, Ordering::AcqRel) >= self.options.connections_max {
                        self.connections.fetch_sub(1, Ordering::AcqRel);
                        tracing::debug!(%address, "too many connections");
                        continue;
                    }
                    let threads = self.inboxes.len();
                    self.inboxes[(next + next / threads) % threads].push(Message::Connection(stream.into(), address));
                    next += 1;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    std::thread::park_timeout(RETRY);
                }
            }
        }
    }
}
