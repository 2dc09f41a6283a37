//! What programs hold, as one process of a mount tells it to the next.

use super::book::{Book, Handle};
use crate::HandleId;
use sluice_base::Ino;
use sluice_meta::rpc::{AssertedLock, LockKind};
use std::sync::atomic::Ordering::SeqCst;

/// The locks of a mount's programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BookState {
    /// The locks.
    pub locks: Vec<AssertedLock>,
    /// Through which handles they were taken, upwards.
    pub handles: Vec<LockedHandle>,
    /// Handles that have lost theirs, upwards.
    pub lost: Vec<HandleId>,
    /// The last attempt.
    pub attempts: u64,
}

/// A handle through which locks were taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedHandle {
    /// The handle.
    pub handle: HandleId,
    /// Its file.
    pub ino: Ino,
    /// A descriptor of it was closed.
    pub closing: bool,
    /// Who has locked, upwards.
    pub owners: Vec<(LockKind, u64)>,
}

/// Where a kind comes in an order of owners.
fn rank(kind: LockKind) -> u8 {
    match kind {
        LockKind::Record => 1,
        LockKind::Flock => 2,
    }
}

impl Book {
    /// All that the next process has to know.
    pub fn state(&self) -> BookState {
        let state = self.state.lock();
        let mut locks = state.all();
        locks.sort_by_key(|lock| (lock.ino, rank(lock.kind), lock.owner, lock.range.first()));
        let described = |(handle, open): (&HandleId, &Handle)| {
            let mut owners: Vec<_> = open.owners.iter().copied().collect();
            owners.sort_by_key(|(kind, owner)| (rank(*kind), *owner));
            LockedHandle { handle: *handle, ino: open.ino, closing: open.closing, owners }
        };
        let mut handles: Vec<_> = state.handles.iter().map(described).collect();
        handles.sort_by_key(|open| open.handle);
        let mut lost: Vec<_> = state.lost.iter().copied().collect();
        lost.sort_unstable();
        BookState { locks, handles, lost, attempts: state.attempts }
    }

    /// Holds what an earlier process of the mount held.
    pub fn inherit(&self, told: BookState) {
        let mut state = self.state.lock();
        for lock in told.locks {
            let AssertedLock { ino, kind, owner, range, mode, pid } = lock;
            state.files.entry(ino).or_default().of_mut(kind).set(owner, range, Some(mode), pid);
        }
        for LockedHandle { handle, ino, closing, owners } in told.handles {
            state.handles.insert(handle, Handle { ino, owners: owners.into_iter().collect(), closing });
        }
        state.lost.extend(told.lost);
        state.attempts = told.attempts;
        self.any.store(!state.handles.is_empty() || !state.lost.is_empty(), SeqCst);
    }

    /// Whether the server may not know yet what the programs hold, and do not.
    pub fn is_unsettled(&self) -> bool {
        let state = self.state.lock();
        state.doubted || !state.withdrawing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_meta::rpc::{LockMode, LockRange};

    #[test]
    fn what_is_told_is_inherited() {
        let lock = |owner, first, last| AssertedLock {
            ino: Ino(7),
            kind: LockKind::Record,
            owner,
            range: LockRange::new(first, last).unwrap(),
            mode: LockMode::Exclusive,
            pid: 12,
        };
        let owners = vec![(LockKind::Record, 1), (LockKind::Flock, 1)];
        let told = BookState {
            locks: vec![lock(1, 0, 3), lock(1, 9, 9), lock(2, 5, 7)],
            handles: vec![LockedHandle { handle: HandleId(3), ino: Ino(7), closing: true, owners }],
            lost: vec![HandleId(4), HandleId(5)],
            attempts: 99,
        };
        let book = Book::default();
        book.inherit(told.clone());
        assert_eq!(book.state(), told);
        assert!(book.holds_any(Ino(7)) && !book.is_unsettled());
        book.doubt();
        assert!(book.is_unsettled());
    }
}
