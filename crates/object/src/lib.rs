//! Objects and where they are kept: the object format, the backends (S3, files, memory, faulty) and [`Store`], the one way
//! in for the rest of the project.
//!
//! Layers, each knowing only the one below it:
//! - [`store`]: retries, time-outs, concurrency, checksums, counters; speaks of objects and blobs.
//! - [`backend`]: one request against one kind of store; speaks of keys and bytes.
//! - [`format`](mod@format): bytes of an object, no I/O; its layout is told in docs/disk-format.md.
//!
//! This crate knows nothing of files, extents, caches or metadata.

#![forbid(unsafe_code)]

pub mod backend;
pub mod credentials;
pub mod error;
pub mod format;
pub mod store;
pub mod url;

pub use backend::{Backend, FaultyBackend, FileBackend, MemoryBackend, PutMode, S3Backend};
pub use credentials::AwsSettings;
pub use error::{Denied, StoreError};
pub use format::{Codec, FormatError, ObjectTable, SegmentEntry, StoredObject};
pub use store::{Fetched, ListedObject, ProbeError, Store, StoreOptions, StoreStats, VOLUME_MARKER, object_key};
pub use url::StoreUrl;
