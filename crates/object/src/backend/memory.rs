//! A store that ends with the process: for tests.

use super::{Backend, ListEntry, PutMode, check_key};
use crate::StoreError;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream, stream::BoxStream};
use parking_lot::Mutex;
use sluice_base::Timestamp;
use std::{collections::BTreeMap, ops::Range};

/// Keys and bytes in a map.
#[derive(Default)]
pub struct MemoryBackend {
    blobs: Mutex<BTreeMap<String, (Bytes, Timestamp)>>,
    now: Mutex<Timestamp>,
}

impl MemoryBackend {
    /// The time that blobs stored from now on carry: a memory store has no clock of its own.
    pub fn set_time(&self, now: Timestamp) {
        *self.now.lock() = now;
    }

    /// Every key, in order.
    pub fn keys(&self) -> Vec<String> {
        self.blobs.lock().keys().cloned().collect()
    }

    /// Changes stored bytes behind every check, as a failing disk would. False when nothing is stored under `key`.
    pub fn damage(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut blobs = self.blobs.lock();
        let Some((bytes, _)) = blobs.get_mut(key) else { return false };
        let mut changed = bytes.to_vec();
        change(&mut changed);
        *bytes = changed.into();
        true
    }

    fn find(&self, key: &str) -> Result<Bytes, StoreError> {
        check_key(key)?;
        let found = self.blobs.lock().get(key).map(|(bytes, _)| bytes.clone());
        found.ok_or_else(|| StoreError::NotFound { key: key.into() })
    }

    fn store(&self, key: &str, body: &[Bytes], mode: PutMode) -> Result<(), StoreError> {
        check_key(key)?;
        let now = *self.now.lock();
        let mut blobs = self.blobs.lock();
        if mode == PutMode::Create && blobs.contains_key(key) {
            return Err(StoreError::Exists { key: key.into() });
        }
        blobs.insert(key.into(), (body.concat().into(), now));
        Ok(())
    }
}

impl Backend for MemoryBackend {
    fn put<'a>(&'a self, key: &'a str, body: Vec<Bytes>, mode: PutMode) -> BoxFuture<'a, Result<(), StoreError>> {
        async move { self.store(key, &body, mode) }.boxed()
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        async move {
            let bytes = self.find(key)?;
            let at = |offset: u64| offset.min(bytes.len() as u64) as usize;
            Ok(bytes.slice(at(range.start)..at(range.end)))
        }
        .boxed()
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        async move { self.find(key) }.boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        async move { Ok(self.find(key)?.len() as u64) }.boxed()
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            self.blobs.lock().remove(key);
            Ok(())
        }
        .boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<ListEntry, StoreError>> {
        let below = |key: &str| prefix.is_empty() || key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        let entry = |(key, (bytes, modified)): (&String, &(Bytes, Timestamp))| {
            Ok(ListEntry { key: key.clone(), bytes: bytes.len() as u64, modified: *modified })
        };
        let found: Vec<_> = self.blobs.lock().iter().filter(|(key, _)| below(key)).map(entry).collect();
        stream::iter(found).boxed()
    }
}
