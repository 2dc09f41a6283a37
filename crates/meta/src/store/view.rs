//! Reading at one sequence, and keeping what that needs alive.

use super::{
    MetaError, Tables, Value, Visit,
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
    /// All batches up to here are applied.
    visible: AtomicU64,
}

impl Shared {
    pub(super) fn new(tables: Arc<dyn Tables>, visible: Seq) -> Self {
        Self { tables, snapshots: Snapshots::new(visible), visible: AtomicU64::new(visible.0) }
    }

    pub(super) fn visible(&self) -> Seq {
        Seq(self.visible.load(Ordering::SeqCst))
    }

    pub(super) fn publish(&self, seq: Seq) {
        self.visible.store(seq.0, Ordering::SeqCst);
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
        Ok(self.shared.tables.get(key, self.seq)?)
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
