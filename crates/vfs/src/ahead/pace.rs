//! How much may be under way: as much as what is at the other end carries, and no more. No clock: time is an argument.
//!
//! Read-ahead makes requests where one reader makes too few. Where many readers make enough, or the way is slow, more of them only wait
//! in line, before somebody who needs his bytes now. So there is a limit of bytes under way, which read-ahead keeps to and those who
//! wait do not: it grows while requests take about as long as the quickest of the last minute did, and shrinks by an eighth when they
//! take twice as long, as they do when as much waits in line as is on its way (the rule of TCP Vegas, Brakmo and Peterson 1995). What
//! readers wait for counts as well, so that a loaded mount stops reading ahead by itself. A byte of a buffered read counts twice:
//! between the socket and the program it is copied once more, into the page cache.
//!
//! Requests that leave together share the way, come together, and are followed by others together: it is idle for a round trip between
//! such waves, and they look like a line. So each leaves a while after the one before, a little sooner than the way carried them last.

use sluice_run::lock::Mutex;
use std::time::Duration;

/// The limit is never below this: a request of the largest size can be under way while another one is being used.
const LIMIT_MIN: u64 = 2 << 20;
/// Where it begins.
const LIMIT_FIRST: u64 = 8 << 20;
/// Requests that take less longer than this are not slow: that is how long a thread may wait for a busy processor.
const SLOW_MIN: Duration = Duration::from_millis(10);
/// The rate is that of the best of the last intervals of about the quickest request, at least so long.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Of what the rate was it counts as so much in each interval that was slower.
const RATE_KEPT: f64 = 15.0 / 16.0;
/// Requests leave at so much of the rate: a way that carries more shows it.
const DEPART_RATE: f64 = 1.25;
/// As long as no line was seen, a request that takes so many times the quickest one's time shows one.
const SLOW_FIRST: u32 = 3;
/// For how long the quickest request stands for the way, at least; at most twice that.
const QUICKEST_FOR: Duration = Duration::from_secs(30);

/// What is under way, and how much may be.
pub(crate) struct Pace(Mutex<State>);

struct State {
    under_way: u64,
    limit: u64,
    limit_max: u64,
    /// Of this period, and of the one before.
    quickest: [Duration; 2],
    period_ends: Duration,
    /// No second cut for one line: before this the requests that stood in it come.
    cut_until: Duration,
    /// It was cut: what the way carries is known, about.
    is_known: bool,
    /// What was answered since the interval began.
    answered: u64,
    interval_began: Duration,
    /// By the second; 0 while nothing is known.
    rate: f64,
    /// When the next request may leave.
    departs: Duration,
}

impl State {
    fn quickest(&self) -> Duration {
        self.quickest[0].min(self.quickest[1])
    }

    fn note_rate(&mut self, weight: u64, now: Duration) {
        self.answered += weight;
        let passed = now.saturating_sub(self.interval_began);
        if passed >= self.quickest().max(INTERVAL_MIN) {
            self.rate = (self.answered as f64 / passed.as_secs_f64()).max(self.rate * RATE_KEPT);
            (self.answered, self.interval_began) = (0, now);
        }
    }
}

/// Bytes as they count: those of a buffered read twice.
pub(crate) fn weighed(bytes: usize, direct: bool) -> u64 {
    if direct { bytes as u64 } else { 2 * bytes as u64 }
}

impl Pace {
    /// A pace with a limit of at most `limit_max`.
    pub(crate) fn new(limit_max: u64) -> Self {
        let limit_max = limit_max.max(LIMIT_MIN);
        Self(Mutex::new(State {
            under_way: 0,
            limit: LIMIT_FIRST.min(limit_max),
            limit_max,
            quickest: [Duration::MAX; 2],
            period_ends: Duration::ZERO,
            cut_until: Duration::ZERO,
            is_known: false,
            answered: 0,
            interval_began: Duration::ZERO,
            rate: 0.0,
            departs: Duration::ZERO,
        }))
    }

    /// Counts what somebody waits for.
    pub(crate) fn begin(&self, weight: u64) {
        self.0.lock().under_way += weight;
    }

    /// Counts what is read ahead, if it may be now.
    pub(crate) fn try_begin(&self, weight: u64) -> bool {
        let mut state = self.0.lock();
        // Whatever its weight, one request at a time may.
        let may = state.under_way == 0 || state.under_way + weight <= state.limit;
        state.under_way += if may { weight } else { 0 };
        may
    }

    /// When a request that is read ahead is to leave, which could at `now`: at most the time of a quick one later.
    pub(crate) fn departs(&self, weight: u64, now: Duration) -> Duration {
        let mut state = self.0.lock();
        // The way is still being filled.
        if !state.is_known || state.rate == 0.0 {
            return now;
        }
        let at = state.departs.clamp(now, now.saturating_add(state.quickest()));
        state.departs = at + Duration::from_secs_f64(weight as f64 / (DEPART_RATE * state.rate));
        at
    }

    /// What was begun has ended.
    pub(crate) fn end(&self, weight: u64) {
        let mut state = self.0.lock();
        state.under_way = state.under_way.saturating_sub(weight);
    }

    /// A request that was read ahead took so long; it is now `now`.
    pub(crate) fn handle_took(&self, weight: u64, took: Duration, now: Duration) {
        let mut state = self.0.lock();
        if now >= state.period_ends {
            state.quickest = [Duration::MAX, state.quickest[0]];
            state.period_ends = now + QUICKEST_FOR;
        }
        state.quickest[0] = state.quickest[0].min(took);
        let quickest = state.quickest();
        state.note_rate(weight, now);
        // At first requests also wait for connections that are made for them, and for each other.
        let slow = if state.is_known { 2 } else { SLOW_FIRST };
        if took > (slow * quickest).max(quickest + SLOW_MIN) {
            if now >= state.cut_until {
                state.limit = (state.limit - state.limit / 8).max(LIMIT_MIN);
                state.cut_until = now + took;
                state.is_known = true;
            }
        } else if state.under_way >= state.limit / 2 {
            // In the time of a request as much is answered as is under way: that doubles it, or adds one request.
            let more = if state.is_known { (weight * weight / state.limit).max(1) } else { weight };
            state.limit = (state.limit + more).min(state.limit_max);
        }
    }

    /// The limit of now, and what is under way, in bytes as they count.
    pub(crate) fn now(&self) -> (u64, u64) {
        let state = self.0.lock();
        (state.limit, state.under_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const M: u64 = 1 << 20;

    /// A way of 30 ms that carries 300 MB/s, and a reader for whom nothing is ever enough. Gives bytes per second and the longest wait,
    /// after one second for the beginning.
    fn run(pace: &Pace, seconds: u64) -> (f64, Duration) {
        let (mut now, mut line_ends) = (Duration::ZERO, Duration::ZERO);
        let mut under_way: VecDeque<(Duration, Duration)> = VecDeque::new();
        let (mut bytes, mut longest) = (0, Duration::ZERO);
        while now < Duration::from_secs(seconds) {
            while pace.try_begin(M) {
                line_ends = line_ends.max(now) + Duration::from_secs_f64(M as f64 / 300e6);
                under_way.push_back((line_ends + Duration::from_millis(30), now));
            }
            let (ends, began) = under_way.pop_front().unwrap();
            now = ends;
            pace.end(M);
            pace.handle_took(M, now - began, now);
            if began > Duration::from_secs(1) {
                (bytes, longest) = (bytes + M, longest.max(now - began));
            }
        }
        (bytes as f64 / (seconds - 1) as f64, longest)
    }

    #[test]
    fn a_way_is_filled_and_its_line_stays_short() {
        let pace = Pace::new(512 * M);
        let (rate, longest) = run(&pace, 20);
        assert!(rate > 0.98 * 300e6, "{rate}");
        assert!(longest < Duration::from_millis(90), "{longest:?}");
        assert!(pace.now().0 < 32 * M, "{:?}", pace.now());
    }

    /// The same way, shared by all who are on it: bytes per second after the first second. Requests of a megabyte begin when others end,
    /// as many as may.
    fn shared(pace: &Pace, seconds: u64) -> f64 {
        const STEP: Duration = Duration::from_micros(100);
        const DELAY: Duration = Duration::from_millis(15);
        struct Request {
            left: Duration,
            arrives: Duration,
            done: Option<Duration>,
        }
        let mut requests: Vec<Request> = Vec::new();
        let (mut now, mut bytes) = (Duration::ZERO, 0);
        while now < Duration::from_secs(seconds) {
            let mut left = Vec::new();
            let ended = requests.extract_if(.., |request| request.done.is_some_and(|done| now >= done + DELAY));
            left.extend(ended);
            for request in &left {
                pace.end(M);
                pace.handle_took(M, now - (request.arrives - DELAY), now);
                bytes += if now > Duration::from_secs(1) { M } else { 0 };
            }
            if !left.is_empty() || requests.is_empty() {
                while pace.try_begin(M) {
                    let arrives = pace.departs(M, now) + DELAY;
                    requests.push(Request { left: Duration::from_secs_f64(M as f64 / 300e6), arrives, done: None });
                }
            }
            let on_it = |request: &&mut Request| request.arrives <= now && request.done.is_none();
            let sharing = requests.iter_mut().filter(on_it).count().max(1) as u32;
            for request in requests.iter_mut().filter(on_it) {
                request.left = request.left.saturating_sub(STEP / sharing);
                request.done = request.left.is_zero().then_some(now);
            }
            now += STEP;
        }
        bytes as f64 / (seconds - 1) as f64
    }

    #[test]
    fn what_shares_a_way_does_not_go_in_waves() {
        let rate = shared(&Pace::new(512 * M), 10);
        assert!(rate > 0.93 * 300e6, "{rate}");
    }

    #[test]
    fn where_readers_wait_nothing_is_read_ahead() {
        let pace = Pace::new(512 * M);
        assert!(pace.try_begin(weighed(M as usize, false)));
        (0..4).for_each(|_| pace.begin(weighed(M as usize, false)));
        assert!(!pace.try_begin(weighed(M as usize, true)));
        pace.end(4 * M);
        assert!(!pace.try_begin(weighed(2 * M as usize, false)) && pace.try_begin(weighed(2 * M as usize, true)));
    }

    #[test]
    fn a_way_that_gets_slow_is_left_alone_but_for_a_trickle() {
        let pace = Pace::new(512 * M);
        let mut now = Duration::ZERO;
        pace.handle_took(M, Duration::from_millis(5), now);
        for _ in 0..100 {
            now += Duration::from_millis(100);
            pace.handle_took(M, Duration::from_millis(80), now);
        }
        assert_eq!(pace.now().0, LIMIT_MIN);
        assert!(pace.try_begin(64 * M), "one");
        assert!(!pace.try_begin(1));
    }
}
