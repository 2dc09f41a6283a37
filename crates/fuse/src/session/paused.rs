//! A session that takes no requests, so that another process can go on with its mount.

use super::Session;
use crate::abi::flags::init as flag;
use crate::device::Device;
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
    /// Somebody has to be waited for.
    #[error(
        "requests were still under way after {} s, perhaps because the store does not answer; try again",
        .0.as_secs()
    )]
    Busy(Duration),
}

/// A mount that takes no requests, until this is dropped.
pub struct Paused<'a> {
    session: &'a Session,
    device: Arc<Device>,
    _held: MutexGuard<'a, ()>,
}

impl Paused<'_> {
    /// What the kernel's side of the mount is bound to.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Ends the session without the mount, which lives on as long as somebody has the device.
    pub fn leave(self) {
        self.session.shared.left.store(true, SeqCst);
        self.session.shared.end();
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.session.shared.pause.end();
    }
}

impl Session {
    /// Whether the mount went on in another process: it ended here, and did not end.
    pub fn has_left(&self) -> bool {
        self.shared.left.load(SeqCst)
    }

    /// Takes no further request and waits, at most `limit`, until none is under way. What programs ask meanwhile waits in the kernel.
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
        let paused = Paused { session: self, device, _held: held };
        let left = limit.saturating_sub(clock.monotonic() - began);
        match self.shared.pause.begin(&self.shared.peers, left) {
            _ if self.shared.stop.load(SeqCst) => Err(PauseError::Over),
            true => Ok(paused),
            false => Err(PauseError::Busy(limit)),
        }
    }
}
