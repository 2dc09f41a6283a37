use crate::{SEG, fill, id, pattern, segment};
use sluice_base::{SystemClock, disk::RealDisk, limits::SEGMENT_BYTES};
use sluice_store::{Cache, CacheError, CacheOptions, ReadError, SLOT_BYTES};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

fn cache(dir: &tempfile::TempDir, slots: u64) -> Cache {
    let options = CacheOptions {
        dir: dir.path().into(),
        capacity_bytes: slots * SLOT_BYTES,
        volume: sluice_base::VolumeId([7; 16]),
    };
    Cache::open(Arc::new(RealDisk), options, Arc::new(SystemClock::default())).unwrap()
}

/// Four slots, sixteen objects, everybody at once. The checksums would turn another object's bytes into `Corrupt`, so that
/// must not happen either: it would mean that a slot was reused under a pin.
#[test]
fn readers_never_see_another_objects_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(&dir, 4);
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let read = |seed: u32| {
        let mut found = vec![0; 2 * SEGMENT_BYTES];
        let mut at = seed;
        while !stop.load(Ordering::Relaxed) {
            at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let object = id(at >> 28);
            let Some(pin) = cache.pin(object) else { continue };
            for index in 0..3 {
                match pin.read_at(index * SEG, &mut found) {
                    Ok(()) => {
                        assert!(found == pattern(object, index * SEG, 2 * SEGMENT_BYTES));
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(ReadError::Absent { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    };
    let churn = |seed: u32| {
        for round in 0..2000u32 {
            let object = id(round.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 28);
            match round % 16 {
                15 => cache.discard(object),
                14 => cache.retire(object, 0),
                round => match fill(&cache, object, round % 4) {
                    Ok(()) | Err(CacheError::NoRoom) => {}
                    Err(error) => panic!("{error}"),
                },
            }
            if round % 1000 == 0 {
                cache.persist_table().unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        (0..3).for_each(|seed| drop(scope.spawn(move || read(seed))));
        let writers: Vec<_> = (0..2).map(|seed| scope.spawn(move || churn(seed * 7919))).collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    let stats = cache.stats();
    assert!(reads.load(Ordering::Relaxed) > 0 && stats.evictions > 100, "{stats:?}");
    (0..16).for_each(|number| cache.discard(id(number)));
    let stats = cache.stats();
    assert_eq!((stats.free_slots, stats.clean_slots, stats.clean_bytes), (4, 0, 0), "no slot and no byte got lost");
    assert!(segment(id(1), 0) != segment(id(2), 0));
}

/// One appends byte by byte, one reads what is there: every prefix checks.
#[test]
fn a_growing_tail_is_readable_at_any_time() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(&dir, 4);
    let slot = cache.create_dirty(id(1)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for start in (0..200_000).step_by(101) {
                slot.append(start, &pattern(id(1), start, 101)).unwrap();
            }
        });
        let pin = cache.pin(id(1)).unwrap();
        let mut found = vec![0; 200_100];
        loop {
            let end = slot.end() as usize;
            pin.read_at(0, &mut found[..end]).unwrap();
            assert!(found[..end] == pattern(id(1), 0, end));
            if end >= 200_000 {
                break;
            }
        }
    });
}
