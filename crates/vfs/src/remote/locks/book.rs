//! What this mount's programs hold: to be asserted again after a restart of the server, and dropped when they close their files.

use super::{LockCall, OnLocked};
use crate::HandleId;
use sluice_base::Ino;
use sluice_meta::rpc::{AssertedLock, HeldLock, LockKind, LockMode, LockRange, RangeLocks};
use sluice_run::{
    collections::{HashMap, HashSet},
    lock::Mutex,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Names of calls with this bit are the mount's own.
pub const OWN_CALLS: u64 = 1 << 63;

/// The locks of one file.
#[derive(Default)]
pub(super) struct FileLocks {
    record: RangeLocks<u64>,
    flock: RangeLocks<u64>,
}

impl FileLocks {
    fn of(&self, kind: LockKind) -> &RangeLocks<u64> {
        match kind {
            LockKind::Record => &self.record,
            LockKind::Flock => &self.flock,
        }
    }

    pub(super) fn of_mut(&mut self, kind: LockKind) -> &mut RangeLocks<u64> {
        match kind {
            LockKind::Record => &mut self.record,
            LockKind::Flock => &mut self.flock,
        }
    }
}

/// A handle through which a lock was taken.
pub(super) struct Handle {
    pub(super) ino: Ino,
    pub(super) owners: HashSet<(LockKind, u64)>,
    /// A descriptor of it was closed, perhaps its last one.
    pub(super) closing: bool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) files: HashMap<Ino, FileLocks>,
    pub(super) handles: HashMap<HandleId, Handle>,
    /// Handles whose locks were lost with a lease.
    pub(super) lost: HashSet<HandleId>,
    /// Interrupted calls of which the server may not have heard yet.
    pub(super) withdrawing: HashMap<(Ino, u64), usize>,
    /// Grows whenever the server's knowledge comes into doubt: an answer from before says nothing.
    generation: u64,
    pub(super) doubted: bool,
    pub(super) attempts: u64,
    calls: u64,
}

/// See the module.
#[derive(Default)]
pub struct Book {
    pub(super) state: Mutex<State>,
    /// There are handles with locks, or that lost them.
    pub(super) any: AtomicBool,
    /// Held while the server is told what there is.
    pub(super) asserting: Mutex<()>,
    /// Programs that wait; those of them whose answers the server holds.
    pub(super) waiting: AtomicUsize,
    pub(super) held: AtomicUsize,
    pub(super) settled: Mutex<Option<OnLocked>>,
}

/// What becomes of a lock that the server gave.
pub(super) enum Noted {
    Yes,
    /// The server may have forgotten it since: ask again.
    Again,
}

/// Whether a handle may be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Unlocked,
    /// It has locks, which count as long as the lease does.
    Locked {
        doubted: bool,
    },
    Lost,
}

impl Book {
    /// The session is about to be resumed; whether there was doubt before.
    pub fn doubt(&self) -> bool {
        let mut state = self.state.lock();
        state.generation += 1;
        std::mem::replace(&mut state.doubted, true)
    }

    /// The server has kept all that it knew.
    pub fn trust(&self) {
        self.state.lock().doubted = false;
    }

    /// All locks, with the generation, if the server's knowledge is in doubt.
    pub(super) fn to_assert(&self) -> Option<(u64, Vec<AssertedLock>)> {
        let state = self.state.lock();
        if !state.doubted {
            return None;
        }
        Some((state.generation, state.all()))
    }

    /// The server knows them as of `generation`.
    pub(super) fn asserted(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.generation == generation {
            state.doubted = false;
        }
    }

    /// The server has given them to others, or may have. Tells the generation, and how many handles have lost theirs. What they were
    /// for is in doubt until it is asserted.
    pub(super) fn lose_all(&self) -> (u64, usize) {
        let mut state = self.state.lock();
        let State { files, handles, lost, .. } = &mut *state;
        let held = |handle: &Handle| has_locks(files, handle);
        let losers: Vec<HandleId> = handles.iter().filter(|(_, handle)| held(handle)).map(|(id, _)| *id).collect();
        lost.extend(&losers);
        files.clear();
        handles.clear();
        state.generation += 1;
        (state.generation, losers.len())
    }

    pub(super) fn attempt(&self) -> u64 {
        let mut state = self.state.lock();
        state.attempts += 1;
        state.attempts
    }

    /// Names a call of the mount's own: apart from those that the front end names.
    pub(super) fn call(&self) -> u64 {
        let mut state = self.state.lock();
        state.calls += 1;
        OWN_CALLS | state.calls
    }

    /// Generation and number of an attempt; `None` while something has to be settled before.
    pub(super) fn begin(&self, ino: Ino, owner: u64) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        if state.doubted || state.withdrawing.contains_key(&(ino, owner)) {
            return None;
        }
        state.attempts += 1;
        Some((state.generation, state.attempts))
    }

    pub fn is_doubted(&self) -> bool {
        self.state.lock().doubted
    }

    /// The server gave a lock in an answer to an attempt of this generation.
    pub(super) fn granted(&self, call: &LockCall, generation: u64) -> Noted {
        let mut state = self.state.lock();
        if state.doubted || state.generation != generation {
            return Noted::Again;
        }
        let locks = state.files.entry(call.ino).or_default().of_mut(call.kind);
        locks.set(call.owner, call.range, Some(call.mode), call.pid);
        let new = || Handle { ino: call.ino, owners: HashSet::default(), closing: false };
        let handle = state.handles.entry(call.handle).or_insert_with(new);
        handle.owners.insert((call.kind, call.owner));
        self.any.store(true, SeqCst);
        Noted::Yes
    }

    /// An owner is about to drop what it holds of a range: the attempt's number, `None` while something has to be settled before.
    pub(super) fn drop_range(&self, ino: Ino, kind: LockKind, owner: u64, range: LockRange) -> Option<u64> {
        let mut state = self.state.lock();
        if state.doubted {
            return None;
        }
        state.forget(ino, kind, owner, range);
        state.attempts += 1;
        Some(state.attempts)
    }

    /// The server dropped it by itself.
    pub(super) fn forget(&self, ino: Ino, kind: LockKind, owner: u64, range: LockRange) {
        self.state.lock().forget(ino, kind, owner, range);
    }

    pub(super) fn holds(&self, ino: Ino, kind: LockKind, owner: u64, range: LockRange) -> bool {
        let state = self.state.lock();
        state.files.get(&ino).is_some_and(|file| file.of(kind).of_within(owner, range).next().is_some())
    }

    /// Whether any program of this mount holds a lock on a file.
    pub fn holds_any(&self, ino: Ino) -> bool {
        self.any.load(SeqCst) && self.state.lock().files.contains_key(&ino)
    }

    pub(super) fn standing(&self, handle: HandleId) -> Standing {
        if !self.any.load(SeqCst) {
            return Standing::Unlocked;
        }
        let state = self.state.lock();
        match state.handles.get(&handle) {
            _ if state.lost.contains(&handle) => Standing::Lost,
            Some(open) if has_locks(&state.files, open) => Standing::Locked { doubted: state.doubted },
            _ => Standing::Unlocked,
        }
    }

    /// A descriptor of the handle was closed.
    pub(super) fn flushed(&self, handle: HandleId) {
        if let Some(open) = self.state.lock().handles.get_mut(&handle) {
            open.closing = true;
        }
    }

    /// Whether a close may be about to free some of a file: the kernel tells of the last one a moment after it.
    pub(super) fn is_closing(&self, ino: Ino, but: HandleId) -> bool {
        let state = self.state.lock();
        state.handles.iter().any(|(id, open)| open.ino == ino && *id != but && open.closing)
    }

    /// Who took locks through a handle.
    pub(super) fn owners(&self, handle: HandleId) -> Option<(Ino, Vec<(LockKind, u64)>)> {
        if !self.any.load(SeqCst) {
            return None;
        }
        let state = self.state.lock();
        state.handles.get(&handle).map(|open| (open.ino, open.owners.iter().copied().collect()))
    }

    /// The handle is closed.
    pub(super) fn closed(&self, handle: HandleId) {
        if !self.any.load(SeqCst) {
            return;
        }
        let mut state = self.state.lock();
        state.handles.remove(&handle);
        state.lost.remove(&handle);
        if state.handles.is_empty() && state.lost.is_empty() {
            self.any.store(false, SeqCst);
        }
    }

    /// An interrupted call of this owner may still get its lock, until the answer is true.
    pub(super) fn withdrawing(&self, ino: Ino, owner: u64) {
        *self.state.lock().withdrawing.entry((ino, owner)).or_default() += 1;
    }

    pub(super) fn withdrawn(&self, ino: Ino, owner: u64) {
        let mut state = self.state.lock();
        if let Some(count) = state.withdrawing.get_mut(&(ino, owner)) {
            *count -= 1;
            if *count == 0 {
                state.withdrawing.remove(&(ino, owner));
            }
        }
    }

    /// What the owner of a call holds of its range, piece by piece: the mode of each, `None` where it holds nothing, with the numbers
    /// of so many attempts. `None` while something has to be settled before.
    pub(super) fn pieces(&self, call: &LockCall) -> Option<Vec<(LockRange, Option<LockMode>, u64)>> {
        let mut state = self.state.lock();
        if state.doubted {
            return None;
        }
        let mut gaps = RangeLocks::default();
        gaps.set((), call.range, Some(LockMode::Shared), 0);
        let file = state.files.get(&call.ino);
        let held: Vec<_> =
            file.into_iter().flat_map(|file| file.of(call.kind).of_within(call.owner, call.range)).collect();
        held.iter().for_each(|lock| gaps.set((), lock.range, None, 0));
        let held = held.iter().map(|lock| (lock.range, Some(lock.mode)));
        let parts: Vec<_> = held.chain(gaps.iter().map(|gap| (gap.range, None))).collect();
        let first = state.attempts + 1;
        state.attempts += parts.len() as u64;
        Some(parts.into_iter().zip(first..).map(|((range, mode), attempt)| (range, mode, attempt)).collect())
    }
}

impl State {
    pub(super) fn all(&self) -> Vec<AssertedLock> {
        let mut all = Vec::new();
        for (ino, file) in &self.files {
            for kind in [LockKind::Record, LockKind::Flock] {
                all.extend(file.of(kind).iter().map(|lock| {
                    let HeldLock { owner, range, mode, pid } = *lock;
                    AssertedLock { ino: *ino, kind, owner, range, mode, pid }
                }));
            }
        }
        all
    }

    fn forget(&mut self, ino: Ino, kind: LockKind, owner: u64, range: LockRange) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        file.of_mut(kind).set(owner, range, None, 0);
        if file.record.is_empty() && file.flock.is_empty() {
            self.files.remove(&ino);
        }
    }
}

fn has_locks(files: &HashMap<Ino, FileLocks>, handle: &Handle) -> bool {
    let Some(file) = files.get(&handle.ino) else { return false };
    handle.owners.iter().any(|(kind, owner)| file.of(*kind).of(*owner).next().is_some())
}
