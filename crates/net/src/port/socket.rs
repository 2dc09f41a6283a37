//! The system calls of a lane, the only ones of this crate that need unsafe code.

#![allow(unsafe_code)]

use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    io::Errno,
    net::{AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, ipproto, sockopt},
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec},
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    time::Duration,
};

/// A TCP socket that never blocks.
pub(super) struct Socket(OwnedFd);

impl Socket {
    /// Takes one that was accepted.
    pub(super) fn accepted(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Self::ready(fd)
    }

    /// Begins to connect; the socket is writable once it has, or has failed.
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match rustix::net::connect(&fd, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => Self::ready(fd),
            Err(error) => Err(error.into()),
        }
    }

    fn ready(fd: OwnedFd) -> io::Result<Self> {
        sockopt::set_tcp_nodelay(&fd, true)?;
        Ok(Self(fd))
    }

    /// Why connecting failed, if it did.
    pub(super) fn error(&self) -> io::Result<()> {
        Ok(sockopt::socket_error(&self.0)??)
    }

    pub(super) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.0, buffer)
    }

    /// Fills `first`, then `second`.
    pub(super) fn read_both(&self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::readv(&self.0, &mut [IoSliceMut::new(first), IoSliceMut::new(second)])
    }

    /// Moves what has come into a pipe.
    pub(super) fn splice_to(&self, pipe: BorrowedFd<'_>, len: usize) -> Result<usize, Errno> {
        use rustix::pipe::SpliceFlags as Flags;
        rustix::pipe::splice(&self.0, None, pipe, None, len, Flags::NONBLOCK | Flags::MOVE)
    }

    /// Bytes that have come and were not read.
    pub(super) fn waiting(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.0).unwrap_or(0)
    }

    /// `more`: the kernel may wait for what follows at once.
    pub(super) fn write(&self, slices: &[IoSlice<'_>], more: bool) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
        rustix::net::sendmsg(&self.0, slices, &mut SendAncillaryBuffer::default(), flags)
    }

    /// Sends a file's bytes without reading them.
    pub(super) fn send_file(&self, file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<usize, Errno> {
        let mut offset = offset;
        rustix::fs::sendfile(&self.0, file, Some(&mut offset), len)
    }

    /// From now on it is readable with so many bytes, or at its end (SO_RCVLOWAT, socket(7)). The kernel enlarges the receive buffer so
    /// that they fit twice (tcp_set_rcvlowat).
    pub(super) fn set_low_water(&self, bytes: usize) {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        let size = size_of_val(&bytes) as libc::socklen_t;
        // SAFETY: the descriptor is open, the option takes an int, and the pointer is to one for the duration of the call. A failure
        // costs wake-ups and nothing else.
        unsafe {
            libc::setsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const bytes).cast(), size)
        };
    }

    pub(super) fn shutdown(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a thread waits for.
pub(super) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    wake: OwnedFd,
}

/// Data of the timer's and the wake-up's events; those of lanes are below.
pub(super) const TIMER: u64 = u64::MAX;
pub(super) const WAKE: u64 = u64::MAX - 1;
/// Events of one turn.
pub(super) const EVENTS_MAX: usize = 64;

/// What happened to a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) key: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        Ok(Self { epoll, timer, wake })
    }

    /// Watches a descriptor.
    pub(super) fn add(&self, fd: impl AsFd, key: u64, interest: (bool, bool)) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(key), flags(interest))?)
    }

    /// Changes what is watched of it: (readable, writable).
    pub(super) fn change(&self, fd: impl AsFd, key: u64, interest: (bool, bool)) {
        if let Err(error) = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(key), flags(interest)) {
            tracing::error!(%error, "a socket cannot be watched");
        }
    }

    /// Rings after `wait`, or never again.
    pub(super) fn set_timer(&self, wait: Option<Duration>) {
        // A value of zero would disarm it.
        let value = wait.map_or(Duration::ZERO, |wait| wait.max(Duration::from_nanos(1)));
        let value = Timespec { tv_sec: value.as_secs() as i64, tv_nsec: value.subsec_nanos().into() };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never, it_value: value };
        let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
    }

    /// A descriptor for whoever wakes this thread.
    pub(super) fn waker(&self) -> io::Result<Waker> {
        Ok(Waker(self.wake.try_clone()?))
    }

    /// Lowers the events that are this poller's own.
    pub(super) fn lower(&self, key: u64) {
        let _ = rustix::io::read(if key == TIMER { &self.timer } else { &self.wake }, &mut [0u8; 8]);
    }

    /// Waits, at most so long, `None` for ever; returns how many of `ready` are filled.
    pub(super) fn wait(&self, within: Option<Duration>, ready: &mut [Ready; EVENTS_MAX]) -> io::Result<usize> {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; EVENTS_MAX];
        let within = within.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
        let count = match epoll::wait(&self.epoll, &mut events[..], within.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for (ready, event) in ready.iter_mut().zip(&events[..count]) {
            use epoll::EventFlags as Flags;
            let (flags, key) = (event.flags, event.data.u64());
            // An error or a hang-up shows at the next read or write, whichever comes.
            let failed = flags.intersects(Flags::ERR | Flags::HUP);
            let readable = failed || flags.intersects(Flags::IN | Flags::RDHUP);
            *ready = Ready { key, readable, writable: failed || flags.contains(Flags::OUT) };
        }
        Ok(count)
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn flags((reads, writes): (bool, bool)) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    if reads {
        flags |= epoll::EventFlags::IN;
    }
    if writes {
        flags |= epoll::EventFlags::OUT;
    }
    flags
}

/// Wakes a thread out of [`Poller::wait`].
pub(super) struct Waker(OwnedFd);

impl Waker {
    pub(super) fn wake(&self) {
        // The counter cannot overflow: it is read at every wake-up.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}
