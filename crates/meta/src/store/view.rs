//! Reading at one sequence, and keeping what that needs alive.

use super::{
    Batch, EngineError, MetaError, Tables, Value, Visit,
    hot::Hot,
    snapshots::{Snapshots, Ticket},
};
use sluice_base::Seq;
use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// What readers need of a store.
pub(super) struct Shared {
    pub(super) tables: Arc<dyn Tables>,
    pub(super) snapshots: Snapshots,
    hot: Hot,
    /// All batches up to here are applied.
    visible: AtomicU64,
}

impl Shared {
    pub(super) fn new(tables: Arc<dyn Tables>, visible: Seq) -> Self {
        let (snapshots, hot) = (Snapshots::new(visible), Hot::new(visible));
        Self { tables, snapshots, hot, visible: AtomicU64::new(visible.0) }
    }

    pub(super) fn visible(&self) -> Seq {
        Seq(self.visible.load(Ordering::SeqCst))
    }

    /// Applies a batch and makes it visible. One caller at a time.
    pub(super) fn apply(&self, seq: Seq, batch: &Batch) {
        self.tables.apply(seq, batch);
        self.hot.commit(seq, batch);
        self.visible.store(seq.0, Ordering::SeqCst);
    }

    /// The value of `key` for a reader at `at`, which holds a snapshot or the commit lock.
    pub(super) fn get(&self, key: &[u8], at: Seq) -> Result<Option<Value>, EngineError> {
        if let Some(known) = self.hot.get(key, at) {
            return Ok(known);
        }
        let value = self.tables.get(key, at)?;
        self.hot.fill(key, at, &value);
        Ok(value)
    }
}

/// A consistent view; borrows or shares the store.
pub(super) struct View<S: Deref<Target = Shared>> {
    shared: S,
    ticket: Ticket,
    seq: Seq,
}

impl<S: Deref<Target = Shared>> View<S> {
    pub(super) fn new(shared: S) -> Self {
        let ticket = shared.snapshots.enter();
        Self { ticket, seq: shared.visible(), shared }
    }

    /// Moves to now.
    pub(super) fn renew(&mut self) {
        self.shared.snapshots.leave(self.ticket);
        self.ticket = self.shared.snapshots.enter();
        self.seq = self.shared.visible();
    }

    pub(super) fn seq(&self) -> Seq {
        self.seq
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        Ok(self.shared.get(key, self.seq)?)
    }

    pub(super) fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), MetaError> {
        Ok(self.shared.tables.scan(from, to, self.seq, visit)?)
    }
}

impl<S: Deref<Target = Shared>> Drop for View<S> {
    fn drop(&mut self) {
        self.shared.snapshots.leave(self.ticket);
    }
}

/// A consistent view of the store as of one sequence. Cheap to take, but not to keep: see [`super::MetaStore::snapshot`].
pub struct Snapshot<'s>(pub(super) View<&'s Shared>);

impl Snapshot<'_> {
    /// The sequence that this view is of.
    pub fn seq(&self) -> Seq {
        self.0.seq()
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        self.0.get(key)
    }

    /// Visits keys in [from, to), ascending, until `visit` breaks.
    pub fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), MetaError> {
        self.0.scan(from, to, visit)
    }
}
