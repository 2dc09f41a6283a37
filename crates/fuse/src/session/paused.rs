//! A session that takes no requests, so that another process can go on with its mount.

use super::Session;
use crate::abi::flags::init as flag;
use crate::device::Device;
use crate::later::Parked;
use crate::request::Request;
use parking_lot::MutexGuard;
use rustix::fd::{AsFd, BorrowedFd};
use sluice_base::{Clock, SystemClock};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Why a mount cannot be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PauseError {
    /// The kernel's queues belong to the process that made them.
    #[error("its requests come through io_uring (--fuse-transport uring), which cannot be handed on")]
    Ring,
    /// The files that the kernel reads by itself belong to the connection, and would never be given back.
    #[error("it lets the kernel read files by itself (--passthrough), which cannot be handed on")]
    Passthrough,
    /// It has ended.
    #[error("it is ending")]
    Over,
    /// Another process would not know what the kernel was not told.
    #[error("the kernel had to be told of changes by other mounts; try again")]
    Telling,
    /// Somebody has to be waited for.
    #[error(
        "requests were still under way after {} s, perhaps because the store or the volume's server does not answer; try again",
        .0.as_secs()
    )]
    Busy(Duration),
}

/// A mount that takes no requests, until this is dropped.
pub struct Paused<'a> {
    session: &'a Session,
    devices: Vec<Arc<Device>>,
    parked: Vec<Parked>,
    _held: MutexGuard<'a, ()>,
}

/// The most channels that are handed over: the kernel passes 253 descriptors at once.
pub const CHANNELS_MAX: usize = 128;

impl Paused<'_> {
    /// What the kernel's side of the mount is bound to: its device, and each further channel of it that a request came through which was put
    /// aside.
    pub fn devices(&self) -> Vec<BorrowedFd<'_>> {
        self.devices.iter().map(|device| device.as_fd()).collect()
    }

    /// Whether the kernel was told all that it has to be told.
    pub fn is_settled(&self) -> bool {
        !self.session.notifier.has_more()
    }

    /// Requests that wait for others' locks, put aside: they are asked again, here or by the next process.
    pub fn parked(&self) -> &[Parked] {
        &self.parked
    }

    /// Looks which requests were put aside, and through which channels they came; false when those are too many.
    fn gather(&mut self) -> bool {
        for peer in &self.session.shared.peers {
            let parked = peer.parked();
            let Some(device) = peer.device.get().and_then(|device| device.upgrade()).filter(|_| !parked.is_empty())
            else {
                continue;
            };
            let known = self.devices.iter().position(|known| Arc::ptr_eq(known, &device));
            let channel = known.unwrap_or(self.devices.len());
            if known.is_none() {
                self.devices.push(device);
            }
            let waiting = &self.session.shared.waiting;
            self.parked.extend(parked.into_iter().map(|parked| {
                let unique = Request::parse(&parked.request).map(|request| request.unique);
                let interrupted = parked.interrupted || unique.is_ok_and(|unique| waiting.has_early(unique));
                Parked { channel: channel as u16, interrupted, ..parked }
            }));
        }
        self.devices.len() <= CHANNELS_MAX
    }

    /// Ends the session without the mount, which lives on as long as somebody has the device.
    pub fn leave(self) {
        self.session.shared.left.store(true, SeqCst);
        self.session.shared.end();
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let shared = &self.session.shared;
        shared.waiting.park(false);
        shared.pause.end();
        // Some may have put something aside and did not rest.
        shared.peers.iter().for_each(|peer| peer.inbox.wake());
    }
}

impl Session {
    /// Whether the mount went on in another process: it ended here, and did not end.
    pub fn has_left(&self) -> bool {
        self.shared.left.load(SeqCst)
    }

    /// Takes no further request and waits, at most `limit`, until none is under way but those that are put aside. What programs ask meanwhile waits in
    /// the kernel.
    pub fn pause(&self, limit: Duration) -> Result<Paused<'_>, PauseError> {
        if self.shared.has_rings {
            return Err(PauseError::Ring);
        }
        if self.negotiated.flags & flag::PASSTHROUGH != 0 {
            return Err(PauseError::Passthrough);
        }
        let clock = SystemClock::default();
        let began = clock.monotonic();
        // Before the reactors rest: the kernel may wait for an answer of theirs until it has done what it was told.
        let held = self.notifier.hold(limit).ok_or(PauseError::Busy(limit))?;
        let device = self.device.upgrade().ok_or(PauseError::Over)?;
        let mut paused = Paused { session: self, devices: vec![device], parked: Vec::new(), _held: held };
        self.shared.waiting.park(true);
        let left = limit.saturating_sub(clock.monotonic() - began);
        match self.shared.pause.begin(&self.shared.peers, left) {
            _ if self.shared.stop.load(SeqCst) => Err(PauseError::Over),
            true if !paused.gather() => Err(PauseError::Busy(limit)),
            true if !paused.is_settled() => Err(PauseError::Telling),
            true => Ok(paused),
            false => Err(PauseError::Busy(limit)),
        }
    }
}
