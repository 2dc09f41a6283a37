//! Power loss: what a sync answered for is there to the byte; of the rest every byte is an old one, a new one, or an error.

use crate::harness::{CACHE, Shape, Volume, World, pattern};
use proptest::prelude::*;
use sluice_base::{Errno, disk::Operation};
use sluice_meta::SetAttributes;
use std::path::Path;

/// What each byte of a file may be: the synced value and every one written since.
#[derive(Default, Clone)]
struct File {
    now: Vec<u8>,
    /// Values since the last sync, oldest first; a value is `None` past the end of the file.
    history: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Op {
    Write { file: usize, offset: u64, len: usize, seed: u64 },
    Truncate { file: usize, size: u64 },
    Sync,
    Upload,
    Checkpoint,
}

fn op() -> impl Strategy<Value = Op> {
    let at = || prop_oneof![Just(0u64), 0..5_000u64, 0..300_000u64];
    prop_oneof![
        8 => (0..3usize, at(), prop_oneof![1..5_000u64, 1..200_000u64, 1..1_500_000u64], any::<u64>())
            .prop_map(|(file, offset, len, seed)| Op::Write { file, offset, len: len as usize, seed }),
        2 => (0..3usize, at()).prop_map(|(file, size)| Op::Truncate { file, size }),
        3 => Just(Op::Sync),
        1 => Just(Op::Upload),
        1 => Just(Op::Checkpoint),
    ]
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn apply(volume: &Volume, files: &mut [File], op: &Op) {
    match *op {
        Op::Write { file, offset, len, seed } => {
            let (_, handle) = volume.open(NAMES[file]).unwrap();
            let bytes = pattern(seed, len);
            volume.write(handle, offset, &bytes).unwrap();
            volume.vfs.release(handle);
            // A write of more than 1 MiB commits in pieces, and power may fail between them.
            for (piece, at) in bytes.chunks(1 << 20).zip((offset as usize..).step_by(1 << 20)) {
                let mut next = files[file].now.clone();
                next.resize(next.len().max(at + piece.len()), 0);
                next[at..][..piece.len()].copy_from_slice(piece);
                files[file].step(next);
            }
        }
        Op::Truncate { file, size } => {
            let (ino, handle) = volume.open(NAMES[file]).unwrap();
            volume.vfs.setattr(ino, Some(size), &SetAttributes::default()).unwrap();
            volume.vfs.release(handle);
            let mut next = files[file].now.clone();
            next.resize(size as usize, 0);
            files[file].step(next);
        }
        Op::Sync => {
            volume.sync().unwrap();
            files.iter_mut().for_each(|file| file.history.clear());
        }
        Op::Upload => volume.upload(),
        Op::Checkpoint => volume.checkpoint(),
    }
}

impl File {
    fn step(&mut self, next: Vec<u8>) {
        self.history.push(std::mem::replace(&mut self.now, next));
    }

    /// A state that the file had since the last sync, or has now, whose bytes `found` shows as far as they can be read.
    fn check(&self, volume: &Volume, name: &str) -> Result<(), String> {
        let (ino, handle) = volume.open(name).ok_or("the file is gone")?;
        let size = volume.size(ino);
        let chunk = 1 << 12;
        let found: Vec<_> = (0..size.div_ceil(chunk)).map(|i| volume.read(handle, i * chunk, chunk as usize)).collect();
        volume.vfs.release(handle);
        let states: Vec<&Vec<u8>> = self.history.iter().chain([&self.now]).collect();
        let candidates: Vec<_> = states.iter().enumerate().filter(|(_, state)| state.len() as u64 == size).collect();
        if candidates.is_empty() {
            return Err(format!("{size} bytes were never the size"));
        }
        // A piece that cannot be read must have been written since the sync: in some state up to this one it differs.
        let explains = |&(index, state): &(usize, &&Vec<u8>)| {
            found.iter().enumerate().all(|(i, piece)| {
                let range = |of: &Vec<u8>| {
                    let from = (i * chunk as usize).min(of.len());
                    of[from..of.len().min(from + chunk as usize)].to_vec()
                };
                match piece {
                    Ok(bytes) => *bytes == range(state),
                    // Written since the sync, in some step up to this state: neighbours keep what they have.
                    Err(Errno::EIO) => (1..=index).any(|step| range(states[step - 1]) != range(states[step])),
                    Err(_) => false,
                }
            })
        };
        let wrong = || {
            let pieces: Vec<_> = found.iter().map(|piece| piece.as_ref().map(Vec::len)).collect();
            format!("no state since the sync explains {} bytes: {pieces:?} ({} states)", size, states.len())
        };
        candidates.iter().map(|(i, s)| (*i, *s)).any(|c| explains(&c)).then_some(()).ok_or_else(wrong)
    }
}

fn run(ops: &[Op], seed: u64, shape: Shape) -> Result<(), TestCaseError> {
    let mut world = World::new(seed, shape);
    let volume = world.start();
    NAMES.iter().for_each(|name| volume.vfs.release(volume.create(name).1));
    volume.sync().unwrap();
    let mut files = vec![File::default(); 3];
    ops.iter().for_each(|op| apply(&volume, &mut files, op));
    world.lose_power(volume, seed);
    let volume = world.start();
    for (file, name) in files.iter().zip(NAMES) {
        file.check(&volume, name).map_err(|why| TestCaseError::fail(format!("{name}: {why}")))?;
    }
    // The damage stays where it is, and the rest leaves for the store.
    volume.upload();
    for (file, name) in files.iter().zip(NAMES) {
        file.check(&volume, name).map_err(|why| TestCaseError::fail(format!("{name}, stored: {why}")))?;
    }
    world.kill(volume);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 20, ..ProptestConfig::default() })]

    /// To be survived: power loss at any moment, with any subset of the unsynced writes on the disks.
    #[test]
    fn synced_bytes_survive(ops in prop::collection::vec(op(), 1..25), seed in any::<u64>()) {
        run(&ops, seed, Shape::default())?;
    }

    /// The same across changes of journal segments, which sync the journal but not the slabs.
    #[test]
    fn synced_bytes_survive_crossings(ops in prop::collection::vec(op(), 1..25), seed in any::<u64>()) {
        run(&ops, seed, Shape { segment_bytes: 2 << 20, segments: 64, ..Shape::default() })?;
    }

    /// The same with every byte in the journal.
    #[test]
    fn synced_bytes_survive_without_a_cache(ops in prop::collection::vec(op(), 1..15), seed in any::<u64>()) {
        run(&ops, seed, Shape { slots: 0, ..Shape::default() })?;
    }
}

/// To be survived: a large write is lost, whose first and last segments hold what was synced before it and what came behind it
/// in the log.
#[test]
fn a_lost_large_write_takes_nothing_from_its_neighbours() {
    let mut lost = 0;
    for (seed, head) in (0..8).flat_map(|seed| [(seed, 10_000), (seed, 200_000)]) {
        let (large, tail) = (head + 200_000, 10_000);
        let mut world = World::new(seed, Shape::default());
        let volume = world.start();
        let (_, handle) = volume.create("log");
        let bytes = pattern(seed, large + tail);
        volume.write(handle, 0, &bytes[..head]).unwrap();
        volume.sync().unwrap();
        volume.write(handle, head as u64, &bytes[head..large]).unwrap();
        volume.write(handle, large as u64, &bytes[large..]).unwrap();
        volume.journal.sync().unwrap();
        world.lose_power(volume, seed);
        let volume = world.start();
        let (_, handle) = volume.open("log").unwrap();
        assert!(volume.read(handle, 0, head).unwrap() == bytes[..head], "seed {seed}: what was synced");
        assert!(volume.read(handle, large as u64, tail).unwrap() == bytes[large..], "seed {seed}: what the log has");
        lost += usize::from(volume.read(handle, head as u64, large - head).is_err());
        world.kill(volume);
    }
    assert!(lost > 0, "no large write was lost");
}

/// To be survived: the journal is durable before the slabs that its records name, as in the middle of every commit. A sync that
/// took that for the whole would lose the bytes.
#[test]
fn a_sync_covers_the_slabs_when_the_journal_was_quicker() {
    for seed in 0..8 {
        let mut world = World::new(seed, Shape::default());
        let volume = world.start();
        let (_, handle) = volume.create("large");
        let bytes = pattern(seed, 1 << 20);
        volume.write(handle, 0, &bytes).unwrap();
        volume.journal.sync().unwrap();
        volume.sync().unwrap();
        world.lose_power(volume, seed);
        let volume = world.start();
        assert_eq!(volume.damaged, 0);
        assert!(volume.read_all("large").unwrap() == bytes);
        world.kill(volume);
    }
}

/// To be survived: a kill, a restart, a sync and then power loss. What the first process wrote to the slabs was never synced by
/// it, and the second one answers for it.
#[test]
fn a_sync_after_a_restart_covers_what_was_there() {
    for seed in 0..8 {
        let mut world = World::new(seed, Shape::default());
        let volume = world.start();
        let (_, handle) = volume.create("large");
        let bytes = pattern(seed, 1 << 20);
        volume.write(handle, 0, &bytes).unwrap();
        // Ends without its last sync, which a kill does not make.
        world.plan.fail_under(Operation::Sync, Path::new(CACHE), Errno::EIO);
        world.kill(volume);
        world.plan.heal();
        let volume = world.start();
        volume.sync().unwrap();
        world.lose_power(volume, seed);
        let volume = world.start();
        assert_eq!(volume.damaged, 0);
        assert!(volume.read_all("large").unwrap() == bytes);
        world.kill(volume);
    }
}

/// To be survived: what was synced is truncated away and its object forgotten, the power fails before the log is synced, and
/// the old bytes are the file again.
#[test]
fn forgotten_bytes_come_back_with_their_references() {
    for (seed, len) in (0..8).flat_map(|seed| [(seed, 40_000), (seed, 400_000)]) {
        let mut world = World::new(seed, Shape::default());
        let volume = world.start();
        let (ino, handle) = volume.create("file");
        let bytes = pattern(seed, len);
        volume.write(handle, 0, &bytes).unwrap();
        volume.sync().unwrap();
        volume.checkpoint();
        volume.vfs.setattr(ino, Some(0), &SetAttributes::default()).unwrap();
        volume.upload();
        world.lose_power(volume, seed);
        let volume = world.start();
        let found = volume.read_all("file").unwrap();
        assert!(found.is_empty() || found == bytes, "{} of {len} bytes", found.len());
        world.kill(volume);
    }
}
