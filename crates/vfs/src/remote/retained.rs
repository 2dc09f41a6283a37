//! Changes that the server has answered and that a loss of its power would take.
//!
//! The server answers a change when it is written, not when it is durable. Until the head of an answer says that it is durable, the
//! change is kept here, as bytes; a server that was started again gets it again, under its number, before anything new. What is
//! refused then, because another mount's change came between, is lost, which the file's next sync tells.
//!
//! A server that was recovered from its store goes on from earlier, without some of what had been durable. It gets what is kept only where that is all that it
//! lacks: to unlink a file there whose copy is lost would lose both.

use super::lost::{Losses, Lost};
use sluice_base::Ino;
use sluice_meta::rpc::message::ReplyHead;
use sluice_run::lock::Mutex;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

/// Changes kept, about: half of the numbers that the server lets be unseen.
const CHANGES_MAX: usize = 512;
/// Their bytes, about.
const BYTES_MAX: usize = 16 << 20;

/// A change that was answered.
#[derive(Clone, Debug)]
pub struct Kept {
    pub method: u16,
    /// The fields of its request.
    pub fields: Vec<u8>,
    /// The inode that it made, or 0.
    pub made: Ino,
    /// The inodes that it is about.
    pub inos: Vec<Ino>,
}

#[derive(Debug)]
struct Entry {
    kept: Kept,
    life: u32,
    record: u64,
}

#[derive(Debug, Default)]
struct State {
    changes: BTreeMap<u64, Entry>,
    bytes: usize,
    /// The run of the server whose answers are taken.
    life: u32,
    /// The highest number of a change that is not kept because it was durable.
    durable: u64,
    lost: Lost,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Retained {
    state: Mutex<State>,
    /// Grows with what is lost, after that is noted.
    losses: AtomicU64,
}

impl State {
    fn remove(&mut self, number: u64) {
        if let Some(entry) = self.changes.remove(&number) {
            self.bytes -= entry.kept.fields.len();
        }
    }

    fn became_durable(&mut self, number: u64) {
        self.remove(number);
        self.durable = self.durable.max(number);
    }

    fn lose(&mut self, number: u64) {
        let inos = self.changes.get(&number).map(|entry| entry.kept.inos.clone()).unwrap_or_default();
        inos.into_iter().for_each(|ino| self.lost.add(ino));
        self.remove(number);
    }
}

impl Retained {
    /// Of a session that has nothing to send again up to number `last`.
    pub fn new(life: u32, last: u64) -> Self {
        Self { state: Mutex::new(State { life, durable: last, ..State::default() }), losses: AtomicU64::new(0) }
    }

    /// Whether something had been durable that a server whose volume was recovered does not have: it knows changes of this session up to number
    /// `known`.
    pub fn is_ahead_of(&self, known: u64) -> bool {
        self.state.lock().durable > known
    }

    /// Then what is kept is lost as well, with what was done to `held` files: how many changes that are.
    pub fn lose_all(&self, known: u64, held: impl Iterator<Item = Ino>) -> usize {
        let state = &mut *self.state.lock();
        let numbers: Vec<u64> = state.changes.keys().copied().collect();
        numbers.iter().for_each(|number| state.lose(*number));
        held.for_each(|ino| state.lost.add(ino));
        state.durable = known;
        self.losses.fetch_add(1, SeqCst);
        numbers.len()
    }

    /// The highest number of a change that is done, as far as it is known.
    pub fn last(&self) -> u64 {
        let state = self.state.lock();
        state.changes.last_key_value().map_or(0, |(number, _)| *number).max(state.durable)
    }

    /// Answers of this run of the server count from now on.
    pub fn begin_life(&self, life: u32) {
        self.state.lock().life = life;
    }

    /// Keeps a change that was answered. False when the answer is that of an earlier run of the server: the change must be asked for
    /// once more, because it was not among those that were sent again.
    #[must_use]
    pub fn keep(&self, number: u64, head: ReplyHead, kept: impl FnOnce() -> Kept) -> bool {
        let mut state = self.state.lock();
        if head.life != state.life {
            return false;
        }
        if head.record > head.synced {
            let kept = kept();
            state.bytes += kept.fields.len();
            state.changes.insert(number, Entry { kept, life: head.life, record: head.record });
        } else {
            state.durable = state.durable.max(number);
        }
        true
    }

    /// The server's log of a run is durable up to a record.
    pub fn synced(&self, life: u32, record: u64) {
        let mut state = self.state.lock();
        let durable = |entry: &Entry| entry.life == life && entry.record <= record;
        // Nearly in the order of their records: a look at the first is enough for every answer.
        while let Some((number, _)) = state.changes.first_key_value().filter(|(_, entry)| durable(entry)) {
            let number = *number;
            state.became_durable(number);
        }
    }

    /// What must be durable for all that was answered up to now, and up to `last` where that is named: the run, the record, and the
    /// last number. Nothing when it is so already.
    pub fn wanted(&self, last: Option<u64>) -> Option<(u32, u64, u64)> {
        let state = self.state.lock();
        let mut found = None;
        for (number, entry) in state.changes.range(..=last.unwrap_or(u64::MAX)) {
            let record = match found {
                Some((life, record, _)) if life == entry.life => entry.record.max(record),
                _ => entry.record,
            };
            found = Some((entry.life, record, *number));
        }
        found
    }

    /// There are so many that the server must sync before there are more.
    pub fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.changes.len() >= CHANGES_MAX || state.bytes >= BYTES_MAX
    }

    /// The lowest number that is kept.
    pub fn first(&self) -> Option<u64> {
        self.state.lock().changes.first_key_value().map(|(number, _)| *number)
    }

    /// The numbers that are kept, in order.
    pub fn numbers(&self) -> Vec<u64> {
        self.state.lock().changes.keys().copied().collect()
    }

    pub fn get(&self, number: u64) -> Option<Kept> {
        self.state.lock().changes.get(&number).map(|entry| entry.kept.clone())
    }

    /// A change that was sent again is there.
    pub fn sent_again(&self, number: u64, head: ReplyHead) {
        if let Some(entry) = self.state.lock().changes.get_mut(&number) {
            (entry.life, entry.record) = (head.life, head.record);
        }
    }

    /// A change is durable after all.
    pub fn forget(&self, number: u64) {
        self.state.lock().became_durable(number);
    }

    /// A change is lost.
    pub fn lose(&self, number: u64) {
        self.state.lock().lose(number);
        self.losses.fetch_add(1, SeqCst);
    }

    /// What was lost and not told.
    pub fn lost(&self) -> Losses {
        self.state.lock().lost.losses()
    }

    /// What an earlier process of the mount has not told.
    pub fn inherit_lost(&self, losses: Losses) {
        self.state.lock().lost.inherit(losses);
    }

    /// How often so far something was lost.
    pub fn losses(&self) -> u64 {
        self.losses.load(SeqCst)
    }

    /// Whether a change of `ino` was lost, and nobody was told.
    pub fn is_lost(&self, ino: Ino) -> bool {
        self.state.lock().lost.has(ino)
    }

    /// Whether a change of `ino`, or of anything, was lost since this was asked last.
    pub fn take_lost(&self, ino: Option<Ino>) -> bool {
        self.state.lock().lost.take(ino)
    }
}

#[cfg(test)]
mod tests;
