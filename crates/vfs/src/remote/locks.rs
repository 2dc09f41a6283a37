//! Locks of files, which the server keeps for all mounts. docs/metadata-rpc.md, "Locks", has the rules of both sides.
//!
//! A lock that is free costs one question. One that is not is waited for without a thread: the server holds its answer, up to
//! [`HELD_MAX`] of them, beyond which calls ask again now and then. Before a lock is given up what was written is published, and a new
//! one is told to its program only when the kernel has dropped what others have changed: so a lock orders reads and writes between
//! mounts as it does within one.
//!
//! What the programs hold is in the [`Book`]. When the server's knowledge of it is in doubt (it was restarted, or the lease ended) it
//! is asserted again before anything else about locks is asked. If it has been lost, the handles through which it was taken fail.

mod book;
mod state;

pub use book::{Book, OWN_CALLS};
pub use state::{BookState, LockedHandle};

use super::Remote;
use crate::{Failure, HandleId, may_wait};
use book::{Noted, Standing};
use futures::future::{BoxFuture, Either, select};
use sluice_base::{Errno, Ino};
use sluice_meta::{
    Error, Result,
    rpc::{
        LockKind, LockMode, LockRange,
        message::{AssertLocks, Invalidation, Lock, LockAnswer, LockInTheWay, LockTest, Renew, TestLock},
    },
};
use sluice_run::time::{sleep, timeout};
use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

/// Calls whose answers the server holds: each keeps one of the 64 requests of a connection under way.
const HELD_MAX: usize = 16;
/// Programs that wait for locks: each keeps a request of the kernel open.
const WAITING_MAX: usize = 1024;
/// How long an answer may be held before it is asked for again.
const HELD_TIME: Duration = Duration::from_secs(60);
/// Time for an answer that is not held.
const ANSWER_TIME: Duration = Duration::from_secs(15);
/// Between questions of a call whose answer is not held.
const ASK_INTERVAL: Duration = Duration::from_millis(250);
/// Between questions about what is settled in a moment.
const MOMENT: Duration = Duration::from_millis(5);
/// How often a lock is tried again that a close is about to free.
const CLOSING_TRIES: usize = 20;
/// How long a call that waits for nobody's lock may still finish after its program was interrupted.
const GRACE: Duration = Duration::from_secs(1);
/// How long an interrupted program waits for the server to hear of it.
const WITHDRAW_TIME: Duration = Duration::from_secs(1);

/// Waits until the kernel has dropped what it was told to.
pub type OnLocked = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// A lock that a program wants.
#[derive(Clone, Copy, Debug)]
pub struct LockCall {
    /// The file.
    pub ino: Ino,
    /// Through which handle.
    pub handle: HandleId,
    /// Which kind.
    pub kind: LockKind,
    /// Whose.
    pub owner: u64,
    /// Of which bytes.
    pub range: LockRange,
    /// How.
    pub mode: LockMode,
    /// The process.
    pub pid: u32,
    /// Names this call among all that the front end may still ask for, by a number below 2^63: the server then knows it again when another process of
    /// the mount asks.
    pub call: u64,
}

impl LockCall {
    fn message(&self, attempt: u64, wait: bool) -> Lock {
        let LockCall { ino, kind, owner, range, mode, pid, call, .. } = *self;
        Lock { ino, kind, owner, range, mode: Some(mode), pid, attempt, call: call & !OWN_CALLS, wait }
    }
}

/// How one try ended.
enum Tried {
    Done(std::result::Result<(), Errno>),
    Busy,
    /// Nothing is known: try again.
    Again,
    /// Try again in a moment.
    Grace,
}

impl Remote {
    /// Whom to ask, before a program is told that it has a lock, whether the kernel has dropped what others changed.
    pub fn on_locked(&self, settled: OnLocked) {
        *self.locks.settled.lock() = Some(settled);
    }

    /// Takes a lock, or changes one. With `wait` it may take for ever, and ends with EINTR when `interrupted` does.
    pub async fn lock(
        self: Arc<Self>,
        call: LockCall,
        wait: bool,
        interrupted: BoxFuture<'static, ()>,
    ) -> std::result::Result<(), Errno> {
        // Others may have what this one is about to share.
        if self.pending.has(call.ino) {
            self.on_a_thread(move |remote| remote.publish_file(call.ino)).await.map_err(errno)?;
        }
        let done = {
            let tried = async {
                // A call that is asked again, as it is by the next process of a mount, keeps its place among those who wait only if it goes on
                // waiting.
                let waits_at_once = wait && self.locks.held.load(SeqCst) < HELD_MAX;
                let first = if waits_at_once { Tried::Busy } else { self.try_lock(&call, false).await };
                match first {
                    Tried::Done(done) => done,
                    _ if wait => match Place::take(&self.locks.waiting, WAITING_MAX) {
                        Some(_place) => self.wait_for(&call).await,
                        None => Err(Errno::ENOLCK),
                    },
                    _ => self.try_more(&call).await,
                }
            };
            let interrupted = async {
                interrupted.await;
                // As for whatever else need not wait for others.
                sleep(if wait { Duration::ZERO } else { GRACE }).await;
            };
            match select(pin!(tried), pin!(interrupted)).await {
                Either::Left((done, _)) => Some(done),
                Either::Right(_) => None,
            }
        };
        let done = match done {
            Some(done) => done,
            None => self.withdraw(call).await,
        };
        if done.is_ok() {
            let settled = self.locks.settled.lock().as_ref().map(|settled| settled());
            if let Some(settled) = settled {
                settled.await;
            }
        }
        done
    }

    /// One question.
    async fn try_lock(self: &Arc<Self>, call: &LockCall, wait: bool) -> Tried {
        if self.locks.standing(call.handle) == Standing::Lost {
            return Tried::Done(Err(Errno::EIO));
        }
        let Some((generation, attempt)) = self.locks.begin(call.ino, call.owner) else {
            if !self.locks.is_doubted() {
                return Tried::Grace;
            }
            return match self.on_a_thread(|remote| remote.assert_locks()).await {
                Ok(()) => Tried::Again,
                Err(error) => Tried::Done(Err(errno(error))),
            };
        };
        let within = if wait { HELD_TIME } else { ANSWER_TIME };
        match self.ask_later(&call.message(attempt, wait), within).await {
            Err(error) => Tried::Done(Err(errno(error))),
            Ok(None | Some(LockAnswer::Overtaken)) => Tried::Again,
            Ok(Some(LockAnswer::Grace)) => Tried::Grace,
            Ok(Some(LockAnswer::Deadlock)) => Tried::Done(Err(Errno::EDEADLK)),
            Ok(Some(LockAnswer::TooMany)) => Tried::Done(Err(Errno::ENOLCK)),
            Ok(Some(LockAnswer::Busy)) => {
                if call.kind == LockKind::Flock {
                    // What it held in another way is gone: flock(2).
                    self.locks.forget(call.ino, call.kind, call.owner, call.range);
                }
                Tried::Busy
            }
            Ok(Some(LockAnswer::Granted)) => match self.locks.granted(call, generation) {
                Noted::Yes => Tried::Done(Ok(())),
                Noted::Again => Tried::Again,
            },
        }
    }

    /// Without waiting for anybody's lock.
    async fn try_more(self: &Arc<Self>, call: &LockCall) -> std::result::Result<(), Errno> {
        let mut closing_tries = 0;
        loop {
            match self.try_lock(call, false).await {
                Tried::Done(done) => return done,
                Tried::Busy if closing_tries < CLOSING_TRIES && self.locks.is_closing(call.ino, call.handle) => {
                    closing_tries += 1;
                    sleep(MOMENT).await;
                }
                Tried::Busy => return Err(Errno::EAGAIN),
                Tried::Again => {}
                Tried::Grace => sleep(ASK_INTERVAL).await,
            }
        }
    }

    async fn wait_for(self: &Arc<Self>, call: &LockCall) -> std::result::Result<(), Errno> {
        loop {
            let held = Place::take(&self.locks.held, HELD_MAX);
            match self.try_lock(call, held.is_some()).await {
                Tried::Done(done) => return done,
                Tried::Busy | Tried::Grace => {
                    drop(held);
                    sleep(ASK_INTERVAL).await;
                }
                Tried::Again => {}
            }
        }
    }

    /// The program was interrupted. The server may have given the lock already; if not, it must not do so later.
    async fn withdraw(self: &Arc<Self>, call: LockCall) -> std::result::Result<(), Errno> {
        let last = async {
            loop {
                match self.try_lock(&call, false).await {
                    Tried::Done(done) => return done,
                    Tried::Busy => return Err(Errno::EINTR),
                    Tried::Again => {}
                    Tried::Grace => sleep(MOMENT).await,
                }
            }
        };
        if let Ok(done) = timeout(WITHDRAW_TIME, last).await {
            return done;
        }
        self.locks.withdrawing(call.ino, call.owner);
        let remote = self.clone();
        sluice_run::task::spawn(async move {
            while !remote.as_the_book_says(&call).await {
                sleep(ASK_INTERVAL).await;
            }
            remote.locks.withdrawn(call.ino, call.owner);
        });
        Err(Errno::EINTR)
    }

    /// Tells the server what the owner of `call` holds of its range; false when it may not have heard.
    async fn as_the_book_says(self: &Arc<Self>, call: &LockCall) -> bool {
        if self.session.over.load(SeqCst) {
            return true;
        }
        let Some(pieces) = self.locks.pieces(call) else {
            let _ = self.on_a_thread(|remote| remote.assert_locks()).await;
            return false;
        };
        for (range, mode, attempt) in pieces {
            let message = Lock { range, mode, ..call.message(attempt, false) };
            if !matches!(self.ask_later(&message, ANSWER_TIME).await, Ok(Some(LockAnswer::Granted)) | Err(_)) {
                return false;
            }
        }
        true
    }

    /// The lock in the way of one, if any.
    pub async fn test_lock(self: Arc<Self>, call: LockCall) -> std::result::Result<Option<LockInTheWay>, Errno> {
        let LockCall { ino, kind, owner, range, mode, .. } = call;
        loop {
            match self.ask_later(&TestLock { ino, kind, owner, range, mode }, ANSWER_TIME).await.map_err(errno)? {
                Some(LockTest::Free) => return Ok(None),
                Some(LockTest::Held(lock)) => return Ok(Some(lock)),
                Some(LockTest::Grace) => {
                    if self.locks.is_doubted() {
                        self.on_a_thread(|remote| remote.assert_locks()).await.map_err(errno)?;
                    }
                    sleep(ASK_INTERVAL).await;
                }
                None => {}
            }
        }
    }

    /// Drops what an owner holds of a range.
    pub fn unlock(&self, ino: Ino, kind: LockKind, owner: u64, range: LockRange) -> std::result::Result<(), Failure> {
        if !self.locks.holds(ino, kind, owner, range) {
            return Ok(());
        }
        if !may_wait() {
            return Err(Failure::Away);
        }
        // Whoever has it next sees what was written under it.
        let published = if self.pending.has(ino) { self.publish_file(ino) } else { Ok(()) };
        loop {
            self.assert_locks()?;
            let Some(attempt) = self.locks.drop_range(ino, kind, owner, range) else { continue };
            let call = self.locks.call();
            let message = Lock { ino, kind, owner, range, mode: None, pid: 0, attempt, call, wait: false };
            match self.ask(&message)?.1 {
                LockAnswer::Overtaken | LockAnswer::Grace => {}
                _ => return Ok(published?),
            }
        }
    }

    /// A program closed a descriptor: its record locks on the file are gone (fcntl(2)).
    pub fn flushed(&self, ino: Ino, handle: HandleId, owner: u64) -> std::result::Result<(), Failure> {
        self.locks.flushed(handle);
        self.unlock(ino, LockKind::Record, owner, LockRange::WHOLE)
    }

    /// The last descriptor of a handle is closed: what was locked through it is free.
    pub fn released(&self, handle: HandleId) -> std::result::Result<(), Failure> {
        let Some((ino, owners)) = self.locks.owners(handle) else {
            self.locks.closed(handle);
            return Ok(());
        };
        self.locks.flushed(handle);
        let mut done = Ok(());
        for (kind, owner) in owners {
            match self.unlock(ino, kind, owner, LockRange::WHOLE) {
                Err(Failure::Away) => return Err(Failure::Away),
                other => done = done.and(other),
            }
        }
        self.locks.closed(handle);
        done
    }

    /// Whether a handle's bytes may be read and written: not when locks that were taken through it are lost, nor before it is known
    /// whether they are.
    pub fn check_locks(&self, handle: HandleId) -> std::result::Result<(), Failure> {
        loop {
            match self.locks.standing(handle) {
                Standing::Unlocked => return Ok(()),
                Standing::Lost => return Err(Errno::EIO.into()),
                Standing::Locked { doubted: false } if self.is_believed() => return Ok(()),
                Standing::Locked { .. } if !may_wait() => return Err(Failure::Away),
                Standing::Locked { .. } => {
                    self.ask(&Renew {})?;
                    self.assert_locks()?;
                    // An answer that was no fault: the lease had not ended.
                    if self.locks.standing(handle) == (Standing::Locked { doubted: false }) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Tells the server what this mount holds, when it may not know. Waits.
    pub(super) fn assert_locks(&self) -> Result<()> {
        if !self.locks.is_doubted() {
            return Ok(());
        }
        let _one = self.locks.asserting.lock();
        while let Some((generation, all)) = self.locks.to_assert() {
            // A publish under way has its end before the server says that locks are lost: until then it refuses what was written under
            // them.
            let _turns = self.turns(&self.pending.locked_files());
            let chunks = all.chunks(AssertLocks::LOCKS_MAX);
            let count = chunks.len().max(1);
            let chunks = chunks.map(<[_]>::to_vec).chain(all.is_empty().then(Vec::new));
            for (index, locks) in chunks.enumerate() {
                let message = AssertLocks { locks, attempt: self.locks.attempt(), last: index + 1 == count };
                if !self.ask(&message)?.1 {
                    let (generation, handles) = self.locks.lose_all();
                    if handles > 0 {
                        tracing::error!(
                            handles,
                            "the lease ended: open files lost their locks and fail until they are closed"
                        );
                    }
                    self.drop_locked()?;
                    self.locks.asserted(generation);
                    return Ok(());
                }
            }
            self.locks.asserted(generation);
        }
        Ok(())
    }

    /// Forgets what was written under locks that are lost: others may have written under them since.
    fn drop_locked(&self) -> Result<()> {
        for ino in self.pending.locked_files() {
            let changes = self.pending.since_locked(ino);
            self.forget(ino, &changes)?;
            self.dropped.lock().add(ino);
            tracing::error!(%ino, changes = changes.len(), "what was written under a lost lock and not published is lost");
            self.tell_lost(vec![Invalidation::Data(ino)]);
        }
        Ok(())
    }
}

fn errno(error: Error) -> Errno {
    Failure::from(error).errno()
}

/// One of so many places.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(taken: &'a AtomicUsize, most: usize) -> Option<Self> {
        let place = Self(taken);
        // Given back by the drop when there were too many.
        (taken.fetch_add(1, SeqCst) < most).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
