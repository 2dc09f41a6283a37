//! One mount and the threads that serve it.

mod paused;

pub use paused::{CHANNELS_MAX, PauseError, Paused};

use crate::abi::MIN_READ_BUFFER;
use crate::abi::flags::init as flag;
use crate::channel::Lingering;
use crate::counters::Counts;
use crate::device::{Backings, Device, Written};
use crate::handler::Handler;
use crate::init::{InitError, Negotiated, negotiate};
use crate::later::{Inbox, Parked};
use crate::mount::{self, MountError, MountOptions, Mounted};
use crate::notify::{self, Notifier};
use crate::pause::Pause;
use crate::pipes::{self, Pipes, Transfer};
use crate::reactor::{self, Reactor, Source};
use crate::request::{Operation, Request};
use crate::ring::{self, RingOptions};
use crate::spares::Spares;
use crate::uring::Commands;
use crate::waiting::Waiting;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};
use zerocopy::IntoBytes;

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct Config {
    /// The mount itself.
    pub mount: MountOptions,
    /// Reactor threads, at least 2; `None` follows the cores, see [`Config::reactors_for`]. With rings there are [`RingOptions::threads`] in
    /// their place, and one more for what does not come through rings.
    pub reactors: Option<usize>,
    /// Of these the ones that always look after the device; the others do only while some wait for somebody else. `None`: all.
    pub steady: Option<usize>,
    /// FUSE over io_uring, where the kernel has it and lets us.
    pub ring: Option<RingOptions>,
    /// The handler may give files to the kernel to read by itself.
    pub passthrough: bool,
    /// Each reactor stays on one core: reactor n on the nth of those that the process may use.
    pub pin: bool,
    /// How the bytes of READs go to the kernel.
    pub transfer: Transfer,
    /// Page slots that each pipe of a reactor is meant to have; the kernel may grant fewer (fs.pipe-max-size).
    pub pipe_slots: usize,
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
            steady: None,
            ring: None,
            passthrough: false,
            pin: false,
            transfer: Transfer::default(),
            pipe_slots: pipes::SLOTS,
            max_write: 1 << 20,
            max_readahead: 2 << 20,
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

impl Config {
    /// Reactors for a machine of so many cores: twice as many up to 8, since one may be copying a megabyte or waiting for a disk; from
    /// 32 cores on a fourth of them, up to 16: each copies some 5 GB/s, and more only take requests from one another.
    pub fn reactors_for(cores: usize) -> usize {
        cores.saturating_mul(2).min(8).max(cores / 4).clamp(2, 16)
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
    #[error(
        "the kernel agreed to FUSE over io_uring and then refused a ring ({0}); mount without it, by way of /dev/fuse"
    )]
    Ring(io::Error),
    #[error("starting the FUSE session: {0}")]
    Io(#[from] io::Error),
}

/// INIT is queued by mount(2) itself, so any wait is for the scheduler.
const INIT_WAIT: Duration = Duration::from_secs(10);

/// A mounted file system. Dropping it unmounts by force: programs that still use it get ENOTCONN.
pub struct Session {
    path: PathBuf,
    /// Not held by this value: when every reactor has ended the kernel is to know.
    device: Weak<Device>,
    shared: Arc<Shared>,
    negotiated: Negotiated,
    notifier: Notifier,
    ring_bytes: usize,
    threads: Vec<JoinHandle<()>>,
}

/// A mount that another process has served until now.
pub struct LeftMount {
    /// Its device, and further channels of it.
    pub devices: Vec<OwnedFd>,
    /// What INIT agreed on.
    pub negotiated: Negotiated,
    /// Requests that are to be asked again, each through its channel.
    pub parked: Vec<Parked>,
}

/// What the threads of a session share.
pub(crate) struct Shared {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) interrupt_grace: Duration,
    /// Every reactor ends.
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) pause: Pause,
    /// The mount goes on in another process.
    left: AtomicBool,
    pub(crate) peers: Vec<Arc<reactor::Peer>>,
    /// Requests come through rings, whose reactors cannot stand in for one another.
    pub(crate) has_rings: bool,
    /// Reactors that have not ended and wait for nobody.
    pub(crate) running: Mutex<usize>,
    pub(crate) spares: Spares,
    pub(crate) lingering: Arc<Lingering>,
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
        let rings = prepare_rings(config);
        let config = &Config { ring: config.ring.filter(|_| !rings.is_empty()), ..config.clone() };
        let negotiated = shake_hands(&device, config)?;
        let rings = if negotiated.flags & flag::OVER_IO_URING != 0 { rings } else { without(rings) };
        let devices = vec![Arc::new(device)];
        let session = Self::serve(config, &path, (devices, negotiated), Vec::new(), rings, handler, runtime)?;
        std::mem::forget(guard);
        if let Err(error) = mount::raise_read_ahead(&path, negotiated.max_readahead / 1024) {
            tracing::info!(%error, "readahead stays at the kernel's default: raising it needs root");
        }
        Ok(session)
    }

    /// Serves the mount at `mountpoint` that another process has served until now. Without rings and passthrough.
    pub fn resume(
        config: &Config,
        mountpoint: &Path,
        left: LeftMount,
        handler: Arc<dyn Handler>,
        runtime: tokio::runtime::Handle,
    ) -> Result<Self, StartError> {
        let config = &Config { ring: None, passthrough: false, ..config.clone() };
        let LeftMount { devices, negotiated, parked } = left;
        let devices = devices.into_iter().map(|device| Ok(Arc::new(Device::adopt(device)?)));
        let devices = devices.collect::<io::Result<Vec<_>>>()?;
        Self::serve(config, mountpoint, (devices, negotiated), parked, Vec::new(), handler, runtime)
    }

    fn serve(
        config: &Config,
        path: &Path,
        (devices, negotiated): (Vec<Arc<Device>>, Negotiated),
        parked: Vec<Parked>,
        rings: Vec<Commands>,
        handler: Arc<dyn Handler>,
        runtime: tokio::runtime::Handle,
    ) -> Result<Self, StartError> {
        let stop = Arc::new(AtomicBool::new(false));
        let device = devices.first().cloned().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let backings = (negotiated.flags & flag::PASSTHROUGH != 0).then(|| Backings(Arc::clone(&device)));
        if config.passthrough && backings.is_none() {
            tracing::warn!("this kernel has no FUSE passthrough (Linux 6.9): files are read without");
        }
        handler.started(backings);
        let notifier = notify::start(Arc::clone(&device), config.notify_queue, Arc::clone(&stop))?;
        let of_device = match rings.is_empty() {
            true => config.reactors.unwrap_or_else(|| Config::reactors_for(cores())).max(2).max(devices.len()),
            false => 1,
        };
        let later_max = config.later_max.div_ceil(of_device).max(1);
        // What a ring has under way is bounded by its entries.
        let peer = |index| {
            let later_max = if index < of_device { later_max } else { usize::MAX };
            Ok(Arc::new(reactor::Peer::new(Inbox::new()?, later_max)))
        };
        let count = of_device + rings.len();
        let peers = (0..count).map(peer).collect::<io::Result<Vec<_>>>()?;
        for parked in parked {
            let channel = usize::from(parked.channel);
            let owner = peers
                .get(channel)
                .filter(|_| channel < devices.len())
                .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
            owner.park(parked);
        }
        let shared = Arc::new(Shared {
            handler,
            runtime,
            waiting: Arc::default(),
            interrupt_grace: config.interrupt_grace,
            stop,
            pause: Pause::default(),
            left: AtomicBool::new(false),
            peers,
            has_rings: !rings.is_empty(),
            running: Mutex::new(count),
            spares: Spares::new(config.steady.unwrap_or(count).max(2)),
            lingering: Arc::new(Lingering::new()),
            ended: Condvar::new(),
            notifier: notifier.clone(),
        });
        let ring_bytes = rings.iter().map(Commands::entries).sum::<usize>() * RingOptions::entry_bytes();
        // Those that were started must not serve a mount that nobody has.
        let threads = start_reactors(&shared, devices, rings, negotiated, config).inspect_err(|_| shared.end())?;
        let device = Arc::downgrade(&device);
        Ok(Self { path: path.into(), device, shared, negotiated, notifier, ring_bytes, threads })
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

    /// Bytes of address space of the rings' entries, 0 without rings; those that were used once are resident.
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes
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
        self.pause.end();
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

/// Keeps this thread on one of the cores that it may use.
fn stay_on_core(index: usize) {
    let pinned = sched_getaffinity(None).and_then(|allowed| {
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
        let mut one = CpuSet::new();
        one.set(cores[index % cores.len().max(1)]);
        sched_setaffinity(None, &one)
    });
    if let Err(error) = pinned {
        tracing::warn!(%error, "a reactor cannot be kept on one core");
    }
}

/// A clone of its own for a reactor; where users may not open /dev/fuse themselves, the one that fusermount3 passed.
fn clone_or_share(device: &Arc<Device>) -> Arc<Device> {
    device.try_clone().map(Arc::new).unwrap_or_else(|error| {
        tracing::info!(%error, "reactors share one channel to the kernel: /dev/fuse cannot be opened again");
        Arc::clone(device)
    })
}

/// The rings that `config` asks for; none when the kernel has no io_uring for us.
fn prepare_rings(config: &Config) -> Vec<Commands> {
    let Some(options) = config.ring else { return Vec::new() };
    ring::prepare(options).unwrap_or_else(|error| {
        tracing::warn!(%error, "FUSE over io_uring: no ring can be made, requests come over /dev/fuse");
        Vec::new()
    })
}

/// No rings, since the kernel did not agree to them.
fn without(rings: Vec<Commands>) -> Vec<Commands> {
    if !rings.is_empty() {
        tracing::warn!("FUSE over io_uring: {}. Requests come over /dev/fuse", ring::why_not_offered());
    }
    Vec::new()
}

/// Returns when each of them is ready: the kernel holds all requests back until every ring is registered.
fn start_reactors(
    shared: &Arc<Shared>,
    devices: Vec<Arc<Device>>,
    rings: Vec<Commands>,
    negotiated: Negotiated,
    config: &Config,
) -> Result<Vec<JoinHandle<()>>, StartError> {
    let of_device = shared.peers.len() - rings.len();
    let Some(device) = devices.first() else { return Err(io::Error::from(io::ErrorKind::InvalidInput).into()) };
    let has_own = |index| devices.get(index).map_or_else(|| clone_or_share(device), Arc::clone);
    let mut sources: Vec<Source> = (0..of_device).map(|index| Source::Device(has_own(index))).collect();
    sources.extend(rings.into_iter().map(|ring| Source::Ring(Box::new(ring), Arc::clone(device))));
    let mut threads = Vec::with_capacity(sources.len());
    let (ready, are_ready) = mpsc::channel();
    for (index, source) in sources.into_iter().enumerate() {
        let (shared, peer, ready) = (Arc::clone(shared), Arc::clone(&shared.peers[index]), ready.clone());
        let pipes = Pipes::new(config.transfer, config.pipe_slots);
        // A ring is the only one that takes the requests of its core.
        let is_spare = !shared.has_rings && index >= shared.spares.first();
        // Each ring has its core; the one that looks after the device beside them goes wherever there is room.
        let core = if shared.has_rings { index.checked_sub(of_device) } else { Some(index) };
        let core = core.filter(|_| config.pin);
        threads.push(thread::Builder::new().name(format!("sluice-fuse-{index}")).spawn(move || {
            let _ended = Ended(Arc::clone(&shared), Arc::clone(&peer));
            if let Some(core) = core {
                stay_on_core(core);
            }
            let is_ring = matches!(source, Source::Ring(..));
            match Reactor::new(shared, peer, source, negotiated.max_write, pipes, is_spare) {
                Ok(mut reactor) => {
                    let _ = ready.send(Ok(()));
                    drop(ready);
                    reactor.run();
                }
                Err(error) => {
                    let _ = ready.send(Err(if is_ring { StartError::Ring(error) } else { error.into() }));
                }
            }
        })?);
    }
    drop(ready);
    are_ready.iter().collect::<Result<(), StartError>>()?;
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
