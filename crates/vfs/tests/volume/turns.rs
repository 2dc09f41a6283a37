//! Who waits for the cache disk does not wait behind those who wait for other hosts.

use crate::{
    harness::{Volume, pattern},
    warm::{Slow, cold},
};
use bytes::Bytes;
use futures::future::{Either, join_all, select};
use sluice_base::Errno;
use sluice_vfs::HandleId;
use std::pin::pin;

const M: usize = 1 << 20;

/// A file whose bytes are on the cache disk alone.
fn cached(volume: &Volume) -> (HandleId, Vec<u8>) {
    let (_, handle) = volume.create("cached");
    let bytes = pattern(77, M);
    volume.write(handle, 0, &bytes).unwrap();
    (handle, bytes)
}

/// Reads what the cache disk has while `others` wait for ever, once `is_so`.
fn beside<T>(volume: &Volume, others: impl Future<Output = T>, is_so: impl Fn() -> bool) {
    let (handle, bytes) = cached(volume);
    let read = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
        volume.vfs.clone().read_waiting(handle, 0, M, false).await
    };
    // The others are looked at first: whatever can be taken is theirs.
    let read: Result<Vec<Bytes>, Errno> = volume.wait(async {
        match select(pin!(others), pin!(read)).await {
            Either::Right((read, _)) => read,
            Either::Left(_) => panic!("nobody answers the others"),
        }
    });
    assert!(read.unwrap().concat() == bytes);
    volume.vfs.release(handle);
}

fn go_on(slow: &Slow) {
    slow.answers.add_permits(1000);
}

/// To be survived: hosts that do not answer, and as many readers of what they have as there is memory for.
#[test]
fn memory_that_is_taken_by_those_who_wait_for_others() {
    let (world, volume, slow) = cold(11);
    let (_, handle) = volume.open("file0").unwrap();
    let free = || {
        let memory = volume.vfs.status().unwrap().memory;
        (memory.capacity_bytes - memory.used_bytes) as usize
    };
    let readers = free() / M + 10;
    let others = join_all((0..readers).map(|_| volume.vfs.clone().read_later(handle, 0, M, false)));
    // What is left is kept for those who wait for the disk alone.
    beside(&volume, others, || slow.asked() > 0 && free() <= 4 * M);
    go_on(&slow);
    volume.vfs.release(handle);
    world.kill(volume);
}

/// To be survived: many readers at once of what was in the cache when they were looked at, and is with hosts that do not answer.
#[test]
fn turns_at_the_disk_are_not_kept_by_those_who_wait_for_others() {
    let (world, volume, slow) = cold(12);
    let (_, handle) = volume.open("file0").unwrap();
    let others = join_all((0..100).map(|_| volume.vfs.clone().read_waiting(handle, 0, 4096, false)));
    beside(&volume, others, || slow.asked() > 0);
    go_on(&slow);
    volume.vfs.release(handle);
    world.kill(volume);
}
