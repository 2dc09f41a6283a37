//! Requests that tasks answer after the reactor went on.
//!
//! Each has a [`Ticket`] in its task, which brings the outcome to the reactor that took the request, or to the kernel at once
//! ([`Direct`]), whatever happens to the task, and a place in [`Waiting`], where INTERRUPT finds it.

use crate::handler::{Interruptible, LateReply};
use crate::reactor::{Peer, pieces, sendable};
use crate::session::Shared;
use crate::waiting::Waiting;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use sluice_base::Errno;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::oneshot;

/// The answer to a request.
type LateFuture = Pin<Box<dyn Future<Output = LateReply> + Send>>;

/// An outcome on its way to the reactor.
pub(crate) struct Completion {
    pub(crate) unique: u64,
    pub(crate) outcome: LateReply,
}

/// A reactor's queue of completions. Its length is bounded by the reactor's limit of later requests.
pub(crate) struct Inbox {
    queue: Mutex<Vec<Completion>>,
    /// The reactor is in, or about to enter, epoll_wait: whoever adds to the queue must wake it.
    asleep: AtomicBool,
    pub(crate) event: OwnedFd,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { queue: Mutex::default(), asleep: AtomicBool::new(false), event })
    }

    pub(crate) fn push(&self, completion: Completion) {
        self.queue.lock().push(completion);
        // Ordered against `fall_asleep` by the lock: either that one sees the completion, or this one sees `asleep`.
        if self.asleep.swap(false, SeqCst) {
            self.wake();
        }
    }

    /// Moves what is there into `into`.
    pub(crate) fn drain(&self, into: &mut Vec<Completion>) {
        into.append(&mut self.queue.lock());
    }

    /// Whether the reactor may wait: nothing is queued, and from now on its event is raised for what comes.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.asleep.store(true, SeqCst);
        let empty = self.queue.lock().is_empty();
        if !empty {
            self.asleep.store(false, SeqCst);
        }
        empty
    }

    /// The reactor runs again.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, SeqCst);
    }

    /// Raises the event.
    pub(crate) fn wake(&self) {
        // The counter cannot overflow: it is read on every wake.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Lowers the event.
    pub(crate) fn lower(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}

/// Where whoever has the outcome answers himself, over the peer's device, which spares him to wake the reactor. Nothing here keeps a mount whose
/// reactors have ended.
struct Direct {
    shared: Weak<Shared>,
    peer: Arc<Peer>,
}

impl Direct {
    fn answer(self, unique: u64, outcome: LateReply) {
        if let Some(device) = self.peer.device.get().and_then(Weak::upgrade) {
            let (error, body) = sendable(outcome);
            self.peer.send(&device, unique, error, pieces(&body));
        }
        if let Some(shared) = self.shared.upgrade() {
            self.peer.later_ended(&shared.pause);
        }
    }
}

/// Brings exactly one completion: EIO when the task panicked or the runtime was shut down.
struct Ticket {
    inbox: Arc<Inbox>,
    direct: Option<Direct>,
    waiting: Arc<Waiting>,
    unique: u64,
    /// Nothing, when somebody else answers.
    outcome: Option<LateReply>,
}

impl Ticket {
    fn settle(mut self, outcome: LateReply) {
        self.outcome = Some(outcome);
    }

    fn give_back(mut self, park: impl FnOnce()) {
        self.outcome = None;
        // First, so that it is not known when it is asked again.
        self.waiting.leave(self.unique);
        park();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(outcome) = self.outcome.take() else { return };
        self.waiting.leave(self.unique);
        match self.direct.take() {
            Some(direct) => direct.answer(self.unique, outcome),
            None => self.inbox.push(Completion { unique: self.unique, outcome }),
        }
    }
}

/// Runs `future`, the answer to `unique`, whose outcome goes to `peer`.
pub(crate) fn begin(shared: &Shared, peer: &Peer, unique: u64, future: LateFuture, interrupted: bool) {
    peer.later.fetch_add(1, SeqCst);
    spawn(&shared.runtime, future, unique, (&peer.inbox, &shared.waiting), shared.interrupt_grace);
    if interrupted {
        shared.waiting.interrupt(unique);
    }
}

/// Runs `future` on `runtime`; its outcome, or EINTR when it was interrupted and then took longer than `grace`, goes
/// to `inbox`.
pub(crate) fn spawn(
    runtime: &tokio::runtime::Handle,
    future: LateFuture,
    unique: u64,
    (inbox, waiting): (&Arc<Inbox>, &Arc<Waiting>),
    grace: Duration,
) {
    let interrupted = waiting.enter(unique);
    let (inbox, waiting) = (Arc::clone(inbox), Arc::clone(waiting));
    let ticket = Ticket { inbox, direct: None, waiting, unique, outcome: Some(Err(Errno::EIO)) };
    runtime.spawn(async move {
        let outcome = with_grace(future, interrupted, grace).await;
        ticket.settle(outcome);
    });
}

/// As [`begin`], for a future that is polled here and by whoever wakes it, who answers where the request came over a device.
pub(crate) fn begin_soon(shared: &Arc<Shared>, peer: &Arc<Peer>, unique: u64, future: LateFuture) {
    peer.later.fetch_add(1, SeqCst);
    let direct = peer.device.get().map(|_| Direct { shared: Arc::downgrade(shared), peer: peer.clone() });
    let route = (&peer.inbox, direct, &shared.waiting);
    attend(&shared.runtime, future, unique, route, shared.interrupt_grace);
}

/// As [`spawn`], without a task: `runtime` is for what is interrupted.
fn attend(
    runtime: &tokio::runtime::Handle,
    future: LateFuture,
    unique: u64,
    (inbox, direct, waiting): (&Arc<Inbox>, Option<Direct>, &Arc<Waiting>),
    grace: Duration,
) {
    let interrupted = waiting.enter(unique);
    let (inbox, waiting) = (Arc::clone(inbox), Arc::clone(waiting));
    let ticket = Ticket { inbox, direct, waiting, unique, outcome: Some(Err(Errno::EIO)) };
    let state = Mutex::new(Some(Attended { future, interrupted, ticket }));
    Arc::new(Attendant { state, wakes: AtomicUsize::new(0), runtime: runtime.clone(), grace }).wake();
}

/// Polls one future, until it is interrupted: then a task waits for the rest of its time.
struct Attendant {
    state: Mutex<Option<Attended>>,
    /// Since the poll under way began, that one included: it may be woken by another thread, or its own, meanwhile.
    wakes: AtomicUsize,
    runtime: tokio::runtime::Handle,
    grace: Duration,
}

struct Attended {
    future: LateFuture,
    interrupted: oneshot::Receiver<()>,
    ticket: Ticket,
}

impl Wake for Attendant {
    fn wake(self: Arc<Self>) {
        if self.wakes.fetch_add(1, SeqCst) > 0 {
            return;
        }
        let mut seen = 1;
        loop {
            self.poll();
            let before = self.wakes.fetch_sub(seen, SeqCst);
            if before == seen {
                return;
            }
            seen = before - seen;
        }
    }
}

impl Attendant {
    fn poll(self: &Arc<Self>) {
        let Some(mut attended) = self.state.lock().take() else { return };
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        // Whoever wakes has work of his own to go on with. A ticket that is dropped says EIO.
        let polled = catch_unwind(AssertUnwindSafe(|| attended.future.as_mut().poll(&mut context)));
        match polled {
            Err(_) => tracing::error!("the answer to a request panicked"),
            Ok(Poll::Ready(outcome)) => attended.ticket.settle(outcome),
            Ok(Poll::Pending) => match Pin::new(&mut attended.interrupted).poll(&mut context) {
                Poll::Pending => *self.state.lock() = Some(attended),
                Poll::Ready(_) => {
                    let (grace, Attended { future, ticket, .. }) = (self.grace, attended);
                    self.runtime.spawn(async move { ticket.settle(within_grace(future, grace).await) });
                }
            },
        }
    }
}

/// A request that waits for as long as it takes and is answered by whoever goes on with the mount, or by this process later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// Which of the channels that are handed over it came through: only there an answer to it is taken.
    pub channel: u16,
    /// Its caller got a signal.
    pub interrupted: bool,
    /// As the kernel sent it.
    pub request: Vec<u8>,
}

/// Runs what `begin` makes to its end, which it hastens when it is interrupted; or, when that is to be put aside, drops it and gives
/// `park` the request.
pub(crate) fn spawn_interruptible(
    runtime: &tokio::runtime::Handle,
    begin: Interruptible,
    unique: u64,
    (inbox, waiting): (&Arc<Inbox>, &Arc<Waiting>),
    park: impl FnOnce() + Send + 'static,
) {
    let (interrupted, parked) = waiting.enter_patient(unique);
    let (inbox, waiting) = (Arc::clone(inbox), Arc::clone(waiting));
    let ticket = Ticket { inbox, direct: None, waiting, unique, outcome: Some(Err(Errno::EIO)) };
    let interrupted = Box::pin(async move {
        if interrupted.await.is_err() {
            std::future::pending().await
        }
    });
    runtime.spawn(async move {
        tokio::select! {
            biased;
            outcome = begin(interrupted) => ticket.settle(outcome),
            Ok(()) = parked => ticket.give_back(park),
        }
    });
}

async fn with_grace(mut future: LateFuture, interrupted: oneshot::Receiver<()>, grace: Duration) -> LateReply {
    tokio::select! {
        biased;
        outcome = &mut future => return outcome,
        Ok(()) = interrupted => {}
    }
    within_grace(future, grace).await
}

/// What is left of an interrupted one. Many programs take EINTR from a regular file for a failure, and the signal may be a mere timer.
async fn within_grace(future: LateFuture, grace: Duration) -> LateReply {
    tokio::time::timeout(grace, future).await.unwrap_or(Err(Errno::EINTR))
}

#[cfg(test)]
mod tests;
