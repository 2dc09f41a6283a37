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

/// Overwritten a thousand times, as a whole and in pieces at random: what is kept follows from what the file has.
#[test]
fn a_thousand_overwrites_keep_what_one_would() {
    const PIECE: u64 = 4096;
    let ino = Ino(3);
    for (pieces, written) in [(16, 128 << 10), (256, PIECE)] {
        let (mut extents, mut records) = (reload(ino, &BTreeMap::new(), 1), BTreeMap::new());
        let (mut random, mut most, mut most_bytes) = (0x2545_f491_4f6c_dd1du64, 0, 0);
        for turn in 0..1000u32 {
            for number in 0..pieces {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let offset = if written == PIECE { random % pieces * written } else { number * written };
                let place =
                    Place { object: ObjectId([(turn % 200) as u8 + 1; 16]), offset: number as u32 * written as u32 };
                let mut plan = ExtentPlan::default();
                extents.put(ino, Extent { offset, len: written, place: Some(place) }, &mut plan);
                store(&mut records, &plan);
            }
            most = most.max(records.len());
            most_bytes = most_bytes.max(records.values().map(Vec::len).sum());
        }
        // Before a span is packed it gathers 32 records, and one for each eight runs.
        assert!(most <= 34 + pieces as usize / 8, "{most} records of {pieces} pieces");
        assert!(most_bytes < 28 * (pieces as usize + 100), "{most_bytes} bytes of {pieces} pieces");
        assert!(extents.runs() <= pieces as usize + 1);
    }
}

/// Bytes of the log record that a plan becomes, about.
fn record_bytes(plan: &ExtentPlan) -> usize {
    plan.puts.iter().map(|(_, value)| value.len() + 40).sum::<usize>() + plan.deletes.len() * 40
}

/// A span of more runs than one record of the log holds: every change stays far below that.
#[test]
fn a_span_of_very_many_runs_is_packed_in_steps() {
    let ino = Ino(3);
    const BYTES: u64 = 2_000_000;
    let mut model = vec![None; BYTES as usize];
    let (mut extents, mut records) = (reload(ino, &BTreeMap::new(), 1), BTreeMap::new());
    let (mut random, mut largest) = (0x2545_f491_4f6c_dd1du64, 0);
    for i in 0..260_000u32 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (offset, len) = (random % (BYTES - 10), 1 + random % 10);
        let place = (random % 50 > 0).then_some(Place { object: ObjectId([(i % 7) as u8 + 1; 16]), offset: i });
        let mut plan = ExtentPlan::default();
        extents.put(ino, Extent { offset, len, place }, &mut plan);
        largest = largest.max(record_bytes(&plan));
        store(&mut records, &plan);
        for at in 0..len {
            model[(offset + at) as usize] = place.map(|p| (p.object, p.offset + at as u32));
        }
        if i == 130_000 {
            // A restart in the middle of it all.
            extents = reload(ino, &records, 1);
        }
    }
    assert!(extents.runs() > 100_000, "{} runs", extents.runs());
    assert!(largest < 1 << 20, "a change of {largest} bytes");
    assert!(records.len() < 2 * RECORDS_MAX, "{} records", records.len());
    for seen in [&extents, &reload(ino, &records, 1)] {
        let mut at = 0;
        for extent in seen.map(0..BYTES) {
            for i in 0..extent.len {
                let found = extent.place.map(|p| (p.object, p.offset + i as u32));
                assert_eq!(found, model[(at + i) as usize], "byte {}", at + i);
            }
            at += extent.len;
        }
    }
    // And away with it, in steps from the end as truncate does.
    for from in (0..20).rev() {
        let mut plan = ExtentPlan::default();
        let offset = from * BYTES / 20;
        extents.put(ino, Extent { offset, len: BYTES - offset, place: None }, &mut plan);
        assert!(record_bytes(&plan) < 3 << 19, "{} bytes", record_bytes(&plan));
        store(&mut records, &plan);
    }
    assert!(records.is_empty(), "{} records", records.len());
}
