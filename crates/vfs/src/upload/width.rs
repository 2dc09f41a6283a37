//! How many uploads run at once: as many as make them faster in sum, and fewer when the store refuses some. Time is an argument.
//!
//! What the uploads of a turn bring in a second is compared with what the last turn brought at another width. More at once is tried by
//! half, and kept when it brings a tenth more; now and then fewer are tried, and kept when they bring as much: each takes memory
//! here, and room from others in the store. Turns in which nothing waited for its upload say nothing of the store and change nothing.

use std::time::Duration;

/// A turn lasts at least so long, and until as many uploads have ended as run at once: answers come in bursts.
const TURN: Duration = Duration::from_secs(1);
/// Turns between two tries of another width.
const PAUSE: u32 = 8;
/// More at once must bring this much more to be kept, fewer must keep this much.
const GAIN_MIN: f64 = 1.1;
const KEPT_MIN: f64 = 0.97;

/// Fewer run when more than this part of a turn's uploads were refused: now and then every store fails.
const REFUSED_SHARE: u64 = 8;

/// The state of one uploader.
#[derive(Debug)]
pub(crate) struct Width {
    now: usize,
    max: usize,
    turn: Turn,
    /// What the turns at the width to come back to have brought; none yet after the store has refused.
    known: Option<Known>,
    pause: u32,
    /// What the next try is of.
    next_is_more: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    width: usize,
    bytes_per_s: f64,
}

/// What happened since a turn began.
#[derive(Debug, Default)]
struct Turn {
    began: Option<Duration>,
    bytes: u64,
    ended: usize,
    /// Something waited all the time.
    is_full: bool,
    refused: u64,
}

impl Width {
    /// Begins with `start`, and never has more than `max`, which is not 0.
    pub(crate) fn new(start: usize, max: usize) -> Self {
        let turn = Turn::default();
        Self { now: start.clamp(1, max), max, turn, known: None, pause: 0, next_is_more: true }
    }

    /// How many may run now.
    pub(crate) fn get(&self) -> usize {
        self.now
    }

    /// An upload ended, of so many bytes that the store has now. `is_waited`: a further one waits for its turn. `refused`: so many requests the
    /// store did not answer meanwhile, or asked for fewer.
    pub(crate) fn ended(&mut self, now: Duration, bytes: u64, is_waited: bool, refused: u64) {
        let Some(began) = self.turn.began else {
            // This one's bytes were under way before.
            self.turn = Turn { began: Some(now), is_full: true, refused, ..Turn::default() };
            return;
        };
        let turn = &mut self.turn;
        turn.bytes += bytes;
        turn.ended += 1;
        turn.is_full &= is_waited;
        turn.refused += refused;
        if now < began + TURN || turn.ended < self.now {
            return;
        }
        let bytes_per_s = turn.bytes as f64 / (now - began).as_secs_f64();
        let (is_full, was_refused) = (turn.is_full, turn.refused * REFUSED_SHARE > turn.ended as u64);
        self.turn = Turn { began: is_waited.then_some(now), is_full: true, ..Turn::default() };
        if was_refused {
            (self.now, self.known, self.pause, self.next_is_more) = ((self.now / 2).max(1), None, PAUSE, true);
        } else if is_full {
            self.judge(bytes_per_s);
        } else {
            self.come_back();
        }
    }

    fn judge(&mut self, bytes_per_s: f64) {
        let is_kept = match self.known {
            None => true,
            Some(known) if self.now > known.width => bytes_per_s >= known.bytes_per_s * GAIN_MIN,
            Some(known) if self.now < known.width => bytes_per_s >= known.bytes_per_s * KEPT_MIN,
            // No try, but a new measure: the store may be another by now.
            Some(_) => {
                self.pause = self.pause.saturating_sub(1);
                self.known = Some(Known { width: self.now, bytes_per_s });
                if self.pause == 0 {
                    self.try_another();
                }
                return;
            }
        };
        if !is_kept {
            self.next_is_more = !self.next_is_more;
            return self.come_back();
        }
        self.known = Some(Known { width: self.now, bytes_per_s });
        if self.pause == 0 {
            self.try_another();
        } else {
            self.pause -= 1;
        }
    }

    fn try_another(&mut self) {
        let (more, fewer) = ((self.now + (self.now / 2).max(1)).min(self.max), (self.now * 2 / 3).max(1));
        self.now = if self.next_is_more { more } else { fewer };
        if self.known.is_some_and(|known| known.width == self.now) {
            self.next_is_more = !self.next_is_more;
            self.pause = PAUSE;
        }
    }

    fn come_back(&mut self) {
        if let Some(known) = self.known {
            self.now = known.width;
            self.pause = PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OBJECT: u64 = 4 << 20;

    /// A store that takes `each` bytes a second from each upload and `all` from all together: runs the machine against it for so many
    /// seconds; the time it ends at.
    fn run(width: &mut Width, mut now: f64, seconds: u32, each: f64, all: f64) -> f64 {
        let end = now + f64::from(seconds);
        while now < end {
            now += OBJECT as f64 / (each * width.get() as f64).min(all);
            width.ended(Duration::from_secs_f64(now), OBJECT, true, 0);
        }
        now
    }

    const MB: f64 = 1e6;

    #[test]
    fn it_finds_what_the_store_takes() {
        for (each, all, at_least, at_most) in
            [(20.0, 200.0, 9, 15), (10.0, 10_000.0, 32, 32), (100.0, 100.0, 1, 2), (30.0, 120.0, 4, 6)]
        {
            let mut width = Width::new(4, 32);
            run(&mut width, 0.0, 120, each * MB, all * MB);
            let known = width.known.expect("turns were measured").width;
            assert!((at_least..=at_most).contains(&known), "{each} MB/s each, {all} in all: {known}");
        }
    }

    #[test]
    fn it_follows_a_store_that_changes() {
        let mut width = Width::new(4, 32);
        let now = run(&mut width, 0.0, 120, 20.0 * MB, 400.0 * MB);
        assert!(width.get() >= 18, "{width:?}");
        let now = run(&mut width, now, 200, 200.0 * MB, 200.0 * MB);
        assert!(width.get() <= 3, "{width:?}");
        run(&mut width, now, 200, 20.0 * MB, 400.0 * MB);
        assert!(width.get() >= 12, "{width:?}");
    }

    #[test]
    fn it_halves_where_the_store_refuses() {
        let mut width = Width::new(16, 32);
        let mut now = 0.0;
        for expected in [8, 4, 2, 1, 1] {
            let mut turns = 0;
            while width.get() != expected || turns == 0 {
                now += 0.3;
                width.ended(Duration::from_secs_f64(now), OBJECT, true, 1);
                turns += 1;
                assert!(turns < 100, "{width:?}");
            }
        }
        // And comes back when it no longer does.
        run(&mut width, now, 120, 20.0 * MB, 200.0 * MB);
        assert!(width.get() >= 6, "{width:?}");
    }

    #[test]
    fn nothing_that_waits_says_nothing() {
        let mut width = Width::new(4, 32);
        for second in 0..100 {
            width.ended(Duration::from_secs(second), OBJECT, second % 2 == 0, 0);
        }
        assert_eq!(width.get(), 4);
    }

    proptest! {
        #[test]
        fn it_stays_within_its_bounds(
            start in 0usize..100,
            max in 1usize..64,
            events in prop::collection::vec((0u64..3000, 0u64..OBJECT, any::<bool>(), prop::bool::weighted(0.1)), 0..500),
        ) {
            let mut width = Width::new(start, max);
            let mut now = Duration::ZERO;
            for (ms, bytes, is_waited, refused) in events {
                now += Duration::from_millis(ms);
                width.ended(now, bytes, is_waited, refused.into());
                prop_assert!((1..=max).contains(&width.get()));
            }
        }
    }
}
