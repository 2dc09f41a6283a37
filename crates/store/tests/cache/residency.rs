//! Reads that do not wait for the disk, and runs of segments that leave it unread.

use crate::{SEG, fill, id, open, options, pattern, segment, slab};
use sluice_base::{
    Disk, ManualClock,
    crc::{crc32c, segment_crc},
    disk::{FaultPlan, FaultyDisk, MemoryDisk, Operation, RealDisk},
    limits::SEGMENT_BYTES,
};
use sluice_store::{Cache, CacheOptions, ReadError};
use std::{fs::File, os::unix::fs::FileExt, sync::Arc};

const PART: usize = 4096;

fn is_not_resident(read: Result<(), ReadError>) -> bool {
    matches!(read, Err(ReadError::NotResident { .. }))
}

#[test]
fn what_memory_lacks_is_not_waited_for() {
    let disk = MemoryDisk::default();
    let cache = open(&disk, 4);
    (0..4).for_each(|index| fill(&cache, id(1), index).unwrap());
    let (pin, mut found) = (cache.pin(id(1)).unwrap(), vec![0; 4 * SEGMENT_BYTES]);
    pin.read_resident_at(0, &mut found).unwrap();
    assert!(found == pattern(id(1), 0, 4 * SEGMENT_BYTES));
    disk.drop_pages(slab());
    assert!(is_not_resident(pin.read_resident_at(0, &mut found)));
    assert!(is_not_resident(pin.read_resident_at(SEG + 9, &mut found[..PART])));
    assert!(!pin.region(0, 4).unwrap().is_resident().unwrap());
    pin.region(1, 2).unwrap().load().unwrap();
    pin.read_resident_at(SEG, &mut found[..2 * SEGMENT_BYTES]).unwrap();
    assert!(found[..2 * SEGMENT_BYTES] == pattern(id(1), SEG, 2 * SEGMENT_BYTES));
    assert!(pin.region(1, 2).unwrap().is_resident().unwrap() && !pin.region(1, 3).unwrap().is_resident().unwrap());
    assert!(is_not_resident(pin.read_resident_at(2 * SEG, &mut found[..2 * SEGMENT_BYTES])));
}

/// To be survived: rot that the disk gives back after memory had the right bytes.
#[test]
fn bytes_that_come_from_the_disk_again_are_checked_again() {
    let disk = MemoryDisk::default();
    let cache = open(&disk, 4);
    (0..2).for_each(|index| fill(&cache, id(1), index).unwrap());
    let (pin, mut found) = (cache.pin(id(1)).unwrap(), vec![0; SEGMENT_BYTES]);
    pin.read_at(5000, &mut found[..PART]).unwrap();
    assert!(disk.flip_bit(slab(), 9000));
    // It was written by this process, and its page is still there.
    pin.read_resident_at(0, &mut found[..PART]).unwrap();
    assert!(is_not_resident(pin.read_resident_at(8192, &mut found[..PART])));
    assert!(is_not_resident(pin.read_resident_at(0, &mut found[..PART])), "nothing of the segment is trusted now");
    pin.read_resident_at(SEG, &mut found[..PART]).unwrap();
    assert!(matches!(pin.read_at(8192, &mut found[..PART]), Err(ReadError::Corrupt { index: 0 })));
    assert!(matches!(pin.read_resident_at(8192, &mut found[..PART]), Err(ReadError::Corrupt { index: 0 })));
    // Nor does it count as checked when it was brought in for somebody else.
    pin.read_at(SEG, &mut found).unwrap();
    assert!(disk.flip_bit(slab(), u64::from(SEG) + 9000));
    pin.region(0, 2).unwrap().load().unwrap();
    assert!(matches!(pin.read_resident_at(SEG, &mut found[..PART]), Err(ReadError::Corrupt { index: 1 })));
}

/// Who reads without a check makes the kernel load what memory lacks: that is not what was checked before.
#[test]
fn what_an_unchecked_read_brings_is_checked_by_the_next_one() {
    let disk = MemoryDisk::default();
    let cache = open(&disk, 4);
    fill(&cache, id(1), 0).unwrap();
    let (pin, mut found) = (cache.pin(id(1)).unwrap(), vec![0; PART]);
    pin.read_at(5000, &mut found).unwrap();
    assert!(disk.flip_bit(slab(), 9000));
    assert!(is_not_resident(pin.read_unchecked(8192, &mut found)));
    disk.open(slab().as_ref()).unwrap().read_exact_at(&mut found, 8192).unwrap();
    assert!(matches!(
        pin.read_resident_at(8192, &mut found),
        Err(ReadError::Corrupt { index: 0 }) | Err(ReadError::NotResident { .. })
    ));
    assert!(matches!(pin.read_at(8192, &mut found), Err(ReadError::Corrupt { index: 0 })));
}

#[test]
fn a_part_of_what_was_checked_costs_that_part() {
    let disk = MemoryDisk::default();
    let (mut found, all) = (vec![0; SEGMENT_BYTES], segment(id(1), 0));
    let cache = open(&disk, 4);
    fill(&cache, id(1), 0).unwrap();
    cache.persist_table().unwrap();
    // In another run nothing is known of the bytes.
    for checked in [false, true] {
        let cache = open(&disk, 4);
        let pin = cache.pin(id(1)).unwrap();
        if checked {
            pin.read_at(20_000, &mut found[..PART]).unwrap();
        }
        disk.drop_pages(slab());
        disk.open(slab()).unwrap().read_exact_at(&mut found[..PART], 0).unwrap();
        let read = pin.read_resident_at(7, &mut found[..1000]);
        assert_eq!((read.is_ok(), found[..1000] == all[7..1007]), (checked, checked), "{read:?}");
    }
}

#[test]
fn a_region_is_a_run_whose_sum_is_known() {
    let cache = open(&MemoryDisk::default(), 2);
    [0, 1, 2, 4].iter().for_each(|index| fill(&cache, id(1), *index).unwrap());
    let short = pattern(id(1), 5 * SEG, 100);
    cache.fill(id(1), 5, &short, segment_crc(id(1), 5, &short)).unwrap();
    let pin = cache.pin(id(1)).unwrap();
    for (first, count, len) in [(0, 3, 3 * SEGMENT_BYTES), (1, 1, SEGMENT_BYTES), (4, 2, SEGMENT_BYTES + 100)] {
        let region = pin.region(first, count).unwrap();
        let (mut found, expected) = (vec![0; len], pattern(id(1), first * SEG, len));
        region.read_at(0, &mut found).unwrap();
        assert!(found == expected && region.len() == len && region.crc() == crc32c(&expected));
        region.read_at(len - 40, &mut found[..40]).unwrap();
        assert!(found[..40] == expected[len - 40..]);
        assert!(region.read_at(len - 40, &mut found[..41]).is_err(), "not what lies behind it");
    }
    for (first, count, absent) in [(0, 4, 3), (3, 1, 3), (4, 3, 6), (0, 0, 0), (127, 2, 127), (u32::MAX, 2, u32::MAX)] {
        let region = pin.region(first, count);
        assert!(matches!(region, Err(ReadError::Absent { index }) if index == absent), "{region:?}");
    }
}

#[test]
fn a_region_keeps_its_slot() {
    let cache = open(&MemoryDisk::default(), 1);
    fill(&cache, id(1), 0).unwrap();
    let pin = cache.pin(id(1)).unwrap();
    let region = pin.region(0, 1).unwrap();
    drop(pin);
    fill(&cache, id(2), 0).unwrap_err();
    let pin = cache.pin(id(1)).unwrap();
    cache.retire(id(1), 0);
    assert!(matches!(pin.region(0, 1), Err(ReadError::Absent { index: 0 })), "of a slot that is given up");
    drop(pin);
    let mut found = vec![0; SEGMENT_BYTES];
    region.read_at(0, &mut found).unwrap();
    assert!(found == segment(id(1), 0));
    fill(&cache, id(2), 0).unwrap_err();
    drop(region);
    fill(&cache, id(2), 0).unwrap();
}

#[test]
fn on_a_real_disk_a_region_has_a_file() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let options = CacheOptions { dir: dir.path().into(), ..options(2) };
    let cache = Cache::open(Arc::new(RealDisk), options, Arc::new(ManualClock::default())).unwrap();
    fill(&cache, id(1), 0).unwrap();
    (0..3).for_each(|index| fill(&cache, id(2), index).unwrap());
    cache.sync().unwrap();
    let pin = cache.pin(id(2)).unwrap();
    let (region, mut found) = (pin.region(1, 2).unwrap(), vec![0; 2 * SEGMENT_BYTES]);
    let (file, offset) = region.file().unwrap();
    let file = File::from(file.try_clone_to_owned().unwrap());
    file.read_exact_at(&mut found, offset).unwrap();
    assert!(found == pattern(id(2), SEG, 2 * SEGMENT_BYTES) && region.is_resident().unwrap());
    let (_, part) = pin.file(SEG + 5, 2 * SEGMENT_BYTES - 5).unwrap();
    assert!(part == offset + 5 && pin.file(SEG, 2 * SEGMENT_BYTES + 1).is_none());
    drop_pages(&file);
    assert!(!region.is_resident().unwrap());
    found.fill(0);
    match pin.read_resident_at(SEG, &mut found) {
        // A disk may be quicker than the question.
        Ok(()) => assert!(found == pattern(id(2), SEG, 2 * SEGMENT_BYTES)),
        read => assert!(is_not_resident(read)),
    }
    region.load().unwrap();
    pin.read_resident_at(SEG, &mut found).unwrap();
    assert!(region.is_resident().unwrap() && found == pattern(id(2), SEG, 2 * SEGMENT_BYTES));
}

/// What was synced, so that all of it goes.
fn drop_pages(file: &File) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// To be survived: a disk that fails where it is asked without waiting. It has no file to send from, so that nothing goes past
/// the plan.
#[test]
fn a_disk_that_fails_says_so_without_waiting_too() {
    let plan = Arc::new(FaultPlan::default());
    let disk: Arc<dyn Disk> = Arc::new(FaultyDisk::new(Arc::new(MemoryDisk::default()), plan.clone()));
    let cache = open(&disk, 2);
    fill(&cache, id(1), 0).unwrap();
    let (pin, mut found) = (cache.pin(id(1)).unwrap(), vec![0; SEGMENT_BYTES]);
    plan.fail_nth(Operation::Read, 1, sluice_base::Errno::EIO);
    assert!(matches!(pin.read_resident_at(0, &mut found), Err(ReadError::Io(_))));
    assert!(pin.region(0, 1).unwrap().file().is_none());
    plan.fail_nth(Operation::Read, 1, sluice_base::Errno::EIO);
    assert!(pin.region(0, 1).unwrap().read_at(0, &mut found).is_err());
    pin.read_resident_at(0, &mut found).unwrap();
}
