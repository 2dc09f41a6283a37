//! A store that fails, and a cache disk that does.

use crate::harness::{CACHE, Shape, Volume, World, pattern};
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, ready};
use sluice_base::{Disk, Errno, Ino, ObjectId, disk::Operation, limits::SEGMENT_BYTES};
use sluice_object::{
    StoredObject,
    backend::{Fault, Faults, RequestKind},
};
use sluice_store::CacheState;
use sluice_vfs::{Group, Piece};
use std::{ops::Range, path::Path, sync::Arc};

const LEN: usize = 300_000;

/// A file that is in the store alone, as a process finds it that was just started.
fn cold_file(world: &mut World) -> (Volume, Vec<u8>) {
    let volume = world.start();
    let (_, handle) = volume.create("file");
    let bytes = pattern(7, LEN);
    volume.write(handle, 0, &bytes).unwrap();
    volume.upload();
    world.kill(volume);
    world.remove_cache();
    (world.start(), bytes)
}

/// To be survived: the store is down. Writes, and reads of what is cached, go on; uploads go on by themselves once it is back.
#[test]
fn a_store_that_is_down_delays_uploads_only() {
    let mut world = World::new(1, Shape::default());
    let volume = world.start();
    world.backend.set_down(true);
    let (_, handle) = volume.create("file");
    let bytes = pattern(1, 1_200_000);
    volume.write(handle, 0, &bytes[..700_000]).unwrap();
    volume.write(handle, 700_000, &bytes[700_000..]).unwrap();
    volume.sync().unwrap();
    assert!(volume.read_all("file").unwrap() == bytes);
    let uploading = volume.vfs.drain();
    let failed = async {
        while volume.vfs.status().unwrap().upload_errors == 0 {
            tokio::task::yield_now().await;
        }
    };
    volume.wait(async {
        futures::future::select(std::pin::pin!(uploading), std::pin::pin!(failed)).await;
    });
    assert!(volume.vfs.dirty_totals().0 > 0);
    world.backend.set_down(false);
    volume.wait(volume.vfs.drain());
    world.kill(volume);
    world.remove_cache();
    let volume = world.start();
    assert!(volume.read_all("file").unwrap() == bytes);
    world.kill(volume);
}

/// A node that says of everything that there is nothing.
struct Nothing;

impl Group for Nothing {
    fn segments(&self, _: StoredObject, range: Range<u32>) -> BoxFuture<'_, Option<Vec<Piece>>> {
        let absent = |index| Piece { index, bytes: Bytes::new(), crc: 0 };
        ready(Some(range.map(absent).collect())).boxed()
    }

    fn fill(&self, _: StoredObject) -> BoxFuture<'_, Result<u64, String>> {
        ready(Err("it keeps nothing".into())).boxed()
    }

    fn held<'a>(&'a self, _: &'a [ObjectId]) -> BoxFuture<'a, Vec<(String, Vec<u128>)>> {
        ready(Vec::new()).boxed()
    }
}

/// To be survived: a node that does not have what it should, and does not know it.
#[test]
fn what_a_node_says_is_absent_is_asked_of_the_store() {
    let mut world = World::new(9, Shape::default());
    world.group = Some(Arc::new(Nothing));
    let (volume, bytes) = cold_file(&mut world);
    assert!(volume.read_all("file").unwrap() == bytes);
    assert!(volume.vfs.status().unwrap().group_fetches > 0);
    world.kill(volume);
}

/// To be survived: a put is done, but its answer is lost, again and again.
#[test]
fn a_put_without_an_answer_is_a_put() {
    let mut world = World::new(2, Shape::default());
    (0..4).for_each(|_| world.backend.plan(RequestKind::Put, Fault::LostAnswer));
    let (volume, bytes) = cold_file(&mut world);
    assert!(volume.read_all("file").unwrap() == bytes);
    world.kill(volume);
}

/// To be survived: the process was killed after a put and before it could note it; what was stored held bytes of a write that
/// never committed, so the next process has other bytes under the same id.
#[test]
fn an_object_stored_by_a_killed_process_is_replaced() {
    let mut world = World::new(3, Shape::default());
    let volume = world.start();
    let (_, handle) = volume.create("file");
    let bytes = pattern(3, LEN);
    volume.write(handle, 0, &bytes).unwrap();
    world.kill(volume);
    // The id is known only once it is stored: store it, then go back to before.
    // Everything was synced when the process ended, so this is a copy.
    let before = world.disk.power_loss(0);
    let volume = world.start();
    volume.upload();
    world.kill(volume);
    let keys = world.backend.inner().keys();
    let object = keys.iter().find(|key| key.starts_with("objects/")).unwrap();
    world.backend.inner().damage(object, |stored| stored.truncate(100));
    world.disk = before;
    let volume = world.start();
    volume.upload();
    world.kill(volume);
    world.remove_cache();
    let volume = world.start();
    assert!(volume.read_all("file").unwrap() == bytes);
    world.kill(volume);
}

/// To be survived: answers that are cut short or have a wrong bit. Never a wrong byte; an error only when it comes twice.
#[test]
fn damaged_answers_are_never_passed_on() {
    for fault in [Fault::Truncated, Fault::FlippedBit, Fault::Unavailable, Fault::LostAnswer] {
        let mut world = World::new(4, Shape::default());
        let (volume, bytes) = cold_file(&mut world);
        world.backend.plan(RequestKind::Get, fault);
        assert!(volume.read_all("file").unwrap() == bytes, "{fault:?}");
        world.kill(volume);
    }
    let mut world = World::new(5, Shape { slots: 0, ..Shape::default() });
    let volume = world.start();
    let (_, handle) = volume.create("file");
    let bytes = pattern(7, LEN);
    volume.write(handle, 0, &bytes).unwrap();
    volume.upload();
    world.backend.set_faults(Faults { truncated: 300, flipped_bit: 300, ..Faults::default() });
    let found: Vec<_> = (0..40).map(|i| (i * 7000, volume.read(handle, i * 7000, 20_000))).collect();
    for (at, read) in &found {
        match read {
            Ok(read) => assert!(*read == bytes[*at as usize..][..read.len()]),
            Err(errno) => assert_eq!(*errno, Errno::EIO),
        }
    }
    assert!(found.iter().any(|(_, read)| read.is_ok()));
    world.kill(volume);
}

/// To be survived: the store is gone, or silent, under a reader, who gets an error in bounded time and the bytes later.
#[test]
fn a_read_from_a_dead_store_ends() {
    let mut world = World::new(6, Shape::default());
    let (volume, bytes) = cold_file(&mut world);
    world.backend.set_down(true);
    assert_eq!(volume.read_all("file"), Err(Errno::ETIMEDOUT));
    world.backend.set_down(false);
    // Some of them befall what is read ahead.
    (0..30).for_each(|_| world.backend.plan(RequestKind::Get, Fault::Hang));
    assert_eq!(volume.read_all("file"), Err(Errno::ETIMEDOUT));
    world.backend.forget_plans();
    assert!(volume.read_all("file").unwrap() == bytes);
    world.kill(volume);
}

fn write_some(volume: &Volume, name: &str, seed: u64) -> Vec<u8> {
    let (_, handle) = volume.open(name).unwrap_or_else(|| volume.create(name));
    let bytes = pattern(seed, 700_000);
    volume.write(handle, 0, &bytes[..300_000]).unwrap();
    for (at, piece) in (300_000..).step_by(50_000).zip(bytes[300_000..].chunks(50_000)) {
        volume.write(handle, at, piece).unwrap();
    }
    volume.vfs.release(handle);
    bytes
}

/// To be survived: the cache disk refuses writes, or has no room. The volume goes on in memory, with every byte in the journal.
#[test]
fn a_cache_disk_that_refuses_writes() {
    for (operation, errno) in [(Operation::Write, Errno::EIO), (Operation::Write, Errno::ENOSPC)] {
        let mut world = World::new(7, Shape::default());
        let volume = world.start();
        let first = write_some(&volume, "first", 1);
        world.plan.fail_under(operation, &Path::new(CACHE).join("slab-00000"), errno);
        let second = write_some(&volume, "second", 2);
        let again = write_some(&volume, "first", 3);
        assert!(volume.read_all("first").unwrap() == again && again != first);
        assert!(volume.read_all("second").unwrap() == second);
        volume.sync().unwrap();
        // Also at the next start.
        world.kill(volume);
        let volume = world.start();
        assert!(volume.read_all("first").unwrap() == again, "{errno:?}");
        assert!(volume.read_all("second").unwrap() == second, "{errno:?}");
        volume.upload();
        assert!(volume.read_all("first").unwrap() == again, "{errno:?}");
        assert!(volume.read_all("second").unwrap() == second, "{errno:?}");
        world.kill(volume);
    }
}

/// To be survived: the cache disk is full of what is not stored, and the store is away. The volume goes on in memory at once: no upload is to come
/// that could be waited for.
#[test]
fn a_full_cache_disk_without_a_store_holds_nobody_up() {
    let mut world = World::new(16, Shape::default());
    world.backend.set_down(true);
    let volume = world.start();
    let before = write_some(&volume, "before", 1);
    world.plan.fail_under(Operation::Write, &Path::new(CACHE).join("slab-00000"), Errno::ENOSPC);
    // The clock stands, so nothing grows back meanwhile. Files that are open do not share an object.
    let bytes: Vec<_> = (0..3).map(|i| pattern(2 + i, LEN)).collect();
    let open: Vec<_> = (0..3).map(|i| volume.create(&format!("after-{i}")).1).collect();
    open.iter().zip(&bytes).for_each(|(handle, bytes)| volume.write(*handle, 0, bytes).unwrap());
    let all = |volume: &Volume| {
        assert!(volume.read_all("before").unwrap() == before);
        (0..).zip(&bytes).for_each(|(i, bytes)| assert!(volume.read_all(&format!("after-{i}")).unwrap() == *bytes));
    };
    assert_eq!(volume.cache.as_ref().unwrap().stats().state, CacheState::Reduced);
    all(&volume);
    volume.sync().unwrap();
    world.kill(volume);
    world.plan.heal();
    let volume = world.start();
    all(&volume);
    world.backend.set_down(false);
    volume.upload();
    all(&volume);
    world.kill(volume);
}

/// To be survived: the host lost its power, and at the next start the cache disk has no room for one small write. What was synced beside it, in the
/// same slot, is there once there is room.
#[test]
fn a_start_without_room_for_one_write_loses_nothing() {
    let mut world = World::new(14, Shape { slots: 2, ..Shape::default() });
    world.backend.set_down(true);
    let volume = world.start();
    let (large, small) = (pattern(1, 4 * SEGMENT_BYTES), pattern(2, 5000));
    let (_, handle) = volume.create("file");
    volume.write(handle, 0, &large).unwrap();
    volume.write(handle, large.len() as u64, &small).unwrap();
    volume.sync().unwrap();
    world.lose_power(volume, 14);
    for _ in 0..2 {
        world.plan.fail_under(Operation::Write, &Path::new(CACHE).join("slab-00000"), Errno::ENOSPC);
        let error = world.try_start().map(drop).unwrap_err().to_string();
        assert!(error.contains("no room for 5000 bytes") && error.contains(CACHE), "{error}");
        world.plan.heal();
    }
    let volume = world.start();
    assert_eq!(volume.damaged, 0);
    assert!(volume.read_all("file").unwrap() == [large, small].concat());
    world.backend.set_down(false);
    world.kill(volume);
}

/// To be survived: bytes that the journal has and the cache disk has not, since it refused them after they were in memory: reads and uploads
/// meet what was there before. The journal gives them, and nothing is lost.
#[test]
fn what_only_the_journal_has_is_stored() {
    for reads_first in [false, true] {
        let mut world = World::new(15, Shape { slots: 4, ..Shape::default() });
        let volume = world.start();
        let bytes = pattern(1, 300_000);
        let (_, handle) = volume.create("file");
        for (at, piece) in (0..).step_by(50_000).zip(bytes.chunks(50_000)) {
            volume.write(handle, at, piece).unwrap();
        }
        volume.sync().unwrap();
        world.disk.open(&Path::new(CACHE).join("slab-00000")).unwrap().write_all_at(&vec![0; 200_000], 0).unwrap();
        if reads_first {
            assert!(volume.read(handle, 40_000, 70_000).unwrap() == bytes[40_000..110_000]);
            assert!(volume.read_all("file").unwrap() == bytes);
        }
        // A writer goes on behind it.
        volume.write(handle, 300_000, b"more").unwrap();
        volume.upload();
        assert_eq!(volume.sync(), Ok(()));
        world.kill(volume);
        world.remove_cache();
        let volume = world.start();
        assert!(volume.read_all("file").unwrap() == [&bytes[..], b"more"].concat());
        world.kill(volume);
    }
}

/// To be survived: at a restart, bytes that were in memory must not get a slot before a later record names that slot as its own.
#[test]
fn replay_takes_slots_again_before_it_gives_any_away() {
    let mut world = World::new(10, Shape { slots: 1, ..Shape::default() });
    world.backend.set_down(true);
    let volume = world.start();
    world.plan.fail_under(Operation::Write, &Path::new(CACHE).join("slab-00000"), Errno::EIO);
    let (in_memory, in_slot) = (pattern(1, 10_000), pattern(2, LEN));
    volume.write(volume.create("memory").1, 0, &in_memory).unwrap();
    world.plan.heal();
    // Waits until the uploader has given up the slot that refused the bytes.
    volume.write(volume.create("slot").1, 0, &in_slot).unwrap();
    world.kill(volume);
    let volume = world.start();
    assert_eq!(volume.damaged, 0);
    assert!(volume.read_all("memory").unwrap() == in_memory);
    assert!(volume.read_all("slot").unwrap() == in_slot);
    world.backend.set_down(false);
    volume.upload();
    assert!(volume.read_all("memory").unwrap() == in_memory);
    world.kill(volume);
}

/// To be survived: fdatasync of a slab fails. What only the slots hold goes to the store before a sync that covers it ends, also
/// with more objects than are uploaded at once; later syncs need no cache; a power loss then loses nothing.
#[test]
fn a_failed_sync_of_the_cache_drains_it() {
    let mut world = World::new(8, Shape::default());
    let volume = world.start();
    let names: Vec<String> = (0..12).map(|i| format!("file-{i}")).collect();
    let open: Vec<_> = names.iter().map(|name| volume.create(name).1).collect();
    let bytes: Vec<_> = (0..12).map(|i| pattern(i, 200_000)).collect();
    open.iter().zip(&bytes).for_each(|(handle, bytes)| volume.write(*handle, 0, bytes).unwrap());
    world.plan.fail_under(Operation::Sync, Path::new(CACHE), Errno::EIO);
    world.backend.set_down(true);
    let mut synced = Box::pin(volume.vfs.sync().unwrap());
    let failed = || volume.cache.as_ref().unwrap().stats().state == CacheState::Failed;
    // While the store is down it does not end, and reads go on.
    volume.wait(async {
        while !failed() || volume.vfs.status().unwrap().upload_errors == 0 {
            assert!(futures::poll!(&mut synced).is_pending());
            tokio::task::yield_now().await;
        }
    });
    names.iter().zip(&bytes).for_each(|(name, bytes)| assert!(volume.read_all(name).unwrap() == *bytes));
    world.backend.set_down(false);
    volume.wait(synced).unwrap();
    let after = write_some(&volume, "after", 99);
    volume.sync().unwrap();
    world.lose_power(volume, 8);
    world.plan.heal();
    let volume = world.start();
    names.iter().zip(&bytes).for_each(|(name, bytes)| assert!(volume.read_all(name).unwrap() == *bytes));
    assert!(volume.read_all("after").unwrap() == after);
    world.kill(volume);
}

/// To be survived: fdatasync of a slab fails, the process is killed before anything is stored, and the kernel has told nobody else. What the
/// next process says that it has synced outlives a loss of power.
#[test]
fn a_sync_that_failed_is_known_to_the_next_process() {
    let mut world = World::new(13, Shape::default());
    let volume = world.start();
    let (first, second) = (write_some(&volume, "first", 1), write_some(&volume, "second", 2));
    world.plan.fail_under(Operation::Sync, Path::new(CACHE), Errno::EIO);
    world.backend.set_down(true);
    let mut synced = Box::pin(volume.vfs.sync().unwrap());
    volume.wait(async {
        while volume.cache.as_ref().unwrap().stats().state != CacheState::Failed {
            assert!(futures::poll!(&mut synced).is_pending());
            tokio::task::yield_now().await;
        }
    });
    drop(synced);
    assert!(world.disk.fail_writeback(&Path::new(CACHE).join("slab-00000")));
    world.kill(volume);
    world.plan.heal();
    let volume = world.start();
    volume.sync().unwrap();
    world.lose_power(volume, 13);
    let volume = world.start();
    assert_eq!(volume.damaged, 0);
    assert!(volume.read_all("first").unwrap() == first && volume.read_all("second").unwrap() == second);
    world.backend.set_down(false);
    world.kill(volume);
    // It is over: what is adopted now is only looked at.
    assert!(!world.disk.list(Path::new(CACHE)).unwrap().iter().any(|path| path.ends_with("unsynced")));
}

/// To be survived: a store that is down for more tries than a slot is read, and then one read error. Nothing is lost.
#[test]
fn a_read_error_after_an_outage_loses_nothing() {
    let mut world = World::new(10, Shape::default());
    let volume = world.start();
    let bytes = write_some(&volume, "kept", 5);
    world.backend.set_down(true);
    let mut uploading = Box::pin(volume.vfs.drain());
    let mut failed = |count: u64| {
        volume.wait(async {
            while volume.vfs.status().unwrap().upload_errors < count {
                assert!(futures::poll!(&mut uploading).is_pending());
                tokio::task::yield_now().await;
            }
        })
    };
    failed(3);
    world.plan.fail_nth_under(Operation::Read, Path::new(CACHE), 1, Errno::EIO);
    failed(4);
    world.backend.set_down(false);
    volume.wait(uploading);
    assert_eq!(volume.sync(), Ok(()));
    assert!(volume.read_all("kept").unwrap() == bytes);
    world.kill(volume);
}

/// To be survived: a dirty slot that gives read errors for good. Its bytes are lost, which the next sync tells once; everything
/// else is stored.
#[test]
fn a_dirty_slot_that_cannot_be_read_is_told() {
    let mut world = World::new(9, Shape::default());
    let volume = world.start();
    let (_, handle) = volume.create("lost");
    volume.write(handle, 0, &pattern(1, LEN)).unwrap();
    world.plan.fail_under(Operation::Read, Path::new(CACHE), Errno::EIO);
    volume.upload();
    world.plan.heal();
    assert_eq!(volume.sync(), Err(Errno::EIO));
    assert_eq!(volume.sync(), Ok(()));
    assert_eq!(volume.read(handle, 0, 100), Err(Errno::EIO));
    let kept = write_some(&volume, "kept", 5);
    volume.upload();
    assert!(volume.read_all("kept").unwrap() == kept);
    assert!(volume.vfs.unlink(Ino::ROOT, b"lost").is_ok());
    world.kill(volume);
}
