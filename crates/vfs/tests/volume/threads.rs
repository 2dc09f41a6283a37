//! Many threads at once, and clocks that jump.

use crate::harness::{Shape, Volume, World, pattern};
use sluice_base::{Errno, Ino, Seq, Timestamp};
use sluice_meta::SetAttributes;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// Length of every write: across the limit of what goes to a slot at once.
const BLOCK: usize = 150_000;
const BLOCKS: u64 = 12;
const ROUNDS: u64 = 60;

/// A block that tells by its first bytes what the others must be.
fn block(seed: u64) -> Vec<u8> {
    let mut bytes = pattern(seed, BLOCK);
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes
}

/// Whole blocks only: of one write, or never written.
fn check_block(bytes: &[u8]) {
    if bytes.len() < BLOCK || bytes.iter().all(|byte| *byte == 0) {
        return;
    }
    let seed = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(block(seed) == bytes, "a torn block");
}

fn write_blocks(volume: &Volume, name: &str, worker: u64) {
    let (_, handle) = volume.open(name).unwrap();
    for round in 0..ROUNDS {
        let at = (round * 7 + worker) % BLOCKS;
        volume.write(handle, at * BLOCK as u64, &block(worker << 32 | round)).unwrap();
    }
    volume.vfs.release(handle);
}

fn read_blocks(volume: &Volume, name: &str, until: &AtomicBool) {
    let (_, handle) = volume.open(name).unwrap();
    while !until.load(Ordering::Acquire) {
        for at in 0..BLOCKS {
            check_block(&volume.read(handle, at * BLOCK as u64, BLOCK).unwrap());
        }
    }
    volume.vfs.release(handle);
}

fn truncate_blocks(volume: &Volume, name: &str) {
    let (ino, handle) = volume.open(name).unwrap();
    for round in 0..ROUNDS {
        let size = (round % BLOCKS) * BLOCK as u64;
        volume.patiently(move |vfs| vfs.setattr(ino, Some(size), &SetAttributes::default())).unwrap();
    }
    volume.vfs.release(handle);
}

fn copy_blocks(volume: &Volume, from: &str, to: &str) {
    let ((_, source), (_, target)) = (volume.open(from).unwrap(), volume.open(to).unwrap());
    for round in 0..ROUNDS {
        let (at, put) = (round % BLOCKS * BLOCK as u64, (round * 5 + 1) % BLOCKS * BLOCK as u64);
        match volume.patiently(move |vfs| vfs.copy_range((source, at), (target, put), BLOCK as u64)) {
            // Of a file that ends within the block a part is copied: the rest of the target's block is older.
            Ok(copied) if copied == 0 || copied == BLOCK as u64 => {}
            other => panic!("{other:?}"),
        }
    }
    volume.vfs.release(source);
    volume.vfs.release(target);
}

/// A file that is unlinked while it is open is there until it is closed.
fn unlink_while_open(volume: &Volume) {
    for round in 0..ROUNDS / 4 {
        let (_, handle) = volume.create("short-lived");
        volume.write(handle, 0, &block(round)).unwrap();
        volume.vfs.unlink(Ino::ROOT, b"short-lived").unwrap();
        assert!(volume.read(handle, 0, BLOCK).unwrap() == block(round));
        volume.vfs.release(handle);
    }
}

/// To be survived: readers, writers, truncate, unlink and copies in both directions at once, while objects are uploaded and
/// slots evicted. No deadlock, no block that is part of one write and part of another.
#[test]
fn everything_at_once() {
    let mut world = World::new(1, Shape { slots: 6, checkpoints: true, ..Shape::default() });
    let volume = world.start();
    for name in ["a", "b"] {
        volume.vfs.release(volume.create(name).1);
        write_blocks(&volume, name, 0);
    }
    let (volume, done) = (&volume, &AtomicBool::new(false));
    thread::scope(|scope| {
        let work: Vec<_> = [
            scope.spawn(move || write_blocks(volume, "a", 1)),
            scope.spawn(move || write_blocks(volume, "b", 2)),
            scope.spawn(move || write_blocks(volume, "a", 3)),
            scope.spawn(move || copy_blocks(volume, "a", "b")),
            scope.spawn(move || copy_blocks(volume, "b", "a")),
            scope.spawn(move || truncate_blocks(volume, "b")),
            scope.spawn(move || unlink_while_open(volume)),
        ]
        .into();
        scope.spawn(move || read_blocks(volume, "a", done));
        scope.spawn(move || read_blocks(volume, "b", done));
        scope.spawn(move || {
            while !done.load(Ordering::Acquire) {
                volume.upload_some();
                volume.sync().unwrap();
            }
        });
        let results: Vec<_> = work.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Release);
        results.into_iter().for_each(|result| result.unwrap());
    });
    let contents = ["a", "b"].map(|name| volume.read_all(name).unwrap());
    volume.upload();
    assert!(contents == ["a", "b"].map(|name| volume.read_all(name).unwrap()));
}

/// To be survived: many small files, each synced, while others have everything sealed and stored at any moment and the metadata is shipped. Every
/// upload ends, and every byte is there.
#[test]
fn small_files_while_others_seal() {
    const WRITERS: u64 = 4;
    const FILES: u64 = 60;
    let mut world = World::new(3, Shape { slots: 16, ..Shape::default() });
    let volume = world.start();
    let bytes = |writer: u64, file: u64| pattern(writer << 32 | file, 5000 + (file as usize * 977) % 60_000);
    let (vol, done) = (&volume, &AtomicBool::new(false));
    thread::scope(|scope| {
        let write = move |writer: u64| {
            for file in 0..FILES {
                let (_, handle) = vol.create(&format!("{writer}-{file}"));
                vol.write(handle, 0, &bytes(writer, file)).unwrap();
                vol.sync().unwrap();
                vol.vfs.release(handle);
            }
        };
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
        for _ in 0..2 {
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    vol.vfs.stored_up_to(Seq(0), vol.vfs.written());
                    vol.upload_some();
                }
            });
        }
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Release);
        results.into_iter().for_each(|result| result.unwrap());
    });
    volume.upload();
    for (writer, file) in (0..WRITERS).flat_map(|writer| (0..FILES).map(move |file| (writer, file))) {
        assert!(volume.read_all(&format!("{writer}-{file}")).unwrap() == bytes(writer, file));
    }
    world.kill(volume);
}

/// To be survived: the wall clock steps back and forth. Times follow it; nothing else notices.
#[test]
fn a_clock_that_steps() {
    let mut world = World::new(2, Shape { slots: 4, ..Shape::default() });
    let mut volume = world.start();
    volume.vfs.release(volume.create("file").1);
    for (round, secs) in [1_700_000_000, -5, 4_000_000_000, 0, 1_600_000_000].into_iter().enumerate() {
        world.clock.step_wall(Timestamp { secs, nanos: 7 });
        let (ino, handle) = volume.open("file").unwrap();
        let bytes = block(round as u64);
        volume.write(handle, 0, &bytes).unwrap();
        let attr = volume.vfs.namespace().getattr(ino).unwrap();
        assert_eq!((attr.mtime.secs, attr.ctime.secs), (secs, secs));
        assert!(volume.read(handle, 0, BLOCK).unwrap() == bytes);
        volume.vfs.release(handle);
        volume.sync().unwrap();
        volume.upload();
        if round % 2 == 1 {
            world.kill(volume);
            volume = world.start();
        }
        assert!(volume.read_all("file").unwrap() == bytes);
    }
    assert_eq!(volume.read_all("nothing"), Err(Errno::ENOENT));
    world.kill(volume);
}
