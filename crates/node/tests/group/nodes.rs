//! One node: its disk, its store, and those who ask at once.

use crate::rig::{Rig, SEG, assert_right, read, rot_unseen};
use futures::future::join_all;
use sluice_base::disk::MemoryDisk;
use sluice_node::{
    NodeError,
    message::{CheckSegments, ReadSegments},
};
use sluice_object::{
    StoredObject,
    backend::{Fault, RequestKind},
    object_key,
};
use std::{ops::Range, time::Duration};

fn ask(object: StoredObject, range: Range<u32>) -> ReadSegments {
    ReadSegments { object, range, cached_only: false }
}

#[tokio::test]
async fn one_request_to_the_store_for_all_who_wait() {
    let (rig, disk) = (Rig::new(), MemoryDisk::default());
    let (node, object) = (rig.node(&disk, None), rig.object(1, &[true; 4]).await);
    rig.backend.plan(RequestKind::Get, Fault::Delay(Duration::from_millis(50)));
    let reads = join_all((0..20).map(|n| read(&node, Box::leak(Box::new(ask(object, n % 3..4)))))).await;
    for (n, read) in reads.into_iter().enumerate() {
        assert_right(object, n as u32 % 3, &read.expect("the store gives it"));
    }
    assert_eq!(rig.gets(), 1);
    assert_eq!(node.numbers().filled_bytes, 4 * SEG as u64);
    assert_right(object, 1, &read(&node, &ask(object, 1..3)).await.unwrap());
    assert_eq!((rig.gets(), node.numbers().hits, node.numbers().misses), (1, 1, 20));
}

#[tokio::test]
async fn who_reads_a_quarter_or_in_order_is_brought_the_rest() {
    for (number, misses) in [(1, &[5..7, 60..80, 100..110][..]), (2, &[5..7, 7..8, 8..12]), (3, &[0..32, 32..33])] {
        let (rig, disk) = (Rig::new(), MemoryDisk::default());
        let (node, object) = (rig.node(&disk, None), rig.object(number, &[true; 128]).await);
        let (last, before) = misses.split_last().unwrap();
        let mut asked = 0;
        for range in before {
            assert_right(object, range.start, &read(&node, &ask(object, range.clone())).await.unwrap());
            asked += range.len();
            crate::rig::eventually("what was asked for", || node.fills().1 == 0).await;
            assert_eq!(node.numbers().used_bytes, (asked * SEG) as u64, "and nothing else");
        }
        assert_right(object, last.start, &read(&node, &ask(object, last.clone())).await.unwrap());
        crate::rig::eventually("the rest", || node.numbers().used_bytes == 128 * SEG as u64).await;
        assert_eq!(node.numbers().filled_bytes, 128 * SEG as u64, "nothing twice");
        let before = rig.gets();
        assert_right(object, 0, &read(&node, &ask(object, 0..128)).await.unwrap());
        assert_eq!(rig.gets(), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_in_step_fetch_nothing_twice() {
    for round in 1..=3 {
        let (rig, disk) = (Rig::new(), MemoryDisk::default());
        let (node, object) = (rig.node(&disk, None), rig.object(round, &[true; 128]).await);
        let reader = |step: u32| {
            let node = node.clone();
            tokio::spawn(async move {
                for first in (0..128).step_by(step as usize) {
                    let read = read(&node, &ask(object, first..128.min(first + step))).await;
                    assert_right(object, first, &read.unwrap());
                }
            })
        };
        for done in join_all([1, 2, 4, 4, 7, 32].map(reader)).await {
            done.unwrap();
        }
        assert_eq!(node.numbers().filled_bytes, 128 * SEG as u64, "round {round}");
    }
}

#[tokio::test]
async fn segments_without_bytes_are_known_as_such() {
    let (rig, disk) = (Rig::new(), MemoryDisk::default());
    let (node, object) = (rig.node(&disk, None), rig.object(1, &[true, false, false, true]).await);
    for _ in 0..3 {
        let read = read(&node, &ask(object, 0..4)).await.unwrap();
        assert_right(object, 0, &read[..1]);
        assert_right(object, 3, &read[3..]);
        assert!(read[1].bytes.is_empty() && read[2].bytes.is_empty() && read[2].is_sound(object.id()));
    }
    assert_eq!(rig.gets(), 1);
}

#[tokio::test]
async fn a_rotten_segment_is_given_up_when_a_reader_says_so() {
    let (rig, disk) = (Rig::new(), MemoryDisk::default());
    let (node, object) = (rig.node(&disk, None), rig.object(1, &[true; 4]).await);
    read(&node, &ask(object, 0..4)).await.unwrap();
    crate::rig::eventually("the cache", || node.numbers().used_bytes == 4 * SEG as u64).await;
    let check = |segments| CheckSegments { object: object.id(), segments };
    assert_eq!(node.check(check(0b1111)).await, 0);
    rot_unseen(&disk, 2 * SEG as u64 + 17);
    let sound: Vec<bool> =
        read(&node, &ask(object, 0..4)).await.unwrap().iter().map(|segment| segment.is_sound(object.id())).collect();
    assert_eq!(sound, [true, true, false, true], "nobody but the reader looks at the bytes");
    assert_eq!(
        (node.check(check(0b1011)).await, node.check(check(1 << 127)).await),
        (0, 0),
        "others are sound or not there"
    );
    assert_eq!((node.check(check(0b0100)).await, node.numbers().corrupt_segments), (0b0100, 1));
    assert_right(object, 0, &read(&node, &ask(object, 0..4)).await.unwrap());
    assert_eq!(rig.gets(), 2);
}

#[tokio::test]
async fn what_the_store_does_not_give_is_a_failure_to_all_who_wait() {
    let (rig, disk) = (Rig::new(), MemoryDisk::default());
    let (node, object) = (rig.node(&disk, None), rig.object(1, &[true; 4]).await);
    let mut cached = ask(object, 0..1);
    cached.cached_only = true;
    assert_eq!(read(&node, &cached).await, Err(NodeError::NotHere));
    rig.backend.set_down(true);
    let first = ask(object, 0..2);
    let reads = join_all((0..5).map(|_| read(&node, &first))).await;
    assert!(reads.iter().all(|read| matches!(read, Err(NodeError::Store(_)))), "{reads:?}");
    rig.backend.set_down(false);
    assert_right(object, 0, &read(&node, &first).await.unwrap());
    let gone = StoredObject::new(sluice_base::ObjectId([9; 16]), 4, object.stored_bytes()).unwrap();
    assert_eq!(read(&node, &ask(gone, 0..1)).await, Err(NodeError::Gone));
    assert_eq!(node.numbers().failures, 6);
}

#[tokio::test]
async fn a_damaged_object_is_never_served() {
    let (rig, disk) = (Rig::new(), MemoryDisk::default());
    let (node, object) = (rig.node(&disk, None), rig.object(1, &[true; 4]).await);
    assert!(rig.backend.inner().damage(&object_key(object.id()), |bytes| bytes[3 * SEG] ^= 1));
    assert!(matches!(read(&node, &ask(object, 2..4)).await, Err(NodeError::Store(_))));
    assert_right(object, 0, &read(&node, &ask(object, 0..2)).await.unwrap());
}
