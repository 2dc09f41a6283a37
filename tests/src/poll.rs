//! Waiting for conditions: the one place of the tests that looks at a clock or sleeps.
#![expect(clippy::disallowed_methods, reason = "tests of a real process have only the real clock")]

use std::time::{Duration, Instant};

/// Long enough not to burn a core that the process under test needs, short enough not to be seen in a test's time.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Measures real time.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts measuring now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Asks `condition` again and again until it holds (true) or `limit` has passed (false).
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let watch = Stopwatch::start();
    loop {
        if condition() {
            return true;
        }
        if watch.elapsed() > limit {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Like [`eventually`], for conditions that must come true.
///
/// # Panics
/// When `limit` passes first, naming `what` was awaited.
pub fn wait_for(what: &str, limit: Duration, condition: impl FnMut() -> bool) {
    assert!(eventually(limit, condition), "waited {limit:?} in vain for: {what}");
}
