//! Garbage: what has no users goes, what has few is rewritten, and nobody reads anything else than before.

use crate::harness::{Shape, Volume, World, pattern};
use futures::future::FutureExt;
use sluice_base::{Clock, Errno, Ino, Timestamp};
use sluice_meta::SetAttributes;
use sluice_object::backend::{Fault, RequestKind};
use sluice_vfs::{
    Ship,
    gc::{Gc, GcParts, GcSettings},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

const MIB: usize = 1 << 20;
const HOUR: Duration = Duration::from_secs(3600);

fn gc_with(volume: &Volume, min_age: Duration, ship: Option<Arc<Ship>>) -> Arc<Gc> {
    let (vfs, namespace) = (volume.vfs.clone(), volume.namespace.clone());
    let relocate = {
        let (vfs, namespace) = (vfs.clone(), namespace.clone());
        Box::new(move |ino, moved: &[_]| vfs.relocate(&namespace, ino, moved))
    };
    let settings = GcSettings { min_age, bytes_per_second: u64::MAX, ..GcSettings::default() };
    Gc::new(GcParts { vfs, namespace, ship, relocate }, settings)
}

fn gc(volume: &Volume) -> Arc<Gc> {
    gc_with(volume, HOUR, None)
}

fn pass(volume: &Volume, gc: &Arc<Gc>) {
    volume.wait(gc.pass());
    assert_eq!(gc.status().trouble, None);
}

/// A file of some MiB in objects of its own, of which only the first MiB is still used.
fn worn_file(volume: &Volume, name: &str, seed: u64) -> Vec<u8> {
    let (_, handle) = volume.create(name);
    let mut bytes = pattern(seed, 8 * MIB);
    for at in (0..bytes.len()).step_by(MIB) {
        volume.write(handle, at as u64, &bytes[at..at + MIB]).unwrap();
    }
    volume.upload();
    let newer = pattern(seed + 1, 3 * MIB);
    for at in (0..newer.len()).step_by(MIB) {
        volume.write(handle, (MIB + at) as u64, &newer[at..at + MIB]).unwrap();
    }
    bytes[MIB..4 * MIB].copy_from_slice(&newer);
    volume.upload();
    volume.vfs.release(handle);
    bytes
}

fn stored(world: &World) -> usize {
    world.backend.inner().keys().iter().filter(|key| key.starts_with("objects/")).count()
}

/// The cache has nothing, and a new process knows nothing.
fn reads_from_the_store(world: &mut World, volume: Volume, files: &[(&str, &[u8])]) {
    world.kill(volume);
    world.remove_cache();
    let volume = world.start();
    for (name, bytes) in files {
        assert!(volume.read_all(name).unwrap() == *bytes, "{name}");
    }
    world.kill(volume);
}

#[test]
fn an_object_under_half_alive_is_rewritten_and_later_deleted() {
    let mut world = World::new(21, Shape::default());
    let volume = world.start();
    let bytes = worn_file(&volume, "file", 1);
    let (ino, _) = volume.open("file").unwrap();
    let attr = volume.namespace.getattr(ino).unwrap();
    assert_eq!(stored(&world), 3);
    let gc = gc(&volume);
    pass(&volume, &gc);
    let status = gc.status();
    assert_eq!((status.repacked_objects, status.repacked_bytes), (1, MIB as u64));
    assert_eq!(volume.namespace.getattr(ino).unwrap(), attr, "nobody changed the file");
    assert!(volume.read_all("file").unwrap() == bytes);
    pass(&volume, &gc);
    pass(&volume, &gc);
    assert_eq!((gc.status().repacked_objects, gc.status().tombstones), (1, 1));
    assert_eq!(stored(&world), 4, "who reads by the old extents still can");
    world.clock.advance(HOUR);
    pass(&volume, &gc);
    assert_eq!((gc.status().deleted_objects, stored(&world)), (1, 3));
    pass(&volume, &gc);
    assert_eq!((gc.status().tombstones, gc.status().dead_bytes), (0, 0));
    reads_from_the_store(&mut world, volume, &[("file", &bytes)]);
}

#[test]
fn small_leftovers_of_many_files_share_an_object() {
    let mut world = World::new(22, Shape::default());
    let volume = world.start();
    let names: Vec<String> = (0..400).map(|n| format!("{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        let (_, handle) = volume.create(name);
        volume.write(handle, 0, &pattern(n as u64, 20_000)).unwrap();
        volume.vfs.release(handle);
    }
    volume.upload();
    let before = stored(&world);
    for name in names.iter().enumerate().filter(|(n, _)| n % 5 > 0).map(|(_, name)| name) {
        volume.vfs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    }
    volume.vfs.reclaim_rest();
    let gc = gc_with(&volume, Duration::ZERO, None);
    (0..4).for_each(|_| pass(&volume, &gc));
    assert!(before > 1);
    assert_eq!((gc.status().repacked_objects, stored(&world)), (1, 1));
    for (n, name) in names.iter().enumerate().step_by(5) {
        assert!(volume.read_all(name).unwrap() == pattern(n as u64, 20_000));
    }
    world.kill(volume);
}

/// What two files share is stored once, also afterwards.
#[test]
fn clones_whose_source_is_deleted_go_on_sharing() {
    let mut world = World::new(23, Shape::default());
    let volume = world.start();
    let bytes = worn_file(&volume, "source", 5);
    let (_, source) = volume.open("source").unwrap();
    for name in ["clone", "other"] {
        let (_, target) = volume.create(name);
        assert_eq!(volume.vfs.copy_range((source, 0), (target, 0), MIB as u64).unwrap(), MIB as u64);
        volume.vfs.release(target);
    }
    volume.vfs.release(source);
    volume.vfs.unlink(Ino::ROOT, b"source").unwrap();
    volume.vfs.reclaim_rest();
    // A range that two files have counts twice: only one of them keeps the old object from being half alive.
    let (_, other) = volume.open("other").unwrap();
    volume.write(other, 300_000, &pattern(9, 500_000)).unwrap();
    volume.upload();
    let mut changed = bytes[..MIB].to_vec();
    changed[300_000..800_000].copy_from_slice(&pattern(9, 500_000));
    let gc = gc_with(&volume, Duration::ZERO, None);
    (0..4).for_each(|_| pass(&volume, &gc));
    let moved = gc.status().repacked_bytes as usize;
    assert_eq!(moved, 2 * MIB - 500_000);
    let stored = gc.status().stored_bytes as usize;
    assert!(stored < MIB + 500_000 + 100_000, "{stored}: what both have is there once");
    assert!(volume.read_all("clone").unwrap() == bytes[..MIB]);
    reads_from_the_store(&mut world, volume, &[("clone", &bytes[..MIB]), ("other", &changed)]);
}

/// Whoever knows the volume by what the store has of its metadata must find the objects that it speaks of.
#[test]
fn nothing_is_deleted_before_the_store_knows_that_nobody_uses_it() {
    let mut world = World::new(24, Shape::default());
    let volume = world.start();
    worn_file(&volume, "file", 3);
    let is_shipped = Arc::new(AtomicBool::new(false));
    let told = is_shipped.clone();
    let ship: Arc<Ship> = Arc::new(move |_| {
        let outcome = if told.load(Ordering::SeqCst) { Ok(()) } else { Err("it does not".to_owned()) };
        std::future::ready(outcome).boxed()
    });
    let gc = gc_with(&volume, Duration::ZERO, Some(ship));
    (0..3).for_each(|_| pass(&volume, &gc));
    let before = stored(&world);
    volume.wait(gc.pass());
    assert!(gc.status().trouble.unwrap().contains("the store does not have the metadata"));
    assert_eq!(stored(&world), before);
    is_shipped.store(true, Ordering::SeqCst);
    pass(&volume, &gc);
    assert_eq!(stored(&world), before - 1);
    world.kill(volume);
}

#[test]
fn a_clock_that_steps_deletes_nothing_early() {
    let mut world = World::new(25, Shape::default());
    let volume = world.start();
    worn_file(&volume, "file", 4);
    let gc = gc(&volume);
    (0..3).for_each(|_| pass(&volume, &gc));
    assert_eq!(gc.status().tombstones, 1);
    let before = stored(&world);
    let now = world.clock.wall().secs;
    for secs in [now + 86_400, 0, now - 7200, now] {
        world.clock.step_wall(Timestamp { secs, nanos: 0 });
        pass(&volume, &gc);
    }
    world.clock.advance(HOUR - Duration::from_secs(10));
    pass(&volume, &gc);
    assert_eq!(stored(&world), before);
    world.clock.step_wall(Timestamp { secs: 0, nanos: 0 });
    world.clock.advance(Duration::from_secs(10));
    pass(&volume, &gc);
    assert_eq!(stored(&world), before - 1);
    world.kill(volume);
}

#[test]
fn a_store_that_fails_is_asked_again() {
    let mut world = World::new(26, Shape::default());
    let volume = world.start();
    let bytes = worn_file(&volume, "file", 6);
    let gc = gc_with(&volume, Duration::ZERO, None);
    world.backend.set_down(true);
    volume.wait(gc.pass());
    assert!(gc.status().trouble.is_some());
    world.backend.set_down(false);
    (0..3).for_each(|_| pass(&volume, &gc));
    let before = stored(&world);
    (0..9).for_each(|_| world.backend.plan(RequestKind::Delete, Fault::Unavailable));
    volume.wait(gc.pass());
    assert!(gc.status().trouble.is_some());
    world.backend.forget_plans();
    pass(&volume, &gc);
    assert!(stored(&world) < before);
    reads_from_the_store(&mut world, volume, &[("file", &bytes)]);
}

/// Damage is left to those whom it concerns.
#[test]
fn a_damaged_object_stays_where_it_is() {
    let mut world = World::new(27, Shape { slots: 0, ..Shape::default() });
    let volume = world.start();
    worn_file(&volume, "bad", 7);
    let bytes = worn_file(&volume, "good", 8);
    let flip = |object: &mut Vec<u8>| object[100] ^= 1;
    let mut damaged = 0;
    let (_, handle) = volume.open("bad").unwrap();
    for key in world.backend.inner().keys().into_iter().filter(|key| key.starts_with("objects/")) {
        if volume.read(handle, 0, 200).is_ok() {
            world.backend.inner().damage(&key, flip);
            match volume.read(handle, 0, 200) {
                Err(Errno::EIO) => damaged += 1,
                _ => drop(world.backend.inner().damage(&key, flip)),
            }
        }
    }
    assert_eq!(damaged, 1);
    let gc = gc_with(&volume, Duration::ZERO, None);
    (0..4).for_each(|_| pass(&volume, &gc));
    assert_eq!(gc.status().repacked_objects, 1);
    assert_eq!(volume.read(handle, 0, 200), Err(Errno::EIO));
    assert!(volume.read_all("good").unwrap() == bytes);
    world.kill(volume);
}

/// Readers, writers, clones and truncations beside passes that delete at once: every block that is read is one that was written.
#[test]
fn everything_at_once() {
    const BLOCK: usize = 60_000;
    const BLOCKS: u64 = 24;
    let mut world = World::new(28, Shape { slots: 4, ..Shape::default() });
    let volume = world.start();
    let names = ["a", "b", "c"];
    names.iter().for_each(|name| volume.vfs.release(volume.create(name).1));
    let block = |name: usize, at: u64, round: u64| {
        let seed = (1 + name as u64) << 48 | at << 32 | round;
        let mut bytes = pattern(seed, BLOCK);
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes
    };
    let check = |bytes: &[u8]| {
        if bytes.len() == BLOCK && bytes.iter().any(|byte| *byte != 0) {
            let seed = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let mut right = pattern(seed, BLOCK);
            right[..8].copy_from_slice(&seed.to_le_bytes());
            assert!(bytes == right, "a torn or foreign block");
        }
    };
    let is_over = AtomicBool::new(false);
    let gc = gc_with(&volume, Duration::ZERO, None);
    thread::scope(|scope| {
        let (volume, is_over, gc) = (&volume, &is_over, &gc);
        let writers: Vec<_> = (0..names.len())
            .map(|name| {
                scope.spawn(move || {
                    let (ino, handle) = volume.open(names[name]).unwrap();
                    let (_, other) = volume.open(names[(name + 1) % names.len()]).unwrap();
                    for round in 0..150u64 {
                        let at = (round * 7 + name as u64) % BLOCKS;
                        volume.write(handle, at * BLOCK as u64, &block(name, at, round)).unwrap();
                        if round % 11 == 0 {
                            let (from, to) = (at * BLOCK as u64, (at + 5) % BLOCKS * BLOCK as u64);
                            volume
                                .patiently(move |vfs| vfs.copy_range((handle, from), (other, to), BLOCK as u64))
                                .unwrap();
                        }
                        if round % 37 == 0 {
                            let size = Some(at * BLOCK as u64);
                            volume.patiently(move |vfs| vfs.setattr(ino, size, &SetAttributes::default())).unwrap();
                        }
                        if round % 10 == 0 {
                            volume.upload_some();
                        }
                    }
                    volume.vfs.release(handle);
                    volume.vfs.release(other);
                })
            })
            .collect();
        for name in names {
            scope.spawn(move || {
                let (_, handle) = volume.open(name).unwrap();
                while !is_over.load(Ordering::Acquire) {
                    (0..BLOCKS).for_each(|at| check(&volume.read(handle, at * BLOCK as u64, BLOCK).unwrap()));
                }
                volume.vfs.release(handle);
            });
        }
        scope.spawn(move || {
            while !is_over.load(Ordering::Acquire) {
                pass(volume, gc);
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_over.store(true, Ordering::Release);
    });
    volume.upload();
    (0..4).for_each(|_| pass(&volume, &gc));
    let status = gc.status();
    assert!(status.repacked_objects > 0 && status.deleted_objects > 0, "{status:?}");
    let files: Vec<_> = names.iter().map(|name| (*name, volume.read_all(name).unwrap())).collect();
    files.iter().for_each(|(_, bytes)| bytes.chunks(BLOCK).for_each(check));
    let files: Vec<_> = files.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    reads_from_the_store(&mut world, volume, &files);
}

/// What is overwritten before it is uploaded never is.
#[test]
fn bytes_that_died_young_are_not_uploaded() {
    let mut world = World::new(29, Shape::default());
    let volume = world.start();
    let mut bytes = pattern(1, 4 * MIB);
    let fill = |name: &str| {
        let (_, handle) = volume.create(name);
        (0..4).for_each(|n| {
            volume.write(handle, (n * MIB) as u64, &pattern(1, 4 * MIB)[n * MIB..(n + 1) * MIB]).unwrap()
        });
        handle
    };
    let (handle, source) = (fill("file"), fill("source"));
    let (_, clone) = volume.create("clone");
    assert_eq!(volume.vfs.copy_range((source, 0), (clone, 0), 4 * MIB as u64).unwrap(), 4 * MIB as u64);
    let newer = pattern(2, 3 * MIB);
    for handle in [handle, source] {
        (0..3).for_each(|n| volume.write(handle, (n * MIB) as u64, &newer[n * MIB..(n + 1) * MIB]).unwrap());
    }
    volume.upload();
    // Of the file 1 MiB of its first object and the 3 newer ones; of the source all, as a clone has it.
    let sent = volume.vfs.store_stats().sent_bytes as usize;
    assert!((11 * MIB..11 * MIB + 100_000).contains(&sent), "{sent}");
    let cloned = bytes.clone();
    bytes[..3 * MIB].copy_from_slice(&newer);
    reads_from_the_store(&mut world, volume, &[("file", &bytes), ("source", &bytes), ("clone", &cloned)]);
}
