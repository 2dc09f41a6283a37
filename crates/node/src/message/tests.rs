use super::segments::{gathered, open};
use super::*;
use crate::State;
use bytes::Bytes;
use sluice_base::{
    ObjectId,
    crc::{crc32c, segment_crc},
};
use sluice_object::StoredObject;
use sluice_wire::Piece;

const OBJECT: ObjectId = ObjectId([3; 16]);

fn named(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

/// Whatever is cut off or added, it no longer parses.
fn round_trip<T: PartialEq + std::fmt::Debug>(value: &T, bytes: &[u8], decode: impl Fn(&[u8]) -> Option<T>) {
    assert_eq!(decode(bytes).as_ref(), Some(value));
    (0..bytes.len()).for_each(|len| assert_eq!(decode(&bytes[..len]), None, "cut at {len}"));
    assert_eq!(decode(&[bytes, &[0]].concat()), None);
}

#[test]
fn bodies_survive_the_round_trip() {
    let join = Join {
        name: named("a"),
        instance: 7,
        address: "10.0.0.1:7700".parse().unwrap(),
        weight: 3,
        capacity_bytes: 1 << 40,
    };
    round_trip(&join, &join.encode(), Join::decode);
    let numbers = Numbers { used_bytes: 1, corrupt_segments: u64::MAX, ..Numbers::default() };
    let beat = Heartbeat { name: named("b"), instance: u64::MAX, numbers };
    round_trip(&beat, &beat.encode(), Heartbeat::decode);
    round_trip(&(named("c"), 9), &encode_leave(&named("c"), 9), decode_leave);
    round_trip(&(named("c"), true), &encode_drain(&named("c"), true), decode_drain);
    round_trip(&5, &encode_epoch(5), decode_epoch);
    let object = StoredObject::new(OBJECT, 3, 70_000).unwrap();
    let read = ReadSegments { object, range: 1..3, cached_only: true };
    round_trip(&read, &read.encode(), ReadSegments::decode);
    for range in [3..4, 2..4, 0..u32::MAX] {
        assert_eq!(ReadSegments::decode(&ReadSegments { range, ..read.clone() }.encode()), None);
    }
    let range = ReadRange { object, offset: 32_768, len: 32_769, cached_only: false };
    round_trip(&range, &range.encode(), ReadRange::decode);
    for (offset, len) in [(0, 0), (98_304, 1), (0, 98_305), (u32::MAX, 2)] {
        assert_eq!(ReadRange::decode(&ReadRange { offset, len, ..range }.encode()), None);
    }
    assert_eq!((range.segments(), range.within(1), range.within(2)), (1..3, 0..32_768, 0..1));
    let inner = ReadRange { offset: 70_000, len: 10, ..range };
    assert_eq!((inner.segments(), inner.within(2)), (2..3, 4464..4474));
    let member = Member {
        name: named("d"),
        address: "[::1]:1".parse().unwrap(),
        weight: 1,
        capacity_bytes: 0,
        state: State::Draining,
    };
    let group = vec![MemberStatus { member, silent_ms: 9, numbers }; 2];
    assert_eq!(decode_group(&encode_group(&group)), Some(group));
    assert_eq!(decode_group(&[1]), None);
}

#[test]
fn what_a_warm_up_asks_survives_the_round_trip() {
    let object = StoredObject::new(OBJECT, 3, 70_000).unwrap();
    round_trip(&object, &encode_fill(object), decode_fill);
    round_trip(&7, &encode_filled(7), decode_filled);
    let objects = vec![OBJECT, ObjectId([4; 16])];
    assert_eq!(decode_objects(&encode_objects(&objects)), Some(objects));
    let sets = [1 << 127 | 5, 0];
    assert_eq!(decode_sets(&encode_sets(&sets), 2), Some(sets.to_vec()));
    assert_eq!((decode_sets(&encode_sets(&sets), 1), decode_sets(&[0; 17], 1)), (None, None));
    let too_many = vec![OBJECT; HELD_MAX + 1];
    assert_eq!(decode_objects(&encode_objects(&too_many[1..])).map(|all| all.len()), Some(HELD_MAX));
    assert_eq!(
        (decode_objects(&encode_objects(&too_many)), decode_objects(&[]), decode_objects(&[0; 15])),
        (None, None, None)
    );
}

#[test]
fn what_is_to_be_checked_comes_through() {
    let check = CheckSegments { object: OBJECT, segments: 1 << 127 | 5 };
    let bytes = check.encode();
    assert_eq!(CheckSegments::decode(&bytes), Some(check));
    assert_eq!(CheckSegments::decode(&bytes[..31]), None);
    assert_eq!(CheckSegments::decode(&[&bytes[..], &[0]].concat()), None);
    assert_eq!(CheckSegments::decode(&CheckSegments { object: OBJECT, segments: 0 }.encode()), None);
    assert_eq!(decode_set(&encode_set(9)), Some(9));
    assert_eq!(indices(0b1010).collect::<Vec<_>>(), [1, 3]);
}

fn bytes_of(answer: &Answer) -> Vec<u8> {
    let bytes = answer.pieces().iter().map(|piece| match piece {
        Piece::Bytes(bytes) => bytes.clone(),
        Piece::Region(region) => panic!("{region:?} is on no disk"),
    });
    bytes.collect::<Vec<_>>().concat()
}

fn some_segments() -> Vec<Segment> {
    let full = |index: u32, len: usize| {
        let bytes = Bytes::from(vec![index as u8 + 1; len]);
        Segment { index, crc: segment_crc(OBJECT, index, &bytes), bytes }
    };
    vec![full(4, 32 << 10), Segment::absent(5), full(6, 32 << 10), full(7, 100)]
}

#[test]
fn answers_are_checked_once_and_wholly() {
    let segments = some_segments();
    let answer = gathered(OBJECT, &segments);
    let (bytes, crc) = (bytes_of(&answer), answer.crc());
    assert_eq!(crc, crc32c(&bytes), "put together, it is that of all bytes");
    let opened = |bytes: Vec<u8>, crc| open(bytes.into(), crc, OBJECT, 4..8);
    assert_eq!(opened(bytes.clone(), Some(crc)), Ok(segments.clone()));
    assert_eq!(opened(bytes.clone(), None), Ok(segments));
    assert_eq!(opened(bytes.clone(), Some(crc ^ 1)), Err(BadAnswer::Checksum));
    assert_eq!(
        open(bytes.clone().into(), Some(crc), OBJECT, 3..7),
        Err(BadAnswer::Corrupt(0b110_1000)),
        "of another place"
    );
    assert_eq!(open(bytes.clone().into(), Some(crc), ObjectId([4; 16]), 4..8), Err(BadAnswer::Corrupt(0b1101_0000)));
    let mut flipped = bytes.clone();
    flipped[40_000] ^= 1;
    assert_eq!(opened(flipped, Some(crc)), Err(BadAnswer::Corrupt(1 << 6)));
    for len in [0, 31, 32, 100, bytes.len() - 1] {
        assert!(opened(bytes[..len].to_vec(), Some(crc)).is_err(), "cut at {len}");
    }
    assert_eq!(opened([&bytes[..], &[0]].concat(), Some(crc)), Err(BadAnswer::Malformed));
    for at in 0..32 {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            assert!(opened(flipped, Some(crc)).is_err(), "bit {bit} of byte {at}");
        }
    }
}
