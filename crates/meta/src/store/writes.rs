//! The writes of a transaction that is being built.

use super::{Batch, EngineError, Merge, Value, batch::assert_key, conflicts::key_hash};
use sluice_run::collections::HashMap;

/// Below this, looking through all hashes is faster than a map, and needs no memory of its own.
const LINEAR_MAX: usize = 32;

/// What a transaction does to a key.
pub(super) enum Op {
    Put(Value),
    Delete,
    /// Blind changes, in order, of a value that is known only at commit.
    Merge(Vec<Box<dyn Merge>>),
}

struct Write {
    key: Value,
    hash: u64,
    op: Op,
}

/// One op for each key written.
#[derive(Default)]
pub(super) struct Writes {
    writes: Vec<Write>,
    /// Empty until there are more than [`LINEAR_MAX`] writes.
    index: HashMap<Value, usize>,
}

impl Writes {
    pub(super) fn put(&mut self, key: &[u8], value: Value) {
        *self.slot(key) = Op::Put(value);
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        *self.slot(key) = Op::Delete;
    }

    pub(super) fn merge(&mut self, key: &[u8], delta: Box<dyn Merge>) {
        let Some(place) = self.find(key) else {
            return *self.slot(key) = Op::Merge(vec![delta]);
        };
        let op = &mut self.writes[place].op;
        match op {
            Op::Put(value) => *op = image(delta.apply(Some(value))),
            Op::Delete => *op = image(delta.apply(None)),
            Op::Merge(deltas) => deltas.push(delta),
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Op> {
        self.find(key).map(|place| &self.writes[place].op)
    }

    /// Keys in [from, to), ascending.
    pub(super) fn keys_in(&self, from: &[u8], to: &[u8]) -> Vec<Value> {
        let mut keys: Vec<_> =
            self.writes.iter().map(|w| &w.key).filter(|key| ***key >= *from && ***key < *to).cloned().collect();
        keys.sort_unstable();
        keys
    }

    pub(super) fn each(&self, visit: &mut dyn FnMut(&[u8], bool)) {
        self.writes.iter().for_each(|write| visit(&write.key, matches!(write.op, Op::Delete)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.writes.clear();
        self.index.clear();
    }

    /// Moves the writes into `batch`, sorted, with every merge applied to what `current` gives for its key.
    pub(super) fn resolve(
        &mut self,
        batch: &mut Batch,
        current: impl Fn(&[u8]) -> Result<Option<Value>, EngineError>,
    ) -> Result<(), EngineError> {
        self.index.clear();
        self.writes.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        for Write { key, op, .. } in self.writes.drain(..) {
            let value = match op {
                Op::Put(value) => Some(value),
                Op::Delete => None,
                Op::Merge(deltas) => merged(&deltas, current(&key)?),
            };
            batch.set(key, value);
        }
        Ok(())
    }

    fn slot(&mut self, key: &[u8]) -> &mut Op {
        let place = self.find(key).unwrap_or_else(|| self.add(key));
        &mut self.writes[place].op
    }

    fn add(&mut self, key: &[u8]) -> usize {
        assert_key(key);
        let place = self.writes.len();
        self.writes.push(Write { key: key.into(), hash: key_hash(key), op: Op::Delete });
        if place == LINEAR_MAX {
            self.index = self.writes.iter().enumerate().map(|(place, write)| (write.key.clone(), place)).collect();
        } else if place > LINEAR_MAX {
            self.index.insert(self.writes[place].key.clone(), place);
        }
        place
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        if self.writes.is_empty() {
            return None;
        }
        if !self.index.is_empty() {
            return self.index.get(key).copied();
        }
        let hash = key_hash(key);
        self.writes.iter().position(|write| write.hash == hash && *write.key == *key)
    }
}

/// The value after `deltas`, in order.
pub(super) fn merged(deltas: &[Box<dyn Merge>], current: Option<Value>) -> Option<Value> {
    deltas.iter().fold(current, |value, delta| delta.apply(value.as_deref()).map(Value::from))
}

fn image(value: Option<Vec<u8>>) -> Op {
    value.map_or(Op::Delete, |value| Op::Put(value.into()))
}
