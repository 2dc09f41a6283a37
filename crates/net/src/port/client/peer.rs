//! A peer of a port: which lanes there are and should be.

use super::PortOptions;
use crate::port::policy::{LaneCount, LaneLimits};
use sluice_wire::{Hello, LaneClass};
use std::{net::SocketAddr, time::Duration};

pub(super) struct Peer {
    pub(super) number: u64,
    pub(super) address: SocketAddr,
    pub(super) hello: Hello,
    /// Places of its lanes.
    pub(super) small: Vec<usize>,
    pub(super) bulk: Vec<usize>,
    pub(super) small_wanted: usize,
    pub(super) count: LaneCount,
    min: usize,
    failures: u32,
    not_before: Duration,
}

impl Peer {
    pub(super) fn new(number: u64, address: SocketAddr, hello: Hello, small: usize, bulk: LaneLimits) -> Self {
        Self {
            number,
            address,
            hello,
            small: Vec::new(),
            bulk: Vec::new(),
            small_wanted: small,
            count: LaneCount::new(bulk),
            min: bulk.min.max(1),
            failures: 0,
            not_before: Duration::ZERO,
        }
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = usize> {
        self.small.iter().chain(&self.bulk).copied().collect::<Vec<_>>().into_iter()
    }

    /// A lane that there should be and is not, if it may be tried now.
    pub(super) fn missing(&self, now: Duration) -> Option<LaneClass> {
        match () {
            () if now < self.not_before => None,
            () if self.small.len() < self.small_wanted => Some(LaneClass::Small),
            () if self.bulk.len() < self.count.count() => Some(LaneClass::Bulk),
            () => None,
        }
    }

    /// Whether a lane is missing.
    pub(super) fn is_wanting(&self) -> bool {
        self.small.len() < self.small_wanted || self.bulk.len() < self.count.count()
    }

    /// Whether it has lanes that may be given up.
    pub(super) fn has_spare(&self) -> bool {
        self.bulk.len() > self.min
    }

    /// The lane at `place` is gone.
    pub(super) fn ended(&mut self, place: usize, now: Duration, was_open: bool, options: &PortOptions) {
        self.small.retain(|lane| *lane != place);
        self.bulk.retain(|lane| *lane != place);
        self.failures = if was_open { 0 } else { self.failures + 1 };
        let wait = options.backoff_base.saturating_mul(1 << self.failures.min(10)).min(options.backoff_max);
        self.not_before = now + wait;
    }
}
