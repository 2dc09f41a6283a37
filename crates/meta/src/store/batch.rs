//! After-images of one transaction.

use super::Value;

/// Longest key, in bytes.
pub(super) const KEY_BYTES_MAX: usize = u16::MAX as usize;

/// Puts and deletes of distinct keys, ascending by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    entries: Vec<(Value, Option<Value>)>,
}

impl Batch {
    /// Sets `key`, replacing what the batch holds for it. A constant time call only when keys come ascending.
    pub fn put(&mut self, key: impl Into<Value>, value: impl Into<Value>) {
        self.set(key.into(), Some(value.into()));
    }

    /// Deletes `key`, replacing what the batch holds for it.
    pub fn delete(&mut self, key: impl Into<Value>) {
        self.set(key.into(), None);
    }

    pub(super) fn set(&mut self, key: Value, value: Option<Value>) {
        assert_key(&key);
        if self.entries.last().is_none_or(|(last, _)| *last < key) {
            return self.entries.push((key, value));
        }
        match self.entries.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(found) => self.entries[found].1 = value,
            Err(place) => self.entries.insert(place, (key, value)),
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Keys with their new values, `None` for a delete, ascending by key.
    pub fn entries(&self) -> &[(Value, Option<Value>)] {
        &self.entries
    }

    /// No change at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Keys are built by this crate, never by its callers: a bad one is a bug here.
pub(super) fn assert_key(key: &[u8]) {
    assert!(!key.is_empty() && key.len() <= KEY_BYTES_MAX && key[0] != 0, "key out of range: {}", key.escape_ascii());
}
