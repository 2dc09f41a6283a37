//! A transaction as its closure sees it.

use super::{
    Merge, MetaError, Value, Visit,
    conflicts::Reads,
    record::Attachment,
    view::{Shared, View},
    writes::{Op, Writes, merged},
};
use sluice_base::Seq;
use std::{ops::ControlFlow, sync::Arc};

/// A transaction under way: reads at one snapshot, sees its own writes.
pub struct Txn<'a> {
    /// Shared, not borrowed, so that `'a` is the attachments' lifetime alone.
    view: View<Arc<Shared>>,
    pub(super) reads: Reads,
    pub(super) writes: Writes,
    pub(super) attachments: Vec<Attachment<'a>>,
}

impl<'a> Txn<'a> {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (reads, writes) = (Reads::default(), Writes::default());
        Self { view: View::new(shared), reads, writes, attachments: Vec::new() }
    }

    /// Forgets everything and moves to the newest snapshot.
    pub(super) fn restart(&mut self) {
        self.view.renew();
        self.reads.clear();
        self.writes.clear();
        self.attachments.clear();
    }

    /// The sequence that this transaction reads at.
    pub fn seq(&self) -> Seq {
        self.view.seq()
    }

    /// Nothing to commit.
    pub fn is_read_only(&self) -> bool {
        self.writes.is_empty() && self.attachments.is_empty()
    }

    /// The value of `key`. The commit fails, and the closure runs again, if another transaction writes it first.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        if !matches!(self.writes.get(key), Some(Op::Put(_) | Op::Delete)) {
            self.reads.key(key);
        }
        self.peek(key)
    }

    /// The value of `key`, without protection: for hints, and for what another read of the transaction guards.
    pub fn peek(&self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        Ok(match self.writes.get(key) {
            Some(Op::Put(value)) => Some(value.clone()),
            Some(Op::Delete) => None,
            Some(Op::Merge(deltas)) => merged(deltas, self.view.get(key)?),
            None => self.view.get(key)?,
        })
    }

    /// Visits keys in [from, to), ascending, until `visit` breaks. Within one group, any write to the group is a conflict; over
    /// several groups, any commit at all is: keep those out of hot paths.
    pub fn scan(&mut self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), MetaError> {
        self.reads.range(from, to);
        let keys = self.writes.keys_in(from, to);
        if keys.is_empty() {
            return self.view.scan(from, to, visit);
        }
        let mut own = Vec::with_capacity(keys.len());
        for key in keys {
            let value = self.peek(&key)?;
            own.push((key, value));
        }
        self.scan_overlaid(from, to, &own, visit)
    }

    fn scan_overlaid(
        &self,
        from: &[u8],
        to: &[u8],
        own: &[(Value, Option<Value>)],
        visit: &mut Visit<'_>,
    ) -> Result<(), MetaError> {
        let mut own = own.iter().peekable();
        let mut flow = ControlFlow::Continue(());
        self.view.scan(from, to, &mut |key, value| {
            let mut hidden = false;
            while let Some((own_key, own_value)) = own.next_if(|(own_key, _)| **own_key <= *key) {
                hidden = **own_key == *key;
                if let Some(own_value) = own_value {
                    flow = visit(own_key, own_value);
                    if flow.is_break() {
                        return flow;
                    }
                }
            }
            if !hidden {
                flow = visit(key, value);
            }
            flow
        })?;
        for (key, value) in own {
            if flow.is_break() {
                break;
            }
            if let Some(value) = value {
                flow = visit(key, value);
            }
        }
        Ok(())
    }

    /// Sets `key`.
    ///
    /// # Panics
    /// If the key is empty, longer than 65535 bytes or starts with a zero byte.
    pub fn put(&mut self, key: &[u8], value: impl Into<Value>) {
        self.writes.put(key, value.into());
    }

    /// Removes `key`, whether it is there or not. Panics like [`Txn::put`].
    pub fn delete(&mut self, key: &[u8]) {
        self.writes.delete(key);
    }

    /// Changes `key` at commit, whatever its value is by then: transactions that merge into one key do not conflict. Deltas of one
    /// transaction apply in order, also to a put or delete before them. Panics like [`Txn::put`].
    pub fn merge(&mut self, key: &[u8], delta: Box<dyn Merge>) {
        self.writes.merge(key, delta);
    }

    /// Visits the keys written so far, in no order, and whether the write is a delete.
    pub(crate) fn each_write(&self, visit: &mut dyn FnMut(&[u8], bool)) {
        self.writes.each(visit);
    }

    /// Adds a section to the log record, which replay hands out again. With `data`, the record counts as
    /// [`super::LogClass::Data`].
    ///
    /// # Panics
    /// If header or data are 4 GiB or more.
    pub fn attach(&mut self, header: Vec<u8>, data: &'a [u8]) {
        assert!(u32::try_from(header.len()).is_ok() && u32::try_from(data.len()).is_ok(), "attachment too large");
        self.attachments.push(Attachment { header, data });
    }
}
