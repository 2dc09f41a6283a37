//! Requests whose answer is with somebody else ([`Answer::Away`]): a thread waits for it.
//!
//! The thread is the reactor itself as long as another one looks after the device, which nobody else does for those of a ring, and nothing else waits for this one: then the
//! answer costs no change of threads but those of the wait. Otherwise it is one of tokio's blocking pool. Either writes the
//! answer to the device by itself, unless a ring has the request: its reactor then does.

use crate::channel::Way;
use crate::counters::add;
use crate::handler::{Answer, Handler};
use crate::later;
use crate::reactor::Peer;
use crate::reply::ReplyBuffer;
use crate::request::Request;
use crate::session::Shared;
use sluice_base::Errno;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// A thread of the pool keeps the memory of replies up to this size.
const REPLY_KEPT_BYTES_MAX: usize = 64 << 10;

/// A reactor that does not look after the device, until this is dropped.
pub(crate) struct Absent<'a> {
    shared: &'a Shared,
    peer: &'a Peer,
}

impl<'a> Absent<'a> {
    /// `None` when the reactor is needed: it is the last one or a ring's, it has answers to pass on, or the session ends.
    pub(crate) fn begin(shared: &'a Shared, peer: &'a Peer) -> Option<Self> {
        let mut running = shared.running.lock();
        // An answer that a task brings would have to wait as well.
        if shared.has_rings || *running < 2 || peer.later.load(SeqCst) > 0 || shared.stop.load(SeqCst) {
            return None;
        }
        *running -= 1;
        peer.absent.store(true, SeqCst);
        shared.spares.begin(shared);
        Some(Self { shared, peer })
    }
}

impl Drop for Absent<'_> {
    /// It is back, unless the session has ended without it.
    fn drop(&mut self) {
        self.shared.spares.end();
        let mut running = self.shared.running.lock();
        if !self.shared.stop.load(SeqCst) {
            *running += 1;
            self.peer.absent.store(false, SeqCst);
        }
    }
}

/// The answer to `request`, which was away, into `reply`; only on a thread that may wait.
pub(crate) fn find(handler: &dyn Handler, peer: &Peer, request: &Request<'_>, reply: &mut ReplyBuffer) -> Answer {
    reply.clear();
    match catch_unwind(AssertUnwindSafe(|| handler.handle_waiting(request, reply))) {
        // Such a request always has an answer, and does not have to be asked again.
        Ok(Answer::None | Answer::Away | Answer::Interruptible(_)) => Answer::Error(Errno::EIO),
        Ok(answer) => answer,
        Err(_) => {
            tracing::error!(nodeid = request.nodeid, "the handler panicked; the request ends with EIO");
            add(&peer.counters.panics);
            Answer::Error(Errno::EIO)
        }
    }
}

/// Notes that a thread will answer `unique`, which goes this `way`, so that INTERRUPT finds it.
pub(crate) fn enter(shared: &Arc<Shared>, peer: &Arc<Peer>, unique: u64, way: Way) {
    if shared.waiting.enter_thread(unique, way) {
        give_up(shared, peer, unique);
    }
}

/// Lets the caller of `unique`, who got a signal, go after the grace, if there is no answer by then. The thread goes on.
pub(crate) fn give_up(shared: &Arc<Shared>, peer: &Arc<Peer>, unique: u64) {
    let (shared, peer) = (Arc::clone(shared), Arc::clone(peer));
    shared.runtime.clone().spawn(async move {
        tokio::time::sleep(shared.interrupt_grace).await;
        if let Some((way, _)) = shared.waiting.take_thread(unique) {
            way.answer(&peer, unique, Errno::EINTR.0, &[]);
        }
    });
}

/// Has the request in `bytes` answered by a thread of the blocking pool. Tokio bounds these threads, the reactor's limit of later
/// requests those that wait for one.
pub(crate) fn spawn(shared: &Arc<Shared>, peer: &Arc<Peer>, unique: u64, way: Way, bytes: Vec<u8>) {
    peer.later.fetch_add(1, SeqCst);
    enter(shared, peer, unique, way);
    let asked = Asked { shared: Arc::clone(shared), peer: Arc::clone(peer), unique };
    shared.runtime.spawn_blocking(move || asked.answer(&bytes));
}

/// A request that is on its way to a thread, or there. It is answered with EIO when the thread never comes.
struct Asked {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    unique: u64,
}

impl Asked {
    fn answer(self, bytes: &[u8]) {
        thread_local! {
            /// A megabyte of address space, of which a thread touches what its replies need.
            static REPLY: RefCell<ReplyBuffer> = RefCell::default();
        }
        let Ok(request) = Request::parse(bytes) else { return };
        REPLY.with_borrow_mut(|reply| match find(&*self.shared.handler, &self.peer, &request, reply) {
            Answer::Done => {
                self.send(0, reply.body());
                // There are many such threads, and few large replies: what one touched is given back.
                if reply.body().len() > REPLY_KEPT_BYTES_MAX {
                    *reply = ReplyBuffer::default();
                }
            }
            Answer::Error(errno) => self.send(errno.0, &[]),
            Answer::Later(future) | Answer::Soon(future) => {
                if let Some((_, interrupted)) = self.shared.waiting.take_thread(self.unique) {
                    later::begin(&self.shared, &self.peer, self.unique, future, interrupted);
                }
            }
            Answer::None | Answer::Away | Answer::Interruptible(_) => {}
        });
    }

    /// Answers, if nobody has.
    fn send(&self, error: i32, body: &[u8]) {
        if let Some((way, _)) = self.shared.waiting.take_thread(self.unique) {
            way.answer(&self.peer, self.unique, error, body);
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.send(Errno::EIO.0, &[]);
        self.peer.later_ended(&self.shared.pause);
    }
}
