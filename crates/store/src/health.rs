//! When a disk has failed often enough to be left alone.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

/// Errors without a success between them that end the use of a cache. A bad sector now and then is a miss; eight calls in a row
/// is a disk that is gone or remounted read-only.
const ERRORS_IN_A_ROW_MAX: u32 = 8;

#[derive(Default)]
pub(crate) struct Health {
    errors_in_a_row: AtomicU32,
    errors: AtomicU32,
    failed: AtomicBool,
}

impl Health {
    pub(crate) fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn errors(&self) -> u32 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Counts the outcome of an I/O call. A full disk is not a broken one.
    pub(crate) fn note<T>(&self, what: &str, outcome: io::Result<T>) -> io::Result<T> {
        match &outcome {
            // The load keeps the counter's cache line shared among readers of a healthy disk.
            Ok(_) if self.errors_in_a_row.load(Ordering::Relaxed) != 0 => {
                self.errors_in_a_row.store(0, Ordering::Relaxed)
            }
            Ok(_) => {}
            Err(error) if crate::error::is_full(error) => {}
            Err(error) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                let row = self.errors_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
                tracing::warn!(%error, what, "cache disk");
                if row >= ERRORS_IN_A_ROW_MAX {
                    self.fail(what, error);
                }
            }
        }
        outcome
    }

    /// For good: also after a failed fdatasync, whose pages the kernel marks clean, so that the next one would lie.
    pub(crate) fn fail(&self, what: &str, error: &io::Error) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, what, "the cache is out of use; reads and writes go on without it");
        }
    }
}
