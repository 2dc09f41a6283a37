//! Random operations against files in plain memory.

use crate::harness::{Shape, Volume, World, pattern};
use proptest::prelude::*;
use sluice_base::{Errno, Ino};
use sluice_meta::{RenameMode, SetAttributes};
use std::collections::BTreeMap;

const PUNCH: u32 = 3;
const ZERO: u32 = 16;

#[derive(Clone, Debug)]
enum Op {
    Write { file: u8, offset: u64, len: usize, seed: u64 },
    Truncate { file: u8, size: u64 },
    Fallocate { file: u8, how: u32, offset: u64, len: u64 },
    Copy { from: u8, from_offset: u64, to: u8, to_offset: u64, len: u64 },
    Unlink { file: u8 },
    Rename { from: u8, to: u8 },
    Read { file: u8, offset: u64, len: usize },
    Sync,
    Upload,
    Checkpoint,
    Kill,
    Cold,
}

/// Small values most of the time: that is where inline bodies, open objects and slots meet.
fn size(max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..200u64, 3 => 4000..4200u64, 3 => 0..70_000u64, 2 => 100_000..300_000u64, 2 => 0..max]
}

fn op() -> impl Strategy<Value = Op> {
    let file = 0..4u8;
    let at = || size(5 << 20);
    prop_oneof![
        10 => (file.clone(), at(), size(2 << 20), any::<u64>())
            .prop_map(|(file, offset, len, seed)| Op::Write { file, offset, len: len as usize, seed }),
        3 => (file.clone(), at()).prop_map(|(file, size)| Op::Truncate { file, size }),
        2 => (file.clone(), prop_oneof![Just(0), Just(1), Just(PUNCH), Just(ZERO), Just(ZERO | 1)], at(), at())
            .prop_map(|(file, how, offset, len)| Op::Fallocate { file, how, offset, len: len + 1 }),
        3 => (file.clone(), at(), file.clone(), at(), at())
            .prop_map(|(from, from_offset, to, to_offset, len)| Op::Copy { from, from_offset, to, to_offset, len }),
        1 => file.clone().prop_map(|file| Op::Unlink { file }),
        1 => (file.clone(), file.clone()).prop_map(|(from, to)| Op::Rename { from, to }),
        6 => (file, at(), size(1 << 20)).prop_map(|(file, offset, len)| Op::Read { file, offset, len: len as usize }),
        1 => Just(Op::Sync),
        2 => Just(Op::Upload),
        1 => Just(Op::Checkpoint),
        1 => Just(Op::Kill),
        1 => Just(Op::Cold),
    ]
}

/// Files in memory, by name.
type Model = BTreeMap<u8, Vec<u8>>;

fn name(file: u8) -> String {
    format!("file-{file}")
}

fn grow(bytes: &mut Vec<u8>, end: u64) {
    if (bytes.len() as u64) < end {
        bytes.resize(end as usize, 0);
    }
}

fn apply(volume: &Volume, model: &mut Model, op: &Op) {
    match *op {
        Op::Write { file, offset, len, seed } => {
            let (_, handle) = volume.open(&name(file)).unwrap_or_else(|| volume.create(&name(file)));
            let (bytes, known) = (pattern(seed, len), model.entry(file).or_default());
            volume.write(handle, offset, &bytes).unwrap();
            volume.vfs.release(handle);
            if len > 0 {
                grow(known, offset + len as u64);
                known[offset as usize..][..len].copy_from_slice(&bytes);
            }
        }
        Op::Truncate { file, size } => {
            let Some(known) = model.get_mut(&file) else { return };
            let (ino, handle) = volume.open(&name(file)).unwrap();
            volume.patiently(move |vfs| vfs.setattr(ino, Some(size), &SetAttributes::default())).unwrap();
            volume.vfs.release(handle);
            known.resize(size as usize, 0);
        }
        Op::Fallocate { file, how, offset, len } => {
            let Some(known) = model.get_mut(&file) else { return };
            let (_, handle) = volume.open(&name(file)).unwrap();
            volume.patiently(move |vfs| vfs.fallocate(handle, how, offset, len)).unwrap();
            volume.vfs.release(handle);
            if how & 1 == 0 {
                grow(known, offset + len);
            }
            let (from, to) = ((offset as usize).min(known.len()), ((offset + len) as usize).min(known.len()));
            if how & !1 != 0 {
                known[from..to].fill(0);
            }
        }
        Op::Copy { from, from_offset, to, to_offset, len } => {
            copy(volume, model, (from, from_offset), (to, to_offset), len)
        }
        Op::Unlink { file } => {
            let done = volume.vfs.unlink(Ino::ROOT, name(file).as_bytes());
            assert_eq!(done, model.remove(&file).map(drop).ok_or(Errno::ENOENT.into()));
        }
        Op::Rename { from, to } => {
            let Some(known) = model.remove(&from) else { return };
            model.insert(to, known);
            let (from, to) = (name(from), name(to));
            volume.vfs.rename((Ino::ROOT, from.as_bytes()), (Ino::ROOT, to.as_bytes()), RenameMode::Replace).unwrap();
        }
        Op::Read { file, offset, len } => {
            let Some(known) = model.get(&file) else { return };
            let (_, handle) = volume.open(&name(file)).unwrap();
            let found = volume.read(handle, offset, len).unwrap();
            volume.vfs.release(handle);
            let from = (offset as usize).min(known.len());
            assert!(found == known[from..known.len().min(from + len)], "file {file} from {offset}, {len} bytes");
        }
        Op::Sync => volume.sync().unwrap(),
        Op::Upload => volume.upload(),
        Op::Checkpoint => volume.checkpoint(),
        Op::Kill | Op::Cold => unreachable!("done by who has the world"),
    }
}

/// copy_file_range(2) as the kernel does it: what cannot be cloned is copied.
fn copy(volume: &Volume, model: &mut Model, from: (u8, u64), to: (u8, u64), len: u64) {
    if !model.contains_key(&from.0) || !model.contains_key(&to.0) {
        return;
    }
    let source = &model[&from.0];
    let start = (from.1 as usize).min(source.len());
    let bytes = source[start..source.len().min(start + len as usize)].to_vec();
    let (_, source) = volume.open(&name(from.0)).unwrap();
    let (_, target) = volume.open(&name(to.0)).unwrap();
    let mut done = 0;
    let overlaps = from.0 == to.0 && from.1 < to.1 + bytes.len() as u64 && to.1 < from.1 + bytes.len() as u64;
    while done < bytes.len() as u64 {
        let (at, put) = (from.1 + done, to.1 + done);
        match volume.patiently(move |vfs| vfs.copy_range((source, at), (target, put), len - done)) {
            Ok(0) => panic!("nothing copied of {bytes:?}"),
            Ok(more) => done += more,
            Err(Errno::EINVAL) if overlaps => return,
            Err(Errno::EXDEV) => {
                let rest = volume.read(source, at, bytes.len() - done as usize).unwrap();
                volume.write(target, put, &rest).unwrap();
                done = bytes.len() as u64;
            }
            Err(errno) => panic!("copy_range: {errno:?}"),
        }
    }
    volume.vfs.release(source);
    volume.vfs.release(target);
    if !bytes.is_empty() {
        let known = model.get_mut(&to.0).unwrap();
        grow(known, to.1 + bytes.len() as u64);
        known[to.1 as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
}

fn check(volume: &Volume, model: &Model) {
    for file in 0..4 {
        match (volume.read_all(&name(file)), model.get(&file)) {
            (Err(Errno::ENOENT), None) => {}
            (Ok(found), Some(known)) => {
                assert_eq!(found.len(), known.len(), "size of file {file}");
                let differs = found.iter().zip(known).position(|(a, b)| a != b);
                assert_eq!(differs, None, "first wrong byte of file {file}");
            }
            (found, known) => panic!("file {file}: {:?}, model {:?}", found.map(|f| f.len()), known.map(Vec::len)),
        }
    }
}

fn run(shape: Shape, ops: &[Op]) {
    let mut world = World::new(1, shape);
    let (mut volume, mut model) = (world.start(), Model::new());
    for op in ops {
        match op {
            Op::Kill | Op::Cold => {
                if matches!(op, Op::Cold) {
                    volume.upload();
                }
                world.kill(volume);
                if matches!(op, Op::Cold) && world.shape.slots > 0 {
                    world.remove_cache();
                }
                volume = world.start();
                assert_eq!(volume.damaged, 0);
                check(&volume, &model);
            }
            op => apply(&volume, &mut model, op),
        }
    }
    check(&volume, &model);
    volume.upload();
    check(&volume, &model);
    world.kill(volume);
}

fn cases() -> ProptestConfig {
    ProptestConfig { cases: 8, max_shrink_iters: 40, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    /// Contents are those of the model whatever is uploaded, evicted, killed or read cold in between.
    #[test]
    fn a_volume_is_its_model(ops in prop::collection::vec(op(), 1..60)) {
        run(Shape::default(), &ops);
    }

    /// Two slots: writers wait for uploads, readers for the store.
    #[test]
    fn with_a_tiny_cache(ops in prop::collection::vec(op(), 1..40)) {
        run(Shape { slots: 2, ..Shape::default() }, &ops);
    }

    /// Writers wait until segments are freed.
    #[test]
    fn with_a_tiny_journal(ops in prop::collection::vec(op(), 1..40)) {
        run(Shape { segment_bytes: 2 << 20, segments: 4, checkpoints: true, ..Shape::default() }, &ops);
    }

    /// Every byte goes through the journal and waits in memory.
    #[test]
    fn without_a_cache(ops in prop::collection::vec(op(), 1..40)) {
        run(Shape { slots: 0, checkpoints: true, ..Shape::default() }, &ops);
    }
}

/// To be survived: a file of so many pieces that its extents do not fit into one log record is cloned and truncated.
#[test]
fn a_file_in_many_pieces() {
    const PIECE: u64 = 4096;
    const PIECES: u64 = 1024;
    let mut world = World::new(1, Shape::default());
    let volume = world.start();
    let (_, source) = volume.create("source");
    let bytes = pattern(1, (PIECES * PIECE) as usize);
    volume.write(source, 0, &bytes).unwrap();
    let (ino, target) = volume.create("target");
    for i in 0..PIECES {
        let at = (PIECES - 1 - i) * PIECE;
        assert_eq!(volume.vfs.copy_range((source, at), (target, i * PIECE), PIECE), Ok(PIECE));
    }
    let whole = PIECES * PIECE;
    for i in 1..128 {
        assert_eq!(volume.vfs.copy_range((target, 0), (target, i * whole), whole), Ok(whole));
    }
    let (_, copy) = volume.create("copy");
    let (mut done, size) = (0, 128 * whole);
    while done < size {
        done += volume.vfs.copy_range((target, done), (copy, done), size - done).unwrap();
    }
    let last = volume.read(copy, size - PIECE, PIECE as usize).unwrap();
    assert!(last == bytes[..PIECE as usize]);
    volume.vfs.setattr(ino, Some(0), &SetAttributes::default()).unwrap();
    assert!(volume.read(copy, size - PIECE, PIECE as usize).unwrap() == last);
    world.kill(volume);
    let volume = world.start();
    let (_, copy) = volume.open("copy").unwrap();
    assert!(volume.read(copy, size - PIECE, PIECE as usize).unwrap() == last);
    world.kill(volume);
}
