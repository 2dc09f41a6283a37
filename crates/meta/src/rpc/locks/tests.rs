//! The locks of one file against a map of its bytes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Bytes that the model has; the last one stands for everything behind.
const BYTES: u64 = 24;

fn range(first: u64, last: u64) -> LockRange {
    let last = if last >= BYTES - 1 { LockRange::END } else { last };
    LockRange::new(first, last).expect("a range")
}

#[derive(Clone, Copy, Debug)]
struct Step {
    owner: u8,
    first: u64,
    len: u64,
    mode: Option<LockMode>,
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![Just(None), Just(Some(LockMode::Shared)), Just(Some(LockMode::Exclusive))];
    (0..3u8, 0..BYTES, 0..BYTES, mode).prop_map(|(owner, first, len, mode)| Step { owner, first, len, mode })
}

/// Each byte's holders, and how.
type Model = BTreeMap<(u64, u8), LockMode>;

fn is_free(model: &Model, step: Step, mode: LockMode) -> bool {
    !model.iter().any(|(&(byte, owner), &held)| {
        let excluded = mode == LockMode::Exclusive || held == LockMode::Exclusive;
        owner != step.owner && excluded && (step.first..=step.first + step.len).contains(&byte)
    })
}

fn as_model(locks: &RangeLocks<u8>) -> Model {
    let mut model = Model::new();
    for lock in locks.iter() {
        for byte in lock.range.first()..=lock.range.last().min(BYTES - 1) {
            assert_eq!(model.insert((byte, lock.owner), lock.mode), None, "two locks of one owner on byte {byte}");
        }
    }
    model
}

proptest! {
    #[test]
    fn as_a_map_of_bytes(steps in prop::collection::vec(step(), 0..60)) {
        let (mut locks, mut model) = (RangeLocks::default(), Model::new());
        for step in steps {
            let asked = range(step.first, step.first + step.len);
            let free = step.mode.is_none_or(|mode| is_free(&model, step, mode));
            let found = step.mode.and_then(|mode| locks.in_the_way(step.owner, asked, mode).copied());
            prop_assert_eq!(found.is_none(), free);
            if let Some(lock) = found {
                prop_assert!(lock.owner != step.owner && lock.range.overlaps(asked));
                continue;
            }
            locks.set(step.owner, asked, step.mode, 7);
            for byte in (step.first..=step.first + step.len).filter(|byte| *byte < BYTES) {
                match step.mode {
                    Some(mode) => drop(model.insert((byte, step.owner), mode)),
                    None => drop(model.remove(&(byte, step.owner))),
                }
            }
            prop_assert_eq!(as_model(&locks), model.clone());
            // Merged as far as they may be.
            for (lock, other) in locks.iter().flat_map(|lock| locks.iter().map(move |other| (lock, other))) {
                let same = lock.owner == other.owner && lock.mode == other.mode;
                prop_assert!(lock == other || !same || !lock.range.touches(other.range));
            }
        }
    }

    #[test]
    fn parts_within_a_range(steps in prop::collection::vec(step(), 0..20), first in 0..BYTES, len in 0..BYTES) {
        let mut locks = RangeLocks::default();
        steps.iter().for_each(|step| locks.set(0u8, range(step.first, step.first + step.len), step.mode, 0));
        let mut cut = locks.clone();
        cut.set(0, range(first, first + len), None, 0);
        for lock in locks.of_within(0, range(first, first + len)) {
            cut.set(0, lock.range, Some(lock.mode), 0);
        }
        prop_assert_eq!(as_model(&cut), as_model(&locks));
    }
}

#[test]
fn ranges_are_sound() {
    assert!(LockRange::new(5, 4).is_none());
    assert!(LockRange::new(0, LockRange::END + 1).is_none());
    assert_eq!(LockRange::new(0, LockRange::END), Some(LockRange::WHOLE));
    let mut bytes = Vec::new();
    (9u64, 3u64).0.put(&mut bytes);
    3u64.put(&mut bytes);
    assert!(LockRange::take(&mut Reader::new(&bytes)).is_none());
}
