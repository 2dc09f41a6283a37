//! What direct readers did, each in numbers of its own, so that threads share no cache line.

use parking_lot::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Of one direct reader. It alone adds to them.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct DirectCounters {
    pub(crate) reads: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) pins: AtomicU64,
    pub(crate) windows: AtomicU64,
    pub(crate) far_reads: AtomicU64,
    pub(crate) far_bytes: AtomicU64,
    pub(crate) given_up: AtomicU64,
    pub(crate) corrupt: AtomicU64,
}

/// One thread adds: no need for a locked instruction.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// Sums over all direct readers of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DirectCounts {
    /// Reads answered.
    pub reads: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Slots found without looking their object up.
    pub pins: u64,
    /// How often what is known of a file was read anew.
    pub windows: u64,
    /// Reads answered with bytes of another host.
    pub far_reads: u64,
    /// Bytes of them.
    pub far_bytes: u64,
    /// Reads that were asked of another host, and then given to the slow path.
    pub given_up: u64,
    /// Of those, answers that failed their check.
    pub corrupt: u64,
}

/// All direct readers of a volume.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Vec<Arc<DirectCounters>>>);

impl Registry {
    pub(crate) fn register(&self) -> Arc<DirectCounters> {
        let counters = Arc::new(DirectCounters::default());
        self.0.lock().push(counters.clone());
        counters
    }

    pub(crate) fn counts(&self) -> DirectCounts {
        let mut sum = DirectCounts::default();
        for one in &*self.0.lock() {
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            sum.reads += load(&one.reads);
            sum.bytes += load(&one.bytes);
            sum.pins += load(&one.pins);
            sum.windows += load(&one.windows);
            sum.far_reads += load(&one.far_reads);
            sum.far_bytes += load(&one.far_bytes);
            sum.given_up += load(&one.given_up);
            sum.corrupt += load(&one.corrupt);
        }
        sum
    }
}
