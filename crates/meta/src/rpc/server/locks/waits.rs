//! Who waits for whom.

use super::{Locks, Owner, Waiter};
use crate::rpc::{
    locks::{LockKind, LockMode, LockRange},
    message::Lock,
};
use sluice_base::Ino;
use sluice_run::collections::{HashMap, HashSet};

impl Locks {
    /// Whether a record lock that had to wait would wait for somebody who waits for its owner, as fcntl(2) tells by EDEADLK.
    pub(super) fn would_deadlock(&self, owner: Owner, ask: &Lock, mode: LockMode) -> bool {
        let mut waiting: HashMap<Owner, Vec<&Waiter>> = HashMap::default();
        for waiter in self.waited.iter().filter_map(|ino| self.files.get(ino)).flat_map(|file| &file.waiters) {
            if waiter.ask.kind == LockKind::Record {
                waiting.entry(waiter.owner()).or_default().push(waiter);
            }
        }
        let mut seen: HashSet<Owner> = HashSet::default();
        let mut todo = self.holders(owner, ask.ino, ask.range, mode);
        while let Some(holder) = todo.pop() {
            if holder == owner {
                return true;
            }
            if seen.insert(holder) {
                for waiter in waiting.get(&holder).into_iter().flatten() {
                    todo.extend(self.holders(holder, waiter.ask.ino, waiter.ask.range, waiter.mode));
                }
            }
        }
        false
    }

    /// Those whose record locks are in the way of `owner`'s.
    fn holders(&self, owner: Owner, ino: Ino, range: LockRange, mode: LockMode) -> Vec<Owner> {
        let Some(file) = self.files.get(&ino) else { return Vec::new() };
        file.record.all_in_the_way(owner, range, mode).map(|lock| lock.owner).collect()
    }
}
