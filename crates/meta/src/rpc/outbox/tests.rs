use super::*;
use Invalidation::*;
use sluice_base::Ino;

const NOW: Duration = Duration::ZERO;

#[test]
fn what_waits_is_not_queued_twice_but_what_was_sent_is() {
    let mut outbox = Outbox::new(100);
    assert_eq!(outbox.push(Data(Ino(1)), NOW), (1, false));
    assert_eq!(outbox.push(Attr(Ino(1)), NOW), (1, false), "covered");
    assert_eq!(outbox.push(Attr(Ino(2)), NOW), (2, false));
    assert_eq!(outbox.next_push(), Some(Push { number: 2, items: vec![Data(Ino(1)), Attr(Ino(2))] }));
    assert_eq!(outbox.next_push(), None);
    assert_eq!(outbox.push(Attr(Ino(1)), NOW), (3, false));
    assert_eq!(outbox.stamp(), 2);
    assert_eq!(outbox.ack(99), 2, "an ack of what was not sent is none");
    assert_eq!(outbox.unacked(), 1);
}

#[test]
fn pushes_without_ack_are_sent_again() {
    let mut outbox = Outbox::new(100);
    outbox.push(Attr(Ino(1)), NOW);
    outbox.push(Attr(Ino(2)), NOW);
    outbox.next_push();
    outbox.ack(1);
    outbox.disconnected();
    outbox.push(Attr(Ino(2)), NOW);
    assert_eq!(outbox.next_push(), Some(Push { number: 3, items: vec![Attr(Ino(2)), Attr(Ino(2))] }));
    outbox.ack(3);
    assert_eq!((outbox.unacked(), outbox.next_push()), (0, None));
}

#[test]
fn too_many_become_one_that_says_everything() {
    let mut outbox = Outbox::new(8);
    for ino in 0..4 {
        outbox.push(Attr(Ino(ino)), NOW);
    }
    assert_eq!(outbox.next_push().map(|push| push.number), Some(4));
    for ino in 4..8 {
        assert_eq!(outbox.push(Attr(Ino(ino)), NOW), (ino + 1, false));
    }
    assert_eq!(outbox.next_push(), None, "half of the bound is under way");
    assert_eq!(outbox.push(Attr(Ino(8)), NOW), (9, true));
    assert_eq!(outbox.push(Unlinked(Ino(9)), NOW), (9, false));
    outbox.ack(4);
    assert_eq!(outbox.next_push(), Some(Push { number: 9, items: vec![Everything] }));
    assert_eq!(outbox.ack(9), 9);
    assert_eq!(outbox.unacked(), 0);
}

#[test]
fn a_session_that_never_acks_costs_a_bounded_queue() {
    let mut outbox = Outbox::new(64);
    for ino in 0..100_000 {
        outbox.push(Entry(Ino(ino), b"name".to_vec()), NOW);
        if ino % 3 == 0 {
            outbox.next_push();
        }
        assert!(outbox.unacked() <= 65);
    }
}

#[test]
fn a_session_that_drops_everything_starts_behind_the_last_number() {
    let mut outbox = Outbox::new(8);
    outbox.push(Attr(Ino(1)), NOW);
    outbox.next_push();
    outbox.push(Attr(Ino(2)), NOW);
    assert_eq!(outbox.overtake(), 2);
    assert_eq!((outbox.stamp(), outbox.next_push()), (2, None));
    assert_eq!(outbox.push(Attr(Ino(2)), NOW), (3, false));
}
