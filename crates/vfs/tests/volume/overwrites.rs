//! A file that is overwritten again and again keeps as many keys as it needs, however often that was.

use crate::harness::{Shape, Volume, World, pattern};
use sluice_base::Ino;
use std::ops::ControlFlow;

const TIMES: u64 = 1000;
const PIECE: usize = 4096;
/// Objects that bytes of a file of this size are spread over, at worst: each of its pieces in another one.
const PIECES: u64 = 20;

/// Keys of the file's extents, and objects of which it has bytes.
fn keys_of(volume: &Volume, ino: Ino) -> (usize, usize) {
    // docs/disk-format.md: table `e`, then the inode.
    let key = |ino: u64| [&b"e"[..], &ino.to_be_bytes()].concat();
    let (from, to) = (key(ino.0), key(ino.0 + 1));
    let (mut extents, mut objects) = (0, 0);
    let mut count = |_: &[u8], _: &[u8]| {
        extents += 1;
        ControlFlow::Continue(())
    };
    volume.namespace.store().snapshot().scan(&from, &to, &mut count).unwrap();
    let mut alive = |_, record: sluice_meta::records::ObjectRecord| {
        objects += usize::from(record.live_bytes > 0);
        ControlFlow::Continue(())
    };
    volume.namespace.objects(&mut alive).unwrap();
    (extents, objects)
}

/// `write` is told which time it is. Every hundred times everything is stored, so that what is overwritten next is in the store.
fn overwritten(write: impl Fn(&Volume, sluice_vfs::HandleId, u64)) {
    let mut world = World::new(31, Shape { checkpoints: true, ..Shape::default() });
    let volume = world.start();
    let (ino, handle) = volume.create("file");
    for time in 0..TIMES {
        write(&volume, handle, time);
        if time % 100 == 99 {
            volume.upload();
        }
    }
    let (extents, objects) = keys_of(&volume, ino);
    // 32 records and one for each eight runs are gathered before they are packed into one.
    assert!(extents <= 34 + PIECES as usize / 8, "{extents} keys of extents");
    assert!(objects <= PIECES as usize, "{objects} objects alive");
    // What was overwritten before it was stored left nothing behind.
    let mut dead = 0;
    let mut count = |_, record: sluice_meta::records::ObjectRecord| {
        dead += u64::from(record.live_bytes == 0);
        ControlFlow::Continue(())
    };
    volume.namespace.objects(&mut count).unwrap();
    assert!(dead <= TIMES / 10, "{dead} objects of nobody");
    world.kill(volume);
}

#[test]
fn a_file_overwritten_a_thousand_times_as_a_whole() {
    overwritten(|volume, handle, time| {
        volume.write(handle, 0, &pattern(time, PIECE * PIECES as usize)).unwrap();
    });
}

#[test]
fn a_file_overwritten_a_thousand_times_in_pieces_at_random() {
    overwritten(|volume, handle, time| {
        for number in 0..PIECES {
            // A number of no particular order, the same in each run.
            let place = (time * PIECES + number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            volume.write(handle, place % PIECES * PIECE as u64, &pattern(time, PIECE)).unwrap();
        }
    });
}
