//! The engine with files: one LSM tree in a directory.
//!
//! How `lsm-tree` is used, where its contract is not obvious:
//! - Its reads take an exclusive bound, ours an inclusive one: `at + 1`.
//! - It keeps old versions by keeping old *super versions* (the list of memtables and tables), not old entries: a flush or
//!   compaction drops every entry that a newer one covers, whoever reads the older. A snapshot is served by the newest super
//!   version that was installed at or before it. So the number under which a super version is installed, which the tree takes
//!   from a counter, must be one that all its table entries are covered by: the last sealed batch. It is set before each call.
//! - The highest sequence in its tables says nothing about what is persisted, because a compaction may drop the tombstone
//!   that carried it. Each rotation therefore writes the applied position under a key of our own.
//! - By default it loads the filter and the index of a whole table, up to a megabyte, for one read. Partitioned ones are loaded
//!   by block: with a million files in a small cache, a read is a hundred times faster.
//! - Tables and the manifest are fsynced, with their directories, before a flush returns.

use super::{Batch, EngineError, Stream, Tables, Value, Visit};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard, InternalValue, Memtable, SequenceNumberCounter, Tree,
    ValueType, compaction::Leveled, config::PartitioningPolicy,
};
use parking_lot::Mutex;
use sluice_base::Seq;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Where the position of the last batch of a memtable is kept. Keys with a leading zero are the engine's.
const POSITION: &[u8] = &[0];
/// The first key that is not the engine's.
const FIRST: &[u8] = &[1];
/// Compactions after one flush, at most: a bound on the time until the next flush. What is left is done after that one.
const COMPACTIONS_MAX: usize = 8;

/// Settings of an [`LsmTables`].
#[derive(Clone, Copy, Debug)]
pub struct LsmOptions {
    /// Cached blocks of tables. Default 16 MiB: the kernel's page cache is the second level.
    pub cache_bytes: u64,
    /// Open table files. Default 64: 4 GiB of metadata.
    pub files_max: usize,
    /// Size of a table. Default 64 MiB.
    pub table_bytes: u64,
}

impl Default for LsmOptions {
    fn default() -> Self {
        Self { cache_bytes: 16 << 20, files_max: 64, table_bytes: 64 << 20 }
    }
}

/// An engine in a directory.
pub struct LsmTables {
    tree: Tree,
    compaction: Arc<Leveled>,
    /// Where the tree takes the numbers of its super versions.
    install_at: SequenceNumberCounter,
    active: Mutex<Active>,
    memtable_bytes: AtomicU64,
    applied: AtomicU64,
    sealed: AtomicU64,
    persisted: AtomicU64,
}

/// What batches go to.
struct Active {
    memtable: Arc<Memtable>,
    /// The newest values of the keys in [`HELD_TABLES`], of which nearly every batch changes some, and all of them few. They enter the
    /// memtable when it is sealed or scanned: one entry instead of thousands, each a search that costs a microsecond. So what they
    /// were in between is nowhere, and a reader gets their newest value even if its snapshot is older; a transaction that does so
    /// fails its validation and runs again.
    held: HashMap<Value, (u64, Option<Value>)>,
}

/// Records of objects, statistics of directories and values of the volume (crate::keys).
const HELD_TABLES: [u8; 3] = *b"osv";
/// Memory of a held value, about.
const HELD_BYTES: u64 = 160;

fn is_held(key: &[u8]) -> bool {
    HELD_TABLES.contains(&key[0])
}

impl Active {
    fn insert(&self, key: &Value, seq: u64, value: Option<&Value>) {
        self.memtable.insert(match value {
            Some(value) => InternalValue::from_components(key.slice(), value.slice(), seq, ValueType::Value),
            None => InternalValue::new_tombstone(key.slice(), seq),
        });
    }

    fn settle(&mut self) {
        for (key, (seq, value)) in std::mem::take(&mut self.held) {
            self.insert(&key, seq, value.as_ref());
        }
    }
}

impl LsmTables {
    /// Reads all tables; the files of those that are damaged.
    pub fn damaged_files(&self) -> Vec<PathBuf> {
        let version = self.tree.current_version();
        let is_damaged = |table: &&lsm_tree::Table| table.iter().any(|entry| entry.is_err());
        version.iter_tables().filter(is_damaged).map(|table| table.path.to_path_buf()).collect()
    }

    /// Opens the tables in `dir`, creating them if there are none.
    pub fn open(dir: &Path, options: LsmOptions) -> Result<Self, EngineError> {
        let install_at = SequenceNumberCounter::default();
        let config = Config::new(dir, install_at.clone(), SequenceNumberCounter::default())
            .use_cache(Arc::new(Cache::with_capacity_bytes(options.cache_bytes)))
            .use_descriptor_table(Some(Arc::new(DescriptorTable::new(options.files_max))))
            .filter_block_partitioning_policy(PartitioningPolicy::all(true))
            .index_block_partitioning_policy(PartitioningPolicy::all(true));
        let AnyTree::Standard(tree) = config.open()? else {
            return Err(EngineError::Damaged("not a plain tree"));
        };
        let persisted = match tree.get(POSITION, u64::MAX)? {
            None => 0,
            Some(bytes) => u64::from_le_bytes((*bytes).try_into().map_err(|_| EngineError::Damaged("position"))?),
        };
        Ok(Self {
            active: Mutex::new(Active { memtable: tree.active_memtable(), held: HashMap::new() }),
            tree,
            compaction: Arc::new(Leveled::default().with_table_target_size(options.table_bytes)),
            install_at,
            memtable_bytes: AtomicU64::new(0),
            applied: AtomicU64::new(persisted),
            sealed: AtomicU64::new(persisted),
            persisted: AtomicU64::new(persisted),
        })
    }

    /// Bytes of the table files.
    pub fn disk_bytes(&self) -> u64 {
        self.tree.disk_space()
    }

    /// Compacts until nothing is due, a memtable waits to be flushed, or it is enough for now.
    fn compact(&self, sealed: u64, threshold: u64) -> Result<(), EngineError> {
        for _ in 0..COMPACTIONS_MAX {
            let before = self.tree.current_version().id();
            self.install_at.set(sealed);
            self.tree.compact(self.compaction.clone(), threshold)?;
            if self.tree.current_version().id() == before || self.tree.sealed_memtable_count() > 0 {
                break;
            }
        }
        Ok(())
    }
}

/// The tree's bound is exclusive.
fn bound(at: Seq) -> u64 {
    at.0 + 1
}

/// Up to where a reader at `at` sees a key.
fn bound_of(key: &[u8], at: Seq) -> u64 {
    if is_held(key) { u64::MAX } else { bound(at) }
}

impl Tables for LsmTables {
    fn get(&self, key: &[u8], at: Seq) -> Result<Option<Value>, EngineError> {
        if is_held(key)
            && let Some((_, value)) = self.active.lock().held.get(key)
        {
            return Ok(value.clone());
        }
        Ok(self.tree.get(key, bound_of(key, at))?.map(Value::from))
    }

    fn scan(&self, from: &[u8], to: &[u8], at: Seq, visit: &mut Visit<'_>) -> Result<(), EngineError> {
        let from = from.max(FIRST);
        if from >= to {
            return Ok(());
        }
        if HELD_TABLES.iter().any(|table| from[0] <= *table && to[0] >= *table) {
            self.active.lock().settle();
        }
        // Of one table; a reader of several wants all of them as of one moment.
        let bound = if to[0] - from[0] <= 1 { bound_of(from, at) } else { bound(at) };
        for item in self.tree.range(from..to, bound, None) {
            let (key, value) = item.into_inner()?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// It holds the tables of this moment, which go when it does, and the memtables: a few times their size, however long it is read.
    fn stream(&self, from: &[u8], to: &[u8]) -> Stream {
        let from = from.max(FIRST);
        if from >= to {
            return Box::new(std::iter::empty());
        }
        self.active.lock().settle();
        let entries = self.tree.range(from..to, bound(self.applied()), None);
        Box::new(entries.map(|item| {
            let (key, value) = item.into_inner()?;
            Ok((key.into(), value.into()))
        }))
    }

    fn apply(&self, seq: Seq, batch: &Batch) {
        let mut active = self.active.lock();
        for (key, value) in batch.entries() {
            if is_held(key) {
                active.held.insert(key.clone(), (seq.0, value.clone()));
            } else {
                active.insert(key, seq.0, value.as_ref());
            }
        }
        let held = active.held.len() as u64 * HELD_BYTES;
        self.memtable_bytes.store(active.memtable.size() + held, Ordering::Relaxed);
        self.applied.fetch_max(seq.0, Ordering::SeqCst);
    }

    fn applied(&self) -> Seq {
        Seq(self.applied.load(Ordering::SeqCst))
    }

    fn persisted(&self) -> Seq {
        Seq(self.persisted.load(Ordering::SeqCst))
    }

    fn memtable_bytes(&self) -> u64 {
        self.memtable_bytes.load(Ordering::Relaxed)
    }

    fn rotate(&self) {
        let mut active = self.active.lock();
        let applied = self.applied.load(Ordering::SeqCst);
        if applied == self.sealed.load(Ordering::SeqCst) {
            return;
        }
        let position = applied.to_le_bytes();
        active.settle();
        active.memtable.insert(InternalValue::from_components(POSITION, position, applied, ValueType::Value));
        self.tree.rotate_memtable();
        active.memtable = self.tree.active_memtable();
        self.sealed.store(applied, Ordering::SeqCst);
        self.memtable_bytes.store(0, Ordering::Relaxed);
    }

    fn flush(&self, keep_versions_from: Seq) -> Result<Seq, EngineError> {
        let sealed = self.sealed.load(Ordering::SeqCst);
        let threshold = bound(keep_versions_from);
        {
            let lock = self.tree.get_flush_lock();
            self.install_at.set(sealed);
            self.tree.flush(&lock, threshold)?;
        }
        self.persisted.store(sealed, Ordering::SeqCst);
        self.compact(sealed, threshold)?;
        // A super version that a snapshot needed during the last flush holds its memtable in memory until it is dropped here.
        let folder = &self.tree.tree_config().path;
        self.tree.get_version_history_lock().maintenance(folder, threshold)?;
        Ok(Seq(sealed))
    }
}

#[cfg(test)]
mod tests;
