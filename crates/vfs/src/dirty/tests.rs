use super::*;
use sluice_base::{ManualClock, SeededEntropy};
use std::{sync::atomic::AtomicBool, thread};

fn dirty() -> (Dirty, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    (Dirty::new(None, clock.clone(), Arc::new(SeededEntropy::new(1)), 1 << 30), clock)
}

#[test]
fn an_object_that_was_just_made_is_left_to_its_writer() {
    let (dirty, clock) = dirty();
    let object = dirty.take(false, true, Seq(1)).unwrap();
    clock.advance(Duration::from_secs(10));
    assert!(dirty.ready(Duration::ZERO, Some(Seq(u64::MAX))).is_empty());
    let done = dirty.try_append(&object, b"bytes", false, clock.monotonic()).unwrap().expect("it is open");
    assert!(dirty.ready(Duration::ZERO, None).is_empty(), "a commit is under way");
    drop(done);
    let ready = dirty.ready(Duration::ZERO, None);
    assert!(ready.len() == 1 && !ready[0].is_empty());
    // One whose only write failed was sealed, and leaves.
    let failed = dirty.take(true, true, Seq(2)).unwrap();
    assert!(!failed.is_empty());
    failed.seal();
    assert!(dirty.ready(Duration::ZERO, None).iter().any(|object| object.id == failed.id && object.is_empty()));
}

#[test]
fn no_write_meets_an_empty_object_that_somebody_else_has_sealed() {
    const WRITES: u64 = 20_000;
    let (dirty, clock) = dirty();
    let (dirty, done) = (&dirty, &AtomicBool::new(false));
    thread::scope(|scope| {
        let seals = scope.spawn(move || {
            while !done.load(Ordering::Acquire) {
                for object in dirty.ready(Duration::ZERO, Some(Seq(u64::MAX))) {
                    assert!(!object.is_empty());
                    dirty.remove(object.id);
                }
            }
        });
        for number in 0..WRITES {
            // An object for each; now and then there are as many as memory takes, until the others are away.
            while dirty.append(&mut Stream::default(), 0, b"x", true, Seq(number + 1)).is_err() {
                assert!(!seals.is_finished(), "an empty object was sealed");
                thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
        seals.join().unwrap();
    });
    clock.advance(Duration::from_secs(1));
    assert!(dirty.ready(Duration::ZERO, None).iter().all(|object| !object.is_empty()));
}

#[test]
fn all_that_keep_the_oldest_segments_are_sealed_at_once() {
    let (dirty, clock) = dirty();
    let mut streams: Vec<_> = (0..10).map(|_| Stream::default()).collect();
    for (seq, stream) in (1..).zip(&mut streams) {
        drop(dirty.append(stream, 0, &vec![1; 200_000], true, Seq(10 * seq)).unwrap());
    }
    clock.advance(Duration::from_millis(1));
    let day = Duration::from_secs(86_400);
    assert!(dirty.ready(day, None).is_empty());
    let mut sealed: Vec<_> = dirty.ready(day, Some(Seq(51))).iter().map(|object| object.first_seq.0).collect();
    sealed.sort_unstable();
    assert_eq!(sealed, [10, 20, 30, 40, 50]);
}
