//! Requests that are answered after the reactor went on.
//!
//! Each has a [`Ticket`] in its task, which brings the outcome to the reactor that took the request, whatever happens
//! to the task, and a place in [`Waiting`], where INTERRUPT finds it.

use crate::handler::{Answer, Handler, Interruptible, LateReply};
use crate::reply::{Body, ReplyBuffer};
use crate::request::Request;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use sluice_base::Errno;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::oneshot;

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

    fn push(&self, completion: Completion) {
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

/// Brings exactly one completion: EIO when the task panicked or the runtime was shut down.
struct Ticket {
    inbox: Arc<Inbox>,
    waiting: Arc<Waiting>,
    unique: u64,
    outcome: LateReply,
}

impl Ticket {
    fn settle(mut self, outcome: LateReply) {
        self.outcome = outcome;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.waiting.leave(self.unique);
        let outcome = std::mem::replace(&mut self.outcome, Err(Errno::EIO));
        self.inbox.push(Completion { unique: self.unique, outcome });
    }
}

/// INTERRUPTs remembered that came for no known request. The kernel may send one before the reactor with the request
/// itself has come to [`Waiting::enter`]; the numbers are never used again, so old ones do no harm.
const EARLY_MAX: usize = 64;

/// All later requests of a session by number.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<Interrupts>);

#[derive(Default)]
struct Interrupts {
    known: HashMap<u64, oneshot::Sender<()>>,
    early: VecDeque<u64>,
}

impl Waiting {
    fn enter(&self, unique: u64) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut interrupts = self.0.lock();
        if let Some(index) = interrupts.early.iter().position(|&early| early == unique) {
            interrupts.early.remove(index);
            let _ = sender.send(());
        } else {
            interrupts.known.insert(unique, sender);
        }
        receiver
    }

    fn leave(&self, unique: u64) {
        self.0.lock().known.remove(&unique);
    }

    /// The caller of `unique` got a signal.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut interrupts = self.0.lock();
        if let Some(sender) = interrupts.known.remove(&unique) {
            let _ = sender.send(());
        } else {
            if interrupts.early.len() == EARLY_MAX {
                interrupts.early.pop_front();
            }
            interrupts.early.push_back(unique);
        }
    }
}

/// Runs `future` on `runtime`; its outcome, or EINTR when it was interrupted and then took longer than `grace`, goes
/// to `inbox`.
pub(crate) fn spawn(
    runtime: &tokio::runtime::Handle,
    future: Pin<Box<dyn Future<Output = LateReply> + Send>>,
    unique: u64,
    (inbox, waiting): (&Arc<Inbox>, &Arc<Waiting>),
    grace: Duration,
) {
    let interrupted = waiting.enter(unique);
    let (inbox, waiting) = (Arc::clone(inbox), Arc::clone(waiting));
    let ticket = Ticket { inbox, waiting, unique, outcome: Err(Errno::EIO) };
    runtime.spawn(async move {
        let outcome = with_grace(future, interrupted, grace).await;
        ticket.settle(outcome);
    });
}

/// Runs what `begin` makes to its end, which it hastens when it is interrupted.
pub(crate) fn spawn_interruptible(
    runtime: &tokio::runtime::Handle,
    begin: Interruptible,
    unique: u64,
    (inbox, waiting): (&Arc<Inbox>, &Arc<Waiting>),
) {
    let interrupted = waiting.enter(unique);
    let (inbox, waiting) = (Arc::clone(inbox), Arc::clone(waiting));
    let ticket = Ticket { inbox, waiting, unique, outcome: Err(Errno::EIO) };
    let interrupted = Box::pin(async move {
        if interrupted.await.is_err() {
            std::future::pending().await
        }
    });
    runtime.spawn(async move {
        let outcome = begin(interrupted).await;
        ticket.settle(outcome);
    });
}

/// The answer to the request in `bytes` from a thread that may wait. Tokio bounds these threads, the sessions' limit of later
/// requests those that wait for one.
pub(crate) fn waiting(handler: Arc<dyn Handler>, bytes: Vec<u8>) -> Pin<Box<dyn Future<Output = LateReply> + Send>> {
    Box::pin(async move {
        let answer = tokio::task::spawn_blocking(move || answer_waiting(&*handler, &bytes));
        match answer.await.map_err(|_| Errno::EIO)?? {
            Waited::Body(body) => Ok(body),
            Waited::Later(future) => future.await,
        }
    })
}

enum Waited {
    Body(Body),
    Later(Pin<Box<dyn Future<Output = LateReply> + Send>>),
}

fn answer_waiting(handler: &dyn Handler, bytes: &[u8]) -> Result<Waited, Errno> {
    thread_local! {
        /// A megabyte of address space, of which a thread touches what its replies need.
        static REPLY: RefCell<ReplyBuffer> = RefCell::default();
    }
    let request = Request::parse(bytes).map_err(|_| Errno::EIO)?;
    REPLY.with_borrow_mut(|reply| {
        reply.clear();
        match handler.handle_waiting(&request, reply) {
            Answer::Done => Ok(Waited::Body(reply.body().to_vec().into())),
            Answer::Error(errno) => Err(errno),
            Answer::Later(future) => Ok(Waited::Later(future)),
            // Such a one never has to be asked for again.
            Answer::None | Answer::Away | Answer::Interruptible(_) => Err(Errno::EIO),
        }
    })
}

async fn with_grace(
    mut future: Pin<Box<dyn Future<Output = LateReply> + Send>>,
    interrupted: oneshot::Receiver<()>,
    grace: Duration,
) -> LateReply {
    tokio::select! {
        biased;
        outcome = &mut future => return outcome,
        Ok(()) = interrupted => {}
    }
    // Many programs take EINTR from a regular file for a failure, and the signal may be a mere timer.
    tokio::time::timeout(grace, future).await.unwrap_or(Err(Errno::EINTR))
}

#[cfg(test)]
mod tests;
