//! One mount and the threads that serve it.

use crate::abi::MIN_READ_BUFFER;
use crate::counters::Counts;
use crate::device::{Device, Written};
use crate::handler::Handler;
use crate::init::{InitError, Negotiated, negotiate};
use crate::later::Inbox;
use crate::mount::{self, MountError, MountOptions, Mounted};
use crate::notify::{self, Notifier};
use crate::reactor::{self, Reactor};
use crate::request::{Operation, Request};
use crate::waiting::Waiting;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};
use zerocopy::IntoBytes;

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct Config {
    /// The mount itself.
    pub mount: MountOptions,
    /// Reactor threads; `None` is twice the cores, between 2 and 8, since a reactor may be copying a megabyte.
    pub reactors: Option<usize>,
    /// Largest WRITE in bytes, at most 1 MiB.
    pub max_write: u32,
    /// Largest readahead in bytes; the mount's device is raised to it when permitted.
    pub max_readahead: u32,
    /// Requests in the background (readahead, asynchronous direct I/O) before the kernel holds further ones back.
    pub max_background: u16,
    /// From here on the kernel calls the mount congested and readahead backs off.
    pub congestion_threshold: u16,
    /// Record locks and flock stay in the kernel, between the programs of this mount only.
    pub kernel_locks: bool,
    /// The kernel keeps to POSIX ACLs; the handler stores them as system.posix_acl_* and applies umask and default ACLs.
    pub posix_acl: bool,
    /// How long a later request may still finish after its caller got a signal.
    pub interrupt_grace: Duration,
    /// Requests answered later in flight at once, over all reactors; at the limit they stop taking requests.
    pub later_max: usize,
    /// Notifications queued for the kernel.
    pub notify_queue: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mount: MountOptions::default(),
            reactors: None,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 256,
            congestion_threshold: 192,
            kernel_locks: true,
            posix_acl: false,
            interrupt_grace: Duration::from_secs(1),
            later_max: 4096,
            notify_queue: 1024,
        }
    }
}

/// Why a session did not start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum StartError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Init(#[from] InitError),
    #[error("the kernel sent no INIT within {} s", INIT_WAIT.as_secs())]
    NoInit,
    #[error("starting the FUSE session: {0}")]
    Io(#[from] io::Error),
}

/// INIT is queued by mount(2) itself, so any wait is for the scheduler.
const INIT_WAIT: Duration = Duration::from_secs(10);

/// A mounted file system. Dropping it unmounts by force: programs that still use it get ENOTCONN.
pub struct Session {
    path: PathBuf,
    shared: Arc<Shared>,
    negotiated: Negotiated,
    notifier: Notifier,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of a session share.
pub(crate) struct Shared {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) interrupt_grace: Duration,
    /// Every reactor ends.
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) peers: Vec<Arc<reactor::Peer>>,
    /// Reactors that have not ended and look after the device.
    pub(crate) running: Mutex<usize>,
    ended: Condvar,
    notifier: Notifier,
}

impl Session {
    /// Mounts at `mountpoint` and serves requests with `handler`, whose later answers run on `runtime`.
    pub fn start(
        config: &Config,
        mountpoint: &Path,
        handler: Arc<dyn Handler>,
        runtime: tokio::runtime::Handle,
    ) -> Result<Self, StartError> {
        let Mounted { device, path } = mount::mount(mountpoint, &config.mount)?;
        let guard = Unmount(&path);
        let negotiated = shake_hands(&device, config)?;
        let stop = Arc::new(AtomicBool::new(false));
        let device = Arc::new(device);
        let notifier = notify::start(Arc::clone(&device), config.notify_queue, Arc::clone(&stop))?;
        let count = config.reactors.unwrap_or_else(|| cores().saturating_mul(2).min(8)).max(2);
        let later_max = config.later_max.div_ceil(count).max(1);
        let peer = |_| Ok(Arc::new(reactor::Peer::new(Inbox::new()?, later_max)));
        let peers = (0..count).map(peer).collect::<io::Result<Vec<_>>>()?;
        let shared = Arc::new(Shared {
            handler,
            runtime,
            waiting: Arc::default(),
            interrupt_grace: config.interrupt_grace,
            stop,
            peers,
            running: Mutex::new(count),
            ended: Condvar::new(),
            notifier: notifier.clone(),
        });
        let threads = start_reactors(&shared, &device, negotiated)?;
        std::mem::forget(guard);
        if let Err(error) = mount::raise_read_ahead(&path, negotiated.max_readahead / 1024) {
            tracing::info!(%error, "readahead stays at the kernel's default: raising it needs root");
        }
        Ok(Self { path, shared, negotiated, notifier, threads })
    }

    /// Blocks until the mount is gone and its last request answered, but for those that wait for others.
    pub fn wait(&self) {
        let mut running = self.shared.running.lock();
        while *running > 0 {
            self.shared.ended.wait(&mut running);
        }
    }

    /// Unmounts. When not lazy, fails with [`MountError::Busy`] while files are open. Follow with [`Self::wait`].
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        mount::unmount(&self.path, lazy)
    }

    /// Whether the mount is gone.
    pub fn is_over(&self) -> bool {
        *self.shared.running.lock() == 0
    }

    /// Sends cache notifications.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// What INIT agreed on.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// The mount point, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Requests served so far.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.shared.peers.iter().for_each(|peer| counts.add(&peer.counters));
        counts
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_over() {
            mount::force(&self.path);
            // The force of an ordinary user detaches only; closing every descriptor of the device then does the rest.
            self.shared.end();
        }
        for (thread, peer) in self.threads.drain(..).zip(&self.shared.peers) {
            // From the end on no other one leaves.
            let absent = {
                let _running = self.shared.running.lock();
                peer.absent.load(SeqCst)
            };
            // A handler may own the session; its own thread cannot be waited for, nor one that waits for others.
            if thread.thread().id() != thread::current().id() && !absent {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    /// Asks every thread to end.
    pub(crate) fn end(&self) {
        self.stop.store(true, SeqCst);
        self.peers.iter().for_each(|peer| peer.inbox.wake());
    }

    /// A reactor has ended, and with the first all must; the last one tells the handler.
    fn reactor_ended(&self, peer: &reactor::Peer) {
        self.end();
        let mut running = self.running.lock();
        if peer.absent.load(SeqCst) {
            return;
        }
        if *running == 1 {
            self.notifier.stop();
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.handler.destroyed()));
            if told.is_err() {
                tracing::error!("the handler panicked while the session ended");
            }
        }
        *running -= 1;
        self.ended.notify_all();
    }
}

/// Takes a mount away again when the start fails after it.
struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        mount::force(self.0);
    }
}

/// Reports the end of a reactor even when it panicked.
struct Ended(Arc<Shared>, Arc<reactor::Peer>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.reactor_ended(&self.1);
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A clone of its own for a reactor; where users may not open /dev/fuse themselves, the one that fusermount3 passed.
fn clone_or_share(device: &Arc<Device>) -> Arc<Device> {
    device.try_clone().map(Arc::new).unwrap_or_else(|error| {
        tracing::info!(%error, "reactors share one channel to the kernel: /dev/fuse cannot be opened again");
        Arc::clone(device)
    })
}

fn start_reactors(
    shared: &Arc<Shared>,
    device: &Arc<Device>,
    negotiated: Negotiated,
) -> io::Result<Vec<JoinHandle<()>>> {
    let count = shared.peers.len();
    let mut reactors = Vec::with_capacity(count);
    for (index, peer) in shared.peers.iter().enumerate() {
        let device = if index == 0 { Arc::clone(device) } else { clone_or_share(device) };
        reactors.push(Reactor::new(Arc::clone(shared), Arc::clone(peer), device, negotiated.max_write)?);
    }
    let mut threads = Vec::with_capacity(count);
    for (index, mut reactor) in reactors.into_iter().enumerate() {
        let ended = Ended(Arc::clone(shared), Arc::clone(&shared.peers[index]));
        threads.push(thread::Builder::new().name(format!("sluice-fuse-{index}")).spawn(move || {
            let _ended = ended;
            reactor.run();
        })?);
    }
    Ok(threads)
}

/// Answers INIT, which is the first request of every mount.
fn shake_hands(device: &Device, config: &Config) -> Result<Negotiated, StartError> {
    let mut buffer = vec![0; MIN_READ_BUFFER];
    loop {
        let wait = Timespec { tv_sec: INIT_WAIT.as_secs() as i64, tv_nsec: 0 };
        match poll(&mut [PollFd::new(device, PollFlags::IN)], Some(&wait)) {
            Ok(0) => return Err(StartError::NoInit),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let len = match device.read(&mut buffer) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => continue,
            Err(error) => return Err(io::Error::from(error).into()),
        };
        let Ok(Request { unique, operation: Operation::Init(init), .. }) = Request::parse(&buffer[..len]) else {
            return Err(StartError::NoInit);
        };
        return match negotiate(config, &init) {
            Ok((out, negotiated)) => match device.reply(unique, 0, [out.as_bytes()].into_iter()) {
                Written::Taken => Ok(negotiated),
                _ => Err(StartError::NoInit),
            },
            Err(error) => {
                device.reply(unique, Errno::PROTO.raw_os_error(), std::iter::empty());
                Err(error.into())
            }
        };
    }
}
