//! Where a reactor's requests come from and its answers go: a channel of /dev/fuse, or the entries of a ring.

use crate::counters::add;
use crate::device::{Device, Written};
use crate::later::{Completion, Inbox};
use crate::memory::PageBuffer;
use crate::reactor::Peer;
use crate::reply::{Body, ReplyBuffer};
use crate::ring::{Fetched, Ring};
use bytes::Bytes;
use rustix::event::epoll;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno as Raw;
use rustix::time::Timespec;
use sluice_base::{Clock, Errno, SystemClock};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;

/// One reactor's.
pub(crate) enum Channel {
    Device(DeviceChannel),
    Ring(Box<Ring>),
}

/// What a reactor finds when it looks for a request.
pub(crate) enum Next {
    /// Its place in the request buffer.
    Request(Range<usize>),
    /// Nothing that the reactor has to do with; there may be more.
    Nothing,
    /// The channel has nothing.
    Idle,
    /// It is gone.
    Over,
}

impl Channel {
    /// The next request, read into `requests` from `at` on if it has to be.
    pub(crate) fn next(&mut self, requests: &mut PageBuffer, at: usize, reply: &mut ReplyBuffer) -> Next {
        match self {
            Self::Device(channel) => channel.next(requests, at),
            Self::Ring(ring) => match ring.next(requests, at, reply) {
                Fetched::Request(place) => Next::Request(place),
                Fetched::Malformed => Next::Nothing,
                Fetched::Nothing => Next::Idle,
                Fetched::Over => Next::Over,
            },
        }
    }

    /// The turn over a request ends: its buffers are free for the next one.
    pub(crate) fn settle(&mut self, requests: &mut PageBuffer, reply: &mut ReplyBuffer) {
        if let Self::Ring(ring) = self {
            ring.settle(requests, reply);
        }
    }

    /// Answers `unique` with `error`, or if that is 0 with what `reply` has.
    pub(crate) fn answer(&mut self, peer: &Peer, unique: u64, error: i32, reply: &ReplyBuffer) -> Written {
        match self {
            Self::Ring(ring) if ring.is_current(unique) => {
                ring.answer_current(sound(error));
                Written::Taken
            }
            _ => {
                let body = if error == 0 { reply.body() } else { &[] };
                self.send(peer, unique, error, Some(body).into_iter().filter(|body| !body.is_empty()))
            }
        }
    }

    /// Answers `unique`, which is not the request at hand where the channel is a ring, with `error` or with `pieces`.
    pub(crate) fn send<'a>(
        &mut self,
        peer: &Peer,
        unique: u64,
        error: i32,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Written {
        match self {
            Self::Device(channel) => peer.send(&channel.device, unique, error, pieces),
            Self::Ring(ring) => {
                if ring.answer(unique, sound(error), pieces) {
                    return Written::Taken;
                }
                add(&peer.counters.replies_lost);
                Written::Unwanted
            }
        }
    }

    /// The device, if that is where answers go, which then may be regions of files and pipes.
    pub(crate) fn device(&self) -> Option<&Device> {
        match self {
            Self::Device(channel) => Some(&channel.device),
            Self::Ring(_) => None,
        }
    }

    /// How somebody else brings the answer to a request that came over this channel.
    pub(crate) fn way(&self, peer: &Arc<Peer>) -> Way {
        match self {
            Self::Device(channel) => Way::Device(channel.device.clone()),
            Self::Ring(_) => Way::Ring(peer.clone()),
        }
    }

    /// Whether the request at hand may wait for as long as it likes.
    pub(crate) fn may_be_patient(&mut self) -> bool {
        match self {
            Self::Device(_) => true,
            Self::Ring(ring) => ring.may_be_patient(),
        }
    }

    /// Sends answers that are still on their way.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Device(_) => Ok(()),
            Self::Ring(ring) => Ok(ring.flush()?),
        }
    }

    /// Waits for requests, if more are `wanted`, for what is put into `inbox`, and for `companion` to be readable, which will be `soon`.
    pub(crate) fn wait(
        &mut self,
        wanted: bool,
        inbox: &Inbox,
        companion: Option<BorrowedFd<'_>>,
        soon: bool,
    ) -> io::Result<()> {
        match self {
            Self::Device(channel) => channel.wait(wanted, inbox, soon),
            Self::Ring(ring) => Ok(ring.wait(inbox, companion)?),
        }
    }

    /// Lowers the event of `inbox` if it was raised, and tells whether the companion's descriptor became readable.
    pub(crate) fn take_events(&mut self, inbox: &Inbox) -> bool {
        let (inbox_is_ready, companion_is_ready) = match self {
            Self::Device(channel) => {
                (std::mem::take(&mut channel.inbox_is_ready), std::mem::take(&mut channel.companion_is_ready))
            }
            Self::Ring(ring) => (ring.take_inbox(), ring.take_companion()),
        };
        if inbox_is_ready {
            inbox.lower();
        }
        companion_is_ready
    }
}

/// Numbers that the kernel refuses are EIO.
pub(crate) fn sound(error: i32) -> i32 {
    if (0..512).contains(&error) { error } else { Errno::EIO.0 }
}

/// How the answer to a request comes to the kernel from a thread that is no reactor, or not the request's.
#[derive(Clone)]
pub(crate) enum Way {
    /// By itself, over this device.
    Device(Arc<Device>),
    /// By this reactor, whose ring has the request.
    Ring(Arc<Peer>),
}

impl Way {
    /// Answers `unique` with `error`, or if that is 0 with `body`.
    pub(crate) fn answer(&self, peer: &Peer, unique: u64, error: i32, body: &[u8]) {
        match self {
            Self::Device(device) => {
                peer.send(device, unique, error, Some(body).into_iter().filter(|body| !body.is_empty()));
            }
            Self::Ring(owner) => {
                let outcome = match error {
                    0 => Ok(Body::from(Bytes::copy_from_slice(body))),
                    error => Err(Errno(error)),
                };
                // The reactor counts what it takes out of its inbox down.
                owner.later.fetch_add(1, SeqCst);
                owner.inbox.push(Completion { unique, outcome });
            }
        }
    }
}

/// A reactor whose last wait was shorter than this looks so long before it sleeps: to be woken costs it, and whoever wakes it, about as
/// much, above all in a virtual machine, where it takes an interrupt from another processor. Threads that want the core have it
/// meanwhile.
const LINGER: Duration = Duration::from_micros(50);

/// How many reactors look for requests at a time, beside those that have answers under way: half of the cores, so that who asks for
/// something finds one of the others.
pub(crate) struct Lingering {
    now: AtomicUsize,
    max: usize,
}

impl Lingering {
    pub(crate) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { now: AtomicUsize::new(0), max: cores / 2 }
    }

    fn begin(&self) -> bool {
        let is_one = self.now.fetch_add(1, Relaxed) < self.max;
        if !is_one {
            self.end();
        }
        is_one
    }

    fn end(&self) {
        self.now.fetch_sub(1, Relaxed);
    }
}

/// A channel of the device, and what is waited for beside it.
pub(crate) struct DeviceChannel {
    device: Arc<Device>,
    epoll: OwnedFd,
    /// The device is in the epoll set.
    listening: bool,
    inbox_is_ready: bool,
    companion_is_ready: bool,
    clock: SystemClock,
    lingers: bool,
    lingering: Arc<Lingering>,
}

const DEVICE: u64 = 0;
const INBOX: u64 = 1;
const COMPANION: u64 = 2;

impl DeviceChannel {
    /// Of a reactor that waits for requests from the start if `listens`.
    pub(crate) fn new(
        device: Arc<Device>,
        inbox: &Inbox,
        companion: Option<BorrowedFd<'_>>,
        lingering: Arc<Lingering>,
        listens: bool,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &inbox.event, epoll::EventData::new_u64(INBOX), epoll::EventFlags::IN)?;
        if let Some(descriptor) = companion {
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(COMPANION), epoll::EventFlags::IN)?;
        }
        let (inbox_is_ready, companion_is_ready) = (false, false);
        let (clock, lingers) = (SystemClock::default(), false);
        let listening = false;
        let mut channel =
            Self { device, epoll, listening, inbox_is_ready, companion_is_ready, clock, lingers, lingering };
        channel.listen(listens)?;
        Ok(channel)
    }

    fn next(&mut self, requests: &mut PageBuffer, at: usize) -> Next {
        match self.device.read(&mut requests.bytes_mut()[at..]) {
            Ok(len) => Next::Request(at..at + len),
            Err(Raw::AGAIN) => Next::Idle,
            // ENOENT: the request was interrupted while it was being read.
            Err(Raw::INTR | Raw::NOENT) => Next::Nothing,
            Err(Raw::NODEV | Raw::CONNABORTED) => Next::Over,
            Err(error) => {
                tracing::error!(%error, "reading /dev/fuse failed");
                Next::Over
            }
        }
    }

    fn wait(&mut self, wanted: bool, inbox: &Inbox, soon: bool) -> io::Result<()> {
        self.listen(wanted)?;
        if !inbox.fall_asleep() {
            return Ok(());
        }
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 3];
        let (began, now) = (self.clock.monotonic(), Timespec { tv_sec: 0, tv_nsec: 0 });
        let mut waited = Ok(0);
        let is_one = self.lingers && !soon && self.lingering.begin();
        self.lingers &= soon || is_one;
        while self.lingers && waited == Ok(0) {
            waited = epoll::wait(&self.epoll, &mut events, Some(&now));
            if waited == Ok(0) {
                std::thread::yield_now();
            }
            self.lingers = self.clock.monotonic() < began + LINGER;
        }
        if is_one {
            self.lingering.end();
        }
        if waited == Ok(0) {
            waited = epoll::wait(&self.epoll, &mut events, None);
        }
        self.lingers = self.clock.monotonic() < began + LINGER;
        inbox.awake();
        match waited {
            Ok(count) => {
                let is_ready = |key| events[..count].iter().any(|event| event.data.u64() == key);
                self.inbox_is_ready = is_ready(INBOX);
                self.companion_is_ready = is_ready(COMPANION);
                Ok(())
            }
            Err(Raw::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts the device into the epoll set or takes it out: an EPOLLEXCLUSIVE entry cannot be modified.
    fn listen(&mut self, on: bool) -> io::Result<()> {
        if on != self.listening {
            if on {
                let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
                epoll::add(&self.epoll, &*self.device, epoll::EventData::new_u64(DEVICE), flags)?;
            } else {
                epoll::delete(&self.epoll, &*self.device)?;
            }
            self.listening = on;
        }
        Ok(())
    }
}
