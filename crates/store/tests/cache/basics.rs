use crate::{SEG, fill, id, open, options, pattern, segment, slab};
use sluice_base::{ManualClock, disk::MemoryDisk, limits::SEGMENT_BYTES};
use sluice_store::{Cache, CacheError, ReadError};
use std::{sync::Arc, time::Duration};

#[test]
fn appended_bytes_and_zeros_between_them_are_read_back() {
    let cache = open(&MemoryDisk::default(), 4);
    let slot = cache.create_dirty(id(1)).unwrap();
    slot.append(0, &pattern(id(1), 0, 1000)).unwrap();
    slot.append(1008, &pattern(id(1), 1008, 200_000)).unwrap();
    slot.append(10 * SEG, &pattern(id(1), 10 * SEG, 5)).unwrap();
    assert_eq!(slot.end(), 10 * SEG + 5);
    assert!(matches!(slot.append(10, &[1]), Err(CacheError::Invalid(_))));
    assert!(matches!(cache.create_dirty(id(1)), Err(CacheError::Exists(_))));

    let mut expected = pattern(id(1), 0, 7 * SEGMENT_BYTES);
    expected[1000..1008].fill(0);
    expected[201_008..].fill(0);
    let pin = cache.pin(id(1)).unwrap();
    let mut found = vec![1; 7 * SEGMENT_BYTES];
    pin.read_at(0, &mut found).unwrap();
    assert!(found == expected);
    pin.read_at(70_001, &mut found[..70_001]).unwrap();
    assert!(found[..70_001] == expected[70_001..140_002]);
    pin.read_at(10 * SEG, &mut found[..5]).unwrap();
    assert!(found[..5] == pattern(id(1), 10 * SEG, 5));

    assert!(pin.has(0, 7) && !pin.has(0, 8) && pin.has(10, 1));
    assert_eq!(pin.absent(5, 7), [7, 8, 9, 11]);
    assert!(matches!(pin.read_at(7 * SEG, &mut found[..1]), Err(ReadError::Absent { index: 7 })));
    assert!(matches!(pin.read_at(10 * SEG, &mut found[..6]), Err(ReadError::Absent { index: 10 })));
    assert!(matches!(pin.read_at(128 * SEG - 1, &mut found[..2]), Err(ReadError::Absent { index: 127 })));

    let all = slot.read_all().unwrap();
    let sums = slot.sums();
    assert_eq!((all.len(), sums.len()), (11, 11));
    for (index, (segment, sum)) in all.iter().zip(&sums).enumerate() {
        assert_eq!(segment.as_ref().map_or(0, Vec::len), sum.len as usize);
        if let Some(segment) = segment {
            assert_eq!(sum.crc, sluice_base::crc::segment_crc(id(1), index as u32, segment));
        }
    }
}

#[test]
fn a_present_segment_is_never_rewritten() {
    let cache = open(&MemoryDisk::default(), 2);
    fill(&cache, id(1), 3).unwrap();
    cache.fill(id(1), 3, &[9; 100], 0).unwrap();
    let slot = cache.create_dirty(id(2)).unwrap();
    slot.append(0, b"mine").unwrap();
    fill(&cache, id(2), 1).unwrap();
    let mut found = vec![0; SEGMENT_BYTES];
    cache.pin(id(1)).unwrap().read_at(3 * SEG, &mut found).unwrap();
    assert!(found == segment(id(1), 3));
    assert!(!cache.pin(id(2)).unwrap().has(1, 1), "dirty slots are filled by their writer only");
    for wrong in [cache.fill(id(1), 128, &[1], 0), cache.fill(id(1), 0, &[], 0), cache.fill(id(1), 0, &[0; 40_000], 0)]
    {
        assert!(matches!(wrong, Err(CacheError::Invalid(_))));
    }
}

#[test]
fn dirty_and_pinned_slots_stay() {
    let cache = open(&MemoryDisk::default(), 4);
    cache.create_dirty(id(1)).unwrap().append(0, b"dirty").unwrap();
    fill(&cache, id(2), 0).unwrap();
    let pin = cache.pin(id(2)).unwrap();
    for number in 10..40 {
        fill(&cache, id(number), 0).unwrap();
    }
    assert_eq!(cache.stats().evictions, 28);
    let (a, b) = (cache.create_dirty(id(50)).unwrap(), cache.create_dirty(id(51)).unwrap());
    assert!(matches!(cache.create_dirty(id(52)), Err(CacheError::NoRoom)));
    assert!(matches!(fill(&cache, id(53), 0), Err(CacheError::NoRoom)));
    let mut found = vec![0; SEGMENT_BYTES];
    pin.read_at(0, &mut found).unwrap();
    assert!(found == segment(id(2), 0));
    assert_eq!(cache.dirty(id(1)).unwrap().read_all().unwrap(), [Some(b"dirty".to_vec())]);
    drop(pin);
    cache.create_dirty(id(52)).unwrap();
    cache.mark_clean(id(50));
    cache.create_dirty(id(54)).unwrap();
    assert!(matches!(a.append(0, b"late"), Err(CacheError::Gone(_))));
    assert!(matches!(a.read_all(), Err(ReadError::Io(_))));
    b.append(0, b"fine").unwrap();
}

#[test]
fn a_discarded_slot_is_reused_after_its_last_pin() {
    let disk = MemoryDisk::default();
    let cache = open(&disk, 1);
    let slot = cache.create_dirty(id(1)).unwrap();
    slot.append(0, &segment(id(1), 0)).unwrap();
    let pin = cache.pin(id(1)).unwrap();
    cache.discard(id(1));
    assert!(cache.pin(id(1)).is_none() && cache.dirty(id(1)).is_none());
    assert!(matches!(cache.create_dirty(id(2)), Err(CacheError::NoRoom)));
    let mut found = vec![0; SEGMENT_BYTES];
    pin.read_at(0, &mut found).unwrap();
    assert!(found == segment(id(1), 0));
    drop(pin);
    assert!(disk.used_bytes() <= 16 << 10, "punched");
    let next = cache.create_dirty(id(2)).unwrap();
    assert_eq!(next.location().slot, slot.location().slot);
    assert_ne!(next.location().generation, slot.location().generation);
    assert!(matches!(slot.append(SEG, b"stale"), Err(CacheError::Gone(_))));
    assert_eq!(slot.verify_run(0, &slot.sums()[..1]), Err(vec![0]));
    assert_eq!(next.read_all().unwrap(), []);
}

#[test]
fn a_flipped_bit_is_never_read() {
    let disk = MemoryDisk::default();
    let cache = open(&disk, 4);
    (0..4).for_each(|index| fill(&cache, id(1), index).unwrap());
    let slot = cache.create_dirty(id(2)).unwrap();
    slot.append(0, &pattern(id(2), 0, 100_000)).unwrap();
    let base = u64::from(slot.location().slot) * 4 * 1024 * 1024;
    assert!(disk.flip_bit(slab(), u64::from(2 * SEG) + 77));
    assert!(disk.flip_bit(slab(), base + 99_999));

    let mut found = vec![0; 4 * SEGMENT_BYTES];
    let pin = cache.pin(id(1)).unwrap();
    assert!(matches!(pin.read_at(0, &mut found), Err(ReadError::Corrupt { index: 2 })));
    assert!(matches!(pin.read_at(2 * SEG + 9, &mut found[..1]), Err(ReadError::Corrupt { index: 2 })));
    pin.read_at(0, &mut found[..2 * SEGMENT_BYTES]).unwrap();
    cache.retire(id(1), 2);
    assert!(cache.pin(id(1)).is_none());
    fill(&cache, id(1), 2).unwrap();
    cache.pin(id(1)).unwrap().read_at(2 * SEG, &mut found[..SEGMENT_BYTES]).unwrap();

    assert!(matches!(slot.read_all(), Err(ReadError::Corrupt { index: 3 })));
    cache.retire(id(2), 3);
    cache.retire(id(2), 0);
    let pin = cache.pin(id(2)).unwrap();
    pin.read_at(0, &mut found[..3 * SEGMENT_BYTES]).unwrap();
    assert!(matches!(pin.read_at(3 * SEG, &mut found[..1]), Err(ReadError::Corrupt { index: 3 })));
    slot.restore(99_990, &pattern(id(2), 99_990, 10)).unwrap();
    pin.read_at(0, &mut found[..100_000]).unwrap();
    assert!(found[..100_000] == pattern(id(2), 0, 100_000));
    slot.append(100_000, &pattern(id(2), 100_000, 8)).unwrap();
    assert_eq!(slot.read_all().unwrap().len(), 4);
    assert_eq!(cache.stats().corrupt_segments, 3);
}

#[test]
fn a_scan_does_not_push_out_what_is_used() {
    let clock = Arc::new(ManualClock::default());
    let cache = Cache::open(Arc::new(MemoryDisk::default()), options(40), clock.clone()).unwrap();
    let hot = 0..20;
    hot.clone().for_each(|number| fill(&cache, id(number), 0).unwrap());
    for number in 1000..3000 {
        clock.advance(Duration::from_secs(1));
        fill(&cache, id(number), 0).unwrap();
        // The scan itself reads in pieces.
        (0..4).for_each(|_| drop(cache.pin(id(number)).unwrap()));
        if number % 5 == 0 {
            hot.clone().for_each(|number| drop(cache.pin(id(number))));
        }
    }
    let kept = hot.filter(|number| cache.pin(id(*number)).is_some()).count();
    assert_eq!(kept, 20);
}

#[test]
fn statistics_add_up() {
    let cache = open(&MemoryDisk::default(), 3);
    fill(&cache, id(1), 0).unwrap();
    cache.create_dirty(id(2)).unwrap().append(100, b"1234").unwrap();
    assert!(cache.pin(id(1)).is_some() && cache.pin(id(3)).is_none());
    let stats = cache.stats();
    assert_eq!((stats.clean_slots, stats.dirty_slots, stats.free_slots), (1, 1, 1));
    assert_eq!((stats.clean_bytes, stats.dirty_bytes), (32768, 104));
    assert_eq!((stats.hits, stats.misses), (1, 1));
    cache.mark_clean(id(2));
    assert_eq!((cache.stats().clean_bytes, cache.stats().dirty_bytes), (32872, 0));
    cache.discard(id(1));
    cache.discard(id(2));
    assert_eq!((cache.stats().clean_bytes, cache.stats().clean_slots, cache.stats().free_slots), (0, 0, 3));
}
