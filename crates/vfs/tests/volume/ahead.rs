//! Read-ahead: what is fetched before it is asked for, how often, and what becomes of it when the file changes.

use crate::harness::{Shape, Volume, World, pattern};
use sluice_base::{Clock, Errno, SystemClock};
use sluice_meta::SetAttributes;
use sluice_object::backend::{Fault, RequestKind};
use sluice_vfs::{
    HandleId, MemoryStatus,
    direct::{Carrier, Direct, Region, Taken, Verify},
};
use std::time::Duration;

const M: usize = 1 << 20;
const LEN: usize = 24 * M;

/// A process of a volume that has `file` in the store alone.
fn cold(seed: u64, slots: u64) -> (World, Volume, Vec<u8>) {
    let mut world = World::new(seed, Shape { slots: 64, ..Shape::default() });
    let volume = world.start();
    let (_, handle) = volume.create("file");
    let bytes = pattern(seed, LEN);
    bytes.chunks(M).enumerate().for_each(|(n, piece)| volume.write(handle, (n * M) as u64, piece).unwrap());
    volume.upload();
    world.kill(volume);
    world.remove_cache();
    world.shape.slots = slots;
    let volume = world.start();
    (world, volume, bytes)
}

fn memory(volume: &Volume) -> MemoryStatus {
    volume.vfs.status().unwrap().memory
}

fn received(volume: &Volume) -> usize {
    volume.vfs.store_stats().received_bytes as usize
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let clock = SystemClock::default();
    while !is_so() {
        assert!(clock.monotonic() < Duration::from_secs(30), "{what}: not in 30 s");
        std::thread::yield_now();
    }
}

/// Until nothing is under way that was read ahead.
fn settle(volume: &Volume) {
    wait_for("what is read ahead to come", || memory(volume).pace_used_bytes == 0);
}

fn read_in_order(volume: &Volume, handle: HandleId, bytes: &[u8], from: usize, to: usize, step: usize) {
    for at in (from..to).step_by(step) {
        let read = volume.read(handle, at as u64, step).unwrap();
        assert!(read == bytes[at..at + read.len()], "at {at}");
    }
}

#[test]
fn one_who_reads_in_order_finds_it_and_no_byte_is_fetched_twice() {
    for (slots, step) in [(0, M), (0, 128 << 10), (0, 48 << 10), (64, M), (64, 4 << 10)] {
        let (world, volume, bytes) = cold(1, slots);
        let (_, handle) = volume.open("file").unwrap();
        for at in (0..LEN).step_by(step) {
            read_in_order(&volume, handle, &bytes, at, (at + step).min(LEN), step);
            settle(&volume);
        }
        wait_for("what was read to be gone", || memory(&volume).used_bytes == 0);
        let memory = memory(&volume);
        assert!(memory.ahead_used_bytes as usize > LEN / 2, "{slots} {step}: {memory:?}");
        assert!(memory.ahead_bytes - memory.ahead_used_bytes <= 32 << 10, "{slots} {step}: {memory:?}");
        assert_eq!(memory.ahead_useless_bytes, 0, "{slots} {step}");
        // Tables, of which each object's is read once, and what the first read got of a segment that the second one needs as well.
        let received = received(&volume);
        assert!((LEN..LEN + LEN / 500 + (32 << 10)).contains(&received), "{slots} {step}: {received} for {LEN}");
        volume.vfs.release(handle);
        world.kill(volume);
    }
}

#[test]
fn backward_and_in_strides_too() {
    let (world, volume, bytes) = cold(2, 0);
    let (_, handle) = volume.open("file").unwrap();
    for at in (0..LEN / M).rev() {
        read_in_order(&volume, handle, &bytes, at * M, (at + 1) * M, M);
        settle(&volume);
    }
    let backward = memory(&volume).ahead_used_bytes as usize;
    assert!(backward > LEN / 2, "{backward}");
    for at in (0..LEN).step_by(256 << 10) {
        read_in_order(&volume, handle, &bytes, at, at + (32 << 10), 32 << 10);
        settle(&volume);
    }
    let strided = memory(&volume).ahead_used_bytes as usize - backward;
    assert!(strided > LEN / 8 / 2, "{strided}");
    assert!(received(&volume) < LEN + LEN / 8 + LEN / 10, "nothing between the runs: {}", received(&volume));
    volume.vfs.release(handle);
    world.kill(volume);
}

/// A read that touches 32 KiB of the store and its table costs no more, whatever was read before. Where a cache keeps it, an object
/// that is read all over comes as a whole, once a quarter of it was asked for: on average no read has moved more than 128 KiB.
#[test]
fn a_small_read_at_random_moves_little() {
    for slots in [0, 64] {
        let (world, volume, bytes) = cold(3, slots);
        let (_, handle) = volume.open("file").unwrap();
        // All different segments, in an order without a pattern: 257 is prime.
        let mut place = 1;
        let (mut before, mut reads) = (received(&volume), 0);
        for _ in 0..200 {
            place = place * 3 % 257;
            let at = place * 2 * (32 << 10) + 1000;
            if at + 4096 > LEN {
                continue;
            }
            assert!(volume.read(handle, at as u64, 4096).unwrap() == bytes[at..at + 4096]);
            settle(&volume);
            reads += 1;
            let now = received(&volume);
            assert!(slots > 0 || now - before <= 128 << 10, "{} bytes", now - before);
            before = now;
        }
        assert!(received(&volume) / reads <= 128 << 10, "{slots}: {} for {reads} reads", received(&volume));
        assert_eq!(memory(&volume).ahead_used_bytes, 0);
        volume.vfs.release(handle);
        world.kill(volume);
    }
}

/// To be survived: the file is written, cut and replaced while it is read ahead; nobody reads what it was.
#[test]
fn a_file_replaced_while_read_ahead() {
    for slots in [0, 64] {
        let (world, volume, mut bytes) = cold(4, slots);
        let (ino, handle) = volume.open("file").unwrap();
        read_in_order(&volume, handle, &bytes, 0, 4 * M, M);
        settle(&volume);
        assert!(memory(&volume).ahead_bytes > 0);
        // The next bytes are in memory. A part of them is written...
        let (_, writer) = volume.open("file").unwrap();
        let new = pattern(5, 100_000);
        volume.write(writer, 4 * M as u64 + 1000, &new).unwrap();
        bytes[4 * M + 1000..][..new.len()].copy_from_slice(&new);
        read_in_order(&volume, handle, &bytes, 4 * M, 6 * M, M);
        settle(&volume);
        // ... the rest cut off, and there are zeros in its place...
        let resize = |size| {
            volume.patiently(move |vfs| vfs.setattr(ino, Some(size), &SetAttributes::default()).map(drop)).unwrap();
        };
        resize(6 * M as u64 + 10);
        assert_eq!(volume.read(handle, 6 * M as u64, M).unwrap(), bytes[6 * M..6 * M + 10]);
        resize(LEN as u64);
        bytes[6 * M + 10..].fill(0);
        read_in_order(&volume, handle, &bytes, 6 * M, 8 * M, M);
        settle(&volume);
        // ... and everything is new, and stored.
        let bytes = pattern(6, LEN);
        resize(0);
        bytes.chunks(M).enumerate().for_each(|(n, piece)| volume.write(writer, (n * M) as u64, piece).unwrap());
        volume.upload();
        read_in_order(&volume, handle, &bytes, 8 * M, LEN, M);
        volume.vfs.release(handle);
        volume.vfs.release(writer);
        wait_for("nothing to be kept of a file that is closed", || memory(&volume).used_bytes == 0);
        world.kill(volume);
    }
}

/// To be survived: the store fails for requests that nobody waits for, then for one that somebody waits for.
#[test]
fn what_fails_ahead_is_left_to_who_asks() {
    let (world, volume, bytes) = cold(7, 0);
    let (_, handle) = volume.open("file").unwrap();
    read_in_order(&volume, handle, &bytes, 0, 2 * M, M);
    settle(&volume);
    (0..300).for_each(|_| world.backend.plan(RequestKind::Get, Fault::Unavailable));
    let failed = (2..LEN / M).find(|at| volume.read(handle, (at * M) as u64, M) == Err(Errno::ETIMEDOUT));
    assert!(failed.is_some());
    world.backend.forget_plans();
    read_in_order(&volume, handle, &bytes, failed.unwrap() * M, LEN, M);
    settle(&volume);
    volume.vfs.release(handle);
    wait_for("nothing to be kept", || memory(&volume).used_bytes == 0);
    world.kill(volume);
}

/// What was read ahead of somebody who left is given up, counted, and the next ones read less far ahead.
#[test]
fn who_stops_reading_costs_memory_only_until_he_closes() {
    let (world, volume, bytes) = cold(8, 0);
    let in_vain = |readers: usize| {
        let before = memory(&volume).ahead_useless_bytes;
        for _ in 0..readers {
            let (_, handle) = volume.open("file").unwrap();
            read_in_order(&volume, handle, &bytes, 0, 2 * M, M);
            settle(&volume);
            volume.vfs.release(handle);
        }
        (memory(&volume).ahead_useless_bytes - before) as usize / readers
    };
    let first = in_vain(1);
    in_vain(40);
    let last = in_vain(1);
    let memory = memory(&volume);
    // Half as much, about: that is where what is used of such reads and what is not are even.
    assert!(last * 4 <= first * 3, "{last} after {first}");
    assert!(memory.ahead_useless_bytes > 0 && memory.used_bytes == 0, "{memory:?}");
    assert_eq!(memory.ahead_used_bytes + memory.ahead_useless_bytes, memory.ahead_bytes);
    world.kill(volume);
}

/// An answer in memory.
#[derive(Default)]
struct Answer(Vec<u8>);

impl Carrier for Answer {
    fn memory(&mut self, len: usize) -> &mut [u8] {
        self.0.resize(len, 0xa5);
        &mut self.0
    }

    fn send_memory(&mut self, len: usize) {
        self.0.truncate(len);
    }

    fn wants_regions(&self, _: usize) -> bool {
        false
    }

    fn send_regions(&mut self, _: &[Region<'_>]) -> bool {
        false
    }

    fn pipe(&mut self, _: usize) -> Option<sluice_base::Pipe> {
        None
    }
}

/// To be survived: a reader in order of a file of which every third object is hot, with a thread that answers hot reads by itself. He finds
/// what is read ahead, no byte is fetched twice, memory is given back, and the hot bytes do not all go the slow path.
#[test]
fn a_thread_that_answers_hot_reads_leaves_alone_what_is_read_ahead() {
    const OBJECT: usize = 4 * M;
    let (world, volume, bytes) = cold(9, 64);
    let step = 128 << 10;
    for object in (0..LEN / OBJECT).filter(|object| object % 3 == 0) {
        for at in (object * OBJECT..(object + 1) * OBJECT).step_by(step / 2) {
            // A handle for each: these are no streams.
            let (_, warmer) = volume.open("file").unwrap();
            volume.read(warmer, at as u64, step / 2).unwrap();
            volume.vfs.release(warmer);
        }
    }
    wait_for("the file to be warm", || memory(&volume).used_bytes == 0);
    let (_, handle) = volume.open("file").unwrap();
    let before = (memory(&volume), received(&volume));
    let mut direct = Direct::new(volume.vfs.clone(), Verify::Full);
    let (mut by_itself, mut answer) = (0, Answer::default());
    for at in (0..LEN).step_by(step) {
        let taken = direct.read(1, (handle, at as u64, step), false, &mut answer);
        if taken == Taken::Answered {
            by_itself += 1;
        } else {
            answer.0 = volume.read(handle, at as u64, step).unwrap();
        }
        assert!(answer.0 == bytes[at..at + step], "at {at}");
        settle(&volume);
    }
    wait_for("what was read to be gone", || memory(&volume).used_bytes == 0);
    let now = memory(&volume);
    assert!(by_itself >= OBJECT / step, "{by_itself} answered by the thread");
    assert!(now.ahead_used_bytes > (LEN / 3) as u64, "{now:?}");
    assert_eq!((now.ahead_useless_bytes, before.0.ahead_bytes), (0, 0), "{now:?}");
    let (cold, received) = (LEN - LEN.div_ceil(3 * OBJECT) * OBJECT, received(&volume) - before.1);
    assert!(received < cold + cold / 100, "{received} for {cold}");
    volume.vfs.release(handle);
    world.kill(volume);
}
