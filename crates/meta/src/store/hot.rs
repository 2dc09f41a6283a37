//! The newest values of keys that were read or written lately, in front of the engine.
//!
//! An engine's lookup costs microseconds (a search in every memtable and level), and an operation makes half a dozen of them,
//! most for the same few inodes and directories. This is a table of fixed size: a key has one place, and takes it over from
//! whatever was there.
//!
//! An entry says: this was the newest value as of sequence `since`, and it still is. A reader at `since` or later may take it, an
//! earlier one asks the engine. Commits replace the entries of the keys that they write before they become visible. A reader
//! that brings a value from the engine may enter it only if no commit has begun since the sequence that it reads at; both
//! the check and a commit's own write happen under the lock of the place, so whichever comes second sees the first.

use super::{Batch, Value, conflicts::key_hash};
use sluice_base::Seq;
use sluice_run::lock::Mutex;
use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// Places: 64 Ki entries of about 250 bytes with an inode each, 16 MiB when full.
const PLACES: usize = 1 << 16;
/// Places that are made together, when the first of them is needed: a small volume, or a mount's own tables, need few.
const BLOCK_PLACES: usize = 16;
/// Larger values are not worth a place: bodies of files and packed extents are kept by who uses them.
const VALUE_BYTES_MAX: usize = 512;
/// Tables whose keys are only scanned, or read once (crate::keys): they would drive out others.
const COLD_TABLES: [u8; 2] = *b"cu";

struct Entry {
    key: Value,
    since: Seq,
    value: Option<Value>,
}

type Block = [Mutex<Option<Entry>>; BLOCK_PLACES];

/// See the module.
pub(super) struct Hot {
    blocks: Box<[OnceLock<Box<Block>>]>,
    /// The last commit that has begun to write here.
    begun: AtomicU64,
}

impl Hot {
    pub(super) fn new(visible: Seq) -> Self {
        let blocks = (0..PLACES / BLOCK_PLACES).map(|_| OnceLock::new()).collect();
        Self { blocks, begun: AtomicU64::new(visible.0) }
    }

    /// A key's block, and its place there.
    fn block(&self, key: &[u8]) -> (&OnceLock<Box<Block>>, usize) {
        let place = key_hash(key) as usize >> 16 & (PLACES - 1);
        (&self.blocks[place / BLOCK_PLACES], place % BLOCK_PLACES)
    }

    fn place(&self, key: &[u8]) -> &Mutex<Option<Entry>> {
        let (block, place) = self.block(key);
        &block.get_or_init(Box::default)[place]
    }

    /// What a reader at `at` sees, when it is known here; `Some(None)` is a key that does not exist.
    pub(super) fn get(&self, key: &[u8], at: Seq) -> Option<Option<Value>> {
        let (block, place) = self.block(key);
        let place = block.get()?[place].lock();
        let entry = place.as_ref().filter(|entry| entry.since <= at && *entry.key == *key)?;
        Some(entry.value.clone())
    }

    /// Enters what the engine gave a reader at `at`.
    pub(super) fn fill(&self, key: &[u8], at: Seq, value: &Option<Value>) {
        if value.as_ref().is_some_and(|value| value.len() > VALUE_BYTES_MAX) {
            return;
        }
        let mut place = self.place(key).lock();
        if self.begun.load(SeqCst) == at.0 {
            *place = Some(Entry { key: key.into(), since: at, value: value.clone() });
        }
    }

    /// A commit writes `batch` as `seq`. To be called before `seq` is visible, by one commit at a time.
    pub(super) fn commit(&self, seq: Seq, batch: &Batch) {
        self.begun.store(seq.0, SeqCst);
        for (key, value) in batch.entries() {
            let fits = value.as_ref().is_none_or(|value| value.len() <= VALUE_BYTES_MAX);
            let mut place = self.place(key).lock();
            if fits && !COLD_TABLES.contains(&key[0]) {
                *place = Some(Entry { key: key.clone(), since: seq, value: value.clone() });
            } else if place.as_ref().is_some_and(|entry| entry.key == *key) {
                *place = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(key: &[u8], value: Option<&[u8]>) -> Batch {
        let mut batch = Batch::default();
        batch.set(key.into(), value.map(Value::from));
        batch
    }

    #[test]
    fn readers_see_their_own_time() {
        let hot = Hot::new(Seq(0));
        hot.commit(Seq(5), &batch(b"k", Some(b"new")));
        assert_eq!(hot.get(b"k", Seq(4)), None);
        assert_eq!(hot.get(b"k", Seq(5)), Some(Some(b"new".into())));
        hot.commit(Seq(6), &batch(b"k", None));
        assert_eq!(hot.get(b"k", Seq(5)), None);
        assert_eq!(hot.get(b"k", Seq(6)), Some(None));
    }

    #[test]
    fn a_late_reader_enters_nothing_stale() {
        let hot = Hot::new(Seq(1));
        hot.commit(Seq(2), &batch(b"other", Some(b"x")));
        hot.fill(b"k", Seq(1), &Some(b"old".into()));
        assert_eq!(hot.get(b"k", Seq(2)), None);
        hot.fill(b"k", Seq(2), &Some(b"now".into()));
        assert_eq!(hot.get(b"k", Seq(2)), Some(Some(b"now".into())));
    }

    #[test]
    fn a_large_value_hides_no_newer_one() {
        let hot = Hot::new(Seq(0));
        hot.commit(Seq(1), &batch(b"k", Some(b"small")));
        hot.commit(Seq(2), &batch(b"k", Some(&[0; VALUE_BYTES_MAX + 1])));
        assert_eq!(hot.get(b"k", Seq(2)), None);
    }
}
