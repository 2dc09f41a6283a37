//! What is kept, and until when.

use super::*;

fn kept(ino: u64) -> Kept {
    Kept { method: 32, fields: vec![7; 100], made: Ino(0), inos: vec![Ino(ino)] }
}

fn head(life: u32, synced: u64, record: u64) -> ReplyHead {
    ReplyHead { life, synced, record, ..ReplyHead::default() }
}

fn of_life(life: u32) -> Retained {
    Retained::new(life, 0)
}

#[test]
fn a_change_is_kept_until_its_record_is_durable() {
    let retained = of_life(3);
    assert!(retained.keep(1, head(3, 10, 10), || panic!("it is durable already")));
    assert!(retained.keep(2, head(3, 10, 12), || kept(1)) && retained.keep(3, head(3, 10, 11), || kept(2)));
    assert_eq!(retained.wanted(None), Some((3, 12, 3)), "records are not in the order of numbers");
    retained.synced(3, 11);
    assert_eq!(retained.numbers(), [2, 3], "the second waits for the first");
    retained.synced(2, 99);
    assert_eq!(retained.first(), Some(2), "that was another run");
    retained.synced(3, 12);
    assert_eq!((retained.first(), retained.wanted(None)), (None, None));
}

#[test]
fn what_is_sent_again_is_kept_for_the_new_run() {
    let retained = of_life(1);
    assert!(retained.keep(1, head(1, 0, 50), || kept(1)) && retained.keep(2, head(1, 0, 51), || kept(2)));
    retained.begin_life(2);
    assert!(!retained.keep(3, head(1, 0, 52), || kept(3)), "nobody sends this one again");
    retained.sent_again(1, head(2, 0, 20));
    assert_eq!(retained.wanted(Some(1)), Some((2, 20, 1)));
    retained.synced(2, 20);
    assert_eq!(retained.numbers(), [2]);
    retained.lose(2);
    assert!(retained.take_lost(Some(Ino(2))) && !retained.take_lost(Some(Ino(2))), "a sync says so once");
    assert!(!retained.take_lost(Some(Ino(1))));
    assert!(retained.take_lost(None) && !retained.take_lost(None), "who syncs everything is told, too");
}

#[test]
fn it_is_bounded() {
    let retained = of_life(1);
    for number in 1..=CHANGES_MAX as u64 {
        assert!(!retained.is_full());
        assert!(retained.keep(number, head(1, 0, number), || kept(number)));
    }
    assert!(retained.is_full());
    retained.synced(1, 1);
    assert!(!retained.is_full());
    let large = || Kept { fields: vec![0; BYTES_MAX], ..kept(1) };
    assert!(retained.keep(9999, head(1, 0, 9999), large));
    assert!(retained.is_full());
    (2..=CHANGES_MAX as u64).chain([9999]).for_each(|number| retained.lose(number));
    assert!(!retained.is_full() && retained.take_lost(None) && !retained.take_lost(None));
}

#[test]
fn a_line_that_lacks_more_than_what_is_kept_gets_nothing() {
    let retained = of_life(1);
    assert!(retained.keep(1, head(1, 10, 10), || panic!("it is durable already")));
    assert!(retained.keep(2, head(1, 10, 12), || kept(2)) && retained.keep(3, head(1, 10, 13), || kept(3)));
    assert!(!retained.is_ahead_of(1) && retained.last() == 3);
    retained.begin_life(2);
    assert_eq!(retained.numbers(), [2, 3]);
    assert!(!retained.take_lost(None) && !retained.keep(4, head(1, 10, 14), || kept(4)));
    retained.sent_again(2, head(2, 0, 20));
    retained.synced(2, 20);
    assert!(retained.is_ahead_of(1));
    assert_eq!(retained.lose_all(1, [Ino(8)].into_iter()), 1);
    assert_eq!((retained.first(), retained.last()), (None, 1));
    assert!(retained.take_lost(Some(Ino(3))) && retained.take_lost(Some(Ino(8))) && !retained.take_lost(Some(Ino(2))));
    assert!(!retained.is_ahead_of(1), "that was told");
}
