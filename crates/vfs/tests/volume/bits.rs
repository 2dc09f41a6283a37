//! Flipped bits: a wrong byte is never read; what has a good copy somewhere is read from there.

use crate::harness::{CACHE, JOURNAL, Shape, World, pattern};
use sluice_base::{Disk, Errno, limits::SEGMENT_BYTES};
use sluice_journal::JournalError;
use std::path::{Path, PathBuf};

fn slab() -> PathBuf {
    Path::new(CACHE).join("slab-00000")
}

/// Where in a file of the disk `bytes` are.
fn find(world: &World, path: &Path, bytes: &[u8]) -> u64 {
    let file = world.disk.open(path).unwrap();
    let mut all = vec![0; file.size().unwrap() as usize];
    file.read_exact_at(&mut all, 0).unwrap();
    let step = if path == slab() { SEGMENT_BYTES } else { 1 };
    let places = (0..all.len() - bytes.len()).step_by(step);
    places.into_iter().find(|at| all[*at..].starts_with(bytes)).expect("the bytes are there") as u64
}

/// To be survived: a cached segment rots; the store has a good copy.
#[test]
fn a_stored_object_is_fetched_again() {
    let mut world = World::new(1, Shape { slots: 4, ..Shape::default() });
    let volume = world.start();
    let bytes = pattern(1, 300_000);
    volume.write(volume.create("file").1, 0, &bytes).unwrap();
    volume.upload();
    let at = find(&world, &slab(), &bytes[..32]);
    assert!(world.disk.flip_bit(&slab(), at + 100_000));
    assert!(volume.read_all("file").unwrap() == bytes);
    assert!(volume.vfs.status().unwrap().read_stored_bytes > 0);
    world.kill(volume);
}

/// To be survived: a segment of a large write rots before it is stored. Reads of it fail, now and once the rest is stored, and
/// the next sync tells; every other segment is readable, and stored.
#[test]
fn of_a_dirty_object_only_the_damaged_segment_is_lost() {
    let mut world = World::new(2, Shape { slots: 4, ..Shape::default() });
    let volume = world.start();
    let bytes = pattern(2, 10 * SEGMENT_BYTES);
    let (_, handle) = volume.create("file");
    volume.write(handle, 0, &bytes).unwrap();
    let at = find(&world, &slab(), &bytes[..32]);
    assert!(world.disk.flip_bit(&slab(), at + 3 * SEGMENT_BYTES as u64 + 5));
    for stored in [false, true] {
        if stored {
            volume.upload();
            assert_eq!(volume.sync(), Err(Errno::EIO));
        }
        for (index, segment) in bytes.chunks(SEGMENT_BYTES).enumerate() {
            let expected = if index == 3 { Err(Errno::EIO) } else { Ok(segment.to_vec()) };
            assert!(volume.read(handle, (index * SEGMENT_BYTES) as u64, SEGMENT_BYTES) == expected, "segment {index}");
        }
    }
    world.kill(volume);
}

/// To be survived: a segment of small writes rots before it is stored. The journal has the bytes, now and after the process has ended.
#[test]
fn the_journal_mends_small_writes() {
    let mut world = World::new(3, Shape { slots: 4, ..Shape::default() });
    let volume = world.start();
    let bytes = pattern(3, 100_000);
    let (_, handle) = volume.create("file");
    volume.write(handle, 0, &bytes).unwrap();
    let at = find(&world, &slab(), &bytes[..32]);
    assert!(world.disk.flip_bit(&slab(), at + 40_000));
    assert!(volume.read(handle, 40_000, 10).unwrap() == bytes[40_000..40_010]);
    // It is in its slot again.
    assert_eq!(find(&world, &slab(), &bytes[SEGMENT_BYTES..][..20_000]), at + SEGMENT_BYTES as u64);
    assert!(volume.read(handle, 0, SEGMENT_BYTES).unwrap() == bytes[..SEGMENT_BYTES]);
    assert!(world.disk.flip_bit(&slab(), at + 40_000));
    world.kill(volume);
    let volume = world.start();
    assert_eq!(volume.damaged, 0);
    assert!(volume.read_all("file").unwrap() == bytes);
    world.kill(volume);
}

/// To be survived: a record of the journal rots. The next start says so rather than dropping what was synced.
#[test]
fn a_damaged_journal_is_told_at_start() {
    let mut world = World::new(4, Shape::default());
    let volume = world.start();
    let bytes = pattern(4, 50_000);
    let (_, handle) = volume.create("file");
    volume.write(handle, 0, &bytes).unwrap();
    volume.write(handle, 50_000, &pattern(5, 50_000)).unwrap();
    volume.sync().unwrap();
    world.kill(volume);
    let segment = world.disk.list(Path::new(JOURNAL)).unwrap().into_iter().min().unwrap();
    let at = find(&world, &segment, &bytes[..64]);
    assert!(world.disk.flip_bit(&segment, at + 20_000));
    assert!(matches!(world.try_start().map(drop), Err(JournalError::Corrupt { .. })));
}

/// To be survived: an object rots in the store itself. Its damaged segment cannot be read, its others can.
#[test]
fn damage_in_the_store_is_told() {
    let mut world = World::new(5, Shape { slots: 0, ..Shape::default() });
    let volume = world.start();
    let bytes = pattern(6, 10 * SEGMENT_BYTES);
    let (_, handle) = volume.create("file");
    volume.write(handle, 0, &bytes).unwrap();
    volume.upload();
    let backend = world.backend.inner();
    let key = backend.keys().into_iter().find(|key| key.starts_with("objects/")).unwrap();
    assert!(backend.damage(&key, |stored| stored[3 * SEGMENT_BYTES + 9] ^= 4));
    for (index, segment) in bytes.chunks(SEGMENT_BYTES).enumerate() {
        let expected = if index == 3 { Err(Errno::EIO) } else { Ok(segment.to_vec()) };
        assert!(volume.read(handle, (index * SEGMENT_BYTES) as u64, SEGMENT_BYTES) == expected, "segment {index}");
    }
    world.kill(volume);
}
