//! What others tell a thread.

use crate::{
    Failure,
    port::socket::{Poller, Waker},
};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use sluice_wire::{Payload, RequestId};
use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

pub(super) enum Message {
    /// A connection for this thread.
    Connection(OwnedFd, SocketAddr),
    /// A later answer to a request of the connection with this place and number.
    Answered { place: usize, number: u64, id: RequestId, answer: Result<Payload, Failure> },
    /// No more is taken.
    Close { grace: Duration },
}

/// Bounded by what it is told: connections, and requests of connections.
pub(super) struct Inbox {
    queue: Mutex<Vec<Message>>,
    told: AtomicBool,
    waker: Waker,
}

impl Inbox {
    pub(super) fn new(poller: &Poller) -> io::Result<Self> {
        Ok(Self { queue: Mutex::default(), told: AtomicBool::new(false), waker: poller.waker()? })
    }

    pub(super) fn push(&self, message: Message) {
        self.queue.lock().push(message);
        // One wake-up for all that come until the thread looks.
        if !self.told.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Moves what is there to `into`.
    pub(super) fn drain(&self, into: &mut Vec<Message>) {
        self.told.store(false, Ordering::Release);
        into.append(&mut self.queue.lock());
    }
}
