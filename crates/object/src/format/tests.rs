use super::*;
use bytes::Bytes;
use proptest::prelude::*;
use sluice_base::{ObjectId, limits::SEGMENT_BYTES};

/// Segments of a plain object: each full or absent, the last perhaps short.
fn segments(present: &[bool], last: usize, fill: u8) -> Vec<Option<Bytes>> {
    let n = present.len();
    let len = |i| if i + 1 == n { last } else { SEGMENT_BYTES };
    present.iter().enumerate().map(|(i, &yes)| yes.then(|| vec![fill ^ i as u8; len(i)].into())).collect()
}

fn stored_form(id: ObjectId, segments: &[Option<Bytes>]) -> (ObjectTable, Vec<u8>) {
    let table = ObjectTable::plain(id, segments).unwrap();
    let mut bytes: Vec<u8> = segments.iter().flatten().flat_map(|s| s.to_vec()).collect();
    bytes.extend(encode_tail(id, &table));
    (table, bytes)
}

fn shape() -> impl Strategy<Value = ([u8; 16], Vec<bool>, usize, u8)> {
    (any::<[u8; 16]>(), prop::collection::vec(prop::bool::weighted(0.7), 1..12), 1..=SEGMENT_BYTES, any::<u8>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn round_trip((id, present, last, fill) in shape()) {
        let id = ObjectId(id);
        let segments = segments(&present, last, fill);
        let (table, bytes) = stored_form(id, &segments);
        let object = table.stored_object(id);
        prop_assert_eq!(object.stored_bytes(), bytes.len() as u64);
        prop_assert_eq!(&decode_tail(id, &bytes).unwrap(), &table);
        let tail = object.tail_range();
        prop_assert_eq!(&decode_tail(id, &bytes[tail.start as usize..]).unwrap(), &table);
        for (i, segment) in segments.iter().enumerate() {
            let range = table.segment_range(i as u32).unwrap();
            let stored = &bytes[range.start as usize..range.end as usize];
            prop_assert_eq!(stored, segment.as_deref().unwrap_or_default());
            prop_assert!(table.verifies(id, i as u32, stored));
            if object.is_strided() {
                prop_assert_eq!(object.strided_range(i as u32..i as u32 + 1).unwrap(), range);
            }
        }
        prop_assert_eq!(object.is_strided(), present.iter().all(|&yes| yes));
        prop_assert_eq!(table.segment_range(segments.len() as u32), None);
    }

    #[test]
    fn every_flipped_bit_is_found((id, present, last, fill) in shape(), at in any::<prop::sample::Index>(), bit in 0..8u32) {
        let id = ObjectId(id);
        let (table, mut bytes) = stored_form(id, &segments(&present, last, fill));
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        let tail_at = table.data_bytes() as usize;
        if at >= tail_at {
            prop_assert!(matches!(decode_tail(id, &bytes), Err(FormatError::Invalid(_))));
        } else {
            let damaged = (0..table.segment_count()).filter(|&i| {
                let range = table.segment_range(i).unwrap();
                !table.verifies(id, i, &bytes[range.start as usize..range.end as usize])
            });
            prop_assert_eq!(damaged.count(), 1);
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_tail(ObjectId([1; 16]), &bytes);
        let mut framed = bytes;
        framed.extend(encode_tail(ObjectId([1; 16]), &one_segment()));
        framed.rotate_left(1);
        let _ = decode_tail(ObjectId([1; 16]), &framed);
    }

    #[test]
    fn a_well_summed_footer_of_any_content_is_survived(mut footer in prop::collection::vec(any::<u8>(), 64), count in 0..140u32) {
        footer[..8].copy_from_slice(b"SLUICEOB");
        footer[8..12].copy_from_slice(&[1, 0, 0, 0]);
        footer[12..16].copy_from_slice(&count.to_le_bytes());
        let crc = sluice_base::crc::crc32c(&footer[..60]);
        footer[60..].copy_from_slice(&crc.to_le_bytes());
        let id = ObjectId(footer[16..32].try_into().unwrap());
        let mut tail = vec![0; 100];
        tail.extend(&footer);
        prop_assert!(decode_tail(id, &tail).is_err());
    }
}

fn one_segment() -> ObjectTable {
    ObjectTable::plain(ObjectId([1; 16]), &[Some(Bytes::from_static(b"hello"))]).unwrap()
}

#[test]
fn the_layout_is_the_documented_one() {
    let tail = encode_tail(ObjectId([7; 16]), &one_segment());
    assert_eq!(tail.len(), 96);
    assert_eq!(tail[..8], [1, 0, 0, 0, 5, 0, 0, 0]);
    let crc = sluice_base::crc::segment_crc(ObjectId([1; 16]), 0, b"hello");
    assert_eq!(tail[8..12], crc.to_le_bytes());
    assert_eq!(tail[12..32], [0; 20]);
    assert_eq!(tail[32..48], *b"SLUICEOB\x01\0\0\0\x01\0\0\0");
    assert_eq!(tail[48..64], [7; 16]);
    assert_eq!(tail[64..80], [0; 16]);
    assert_eq!(tail[80..88], 5u64.to_le_bytes());
    assert_eq!(tail[88..92], sluice_base::crc::crc32c(&tail[..32]).to_le_bytes());
    assert_eq!(tail[92..96], sluice_base::crc::crc32c(&tail[32..92]).to_le_bytes());
}

#[test]
fn a_newer_version_says_so_and_damage_does_not_look_like_one() {
    let id = ObjectId([7; 16]);
    let mut tail = encode_tail(id, &one_segment());
    tail[40] = 2;
    assert!(matches!(decode_tail(id, &tail), Err(FormatError::Invalid(_))));
    let crc = sluice_base::crc::crc32c(&tail[32..92]);
    tail[92..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(decode_tail(id, &tail), Err(FormatError::Newer { found: 2, supported: 1 }));
}

#[test]
fn another_objects_tail_is_refused() {
    let tail = encode_tail(ObjectId([7; 16]), &one_segment());
    assert!(decode_tail(ObjectId([8; 16]), &tail).is_err());
}

#[test]
fn tables_that_no_writer_may_produce() {
    let id = ObjectId([1; 16]);
    let full = || Some(Bytes::from(vec![1; SEGMENT_BYTES]));
    let short = || Some(Bytes::from_static(b"short"));
    assert!(ObjectTable::plain(id, &[]).is_err());
    assert!(ObjectTable::plain(id, &vec![full(); 129]).is_err());
    assert!(ObjectTable::plain(id, &[short(), full()]).is_err());
    assert!(ObjectTable::plain(id, &[short(), None]).is_err());
    assert!(ObjectTable::plain(id, &[Some(Bytes::new())]).is_err());
    assert!(ObjectTable::plain(id, &[Some(Bytes::from(vec![1; SEGMENT_BYTES + 1]))]).is_err());
    assert!(ObjectTable::plain(id, &[full(), None, short()]).is_ok());
    assert!(ObjectTable::plain(id, &vec![full(); 128]).unwrap().stored_object(id).is_strided());
}

#[test]
fn records_that_cannot_be() {
    let id = ObjectId([1; 16]);
    for (count, bytes) in [(0, 64), (129, 200_000), (1, 95), (1, 96 + 32_769), (u32::MAX, u64::MAX), (128, 0)] {
        assert!(StoredObject::new(id, count, bytes).is_err(), "{count} {bytes}");
    }
    let object = StoredObject::new(id, 2, 128 + 32_768).unwrap();
    assert!(!object.is_strided());
    assert_eq!(object.strided_range(0..1), None);
    let object = StoredObject::new(id, 2, 128 + 32_769).unwrap();
    assert_eq!(object.strided_range(1..2), Some(32_768..32_769));
    assert_eq!(object.strided_range(1..3), None);
}
