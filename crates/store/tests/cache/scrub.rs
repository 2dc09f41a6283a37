//! The scrubber: finds what rotted, gives it up, goes on where it stood, keeps to its rate, harms no reader.

use crate::{SEG, fill, id, segment};
use sluice_base::{
    Clock, Disk, Errno, ManualClock, SystemClock, VolumeId,
    disk::{FaultPlan, FaultyDisk, MemoryDisk, Operation, RealDisk},
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use sluice_store::{Cache, CacheOptions, SLOT_BYTES, ScrubOptions, ScrubStatus};
use std::{path::Path, sync::Arc, time::Duration};

const OFF: ScrubOptions = ScrubOptions { rate: 0, interval: Duration::from_secs(3600) };

fn open_at(disk: Arc<dyn Disk>, dir: &Path, clock: Arc<dyn Clock>, slots: u64) -> Cache {
    let options = CacheOptions { dir: dir.into(), capacity_bytes: slots * SLOT_BYTES, volume: VolumeId([7; 16]) };
    Cache::open(disk, options, clock).unwrap()
}

fn real(dir: &Path) -> Cache {
    open_at(Arc::new(RealDisk), dir, Arc::new(SystemClock::default()), 8)
}

fn until(cache: &Cache, what: &str, done: impl Fn(&ScrubStatus) -> bool) -> ScrubStatus {
    let clock = SystemClock::default();
    let began = clock.monotonic();
    loop {
        let status = cache.scrub_status().unwrap();
        if done(&status) {
            return status;
        }
        assert!(clock.monotonic() - began < Duration::from_secs(30), "{what}: {status:?}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn scrubbed(cache: &Cache) -> ScrubStatus {
    let pass = cache.scrub_now(0).unwrap();
    until(cache, "a pass", |status| status.passes >= pass)
}

fn fill_whole(cache: &Cache, number: u32) {
    (0..SEGMENTS_PER_OBJECT as u32).for_each(|index| fill(cache, id(number), index).unwrap());
}

/// Flips a bit wherever segment `index` of an object starts, in the slab of the directory.
fn rot(dir: &Path, number: u32, index: u32) {
    use std::os::unix::fs::FileExt;
    let slab = std::fs::File::options().read(true).write(true).open(dir.join("slab-00000")).unwrap();
    let wanted = segment(id(number), index);
    let mut found = vec![0; SEGMENT_BYTES];
    for at in (0..8 * SLOT_BYTES).step_by(SEGMENT_BYTES) {
        slab.read_exact_at(&mut found, at).unwrap();
        if found == wanted {
            return slab.write_all_at(&[found[9] ^ 4], at + 9).unwrap();
        }
    }
    panic!("the segment is not on the disk");
}

#[test]
fn a_sound_cache_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let cache = real(dir.path());
    fill_whole(&cache, 1);
    fill(&cache, id(2), 5).unwrap();
    let dirty = cache.create_dirty(id(3)).unwrap();
    dirty.append(0, b"not stored yet").unwrap();
    cache.start_scrub(OFF).unwrap();
    assert!(!cache.scrub_status().unwrap().running, "it was told not to begin by itself");
    let status = scrubbed(&cache);
    assert_eq!((status.counts.segments, status.counts.bytes), (129, 129 * SEGMENT_BYTES as u64));
    assert_eq!((status.counts.rotten(), status.counts.stale_slots, status.slots_done), (0, 0, 8));
    assert!(!status.running && status.last == status.counts && !status.is_rotting());
    assert_eq!((cache.stats().clean_slots, cache.stats().dirty_slots), (2, 1));
    assert_eq!((cache.stats().hits, cache.stats().misses), (0, 0), "a scrub is no use of an object");
    cache.end_scrub(true);
}

/// To be survived: a disk that gives other bytes than were written. What is bad is given up, before anybody reads it.
#[test]
fn rot_is_found_given_up_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let cache = real(dir.path());
    (1..=3).for_each(|number| fill_whole(&cache, number));
    cache.start_scrub(OFF).unwrap();
    (0..9).for_each(|index| rot(dir.path(), 2, index * 3));
    let status = scrubbed(&cache);
    assert_eq!((status.counts.bad_segments, status.counts.stale_slots), (9, 0));
    assert!(status.is_rotting(), "nine segments are no accident");
    assert!(cache.pin(id(2)).is_none());
    assert_eq!((cache.stats().corrupt_segments, cache.stats().clean_slots), (9, 2));
    // What is brought again is sound, and so is the disk as far as the last pass tells.
    fill_whole(&cache, 2);
    assert!(!scrubbed(&cache).is_rotting());
    let mut bytes = vec![0; SEGMENT_BYTES];
    cache.pin(id(2)).unwrap().read_at(3 * SEG, &mut bytes).unwrap();
    assert!(bytes == segment(id(2), 3));
}

/// To be survived: a sector that cannot be read.
#[test]
fn a_sector_that_cannot_be_read_costs_its_slot() {
    let plan = Arc::new(FaultPlan::default());
    let disk: Arc<dyn Disk> = Arc::new(FaultyDisk::new(Arc::new(MemoryDisk::default()), plan.clone()));
    let cache = open_at(disk, Path::new("/cache"), Arc::new(ManualClock::default()), 4);
    fill(&cache, id(1), 0).unwrap();
    cache.start_scrub(OFF).unwrap();
    plan.fail_under(Operation::Read, Path::new("/cache/slab-00000"), Errno::EIO);
    let status = scrubbed(&cache);
    assert_eq!((status.counts.unreadable_segments, status.counts.bad_segments), (1, 0));
    assert!(cache.stats().io_errors > 0 && cache.pin(id(1)).is_none());
}

/// To be survived: a kill in the middle of a pass. The next process goes on behind the slots that were looked at.
#[test]
fn a_pass_goes_on_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let cache = real(dir.path());
    (1..=8).for_each(|number| fill_whole(&cache, number));
    cache.persist_table().unwrap();
    // Four slots a second.
    let slow = ScrubOptions { rate: 16 << 20, ..OFF };
    cache.start_scrub(slow).unwrap();
    let before = until(&cache, "two slots", |status| status.slots_done >= 2);
    // As a kill does: nothing is written any more, not even that it ended.
    cache.stop_scrub();
    drop(cache);
    let next = real(dir.path());
    next.start_scrub(slow).unwrap();
    let after = until(&next, "to go on", |status| status.running);
    assert!(after.slots_done >= before.slots_done && after.passes == 0, "{before:?}, then {after:?}");
    assert_eq!(after.began_secs, before.began_secs);
    let end = until(&next, "the end", |status| status.passes == 1);
    assert_eq!((end.counts.segments, end.counts.rotten()), (8 * 128, 0), "each slot was looked at once");
    next.end_scrub(true);
}

#[test]
fn the_rate_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let cache = real(dir.path());
    (1..=2).for_each(|number| fill_whole(&cache, number));
    cache.start_scrub(OFF).unwrap();
    let clock = SystemClock::default();
    let began = clock.monotonic();
    let pass = cache.scrub_now(8 << 20).unwrap();
    until(&cache, "a pass", |status| status.passes >= pass);
    // 8 MiB at 8 MiB/s, less what it may catch up with.
    let took = clock.monotonic() - began;
    assert!(took > Duration::from_millis(850), "{took:?}");
}

/// To be survived: a kill after slots were given to others, so that the table tells of bytes that are gone. That is no rot.
#[test]
fn a_table_older_than_its_slab_is_no_rot() {
    let disk = MemoryDisk::default();
    let (dir, clock) = (Path::new("/cache"), Arc::new(ManualClock::default()));
    let open = || open_at(Arc::new(disk.clone()), dir, clock.clone(), 4);
    let first = open();
    first.start_scrub(OFF).unwrap();
    (0..20).for_each(|index| fill(&first, id(1), index).unwrap());
    first.persist_table().unwrap();
    first.discard(id(1));
    (0..20).for_each(|index| fill(&first, id(2), index).unwrap());
    first.end_scrub(false);
    drop(first);
    let killed = open();
    killed.start_scrub(OFF).unwrap();
    let status = scrubbed(&killed);
    assert_eq!((status.counts.rotten(), status.counts.stale_slots), (0, 1));
    assert!(killed.pin(id(1)).is_none());
    // After an end in order the same is rot.
    (0..20).for_each(|index| fill(&killed, id(3), index).unwrap());
    killed.persist_table().unwrap();
    killed.end_scrub(true);
    drop(killed);
    let slab = disk.open(&dir.join("slab-00000")).unwrap();
    slab.write_all_at(&vec![0xee; 4 * SLOT_BYTES as usize], 0).unwrap();
    let ended = open();
    ended.start_scrub(OFF).unwrap();
    assert_eq!(scrubbed(&ended).counts.bad_segments, 20);
}

/// To be survived: objects are read, filled and evicted all the time while passes run one after the other.
#[test]
fn readers_and_evictions_go_on_during_a_scrub() {
    let dir = tempfile::tempdir().unwrap();
    let cache = real(dir.path());
    cache.start_scrub(OFF).unwrap();
    std::thread::scope(|scope| {
        let readers = (0..2_u32).map(|reader| {
            let cache = cache.clone();
            scope.spawn(move || {
                let mut bytes = vec![0; SEGMENT_BYTES];
                for round in 0..400_u32 {
                    // More objects than slots.
                    let number = 1 + (round * 7 + reader) % 12;
                    let _ = fill(&cache, id(number), round % 128);
                    let Some(pin) = cache.pin(id(number)) else { continue };
                    if pin.has(round % 128, 1) {
                        pin.read_at(round % 128 * SEG, &mut bytes).unwrap();
                        assert!(bytes == segment(id(number), round % 128));
                    }
                }
            })
        });
        let readers: Vec<_> = readers.collect();
        while readers.iter().any(|reader| !reader.is_finished()) {
            assert_eq!(scrubbed(&cache).counts.rotten(), 0);
        }
    });
    assert_eq!((cache.stats().corrupt_segments, cache.stats().io_errors), (0, 0));
}
