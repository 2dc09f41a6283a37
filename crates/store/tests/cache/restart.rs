use crate::{SEG, fill, id, open, options, pattern, segment, slab};
use sluice_base::{Disk, ManualClock, VolumeId, disk::MemoryDisk, limits::SEGMENT_BYTES};
use sluice_store::{Cache, CacheError, ReadError, SLOT_BYTES, SlotLocation};
use std::{path::Path, sync::Arc};

#[test]
fn a_persisted_table_brings_clean_slots_back() {
    let disk = MemoryDisk::default();
    let cache = open(&disk, 8);
    (0..6).for_each(|number| fill(&cache, id(number), number).unwrap());
    cache.create_dirty(id(7)).unwrap().append(0, b"dirty").unwrap();
    cache.persist_table().unwrap();
    cache.discard(id(5));
    fill(&cache, id(0), 1).unwrap();
    cache.persist_table().unwrap();
    drop(cache);

    let cache = open(&disk.power_loss(1), 8);
    assert_eq!(cache.stats().clean_slots, 5);
    let mut found = vec![0; SEGMENT_BYTES];
    for number in 0..5 {
        cache.pin(id(number)).unwrap().read_at(number * SEG, &mut found).unwrap();
        assert!(found == segment(id(number), number));
    }
    assert!(cache.pin(id(0)).unwrap().has(0, 2));
    assert!(cache.pin(id(5)).is_none() && cache.pin(id(7)).is_none());
}

#[test]
fn an_old_table_gives_misses_not_wrong_bytes() {
    let disk = MemoryDisk::default();
    let cache = open(&disk, 4);
    (0..4).for_each(|number| fill(&cache, id(number), 0).unwrap());
    cache.persist_table().unwrap();
    (10..14).for_each(|number| fill(&cache, id(number), 0).unwrap());
    drop(cache);
    let cache = open(&disk, 4);
    let mut found = vec![0; SEGMENT_BYTES];
    for number in 0..4 {
        let read = cache.pin(id(number)).unwrap().read_at(0, &mut found);
        assert!(matches!(read, Err(ReadError::Corrupt { index: 0 })));
        cache.retire(id(number), 0);
    }
    assert_eq!(cache.stats().clean_slots, 0);
}

#[test]
fn replay_in_any_order_gives_the_same_slot() {
    let disk = MemoryDisk::default();
    let cache = open(&disk, 4);
    let slot = cache.create_dirty(id(1)).unwrap();
    let bytes = |from: u32, to: u32| pattern(id(1), from, (to - from) as usize);
    slot.append(100, &bytes(100, 900)).unwrap();
    slot.append(904, &bytes(904, 5000)).unwrap();
    slot.append(2 * SEG, &bytes(2 * SEG, 6 * SEG + 500)).unwrap();
    let run = slot.sums()[2..].to_vec();
    slot.append(6 * SEG + 500, &bytes(6 * SEG + 500, 6 * SEG + 600)).unwrap();
    slot.append(9 * SEG, &bytes(9 * SEG, 10 * SEG)).unwrap();
    let run_after = slot.sums()[9..].to_vec();
    let (sums, all, at) = (slot.sums(), slot.read_all().unwrap(), slot.location());
    // Written to the slot, but the journal never heard of it.
    slot.append(10 * SEG + 50, &[1; 3000]).unwrap();
    drop((slot, cache));

    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [3, 0, 4, 2, 1]] {
        let cache = open(&disk, 4);
        let slot = cache.adopt_dirty(id(1), at).unwrap();
        for record in order {
            match record {
                0 => slot.restore(100, &bytes(100, 900)).unwrap(),
                1 => slot.restore(904, &bytes(904, 5000)).unwrap(),
                2 => slot.verify_run(2, &run).unwrap(),
                3 => slot.restore(6 * SEG + 500, &bytes(6 * SEG + 500, 6 * SEG + 600)).unwrap(),
                _ => slot.verify_run(9, &run_after).unwrap(),
            }
        }
        assert_eq!(cache.adopt_dirty(id(1), at).unwrap().location(), at);
        slot.finish_replay().unwrap();
        assert_eq!((slot.end(), slot.sums()), (10 * SEG, sums.clone()));
        assert!(slot.read_all().unwrap() == all);
        slot.append(10 * SEG + 100, b"goes on").unwrap();
        let last = slot.read_all().unwrap().pop().unwrap().unwrap();
        assert_eq!((&last[..100], &last[100..]), (&[0; 100][..], &b"goes on"[..]));
    }
}

#[test]
fn a_run_that_did_not_reach_the_disk_is_refused() {
    let disk = MemoryDisk::default();
    let cache = open(&disk, 4);
    let slot = cache.create_dirty(id(1)).unwrap();
    slot.append(0, &pattern(id(1), 0, 3 * SEGMENT_BYTES)).unwrap();
    let (sums, at) = (slot.sums(), slot.location());
    assert!(disk.flip_bit(slab(), u64::from(SEG) + 5));
    let cache = open(&disk, 4);
    let slot = cache.adopt_dirty(id(1), at).unwrap();
    assert_eq!(slot.verify_run(0, &sums), Err(vec![1]));
    assert!(matches!(slot.read_all(), Err(ReadError::Corrupt { index: 1 })));
    let pin = cache.pin(id(1)).unwrap();
    assert!(matches!(pin.read_at(0, &mut [0; 3 * SEGMENT_BYTES]), Err(ReadError::Corrupt { index: 1 })));
    pin.read_at(2 * SEG, &mut [0; SEGMENT_BYTES]).unwrap();
}

/// Bytes that a killed process had written were in the page cache only: `sync` of its successor must reach them.
#[test]
fn sync_covers_what_an_earlier_process_wrote() {
    let disk = MemoryDisk::default();
    let slot = open(&disk, 4).create_dirty(id(1)).unwrap();
    slot.append(0, &pattern(id(1), 0, 4 * SEGMENT_BYTES)).unwrap();
    let (sums, at) = (slot.sums(), slot.location());
    let cache = open(&disk, 4);
    cache.adopt_dirty(id(1), at).unwrap().verify_run(0, &sums).unwrap();
    cache.sync().unwrap();
    for seed in 0..20 {
        let cache = open(&disk.power_loss(seed), 4);
        cache.adopt_dirty(id(1), at).unwrap().verify_run(0, &sums).unwrap();
    }
}

#[test]
fn a_place_is_adopted_over_older_stays_only() {
    let disk = MemoryDisk::default();
    let cache = open(&disk, 2);
    fill(&cache, id(1), 0).unwrap();
    fill(&cache, id(2), 0).unwrap();
    cache.persist_table().unwrap();
    // Evicts 1; the table does not learn of it.
    let at = cache.create_dirty(id(3)).unwrap().location();
    let cache = open(&disk, 2);
    assert!(cache.pin(id(1)).is_some() && cache.pin(id(2)).is_some());
    let older = SlotLocation { generation: 1, ..at };
    assert!(matches!(cache.adopt_dirty(id(3), older), Err(CacheError::Taken(_))));
    let outside = SlotLocation { slot: 99, ..at };
    assert!(matches!(cache.adopt_dirty(id(3), outside), Err(CacheError::Taken(_))));
    assert_eq!(cache.adopt_dirty(id(3), at).unwrap().location(), at);
    assert!(matches!(cache.adopt_dirty(id(4), at), Err(CacheError::Taken(_))));
    assert!(cache.pin(id(1)).is_none() && cache.pin(id(2)).is_some());
    assert!(cache.create_dirty(id(5)).unwrap().location().generation > at.generation);
}

#[test]
fn a_smaller_capacity_keeps_to_itself_but_adopts_what_lies_outside() {
    let disk = MemoryDisk::default();
    let cache = open(&disk, 6);
    (0..5).for_each(|number| fill(&cache, id(number), 0).unwrap());
    let slot = cache.create_dirty(id(9)).unwrap();
    slot.append(0, b"far out").unwrap();
    cache.persist_table().unwrap();
    let at = slot.location();
    assert_eq!(at.slot, 5);
    drop((slot, cache));

    let cache = open(&disk, 2);
    let slot = cache.adopt_dirty(id(9), at).unwrap();
    slot.restore(0, b"far out").unwrap();
    assert_eq!(slot.read_all().unwrap(), [Some(b"far out".to_vec())]);
    assert!(disk.used_bytes() < 5 * SLOT_BYTES);
    assert!((2..5).all(|number| cache.pin(id(number)).is_none()));
    (20..30).for_each(|number| fill(&cache, id(number), 0).unwrap());
    let stats = cache.stats();
    assert!(stats.clean_slots + stats.dirty_slots <= 3, "{stats:?}");
}

#[test]
fn foreign_newer_and_damaged_directories_are_left_alone() {
    let disk = MemoryDisk::default();
    for _ in 0..2 {
        let cache = open(&disk, 2);
        fill(&cache, id(1), 0).unwrap();
        cache.persist_table().unwrap();
    }
    let open_as = |disk: &MemoryDisk, volume| {
        let options = sluice_store::CacheOptions { volume: VolumeId([volume; 16]), ..options(2) };
        Cache::open(Arc::new(disk.clone()), options, Arc::new(ManualClock::default()))
    };
    assert!(matches!(open_as(&disk, 8), Err(CacheError::OtherVolume { .. })));
    let table = disk.open(Path::new("/cache/slots")).unwrap();
    let whole = {
        let mut whole = vec![0; table.size().unwrap() as usize];
        table.read_exact_at(&mut whole, 0).unwrap();
        whole
    };
    table.write_all_at(&[2, 0, 0, 0], 8).unwrap();
    let error = open_as(&disk, 7).unwrap_err();
    assert!(matches!(error, CacheError::NewerFormat { found: 2, known: 1, .. }), "{error}");
    table.write_all_at(&[1, 0, 0, 0, 9], 8).unwrap();
    table.write_all_at(&[1], 4096 + 60).unwrap();
    assert!(matches!(open_as(&disk, 7), Err(CacheError::Damaged { .. })));
    table.write_all_at(&whole, 0).unwrap();
    open_as(&disk, 7).unwrap();
    let small = sluice_store::CacheOptions { capacity_bytes: SLOT_BYTES - 1, ..options(1) };
    let small = Cache::open(Arc::new(disk.clone()), small, Arc::new(ManualClock::default()));
    assert!(matches!(small, Err(CacheError::TooSmall(_))));
    // A slip of the keyboard must neither take all memory nor stay in the table.
    let large = sluice_store::CacheOptions { capacity_bytes: sluice_store::CAPACITY_BYTES_MAX + 1, ..options(1) };
    let large = Cache::open(Arc::new(disk.clone()), large, Arc::new(ManualClock::default()));
    assert!(matches!(large, Err(CacheError::TooLarge(_))));
    open_as(&disk, 7).unwrap();
}

#[test]
fn power_loss_takes_nothing_that_was_persisted_and_never_mixes_objects() {
    for seed in 0..60 {
        let disk = MemoryDisk::default();
        let cache = open(&disk, 6);
        (0..4).for_each(|number| fill(&cache, id(number), 0).unwrap());
        let slot = cache.create_dirty(id(9)).unwrap();
        slot.append(0, &pattern(id(9), 0, 3 * SEGMENT_BYTES)).unwrap();
        let (sums, at) = (slot.sums(), slot.location());
        cache.persist_table().unwrap();
        // Segments beside persisted ones; then churn that the table half hears of.
        (0..2).for_each(|number| fill(&cache, id(number), 1).unwrap());
        cache.discard(id(3));
        (20..22).for_each(|number| fill(&cache, id(number), 0).unwrap());
        let disk = disk.power_loss(seed);
        let cache = open(&disk, 6);
        let slot = cache.adopt_dirty(id(9), at).unwrap();
        slot.verify_run(0, &sums).unwrap_or_else(|bad| panic!("seed {seed}: synced segments {bad:?} are lost"));
        let mut found = vec![0; SEGMENT_BYTES];
        for number in 0..3 {
            // The slots of 0..3 were not touched since the table named them.
            cache.pin(id(number)).unwrap().read_at(0, &mut found).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert!(found == segment(id(number), 0), "seed {seed}");
        }
        for number in [3, 20, 21] {
            if let Some(pin) = cache.pin(id(number))
                && pin.read_at(0, &mut found).is_ok()
            {
                assert!(found == segment(id(number), 0), "seed {seed}");
            }
        }
    }
}
