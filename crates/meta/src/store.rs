//! The transaction layer below the POSIX rules: ordered keys, snapshot reads, serializable transactions, one log record each.
//!
//! # How a transaction runs
//! A [`Txn`] reads at one sequence number, the newest that was visible when it began, and collects its writes. Nothing is
//! locked meanwhile. [`MetaStore::transact`] then takes the commit lock and
//! 1. validates: if something that the closure read was written since, the closure runs again;
//! 2. resolves merges against the newest values, so that blind changes of one key (a directory's times) never conflict;
//! 3. appends one record with the after-images to the [`Log`], which assigns the sequence number;
//! 4. applies the same after-images to the [`Tables`] and makes the number visible.
//!
//! So commit order, log order and sequence order are one, and replaying the log after a crash is idempotent.
//!
//! # Conflicts
//! Two tables of fixed size remember, by hash of the key and by hash of its *group*, the last sequence that wrote there. The
//! group is the first nine bytes of a key (table and id): a scan within one group validates the group, which also catches
//! phantoms. Hash collisions and restarts of the process only cost a retry; memory does not grow with the volume.
//!
//! # Memory and the log's end
//! Applied batches sit in the engine's memtable until [`MetaStore::checkpoint`] persists them; [`Checkpointer`] does that in
//! its own thread when the memtable is large, and holds writers back when it cannot keep up. The log may drop what
//! [`Tables::persisted`] covers.

mod batch;
mod checkpoint;
mod commit;
mod conflicts;
mod error;
mod hot;
mod lsm;
mod memory;
mod record;
mod snapshots;
mod txn;
mod value;
mod view;
mod writes;

pub use batch::Batch;
pub use checkpoint::Checkpointer;
pub use commit::{Committed, MetaStore, Options};
pub use error::{EngineError, LogError, MetaError, RecordError};
pub use lsm::{LsmOptions, LsmTables};
pub use memory::{MemoryLog, MemoryTables};
pub use record::{OnAttachment, Record, encode_batch, replay, without_attachments};
pub use txn::Txn;
pub use value::Value;
pub use view::Snapshot;

use sluice_base::Seq;
use std::ops::ControlFlow;

/// An engine: ordered keys with the versions that live snapshots need.
///
/// Keys are 1 to 65535 bytes; those that start with a zero byte belong to the engine. Batches come in sequence order, one caller
/// at a time; reads come from any thread meanwhile, at a sequence that is applied and not below the oldest kept one.
pub trait Tables: Send + Sync {
    /// The newest value of `key` at or before `at`.
    fn get(&self, key: &[u8], at: Seq) -> Result<Option<Value>, EngineError>;
    /// Visits keys in [from, to) as of `at`, ascending, until `visit` breaks. `visit` may read the engine.
    fn scan(&self, from: &[u8], to: &[u8], at: Seq, visit: &mut Visit<'_>) -> Result<(), EngineError>;
    /// All keys in [from, to) as they are now, ascending. Called between batches; what comes out stays of this moment, whatever is applied,
    /// flushed or compacted before it is read. This one reads all of it first.
    fn stream(&self, from: &[u8], to: &[u8]) -> Stream {
        let mut entries = Vec::new();
        let read = self.scan(from, to, self.applied(), &mut |key, value| {
            entries.push(Ok((key.into(), value.into())));
            ControlFlow::Continue(())
        });
        Box::new(entries.into_iter().chain(read.err().map(Err)))
    }
    /// Applies a batch. An empty one only moves the position.
    fn apply(&self, seq: Seq, batch: &Batch);
    /// The last batch applied.
    fn applied(&self) -> Seq;
    /// All batches up to here survive power loss.
    fn persisted(&self) -> Seq;
    /// Bytes applied since the last rotation.
    fn memtable_bytes(&self) -> u64;
    /// Seals what is applied for the next flush. Called between batches: a batch is never split over two memtables.
    fn rotate(&self);
    /// Persists all that is sealed, then does due compaction; returns [`Tables::persisted`]. Versions that a snapshot at
    /// `keep_versions_from` or later reads are kept. Called from one thread at a time.
    fn flush(&self, keep_versions_from: Seq) -> Result<Seq, EngineError>;
}

/// Keys with their values, or why there are no more.
pub type Stream = Box<dyn Iterator<Item = Result<(Value, Value), EngineError>> + Send>;

/// Called with key and value for each key of a scan.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// What a log record is, for the log's quotas: data may fill most of it, metadata has the rest to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogClass {
    /// Only after-images.
    Metadata,
    /// Carries file data.
    Data,
}

/// The one log of a volume.
pub trait Log: Send + Sync {
    /// Appends one record, the concatenation of `parts`, and returns its number: one more than the last one's. After an error
    /// nothing of the record will be replayed.
    fn append(&self, class: LogClass, parts: &[&[u8]]) -> Result<Seq, LogError>;
    /// Blocks until all records up to `seq`, and the cache slabs that they name, survive power loss.
    fn ensure_synced(&self, seq: Seq) -> Result<(), LogError>;
    /// All records up to here survive power loss, with the cache slabs that they name.
    fn synced(&self) -> Seq;
}

/// A commutative change of one key, resolved at commit against the newest value, without conflict.
pub trait Merge: Send {
    /// The after-image; `None` deletes. Called at least once, with the commit lock held: no I/O here.
    fn apply(&self, current: Option<&[u8]>) -> Option<Vec<u8>>;
}

impl<F: Fn(Option<&[u8]>) -> Option<Vec<u8>> + Send> Merge for F {
    fn apply(&self, current: Option<&[u8]>) -> Option<Vec<u8>> {
        self(current)
    }
}

#[cfg(test)]
mod tests;
