//! Locks of files, which belong to the session: see docs/metadata-rpc.md, "Locks".

use super::read::messages;
use crate::rpc::{
    codec::{Reader, Wire, tags},
    locks::{AssertedLock, LockKind, LockMode, LockRange},
};
use sluice_base::Ino;

messages! {
    /// Takes a lock, changes it or drops it.
    Lock {
        /// The file.
        ino: Ino,
        /// Which kind.
        kind: LockKind,
        /// Who, within the session.
        owner: u64,
        /// Of which bytes; flock has the whole file.
        range: LockRange,
        /// How; `None` drops what the owner holds of the range.
        mode: Option<LockMode>,
        /// The process, for others' F_GETLK.
        pid: u32,
        /// Counts what the session sends about locks. What arrives behind a later one of the same owner is not done.
        attempt: u64,
        /// Names what a program asked for: an attempt replaces earlier ones of its call that still wait.
        call: u64,
        /// The answer may wait until the lock is free.
        wait: bool,
    }
    /// The lock of somebody else that is in the way of one (F_GETLK).
    TestLock {
        /// The file.
        ino: Ino,
        /// Which kind.
        kind: LockKind,
        /// Who, within the session.
        owner: u64,
        /// Of which bytes.
        range: LockRange,
        /// How.
        mode: LockMode,
    }
    /// Answers [`TestLock`].
    LockInTheWay {
        /// Its bytes.
        range: LockRange,
        /// How it is held.
        mode: LockMode,
        /// Its process, when it is of the same session; else 0.
        pid: u32,
    }
    /// What the session holds, said again because the server may not know it. The answer is whether it still holds it: false when
    /// its lease ended in between, or somebody else has it.
    AssertLocks {
        /// The locks, at most [`AssertLocks::LOCKS_MAX`].
        locks: Vec<AssertedLock>,
        /// As in [`Lock`].
        attempt: u64,
        /// There are no more.
        last: bool,
    }
}

impl AssertLocks {
    /// Most locks of one request, by its length.
    pub const LOCKS_MAX: usize = 4096;
}

/// Answers [`Lock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAnswer {
    /// It is done.
    Granted,
    /// Somebody else's lock is in the way.
    Busy,
    /// It would wait for somebody who waits for it.
    Deadlock,
    /// The session has as many locks as it may.
    TooMany,
    /// A later attempt was here before; nothing was done. Ask again under a new number.
    Overtaken,
    /// After a restart of the server: others may still say what they hold. Ask again in a moment.
    Grace,
}

tags! { LockAnswer { 1 = Granted, 2 = Busy, 3 = Deadlock, 4 = TooMany, 5 = Overtaken, 6 = Grace } }

/// Answers [`TestLock`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockTest {
    /// Nothing is in the way.
    Free,
    /// This is.
    Held(LockInTheWay),
    /// As [`LockAnswer::Grace`].
    Grace,
}

impl<'a> Wire<'a> for LockTest {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Free => 1u8.put(out),
            Self::Held(lock) => {
                2u8.put(out);
                lock.put(out);
            }
            Self::Grace => 3u8.put(out),
        }
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        Some(match u8::take(from)? {
            1 => Self::Free,
            2 => Self::Held(Wire::take(from)?),
            3 => Self::Grace,
            _ => return None,
        })
    }
}
