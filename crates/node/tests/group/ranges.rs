//! Bytes by their place: from memory, from the disk, from the store.

use crate::rig::{Host, Rig, SEG, bytes_of, client, content, eventually, hello, rot_unseen};
use sluice_base::{crc::crc32c, disk::MemoryDisk};
use sluice_net::CallError;
use sluice_node::{
    Node, NodeError,
    message::{FAILED_ABSENT, FAILED_NOT_HERE, READ_RANGE, Read, ReadRange},
};
use sluice_object::StoredObject;
use sluice_wire::{LaneClass, PeerKind};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(10);
const SLAB: &str = "/cache/slab-00000";

fn ask(object: StoredObject, offset: usize, len: usize) -> ReadRange {
    ReadRange { object, offset: offset as u32, len: len as u32, cached_only: false }
}

/// The object's bytes.
fn expected(object: StoredObject, offset: usize, len: usize) -> Vec<u8> {
    let segments = offset / SEG..(offset + len).div_ceil(SEG);
    let bytes: Vec<u8> = segments.flat_map(|index| content(object.id(), index as u32).to_vec()).collect();
    bytes[offset % SEG..offset % SEG + len].to_vec()
}

/// Offsets and lengths of all kinds in an object of four segments: parts, whole ones, both.
const RANGES: [(usize, usize); 9] = [
    (0, 4 * SEG),
    (SEG, SEG),
    (SEG, 2 * SEG),
    (5, 100),
    (SEG - 7, 9),
    (SEG - 7, SEG + 9),
    (2 * SEG, SEG + 1),
    (4 * SEG - 1, 1),
    (1, 4 * SEG - 2),
];

async fn right(node: &Node, object: StoredObject, offset: usize, len: usize) {
    let answer = node.answer(&Read::Range(ask(object, offset, len))).await.expect("an answer");
    let bytes = bytes_of(&answer);
    assert!(bytes == expected(object, offset, len), "{len} bytes at {offset}");
    assert_eq!((answer.len(), answer.crc()), (len, crc32c(&bytes)), "{len} bytes at {offset}");
}

async fn cached(node: &Node, segments: usize) {
    let is_full = || node.numbers().used_bytes == (segments * SEG) as u64;
    eventually("the cache", || is_full() && node.fills().1 == 0).await;
}

#[tokio::test]
async fn the_bytes_asked_for_come_and_no_others() {
    let rig = Rig::new();
    let (host, object) = (rig.host("a").await, rig.object(1, &[true; 4]).await);
    let client = client(host.server.address(), hello(PeerKind::Mount, "m"));
    for round in ["from the store", "from the cache"] {
        for (offset, len) in RANGES {
            let class = if len < 64 << 10 { LaneClass::Small } else { LaneClass::Bulk };
            let reply = client.call_on(class, READ_RANGE, ask(object, offset, len).encode().to_vec(), LONG).await;
            let bytes = reply.expect("an answer").body.checked().expect("its checksum");
            assert!(bytes == expected(object, offset, len), "{len} bytes at {offset} {round}");
        }
        cached(&host.node, 4).await;
    }
    assert_eq!(rig.gets(), 1, "the first miss was of all");
}

#[tokio::test]
async fn what_memory_has_is_answered_at_once() {
    let (rig, disk) = (Rig::new(), MemoryDisk::default());
    let (node, object) = (rig.node(&disk, None), rig.object(1, &[true; 4]).await);
    right(&node, object, 0, 4 * SEG).await;
    cached(&node, 4).await;
    for (offset, len) in RANGES {
        let read = Read::Range(ask(object, offset, len));
        let answer = node.answer_now(&read).expect("it is there").unwrap();
        assert!(bytes_of(&answer) == expected(object, offset, len) && answer.crc() == crc32c(&bytes_of(&answer)));
        disk.drop_pages(SLAB.as_ref());
        assert!(node.answer_now(&read).is_none(), "{len} bytes at {offset} from a disk");
        right(&node, object, offset, len).await;
        assert!(node.answer_now(&read).is_some());
        right(&node, object, 0, 4 * SEG).await;
    }
    assert_eq!(rig.gets(), 1);
}

/// Also while another one is being fetched, and until a quarter of the object was read.
#[tokio::test]
async fn a_small_miss_moves_little() {
    let (rig, disk) = (Rig::new(), MemoryDisk::default());
    let (node, object) = (rig.node(&disk, None), rig.object(1, &[true; 128]).await);
    let moved = || node.store_stats().received_bytes;
    // 37 and 128 have no common divisor: no segment twice, none behind the last one.
    let places = (1..32).map(|n| n * 37 % 128);
    for (read, at) in places.clone().take(20).enumerate() {
        let before = moved();
        right(&node, object, at * SEG + 8192, 4096).await;
        eventually("the fetch to end", || node.fills().1 == 0).await;
        assert!(moved() - before <= 128 << 10, "{} bytes for 4 KiB, after {read} reads", moved() - before);
    }
    let before = moved();
    let rest: Vec<_> = places.skip(20).collect();
    futures::future::join_all(rest.iter().map(|at| right(&node, object, at * SEG, 4096))).await;
    eventually("the fetches to end", || node.fills().1 == 0).await;
    assert!(moved() - before <= rest.len() as u64 * (128 << 10), "{} bytes for {}", moved() - before, rest.len());
    right(&node, object, 0, 4096).await;
    cached(&node, 128).await;
    assert_eq!(node.numbers().filled_bytes, 128 * SEG as u64, "nothing twice");
}

#[tokio::test]
async fn a_part_from_the_cache_and_the_rest_from_the_store() {
    let (rig, disk) = (Rig::new(), MemoryDisk::default());
    let (node, object) = (rig.node(&disk, None), rig.object(1, &[true; 5]).await);
    right(&node, object, 2 * SEG, 1).await;
    cached(&node, 1).await;
    right(&node, object, SEG / 2, 4 * SEG).await;
    cached(&node, 5).await;
    right(&node, object, SEG / 2, 4 * SEG).await;
}

#[tokio::test]
async fn bytes_that_are_not_there_are_said_to_be_so() {
    let rig = Rig::new();
    let (host, object) = (rig.host("a").await, rig.object(1, &[true, false, true]).await);
    let only_cached = ReadRange { cached_only: true, ..ask(object, 0, 1) };
    let client = client(host.server.address(), hello(PeerKind::Mount, "m"));
    let codes = [
        (only_cached, FAILED_NOT_HERE),
        (ask(object, SEG + 1, 1), FAILED_ABSENT),
        (ask(object, SEG - 1, 2), FAILED_ABSENT),
        (ask(object, 0, 3 * SEG), FAILED_ABSENT),
    ];
    for (ask, expected) in codes {
        let failed = client.call(READ_RANGE, ask.encode().to_vec(), LONG).await;
        assert!(matches!(&failed, Err(CallError::Failed { code, .. }) if *code == expected), "{ask:?}: {failed:?}");
    }
    for (offset, len) in [(0, SEG), (2 * SEG + 1, 5)] {
        right(&host.node, object, offset, len).await;
    }
}

/// To be survived: a disk that rots, at any of the ways out of it. A part of a segment is checked by the node; whole ones leave unread, and
/// who receives them sees that they do not have the sum that was told.
#[tokio::test]
async fn rot_that_comes_from_the_disk_is_not_sent_or_is_seen() {
    for (offset, len) in RANGES {
        let (rig, disk) = (Rig::new(), MemoryDisk::default());
        let (node, object) = (rig.node(&disk, None), rig.object(1, &[true; 4]).await);
        right(&node, object, 0, 4 * SEG).await;
        cached(&node, 4).await;
        assert!(disk.flip_bit(SLAB.as_ref(), (offset + len - 1) as u64));
        if (offset + len).is_multiple_of(SEG) && len >= SEG {
            let answer = node.answer(&Read::Range(ask(object, offset, len))).await.expect("an answer");
            assert_ne!(answer.crc(), crc32c(&bytes_of(&answer)), "{len} bytes at {offset}");
            assert_eq!(node.numbers().corrupt_segments, 0, "who reads tells of it");
            continue;
        }
        right(&node, object, offset, len).await;
        assert!(node.numbers().corrupt_segments == 1 && rig.gets() > 1, "{len} bytes at {offset}");
        cached(&node, 4).await;
        right(&node, object, 0, 4 * SEG).await;
    }
}

/// To be survived: rot that somebody else brought into memory. Whole segments leave unread, with the sum of what they should be.
#[tokio::test]
async fn rot_that_nobody_saw_is_seen_by_the_reader() {
    let rig = Rig::new();
    let (host, object): (Host, _) = (rig.host("a").await, rig.object(1, &[true; 4]).await);
    let client = client(host.server.address(), hello(PeerKind::Mount, "m"));
    right(&host.node, object, 0, 4 * SEG).await;
    cached(&host.node, 4).await;
    rot_unseen(&host.disk, 2 * SEG as u64 + 50);
    let read = async |offset, len| {
        let reply = client.call(READ_RANGE, ask(object, offset, len).encode().to_vec(), LONG).await.unwrap();
        reply.body.checked().is_ok()
    };
    assert_eq!((read(0, 2 * SEG).await, read(SEG, 2 * SEG).await, read(2 * SEG, SEG).await), (true, false, false));
}

#[tokio::test]
async fn a_disk_that_gives_nothing_costs_a_request_to_the_store() {
    let rig = Rig::new();
    let (node, plan) = rig.faulty_node();
    let object = rig.object(1, &[true; 4]).await;
    right(&node, object, 0, 4 * SEG).await;
    cached(&node, 4).await;
    plan.fail_under(sluice_base::disk::Operation::Read, "/cache".as_ref(), sluice_base::Errno::EIO);
    for (offset, len) in [(SEG, 2 * SEG), (5, 100)] {
        right(&node, object, offset, len).await;
    }
    plan.heal();
    right(&node, object, 0, 4 * SEG).await;
    let gone = StoredObject::new(sluice_base::ObjectId([9; 16]), 4, object.stored_bytes()).unwrap();
    let answer = node.answer(&Read::Range(ask(gone, 0, 1))).await;
    assert!(matches!(answer, Err(NodeError::Gone)), "{:?}", answer.err());
}
