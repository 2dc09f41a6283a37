//! The file system behind a session.

use crate::companion::Companion;
use crate::device::Backings;
use crate::reply::{Body, ReplyBuffer};
use crate::request::Request;
use sluice_base::Errno;
use std::pin::Pin;

/// What a [`Answer::Later`] ends with.
pub type LateReply = Result<Body, Errno>;

/// Answers requests. FORGET, BATCH_FORGET, INIT, INTERRUPT and DESTROY never reach [`Handler::handle`].
pub trait Handler: Send + Sync + 'static {
    /// Runs on the reactor thread that read the request, which serves nobody else meanwhile. Must not block on the
    /// network or on fsync: return [`Answer::Later`] for that. A panic is answered with EIO.
    fn handle(&self, request: &Request<'_>, reply: &mut ReplyBuffer) -> Answer;

    /// As [`Handler::handle`], for a request that it answered with [`Answer::Away`]: runs on a thread that serves nobody else,
    /// and may wait for the network.
    fn handle_waiting(&self, request: &Request<'_>, reply: &mut ReplyBuffer) -> Answer {
        self.handle(request, reply)
    }

    /// What the reactor that asks has for itself, if there is anything; each one asks once, before it starts.
    fn companion(&self) -> Option<Box<dyn Companion>> {
        None
    }

    /// The mount is there, before its first request is answered; `backings` where the kernel agreed to [`crate::Config::passthrough`].
    fn started(&self, backings: Option<Backings>) {
        let _ = backings;
    }

    /// The kernel dropped `lookups` of the references that entry replies gave it on `nodeid`.
    fn forget(&self, nodeid: u64, lookups: u64);

    /// The mount is gone (umount, DESTROY, or the connection was aborted). Called once, after the last request.
    fn destroyed(&self);
}

/// How [`Handler::handle`] ended.
pub enum Answer {
    /// The reply buffer holds the body; an untouched one is the empty success.
    Done,
    /// The operation failed. Numbers outside 1..=511, which the kernel refuses, are sent as EIO.
    Error(Errno),
    /// No reply is due.
    None,
    /// The answer is not at hand: [`Handler::handle_waiting`] has to find it. The reply buffer counts as untouched.
    Away,
    /// The result comes from this future, which is spawned on tokio. It is dropped when the caller was interrupted and
    /// the grace period is over, so work that must not stop half-way belongs in a task of its own.
    Later(Pin<Box<dyn Future<Output = LateReply> + Send>>),
    /// As [`Answer::Later`], for a future that needs no runtime and has little to do once it is woken: whoever wakes it polls it, on his own
    /// thread, which saves a task.
    Soon(Pin<Box<dyn Future<Output = LateReply> + Send>>),
    /// As [`Answer::Later`], for what may take for ever: it is told when the caller was interrupted, and then ends soon by itself.
    Interruptible(Interruptible),
}

/// A future that is never dropped before its end, made from the one that resolves when its caller is interrupted.
pub type Interruptible = Box<dyn FnOnce(Interrupted) -> Pin<Box<dyn Future<Output = LateReply> + Send>> + Send>;
/// Resolves when the caller of a request got a signal, else never.
pub type Interrupted = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Answer {
    /// Boxes `future` into [`Answer::Later`].
    pub fn later(future: impl Future<Output = LateReply> + Send + 'static) -> Self {
        Answer::Later(Box::pin(future))
    }
}
