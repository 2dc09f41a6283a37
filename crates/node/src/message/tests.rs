use super::segments::{open, pieces};
use super::*;
use crate::State;
use bytes::Bytes;
use sluice_base::{
    ObjectId,
    crc::{crc32c, segment_crc},
};
use sluice_object::StoredObject;

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
    let (pieces, crc) = pieces(OBJECT, &segments);
    let bytes = pieces.concat();
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
