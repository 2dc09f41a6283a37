//! Objects that are read so much that two nodes should serve them.

use sluice_base::ObjectId;
use std::time::Duration;

/// What is counted is what was read within this time.
const WINDOW: Duration = Duration::from_secs(10);
/// An object is hot when so many segments of it were read within a window: all of the largest object four times. Who reads a file
/// once does not get there, nor does a slow reader of small pieces.
const HOT_SEGMENTS: u32 = 4 * sluice_base::limits::SEGMENTS_PER_OBJECT as u32;
/// Objects that are counted, each at the place of its id. One that takes another's place begins anew; a hot object keeps its place.
const PLACES: usize = 1024;

/// Counts the reads of objects.
pub(super) struct Hot(Vec<Counted>);

#[derive(Clone, Default)]
struct Counted {
    object: Option<ObjectId>,
    /// Since when, and how many segments.
    since: Duration,
    segments: u32,
    hot_until: Duration,
    turn: bool,
}

impl Default for Hot {
    fn default() -> Self {
        Self(vec![Counted::default(); PLACES])
    }
}

impl Hot {
    /// Notes a read of so many segments. True if it is the turn of the second owner.
    pub(super) fn is_seconds_turn(&mut self, object: ObjectId, segments: u32, now: Duration) -> bool {
        // Ids are random.
        let place = usize::from(u16::from_le_bytes([object.0[0], object.0[1]])) % PLACES;
        let counted = &mut self.0[place];
        if counted.object != Some(object) {
            if now < counted.hot_until {
                return false;
            }
            *counted = Counted { object: Some(object), since: now, ..Counted::default() };
        }
        if now >= counted.since + WINDOW {
            (counted.since, counted.segments) = (now, 0);
        }
        counted.segments = counted.segments.saturating_add(segments);
        if counted.segments >= HOT_SEGMENTS {
            counted.hot_until = now + WINDOW;
        }
        if now >= counted.hot_until {
            return false;
        }
        counted.turn = !counted.turn;
        counted.turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: ObjectId = ObjectId([7; 16]);

    #[test]
    fn much_within_a_short_time_is_hot() {
        let mut hot = Hot::default();
        let at = |secs: u64| Duration::from_secs(100 + secs);
        assert!((0..15).all(|_| !hot.is_seconds_turn(OBJECT, 32, at(0))));
        let turns: Vec<_> = (0..4).map(|_| hot.is_seconds_turn(OBJECT, 32, at(9))).collect();
        assert_eq!(turns, [true, false, true, false]);
        assert!(hot.is_seconds_turn(OBJECT, 1, at(18)), "for a while");
        assert!(!hot.is_seconds_turn(OBJECT, 1, at(20)) && !hot.is_seconds_turn(OBJECT, 1, at(40)));
    }

    #[test]
    fn little_at_a_time_is_not() {
        let mut hot = Hot::default();
        assert!((0..1000).all(|secs| !hot.is_seconds_turn(OBJECT, 40, Duration::from_secs(secs))));
    }

    #[test]
    fn another_object_takes_the_place_of_one_that_is_not_hot() {
        let (mut hot, now) = (Hot::default(), Duration::from_secs(1));
        let mut other = OBJECT;
        other.0[9] = 1;
        assert!((0..10).all(|_| !hot.is_seconds_turn(OBJECT, 40, now)));
        assert!(!hot.is_seconds_turn(other, 500, now));
        assert!(!hot.is_seconds_turn(OBJECT, 128, now), "it began anew");
        assert!(hot.is_seconds_turn(OBJECT, 512, now));
        assert!(!hot.is_seconds_turn(other, 1000, now), "its place is kept");
    }
}
