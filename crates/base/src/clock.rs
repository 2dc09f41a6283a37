//! Time enters here, so that tests and the simulator can turn the hands.

use crate::Timestamp;
use parking_lot::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Both clocks of a host.
pub trait Clock: Send + Sync + 'static {
    /// Wall clock, for file times only: it may step in either direction.
    fn wall(&self) -> Timestamp;
    /// Time since some fixed start, never going back: for leases, deadlines and ages.
    fn monotonic(&self) -> Duration;
}

/// The host's clocks.
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the place where the real clock enters")]
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the place where the real clock enters")]
    fn wall(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                let (secs, nanos) = (-(before.as_secs() as i64), before.subsec_nanos());
                if nanos == 0 {
                    Timestamp { secs, nanos }
                } else {
                    Timestamp { secs: secs - 1, nanos: 1_000_000_000 - nanos }
                }
            }
        }
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that moves only when told.
#[derive(Default)]
pub struct ManualClock {
    now: Mutex<(Timestamp, Duration)>,
}

impl ManualClock {
    /// Both clocks go on by `by`.
    pub fn advance(&self, by: Duration) {
        let mut now = self.now.lock();
        now.1 += by;
        let nanos = now.0.nanos + by.subsec_nanos();
        now.0.secs += by.as_secs() as i64 + i64::from(nanos / 1_000_000_000);
        now.0.nanos = nanos % 1_000_000_000;
    }

    /// The wall clock steps; the monotonic one does not notice.
    pub fn step_wall(&self, to: Timestamp) {
        self.now.lock().0 = to;
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Timestamp {
        self.now.lock().0
    }
    fn monotonic(&self) -> Duration {
        self.now.lock().1
    }
}
