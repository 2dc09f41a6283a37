//! Counters of a store.

use crate::{StoreError, backend::RequestKind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What has happened since the store was opened.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct StoreStats {
    /// By kind of request, in the order of [`RequestKind::ALL`].
    pub kinds: [KindStats; RequestKind::ALL.len()],
    /// Payload received, in bytes.
    pub received_bytes: u64,
    /// Payload sent and acknowledged, in bytes.
    pub sent_bytes: u64,
    /// Answers that failed their checksums.
    pub corrupt_answers: u64,
}

impl StoreStats {
    /// The counters of one kind of request.
    pub fn of(&self, kind: RequestKind) -> KindStats {
        self.kinds[kind as usize]
    }
}

/// Counters of one kind of request.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct KindStats {
    /// Requests sent, each try counted.
    pub requests: u64,
    /// Tries after the first.
    pub retries: u64,
    /// Tries that failed; "not found" and "exists" are answers.
    pub errors: u64,
    /// On their way now.
    pub in_flight: u64,
}

#[derive(Default)]
struct Kind {
    requests: AtomicU64,
    retries: AtomicU64,
    errors: AtomicU64,
    in_flight: AtomicU64,
}

#[derive(Default)]
pub(super) struct Counters {
    kinds: [Kind; RequestKind::ALL.len()],
    pub(super) received_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) corrupt_answers: AtomicU64,
}

impl Counters {
    /// A request of `kind` leaves; it is in flight until the guard drops, also when its caller goes away.
    pub(super) fn begin(&self, kind: RequestKind, is_retry: bool) -> InFlight<'_> {
        let kind = &self.kinds[kind as usize];
        kind.requests.fetch_add(1, Relaxed);
        kind.retries.fetch_add(u64::from(is_retry), Relaxed);
        kind.in_flight.fetch_add(1, Relaxed);
        InFlight(kind)
    }

    pub(super) fn snapshot(&self) -> StoreStats {
        let read = |kind: &Kind| KindStats {
            requests: kind.requests.load(Relaxed),
            retries: kind.retries.load(Relaxed),
            errors: kind.errors.load(Relaxed),
            in_flight: kind.in_flight.load(Relaxed),
        };
        StoreStats {
            kinds: self.kinds.each_ref().map(read),
            received_bytes: self.received_bytes.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
            corrupt_answers: self.corrupt_answers.load(Relaxed),
        }
    }
}

pub(super) struct InFlight<'a>(&'a Kind);

impl InFlight<'_> {
    pub(super) fn note<T>(&self, done: &Result<T, StoreError>) {
        if !matches!(done, Ok(_) | Err(StoreError::NotFound { .. } | StoreError::Exists { .. })) {
            self.0.errors.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}
