//! How long operations took, in memory that does not grow with their number.

use std::time::Duration;

/// Bits of a time that are kept: it is off by less than one part in 128.
const BITS: u32 = 7;
/// One for each time of 64 bits that is kept.
const SLOTS: usize = (64 - BITS as usize + 1) << BITS;

pub(super) struct Times {
    counts: Vec<u64>,
    total: u64,
    max_ns: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self { counts: vec![0; SLOTS], total: 0, max_ns: 0 }
    }
}

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[slot(ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    pub(super) fn count(&self) -> u64 {
        self.total
    }

    pub(super) fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1e3
    }

    /// So many microseconds `part` of the operations took at most; 0 without any.
    pub(super) fn quantile_us(&self, part: f64) -> f64 {
        let wanted = ((self.total as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return middle(slot).min(self.max_ns) as f64 / 1e3;
            }
        }
        self.max_us()
    }
}

/// The highest bits, behind how many lower ones were cut off.
fn slot(ns: u64) -> usize {
    let cut = (u64::BITS - ns.leading_zeros()).saturating_sub(BITS + 1);
    ((cut as usize) << BITS) + (ns >> cut) as usize
}

/// The middle of the times that a slot is for.
fn middle(slot: usize) -> u64 {
    let cut = (slot >> BITS).saturating_sub(1);
    (((slot - (cut << BITS)) as u64) << cut) + ((1 << cut) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_slot_close_to_it() {
        for ns in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + (1 << bit) / 3]).chain([u64::MAX]) {
            let back = middle(slot(ns));
            assert!(ns.abs_diff(back) as f64 <= ns as f64 / 128.0, "{ns} became {back}");
        }
        assert_eq!(slot(u64::MAX), SLOTS - 1);
    }

    #[test]
    fn quantiles() {
        let mut times = Times::default();
        assert_eq!(times.quantile_us(0.5), 0.0);
        for us in 1..=1000 {
            times.add(Duration::from_micros(us));
        }
        for (part, us) in [(0.5, 500.0), (0.95, 950.0), (0.99, 990.0)] {
            let told = times.quantile_us(part);
            assert!((told - us).abs() < us / 100.0, "{part}: {told}");
        }
        let mut other = Times::default();
        other.add(Duration::from_secs(2));
        times.merge(&other);
        assert_eq!((times.count(), times.max_us()), (1001, 2e6));
        assert_eq!(times.quantile_us(1.0), 2e6);
    }
}
