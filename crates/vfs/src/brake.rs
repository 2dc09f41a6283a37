//! Holds small writes back when the journal fills up, a little each: otherwise they run into its end, stand until a segment is freed, fill
//! it at once and stand again. Time is an argument.
//!
//! From half of the room on, writes go no faster than a rate: what is freed in a second, and what is left, less a reserve, over some
//! seconds. So programs that write more than the store takes come down to its rate while there is room, and stay there. With a store
//! that takes nothing the room is used up slower and slower, and then they wait.

use std::time::Duration;

/// What is left is used up over this time.
const ROOM_OVER_S: f64 = 5.0;
/// Over so long what was freed is averaged: segments are freed whole, in bursts as uploads end.
const FREED_OVER_S: f64 = 5.0;
/// Segments that are kept back, as much as one burst frees.
const RESERVE_SEGMENTS: u64 = 2;
/// The least: nobody stands still while there is room.
const RATE_MIN: f64 = (512 << 10) as f64;
/// A shorter wait is not worth its wake-up: the next write waits for both.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// Longest wait before the rate is looked at again: what is freed meanwhile makes the queue go faster.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait of one write, however many are before it: then it finds out by itself whether there is room.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// How full the journal is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) used_bytes: u64,
    /// Of records with data.
    pub(crate) limit_bytes: u64,
    pub(crate) segment_bytes: u64,
}

impl Room {
    /// Whether writes are held back at all.
    pub(crate) fn is_scarce(&self) -> bool {
        self.used_bytes > self.limit_bytes / 2
    }
}

/// The state of one journal's brake: a queue of writes, told by their bytes, and how far it was let in.
#[derive(Debug, Default)]
pub(crate) struct Brake {
    /// Bytes of all writes that came so far.
    queued: f64,
    /// Of these, what may go on; grows with time, by the rate.
    passed: f64,
    passed_at: Duration,
    freed_per_s: f64,
    freed_at: Duration,
}

/// A write's place in the queue: behind what came before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(f64);

impl Brake {
    /// So many bytes of the journal were freed.
    pub(crate) fn freed(&mut self, now: Duration, bytes: u64) {
        let elapsed_s = now.saturating_sub(self.freed_at).as_secs_f64();
        let kept = (-elapsed_s / FREED_OVER_S).exp();
        self.freed_per_s = self.freed_per_s * kept + bytes as f64 / FREED_OVER_S;
        self.freed_at = now;
    }

    /// Lets a write of so many bytes in if it need not wait.
    pub(crate) fn try_let_in(&mut self, now: Duration, bytes: usize, room: Room) -> bool {
        self.advance(now, room);
        let is_free = self.queued - self.passed <= self.rate(now, room) * WAIT_MIN.as_secs_f64();
        if is_free {
            self.queued += bytes as f64;
        }
        is_free
    }

    /// A place for a write of so many bytes, behind all that came before.
    pub(crate) fn queue(&mut self, now: Duration, bytes: usize, room: Room) -> Ticket {
        self.advance(now, room);
        let ticket = Ticket(self.queued);
        self.queued += bytes as f64;
        ticket
    }

    /// How long to wait before this is asked again; nothing when it is the write's turn.
    pub(crate) fn wait(&mut self, now: Duration, ticket: Ticket, room: Room) -> Duration {
        self.advance(now, room);
        let ahead = ticket.0 - self.passed;
        if ahead <= 0.0 {
            return Duration::ZERO;
        }
        let wait = Duration::from_secs_f64(ahead / self.rate(now, room));
        wait.clamp(WAIT_MIN, LOOK_INTERVAL)
    }

    /// Lets in what is due by now. Time without a queue is not saved up for a later one.
    fn advance(&mut self, now: Duration, room: Room) {
        let elapsed_s = now.saturating_sub(self.passed_at).as_secs_f64();
        self.passed = (self.passed + elapsed_s * self.rate(now, room)).min(self.queued);
        self.passed_at = now;
    }

    /// Bytes a second.
    fn rate(&self, now: Duration, room: Room) -> f64 {
        let elapsed_s = now.saturating_sub(self.freed_at).as_secs_f64();
        let freed_per_s = self.freed_per_s * (-elapsed_s / FREED_OVER_S).exp();
        let left = room.limit_bytes as f64 - room.used_bytes as f64;
        let spare = left - (RESERVE_SEGMENTS * room.segment_bytes) as f64;
        (freed_per_s + spare / ROOM_OVER_S).max(RATE_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SEGMENT: u64 = 8 << 20;
    const LIMIT: u64 = 100 << 20;
    const WRITE: usize = 4096;

    /// Programs that write without a pause, and a store that takes `drain` bytes a second, in bursts of two segments, from a journal that
    /// begins empty: when each write was done.
    fn run(seconds: u64, drain: f64) -> (Vec<Duration>, u64) {
        let (mut brake, mut now, mut used, mut done) = (Brake::default(), Duration::ZERO, 0u64, Vec::new());
        let (mut drained, mut last) = (0.0, Duration::ZERO);
        let mut fullest = 0;
        while now < Duration::from_secs(seconds) {
            // What a write costs by itself.
            now += Duration::from_micros(40);
            drained += drain * (now - last).as_secs_f64();
            last = now;
            if drained >= (2 * SEGMENT) as f64 && used >= 3 * SEGMENT {
                drained = 0.0;
                used -= 2 * SEGMENT;
                brake.freed(now, 2 * SEGMENT);
            }
            let room = Room { used_bytes: used, limit_bytes: LIMIT, segment_bytes: SEGMENT };
            if used + WRITE as u64 > LIMIT {
                continue;
            }
            if room.is_scarce() && !brake.try_let_in(now, WRITE, room) {
                let ticket = brake.queue(now, WRITE, room);
                loop {
                    match brake.wait(now, ticket, room) {
                        Duration::ZERO => break,
                        wait => now += wait,
                    }
                }
            }
            used += WRITE as u64;
            fullest = fullest.max(used);
            done.push(now);
        }
        (done, fullest)
    }

    #[test]
    fn programs_come_down_to_what_the_store_takes_without_a_stand() {
        let (done, fullest) = run(60, 20e6);
        let late: Vec<_> = done.iter().filter(|at| at.as_secs() >= 20).collect();
        let rate = late.len() as f64 * WRITE as f64 / 40.0;
        assert!((15e6..25e6).contains(&rate), "{rate} bytes a second");
        let longest = done.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest < Duration::from_millis(50), "{longest:?}");
        assert!(fullest < LIMIT - SEGMENT / 2, "{fullest} of {LIMIT}");
    }

    #[test]
    fn a_store_that_takes_nothing_leaves_all_room_to_programs() {
        let (done, fullest) = run(120, 0.0);
        assert!(fullest > LIMIT - SEGMENT / 2, "{fullest} of {LIMIT}");
        let half = done.partition_point(|at| at.as_secs() < 2);
        assert!(half as u64 * WRITE as u64 > LIMIT / 2, "the first half is not held back");
    }

    /// What is used at most by so many programs that each write, wait as told and write again, with a store that takes `drain` bytes a second.
    fn crowd(writers: usize, write: usize, seconds: u64, drain: f64) -> u64 {
        let (mut brake, mut used, mut fullest, mut drained) = (Brake::default(), LIMIT / 2, 0u64, 0.0);
        let mut turns: BTreeSet<_> = (0..writers).map(|writer| (Duration::ZERO, writer)).collect();
        let mut tickets = vec![None; writers];
        let mut last = Duration::ZERO;
        while let Some((now, writer)) = turns.pop_first().filter(|(now, _)| *now < Duration::from_secs(seconds)) {
            drained += drain * (now - last).as_secs_f64();
            last = now;
            if drained >= SEGMENT as f64 && used >= SEGMENT {
                drained -= SEGMENT as f64;
                used -= SEGMENT;
                brake.freed(now, SEGMENT);
            }
            let room = Room { used_bytes: used, limit_bytes: LIMIT, segment_bytes: SEGMENT };
            let ticket = *tickets[writer].get_or_insert_with(|| brake.queue(now, write, room));
            let mut next = now + brake.wait(now, ticket, room);
            if next == now || !room.is_scarce() {
                (used, tickets[writer]) = (used + write as u64, None);
                fullest = fullest.max(used);
                next = now + Duration::from_micros(200);
            }
            turns.insert((next, writer));
        }
        fullest
    }

    #[test]
    fn hundreds_of_writers_together_do_not_fill_it() {
        for (writers, write) in [(1, 64 << 10), (30, 64 << 10), (300, 4096), (300, 64 << 10), (1000, 100 << 10)] {
            let fullest = crowd(writers, write, 60, 10e6);
            assert!(fullest < LIMIT - SEGMENT / 2, "{writers} writers of {write} bytes: {fullest} of {LIMIT}");
        }
    }

    #[test]
    fn the_rate_is_looked_at_again_while_a_write_waits() {
        let mut brake = Brake::default();
        let room = |used_bytes| Room { used_bytes, limit_bytes: LIMIT, segment_bytes: SEGMENT };
        let tickets: Vec<_> = (0..1000).map(|_| brake.queue(Duration::ZERO, 100 << 10, room(LIMIT))).collect();
        let last = tickets[999];
        assert_eq!(brake.wait(Duration::ZERO, last, room(LIMIT)), LOOK_INTERVAL);
        // What was held back goes on quickly once there is room.
        assert!(brake.wait(Duration::from_secs(10), last, room(LIMIT / 2)) > Duration::ZERO);
        assert_eq!(brake.wait(Duration::from_secs(20), last, room(LIMIT / 8)), Duration::ZERO);
    }
}
