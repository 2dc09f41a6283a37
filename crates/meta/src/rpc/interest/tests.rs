use super::*;

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);

fn cached(ino: u64) -> Grant {
    Grant { ino: Ino(ino), cached: ATTR, used: false }
}

fn used(ino: u64) -> Grant {
    Grant { used: true, ..cached(ino) }
}

#[test]
fn a_read_that_began_before_a_change_is_stale() {
    let mut interest = Interest::new(10);
    let since = interest.now();
    interest.stamp(Ino(7));
    assert_eq!(interest.note(A, &[cached(7)], since), Noted::Stale);
    assert!(!interest.is_held(Ino(7)));
    assert_eq!(interest.note(A, &[cached(7)], interest.now()), Noted::Yes(vec![]));
    assert_eq!(interest.cachers(Ino(7), ATTR, true, B), [A]);
    assert_eq!(interest.cachers(Ino(7), ATTR, true, B), []);
    assert!(interest.is_held(Ino(7)), "told about, though nothing is cached");
}

#[test]
fn the_oldest_fall_out_unless_noted_again_or_used() {
    let mut interest = Interest::new(3);
    interest.note(A, &[used(1)], 0);
    for ino in 2..5 {
        assert_eq!(interest.note(A, &[cached(ino)], 0), Noted::Yes(vec![]));
    }
    // All are fresh at first: one round takes that away, and then the first goes.
    assert_eq!(interest.note(A, &[cached(5)], 0), Noted::Yes(vec![Ino(2)]));
    interest.note(A, &[cached(3)], 0);
    assert_eq!(interest.note(A, &[cached(6)], 0), Noted::Yes(vec![Ino(4)]));
    assert!(interest.is_held(Ino(1)) && interest.is_held(Ino(3)));
    assert_eq!(interest.counts(A), (4, 1));
}

#[test]
fn uses_have_a_bound_too() {
    let mut interest = Interest::new(2);
    assert_eq!(interest.note(A, &[used(1), used(2)], 0), Noted::Yes(vec![]));
    assert_eq!(interest.note(A, &[used(3)], 0), Noted::Full);
    assert_eq!(interest.note(A, &[used(2)], 0), Noted::Yes(vec![]));
    interest.close(A, Ino(1));
    assert_eq!(interest.note(A, &[used(3)], 0), Noted::Yes(vec![]));
}

#[test]
fn what_lost_its_name_is_kept_until_all_released_it() {
    let mut interest = Interest::new(2);
    interest.note(A, &[cached(1)], 0);
    interest.note(B, &[cached(1)], 0);
    assert_eq!(interest.keep(Ino(1), A), [B]);
    interest.drop_cached(A);
    assert!(interest.is_held(Ino(1)));
    interest.release(A, Ino(1));
    assert_eq!(interest.end(B), [Ino(1)]);
    assert!(!interest.is_held(Ino(1)));
    assert_eq!(interest.counts(A), (0, 0));
}

#[test]
fn giving_back_and_noting_again_does_not_grow() {
    let mut interest = Interest::new(100);
    for round in 0..100_000u64 {
        interest.note(A, &[cached(round % 50)], 0);
        interest.release(A, Ino(round % 50));
    }
    interest.note(A, &[cached(1)], 0);
    let holding = &interest.sessions[&A];
    assert!(holding.queue.len() <= 2 * holding.queued + QUEUE_SLACK, "{}", holding.queue.len());
    assert_eq!(interest.counts(A), (1, 0));
}
