//! The extents of a file against a plain array that says for every byte where it comes from.

use super::*;
use proptest::prelude::*;

/// Applies a plan to stored records, as the tables would.
fn store(records: &mut BTreeMap<Vec<u8>, Vec<u8>>, plan: &ExtentPlan) {
    for key in &plan.deletes {
        records.remove(&key[..]);
    }
    for (key, value) in &plan.puts {
        records.insert(key.to_vec(), value.clone());
    }
}

fn reload(ino: Ino, records: &BTreeMap<Vec<u8>, Vec<u8>>, spans: u64) -> FileExtents {
    let mut extents = FileExtents::default();
    for span in 0..spans {
        let first = keys::extent(ino, span, 0);
        let of_span = records.iter().filter(|(key, _)| key[..17] == first[..17]);
        let list: Vec<_> = of_span.map(|(key, value)| (keys::number_at(key, 17), value.clone())).collect();
        extents.load(span, &list).unwrap();
    }
    extents
}

/// Offsets near a span's end, so that changes cross it.
const BASE: u64 = SPAN_BYTES - 300;
const BYTES: u64 = 600;

#[derive(Clone, Debug)]
struct Change {
    offset: u64,
    len: u64,
    object: Option<u8>,
    object_offset: u32,
}

fn change() -> impl Strategy<Value = Change> {
    (0..BYTES, 1..120u64, prop::option::weighted(0.8, 1..4u8), 0..1000u32).prop_map(
        |(offset, len, object, object_offset)| Change {
            offset,
            len: len.min(BYTES - offset).max(1),
            object,
            object_offset,
        },
    )
}

proptest! {
    #[test]
    fn extents_equal_an_array(changes in prop::collection::vec(change(), 1..160)) {
        let ino = Ino(7);
        let mut model: Vec<Option<(u8, u32)>> = vec![None; BYTES as usize];
        let mut records = BTreeMap::new();
        let mut extents = reload(ino, &records, 2);
        let mut live: BTreeMap<ObjectId, i64> = BTreeMap::new();
        let mut held = 0;
        for c in &changes {
            let place = c.object.map(|o| Place { object: ObjectId([o; 16]), offset: c.object_offset });
            let mut plan = ExtentPlan::default();
            extents.put(ino, Extent { offset: BASE + c.offset, len: c.len, place }, &mut plan);
            store(&mut records, &plan);
            held += plan.held_bytes;
            plan.live.iter().for_each(|(object, by)| *live.entry(*object).or_default() += by);
            for i in 0..c.len {
                model[(c.offset + i) as usize] = c.object.map(|o| (o, c.object_offset + i as u32));
            }
        }
        for seen in [&extents, &reload(ino, &records, 2)] {
            let mut bytes = Vec::new();
            for extent in seen.map(BASE..BASE + BYTES) {
                prop_assert_eq!(extent.offset, BASE + bytes.len() as u64);
                bytes.extend((0..extent.len as u32).map(|i| extent.place.map(|p| (p.object.0[0], p.offset + i))));
            }
            prop_assert_eq!(&bytes, &model);
        }
        prop_assert_eq!(held, model.iter().flatten().count() as i64);
        for object in 1..4u8 {
            let bytes = model.iter().flatten().filter(|(o, _)| *o == object).count() as i64;
            prop_assert_eq!(live.get(&ObjectId([object; 16])).copied().unwrap_or(0), bytes);
        }
    }

    #[test]
    fn any_bytes_parse_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_runs(&bytes);
    }
}

#[test]
fn a_sequential_write_keeps_one_record() {
    let (ino, object) = (Ino(3), ObjectId([9; 16]));
    let (mut extents, mut records) = (reload(ino, &BTreeMap::new(), 1), BTreeMap::new());
    for i in 0..1000u32 {
        let place = Some(Place { object, offset: i * 4096 });
        let mut plan = ExtentPlan::default();
        extents.put(ino, Extent { offset: u64::from(i) * 4096, len: 4096, place }, &mut plan);
        store(&mut records, &plan);
    }
    assert_eq!(records.len(), 1);
    assert_eq!(extents.map(0..1000 * 4096).len(), 1);
}

#[test]
fn overwriting_again_and_again_stays_small() {
    let ino = Ino(3);
    let (mut extents, mut records) = (reload(ino, &BTreeMap::new(), 1), BTreeMap::new());
    for i in 0..10_000u32 {
        let place = Some(Place { object: ObjectId([1; 16]), offset: (i * 7919) % 1_000_000 });
        let mut plan = ExtentPlan::default();
        extents.put(ino, Extent { offset: u64::from(i % 5) * 4096, len: 4096, place }, &mut plan);
        store(&mut records, &plan);
    }
    assert!(records.len() < 50, "{} records", records.len());
}
