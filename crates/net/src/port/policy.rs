//! How many bulk lanes to a peer: one, until it is what holds the traffic up.
//!
//! A TCP connection is limited by its window over the round trip, and by the one core of each host that handles its packets. Whether
//! another lane helps cannot be known before, so it is tried: when for some intervals in a row every lane had much under way, a lane
//! is added; if the traffic does not grow by a tenth it is taken away again, and the next try waits twice as long. A peer that is
//! asked little for long gives up a lane. No I/O here, and time is an argument.

use std::time::Duration;

/// Bounds of how many bulk lanes a peer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneLimits {
    /// Never fewer, at least 1.
    pub min: usize,
    /// Never more.
    pub max: usize,
}

impl Default for LaneLimits {
    /// One is enough on loopback and in a data centre up to some 40 Gbit/s a core; four fill what a round trip of 10 ms leaves open.
    fn default() -> Self {
        Self { min: 1, max: 4 }
    }
}

/// How long traffic is measured before it is looked at.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);
/// Bytes under way on each lane that make it the bottleneck: two large answers, so that one waits behind another.
const BUSY_BYTES: usize = 2 << 20;
/// Intervals in a row.
const BUSY_INTERVALS: u32 = 3;
/// A lane was worth it if the traffic grew by a tenth.
const GROWTH: (u64, u64) = (11, 10);
/// Intervals that a new lane has to show it: its window must grow first.
const TRIAL_INTERVALS: u32 = 5;
/// The wait after a lane that was not worth it, doubled with each in a row up to the second.
const WAIT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(64));
/// Time with less than an eighth of a lane's busy bytes under way after which a lane is given up.
const IDLE: Duration = Duration::from_secs(10);

/// What was measured in an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Bytes of answers that came.
    pub(super) bytes: u64,
    /// Bytes of answers under way at its end.
    pub(super) under_way: usize,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Keep,
    Add,
    Remove,
}

/// See the module.
#[derive(Debug)]
pub(super) struct LaneCount {
    limits: LaneLimits,
    count: usize,
    busy: u32,
    /// The traffic before a lane was added, and the intervals since.
    trial: Option<(u64, u32)>,
    /// The most that came in an interval of the trial.
    best: u64,
    wait: Duration,
    not_before: Duration,
    idle_since: Option<Duration>,
}

impl LaneCount {
    pub(super) fn new(limits: LaneLimits) -> Self {
        let min = limits.min.max(1);
        Self {
            limits: LaneLimits { min, max: limits.max.max(min) },
            count: min,
            busy: 0,
            trial: None,
            best: 0,
            wait: WAIT.0,
            not_before: Duration::ZERO,
            idle_since: None,
        }
    }

    /// Lanes that there should be.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// An interval is over.
    pub(super) fn handle_interval(&mut self, now: Duration, measured: Measured) -> Change {
        if let Some((before, intervals)) = self.trial {
            self.best = self.best.max(measured.bytes);
            if intervals + 1 < TRIAL_INTERVALS {
                self.trial = Some((before, intervals + 1));
                return Change::Keep;
            }
            self.trial = None;
            if self.best * GROWTH.1 < before * GROWTH.0 {
                (self.not_before, self.wait) = (now + self.wait, (self.wait * 2).min(WAIT.1));
                self.count -= 1;
                return Change::Remove;
            }
            self.wait = WAIT.0;
        }
        self.watch_idleness(now, measured.under_way).unwrap_or_else(|| self.watch_load(now, measured))
    }

    fn watch_load(&mut self, now: Duration, measured: Measured) -> Change {
        let is_busy = measured.under_way >= self.count * BUSY_BYTES;
        self.busy = if is_busy { self.busy + 1 } else { 0 };
        if self.busy < BUSY_INTERVALS || self.count >= self.limits.max || now < self.not_before {
            return Change::Keep;
        }
        (self.busy, self.best, self.trial) = (0, 0, Some((measured.bytes, 0)));
        self.count += 1;
        Change::Add
    }

    fn watch_idleness(&mut self, now: Duration, under_way: usize) -> Option<Change> {
        if under_way * 8 >= self.count * BUSY_BYTES || self.count == self.limits.min {
            self.idle_since = None;
            return None;
        }
        let since = *self.idle_since.get_or_insert(now);
        if now < since + IDLE {
            return None;
        }
        self.idle_since = Some(now);
        self.count -= 1;
        Some(Change::Remove)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MUCH: usize = 64 << 20;

    /// Runs intervals whose traffic `bytes` says, given the lanes; returns the counts that there were.
    fn run(
        count: &mut LaneCount,
        from: u32,
        intervals: u32,
        under_way: usize,
        bytes: impl Fn(usize) -> u64,
    ) -> Vec<usize> {
        let one = |n| {
            let measured = Measured { bytes: bytes(count.count()), under_way };
            count.handle_interval(INTERVAL * n, measured);
            count.count()
        };
        (from..from + intervals).map(one).collect()
    }

    #[test]
    fn lanes_that_help_are_kept() {
        let mut count = LaneCount::new(LaneLimits { min: 1, max: 4 });
        let counts = run(&mut count, 0, 60, MUCH, |lanes| lanes as u64 * 1000);
        assert_eq!(counts.last(), Some(&4));
        assert_eq!(counts[..2], [1, 1], "not at the first sign");
        assert!(counts.is_sorted());
    }

    #[test]
    fn a_lane_that_does_not_help_goes_and_is_tried_less_and_less() {
        let mut count = LaneCount::new(LaneLimits { min: 1, max: 4 });
        let counts = run(&mut count, 0, 3000, MUCH, |_| 1000);
        assert!(counts.iter().all(|count| *count <= 2));
        let tries = counts.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((4..=10).contains(&tries), "{tries} tries in five minutes");
    }

    #[test]
    fn lanes_of_a_quiet_peer_are_given_up_slowly() {
        let mut count = LaneCount::new(LaneLimits { min: 1, max: 4 });
        run(&mut count, 0, 60, MUCH, |lanes| lanes as u64 * 1000);
        let counts = run(&mut count, 60, 90, 0, |_| 0);
        assert_eq!(counts.last(), Some(&4), "not at once");
        let counts = run(&mut count, 150, 400, 0, |_| 0);
        assert_eq!(counts.last(), Some(&1));
        assert_eq!(run(&mut count, 550, 400, 0, |_| 0).last(), Some(&1));
    }

    #[test]
    fn a_moment_of_load_changes_nothing() {
        let mut count = LaneCount::new(LaneLimits::default());
        for n in 0..1000 {
            let under_way = if n % 3 == 0 { 0 } else { MUCH };
            let measured = Measured { bytes: 1000, under_way };
            assert_eq!(count.handle_interval(INTERVAL * n, measured), Change::Keep);
        }
    }
}
