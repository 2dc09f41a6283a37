//! One request against one kind of store. No retries, no time-outs, no checksums: [`crate::Store`] adds those once for all.

mod faulty;
mod file;
mod memory;
mod s3;
mod s3_error;

pub use faulty::{Fault, Faults, FaultyBackend};
pub use file::FileBackend;
pub use memory::MemoryBackend;
pub use s3::S3Backend;

use crate::StoreError;
use bytes::Bytes;
use futures::{future::BoxFuture, stream::BoxStream};
use sluice_base::Timestamp;
use std::ops::Range;

/// What a put does when the key is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutMode {
    /// Fails with [`StoreError::Exists`]; of two that race, one fails.
    Create,
    /// Replaces the bytes, at once for all readers.
    Overwrite,
}

/// One stored blob in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// Whole key.
    pub key: String,
    /// Length in bytes.
    pub bytes: u64,
    /// When it was stored, by the store's clock.
    pub modified: Timestamp,
}

/// The requests that a backend answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RequestKind {
    /// Storing bytes.
    Put,
    /// Reading all or some bytes.
    Get,
    /// Asking for the length.
    Head,
    /// Removing.
    Delete,
    /// One page of a listing.
    List,
}

impl RequestKind {
    /// Every kind, in the order of its discriminant.
    pub const ALL: [Self; 5] = [Self::Put, Self::Get, Self::Head, Self::Delete, Self::List];
}

/// A flat store of keys and bytes. Keys are paths of `[A-Za-z0-9._-]` names joined by `/`, see [`check_key`].
///
/// Once a put has returned, every reader sees the bytes and they survive a power loss. After [`StoreError::Unavailable`] it is
/// not known whether a put or delete was done.
pub trait Backend: Send + Sync + 'static {
    /// Stores the concatenation of `body` under `key`, all or nothing.
    fn put<'a>(&'a self, key: &'a str, body: Vec<Bytes>, mode: PutMode) -> BoxFuture<'a, Result<(), StoreError>>;
    /// The bytes of `range`, which is not empty; fewer, or none, only when the blob ends before it does.
    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>>;
    /// All bytes.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Bytes, StoreError>>;
    /// Length in bytes.
    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<u64, StoreError>>;
    /// Removes `key`; what is not there counts as removed.
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>>;
    /// Whether requests travel over connections that take time to be opened.
    fn has_connections(&self) -> bool {
        false
    }
    /// Everything below the directory `prefix` ("" for all), in no particular order. Ends at the first error.
    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<ListEntry, StoreError>>;
}

/// Longest key, in bytes: S3's limit.
pub const KEY_BYTES_MAX: usize = 1024;

/// Whether `key` is one that every kind of store takes as it is: no escaping, no case to fold, no way out of a directory.
pub fn check_key(key: &str) -> Result<(), StoreError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let fine = |name: &str| !name.is_empty() && !name.starts_with('.') && name.len() <= 255 && name.bytes().all(plain);
    if key.len() <= KEY_BYTES_MAX && key.split('/').all(fine) {
        return Ok(());
    }
    let shown: String = key.chars().take(80).collect();
    Err(StoreError::invalid(format!(
        "{shown:?} is no key: letters, digits, '.', '_' and '-', parts joined by '/', none starting with '.'; like meta/log-7"
    )))
}

#[cfg(test)]
mod tests;
