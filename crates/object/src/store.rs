//! [`Store`]: the one way to a volume's objects and blobs.
//!
//! It adds to a [`Backend`] what every caller needs: bounded concurrency, attempts with full jitter and a deadline, checksums,
//! and counters. Three promises:
//! - What a read returns has passed its checksums. What fails them is read once more and then reported, never returned.
//! - A put that returns Ok is stored. One that fails with a retryable error may be repeated with the same bytes: finding them
//!   there already is success, as ids are never used twice.
//! - No request lasts longer than its deadline, which begins once it has a free slot; a call is one request, or a few where
//!   answers were corrupt or a put found its key taken.

mod blobs;
mod connected;
mod objects;
mod options;
mod probe;
mod read;
mod retry;
mod stats;
mod tables;

pub use blobs::VOLUME_MARKER;
pub use objects::ListedObject;
pub use options::StoreOptions;
pub use probe::ProbeError;
pub use read::Fetched;
pub use stats::{KindStats, StoreStats};

use crate::{Backend, FileBackend, MemoryBackend, S3Backend, StoreError, StoreUrl};
use sluice_base::{Entropy, ObjectId, OsEntropy, Pages};
use stats::Counters;
use std::{fmt, sync::Arc};
use tables::Tables;
use tokio::sync::Semaphore;

/// An open store. Clones share everything.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    /// What people call it: the URL.
    place: String,
    options: StoreOptions,
    entropy: Arc<dyn Entropy>,
    gets: Semaphore,
    puts: Semaphore,
    counters: Counters,
    tables: Tables,
}

impl Store {
    /// Opens the store at `url`. Blocks on local files for a moment; contacts nobody: [`Store::probe`] does.
    pub fn open(url: &StoreUrl, options: StoreOptions) -> Result<Self, StoreError> {
        let backend: Arc<dyn Backend> = match url {
            StoreUrl::File(dir) => Arc::new(FileBackend::open(dir)?.with_pages(options.pages.clone())),
            StoreUrl::S3(url) => {
                let backend = S3Backend::open(url, &options.aws, options.connect_timeout)?;
                Arc::new(backend.with_pages(options.pages.clone()))
            }
            StoreUrl::Memory => Arc::new(MemoryBackend::default()),
        };
        Ok(Self::with_backend(backend, url.to_string(), options, Arc::new(OsEntropy)))
    }

    /// A store on a backend that the caller made; `place` names it in error texts.
    pub fn with_backend(
        backend: Arc<dyn Backend>,
        place: impl Into<String>,
        options: StoreOptions,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let (gets, puts) = (Semaphore::new(options.gets_max.max(1)), Semaphore::new(options.puts_max.max(1)));
        let (place, counters, tables) = (place.into(), Counters::default(), Tables::default());
        Self(Arc::new(Inner { backend, place, options, entropy, gets, puts, counters, tables }))
    }

    /// What has happened so far.
    pub fn stats(&self) -> StoreStats {
        self.0.counters.snapshot()
    }

    /// Buffers for large answers, for whoever has others of about their size.
    pub fn pages(&self) -> &Arc<Pages> {
        &self.0.options.pages
    }

    /// The store's URL.
    pub fn place(&self) -> &str {
        &self.0.place
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.0.place)
    }
}

/// Directory of all objects.
const OBJECTS: &str = "objects";

/// Where object `id` is kept: spread over 256 directories, which also lets a listing run in parallel.
pub fn object_key(id: ObjectId) -> String {
    format!("{OBJECTS}/{:02x}/{id}", id.0[0])
}

#[cfg(test)]
mod tests;
