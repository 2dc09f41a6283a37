//! The store itself: snapshots, and the one place where transactions commit.

use super::{
    Batch, Log, LogClass, MetaError, Snapshot, Stream, Tables, Txn,
    checkpoint::Pressure,
    conflicts::Stamps,
    record,
    view::{Shared, View},
};
use sluice_base::Seq;
use sluice_run::lock::Mutex;
use std::sync::Arc;

/// Settings of a store.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A memtable above this is persisted; at twice this size, writers wait. Default 32 MiB: some 60,000 creates, flushed in
    /// less than a second.
    pub memtable_bytes: u64,
    /// After so many conflicts a closure runs under the commit lock, where it cannot lose. Default 16: by then it has cost
    /// the others more in wasted work than it will by blocking them once.
    pub retries_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { memtable_bytes: 32 << 20, retries_max: 16 }
    }
}

/// What a transaction returned, and where it stands in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed<R> {
    /// The closure's value.
    pub value: R,
    /// The record's number, to be awaited with [`Log::ensure_synced`]. Of a transaction without writes: what it read at.
    pub seq: Seq,
}

/// Ordered keys with serializable transactions over an engine and a log.
pub struct MetaStore {
    pub(super) shared: Arc<Shared>,
    pub(super) log: Arc<dyn Log>,
    pub(super) options: Options,
    pub(super) pressure: Pressure,
    pub(super) commit: Mutex<CommitState>,
}

/// Under the commit lock.
pub(super) struct CommitState {
    stamps: Stamps,
    batch: Batch,
    buffer: Vec<u8>,
}

/// Above this, the encoding buffer is given back after use.
const BUFFER_BYTES_MAX: usize = 1 << 20;

impl MetaStore {
    /// A store over `tables`, to which everything up to `applied`, the log's last record, is applied.
    pub fn new(tables: Arc<dyn Tables>, log: Arc<dyn Log>, applied: Seq, options: Options) -> Self {
        Self {
            shared: Arc::new(Shared::new(tables, applied)),
            log,
            options,
            pressure: Pressure::default(),
            commit: Mutex::new(CommitState { stamps: Stamps::new(), batch: Batch::default(), buffer: Vec::new() }),
        }
    }

    /// The newest committed sequence.
    pub fn visible(&self) -> Seq {
        self.shared.visible()
    }

    /// What no crash loses any more, whatever happens to the log.
    pub fn persisted(&self) -> Seq {
        self.shared.tables.persisted()
    }

    /// All records up to here survive power loss.
    pub fn synced(&self) -> Seq {
        self.log.synced()
    }

    /// Blocks until all records up to `seq` survive power loss.
    pub fn ensure_synced(&self, seq: Seq) -> Result<(), MetaError> {
        self.log.ensure_synced(seq).map_err(MetaError::Log)
    }

    /// A consistent view of now. Cheap to take, but not to keep: while it lives, old versions and flushed memtables stay in
    /// memory. A listing that goes on for long takes a new one for each portion.
    pub fn snapshot(&self) -> Snapshot<'_> {
        Snapshot(View::new(&self.shared))
    }

    /// All keys in [from, to) with the values that they have after the change that is returned: of one moment, however long it takes to read
    /// them, and without the cost of a snapshot that is kept.
    pub fn stream(&self, from: &[u8], to: &[u8]) -> (Seq, Stream) {
        let _between_batches = self.commit.lock();
        // Until the engine has what it needs.
        let now = self.snapshot();
        (now.seq(), self.shared.tables.stream(from, to))
    }

    /// Runs `f` as a serializable transaction: again if another one got in its way, so `f` has no side effects. `f` must not
    /// call `transact`. An error of `f` abandons the transaction.
    pub fn transact<'a, R, E: From<MetaError>>(
        &self,
        mut f: impl FnMut(&mut Txn<'a>) -> Result<R, E>,
    ) -> Result<Committed<R>, E> {
        let mut txn = Txn::new(Arc::clone(&self.shared));
        for _ in 0..self.options.retries_max {
            let value = f(&mut txn)?;
            if txn.is_read_only() {
                return Ok(Committed { value, seq: txn.seq() });
            }
            self.admit()?;
            if let Some(seq) = self.commit(&mut txn, &mut self.commit.lock())? {
                self.poke();
                return Ok(Committed { value, seq });
            }
            txn.restart();
        }
        let mut state = self.commit.lock();
        txn.restart();
        let value = f(&mut txn)?;
        if txn.is_read_only() {
            return Ok(Committed { value, seq: txn.seq() });
        }
        let seq = self.commit(&mut txn, &mut state)?.expect("nobody else commits under the lock");
        drop(state);
        self.poke();
        Ok(Committed { value, seq })
    }

    /// `None` is a conflict.
    fn commit(&self, txn: &mut Txn<'_>, state: &mut CommitState) -> Result<Option<Seq>, MetaError> {
        let CommitState { stamps, batch, buffer } = state;
        let visible = self.visible();
        if visible != txn.seq() && !stamps.unchanged(&txn.reads, txn.seq()) {
            return Ok(None);
        }
        batch.clear();
        txn.writes.resolve(batch, |key| self.shared.get(key, visible))?;
        let has_data = txn.attachments.iter().any(|attachment| !attachment.data.is_empty());
        let class = if has_data { LogClass::Data } else { LogClass::Metadata };
        let seq = record::append(buffer, batch, &txn.attachments, |parts| self.log.append(class, parts))?;
        assert_eq!(seq.0, visible.0 + 1, "the log numbers records without gaps");
        stamps.mark(batch, seq);
        self.shared.apply(seq, batch);
        if buffer.capacity() > BUFFER_BYTES_MAX {
            *buffer = Vec::new();
        }
        Ok(Some(seq))
    }
}
