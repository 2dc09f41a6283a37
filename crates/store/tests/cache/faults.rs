use crate::{SEG, fill, id, open, options, pattern, segment};
use sluice_base::{
    Disk, Errno, ManualClock,
    disk::{FaultPlan, FaultyDisk, MemoryDisk, Operation},
    limits::SEGMENT_BYTES,
};
use sluice_store::{Cache, CacheError, CacheState, ReadError, SLOT_BYTES};
use std::{path::Path, sync::Arc, time::Duration};

fn faulty() -> (Arc<FaultPlan>, Arc<dyn Disk>) {
    let plan = Arc::new(FaultPlan::default());
    (plan.clone(), Arc::new(FaultyDisk::new(Arc::new(MemoryDisk::default()), plan)))
}

/// A disk that errs now and then costs misses; one that only errs costs the cache, and dirty bytes stay readable if they are.
#[test]
fn repeated_errors_end_the_use_of_the_cache() {
    let (plan, disk) = faulty();
    let cache = open(&disk, 4);
    let slot = cache.create_dirty(id(1)).unwrap();
    slot.append(0, b"only here").unwrap();
    fill(&cache, id(2), 0).unwrap();
    let dir = Path::new("/cache");
    for _ in 0..30 {
        plan.fail_nth(Operation::Read, 1, Errno::EIO);
        let read = cache.pin(id(2)).unwrap().read_at(0, &mut [0; 8]);
        assert!(matches!(read, Err(ReadError::Io(_))));
        cache.pin(id(2)).unwrap().read_at(0, &mut [0; 8]).unwrap();
    }
    assert_eq!(cache.stats().state, CacheState::Active);
    plan.fail_under(Operation::Write, dir, Errno::EIO);
    for _ in 0..8 {
        assert!(matches!(slot.append(slot.end(), b"x"), Err(CacheError::Io(_))));
    }
    plan.heal();
    assert_eq!(cache.stats().state, CacheState::Failed);
    assert!(cache.pin(id(2)).is_none());
    assert!(matches!(cache.create_dirty(id(3)), Err(CacheError::Failed)));
    assert!(matches!(fill(&cache, id(2), 1), Err(CacheError::Failed)));
    assert!(matches!(slot.append(9, b"x"), Err(CacheError::Failed)));
    assert!(matches!(cache.persist_table(), Err(CacheError::Failed)));
    assert!(cache.sync().is_err());
    assert_eq!(slot.read_all().unwrap(), [Some(b"only here".to_vec())]);
    cache.pin(id(1)).unwrap().read_at(0, &mut [0; 9]).unwrap();
}

/// The kernel forgets what a failed fdatasync could not write: no later sync may say that it is safe.
#[test]
fn a_failed_sync_is_for_good() {
    let (plan, disk) = faulty();
    let cache = open(&disk, 4);
    cache.create_dirty(id(1)).unwrap().append(0, b"bytes").unwrap();
    plan.fail_nth(Operation::Sync, 1, Errno::EIO);
    assert!(cache.sync().is_err());
    assert!(cache.sync().is_err());
    assert!(cache.persist_table().is_err());
}

/// A write that failed half way leaves bytes behind the end: gaps must read as zeros all the same.
#[test]
fn a_failed_append_leaves_no_trace() {
    let (plan, disk) = faulty();
    let cache = open(&disk, 4);
    let slot = cache.create_dirty(id(1)).unwrap();
    slot.append(0, b"start").unwrap();
    plan.fail_nth(Operation::Write, 1, Errno::EIO);
    slot.append(5, &[0xff; 100_000]).unwrap_err();
    assert_eq!(slot.end(), 5);
    assert_eq!(slot.read_all().unwrap(), [Some(b"start".to_vec())]);
    slot.append(SEG + 8, b"next").unwrap();
    let mut expected = vec![0; SEGMENT_BYTES + 12];
    expected[..5].copy_from_slice(b"start");
    expected[SEGMENT_BYTES + 8..].copy_from_slice(b"next");
    let mut found = vec![1; SEGMENT_BYTES + 12];
    cache.pin(id(1)).unwrap().read_at(0, &mut found).unwrap();
    assert!(found == expected);
}

/// A fill that failed half way may be tried again.
#[test]
fn a_failed_fill_is_a_miss() {
    let (plan, disk) = faulty();
    let cache = open(&disk, 4);
    plan.fail_nth(Operation::Write, 1, Errno::EIO);
    fill(&cache, id(1), 0).unwrap_err();
    assert!(cache.pin(id(1)).is_none());
    fill(&cache, id(1), 0).unwrap();
    plan.fail_nth(Operation::Write, 1, Errno::EIO);
    fill(&cache, id(1), 1).unwrap_err();
    assert!(cache.pin(id(1)).unwrap().has(0, 1));
    fill(&cache, id(1), 1).unwrap();
    let mut found = vec![0; 2 * SEGMENT_BYTES];
    cache.pin(id(1)).unwrap().read_at(0, &mut found).unwrap();
    assert!(found[SEGMENT_BYTES..] == segment(id(1), 1));
}

/// A full disk takes clean slots before it refuses dirty bytes, and the cache grows again when there is room.
#[test]
fn a_full_disk_shrinks_the_cache() {
    let (disk, clock) = (MemoryDisk::default(), Arc::new(ManualClock::default()));
    let cache = Cache::open(Arc::new(disk.clone()), options(32), clock.clone()).unwrap();
    let whole = |object, count| (0..count).try_for_each(|index| fill(&cache, object, index));
    (0..16).for_each(|number| whole(id(number), 128).unwrap());
    disk.set_capacity(disk.used_bytes() + SLOT_BYTES / 2);
    assert!(matches!(whole(id(100), 128), Err(CacheError::DiskFull)));
    let stats = cache.stats();
    assert_eq!(stats.state, CacheState::Reduced);
    assert!(stats.usable_slots <= 16 && stats.evictions > 0, "{stats:?}");
    // Dirty bytes push clean ones out, one object after the other, until nothing clean is left.
    for number in 200..213 {
        let slot = cache.create_dirty(id(number)).unwrap();
        slot.append(0, &pattern(id(number), 0, SLOT_BYTES as usize)).unwrap();
    }
    disk.set_capacity(disk.used_bytes());
    while cache.stats().clean_slots > 0 {
        cache
            .create_dirty(id(300 + cache.stats().dirty_slots as u32))
            .unwrap()
            .append(0, &[1; SLOT_BYTES as usize])
            .ok();
    }
    match cache.create_dirty(id(400)) {
        Ok(slot) => assert!(matches!(slot.append(0, &[1; SLOT_BYTES as usize]), Err(CacheError::DiskFull))),
        Err(error) => assert!(matches!(error, CacheError::DiskFull), "{error}"),
    }
    for number in 200..213 {
        assert_eq!(cache.dirty(id(number)).unwrap().read_all().unwrap().len(), 128);
        cache.mark_clean(id(number));
    }
    disk.set_capacity(u64::MAX);
    for round in 0..40 {
        clock.advance(Duration::from_secs(61));
        whole(id(500 + round), 1).unwrap();
    }
    assert_eq!(cache.stats().state, CacheState::Active);
    assert_eq!(cache.stats().usable_slots, 32);
}

/// Every write of a busy cache fails once in its own run: no run ends with wrong bytes.
#[test]
fn the_nth_write_fails() {
    for nth in 1..40 {
        let (plan, disk) = faulty();
        let cache = open(&disk, 3);
        plan.fail_nth(Operation::Write, nth, if nth % 2 == 0 { Errno::EIO } else { Errno::ENOSPC });
        for round in 0..6 {
            for number in 0..3 {
                fill(&cache, id(round * 10 + number), number).ok();
            }
            if let Ok(slot) = cache.create_dirty(id(round * 10 + 9)) {
                slot.append(7, &pattern(id(round * 10 + 9), 7, 70_000)).ok();
                cache.mark_clean(slot.object());
            }
            cache.persist_table().ok();
        }
        plan.heal();
        for cache in [cache, open(&disk, 3)] {
            let mut found = vec![0; SEGMENT_BYTES];
            for (object, index) in (0..6).flat_map(|round| (0..3).map(move |number| (id(round * 10 + number), number)))
            {
                if let Some(pin) = cache.pin(object)
                    && pin.read_at(index * SEG, &mut found).is_ok()
                {
                    assert!(found == segment(object, index), "write {nth}");
                }
            }
        }
    }
}
