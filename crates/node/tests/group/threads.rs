//! A node as the binary has it, answering from threads of its own by sendfile from slabs of a real disk. To be survived: readers that do
//! not read, slots that are given away under them, and the end of the node with much under way.

use crate::{
    hostile::greedy,
    rig::{Rig, SEG, Threads, assert_right, client, clock, content, eventually, hello, read, reader},
};
use bytes::Bytes;
use futures::future::join_all;
use sluice_base::crc::{crc32c, segment_crc};
use sluice_node::{
    Members,
    message::{READ_RANGE, ReadRange, ReadSegments},
};
use sluice_object::StoredObject;
use sluice_store::CacheError;
use sluice_wire::{Connection, Event, LaneClass, PeerKind};
use std::time::Duration;
use tokio::net::TcpStream;

const LONG: Duration = Duration::from_secs(20);

fn ask(object: StoredObject, offset: usize, len: usize) -> [u8; 37] {
    ReadRange { object, offset: offset as u32, len: len as u32, cached_only: false }.encode()
}

async fn has(host: &Threads, object: StoredObject) {
    let range = 0..object.segment_count();
    read(&host.node, &ReadSegments { object, range, cached_only: false }).await.expect("the store gives it");
    let is_full = || host.node.cache().pin(object.id()).is_some_and(|pin| pin.has(0, object.segment_count()));
    eventually("the cache", || is_full() && host.node.fills().1 == 0).await;
}

/// Gives the slot of one object to another one.
fn replaced(host: &Threads, gone: StoredObject, by: StoredObject) -> Result<(), CacheError> {
    host.node.cache().discard(gone.id());
    (0..by.segment_count()).try_for_each(|index| {
        let bytes = content(by.id(), index);
        host.node.cache().fill(by.id(), index, &bytes, segment_crc(by.id(), index, &bytes))
    })
}

/// The answers that come, in their order.
async fn answers(stream: &TcpStream, connection: &mut Connection, count: usize) -> Vec<(Bytes, Option<u32>)> {
    let (mut found, clock) = (Vec::new(), clock());
    while found.len() < count {
        while let Some(event) = connection.poll_event() {
            match event {
                Event::Reply { body, .. } => found.push(body.into_parts()),
                other => panic!("{other:?}"),
            }
        }
        stream.readable().await.unwrap();
        if stream.try_read_buf(connection.input()).is_ok() {
            connection.handle_received(clock.monotonic()).unwrap();
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_answer_as_tasks_do() {
    let rig = Rig::new();
    let (host, object) = (rig.threads("a", 8, LONG), rig.object(1, &[true; 128]).await);
    let client = client(host.server.address(), hello(PeerKind::Mount, "m"));
    let group = reader();
    group.update(Members::new(1, vec![host.member()]).unwrap());
    for (offset, len) in [(5 * SEG + 9, 4096), (0, 128 * SEG), (7, 100 * SEG), (SEG, 32 * SEG), (SEG, SEG)] {
        let reply = client.call_on(LaneClass::Bulk, READ_RANGE, ask(object, offset, len).to_vec(), LONG).await;
        let bytes = reply.expect("an answer").body.checked().expect("its checksum");
        let all: Vec<u8> = (0..128).flat_map(|index| content(object.id(), index).to_vec()).collect();
        assert!(bytes == all[offset..offset + len], "{len} bytes at {offset}");
    }
    for first in [0, 3, 100] {
        assert_right(object, first, &group.read(object, first..first + 28).await.unwrap());
    }
    assert_eq!(host.node.numbers().filled_bytes, 128 * SEG as u64, "each segment once");
    assert!(host.server.stats().sendfiles > 0, "{:?}", host.server.stats());
}

/// What is under way to a reader is references to pages of the slab. It must get what they were, or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_given_away_under_a_reader_does_not_change_what_is_under_way() {
    let rig = Rig::new();
    let host = rig.threads("a", 1, LONG);
    let (old, new) = (rig.object(1, &[true; 128]).await, rig.object(2, &[true; 128]).await);
    has(&host, old).await;
    // As much as the sockets take: then nothing keeps the slot.
    let len = 8 * SEG;
    let (stream, mut connection) = greedy(host.server.address(), READ_RANGE, &ask(old, 0, len), 1).await;
    let served = |segments: usize| host.node.numbers().served_bytes >= (segments * SEG) as u64;
    eventually("the answer", || served(128 + 8)).await;
    eventually("the answer to be with the socket", || replaced(&host, old, new).is_ok()).await;
    let (bytes, crc) = answers(&stream, &mut connection, 1).await.remove(0);
    assert_eq!((bytes.len(), crc), (len, Some(crc32c(&bytes))), "neither the new tenant's bytes nor zeros");
    assert!(bytes.chunks(SEG).zip(0..).all(|(segment, index)| segment == content(old.id(), index)));
    // More than they take: what is left keeps the slot.
    let (stream, mut connection) = greedy(host.server.address(), READ_RANGE, &ask(new, 0, 128 * SEG), 2).await;
    eventually("both answers", || served(128 + 8 + 2 * 128)).await;
    assert!(matches!(replaced(&host, new, old), Err(CacheError::NoRoom)));
    for (bytes, crc) in answers(&stream, &mut connection, 2).await {
        assert_eq!((bytes.len(), crc), (128 * SEG, Some(crc32c(&bytes))));
        assert!(bytes.chunks(SEG).zip(0..).all(|(segment, index)| segment == content(new.id(), index)));
    }
    eventually("the slot to be free", || replaced(&host, new, old).is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_nothing_loses_his_connection_and_what_it_holds() {
    let rig = Rig::new();
    let host = rig.threads("a", 1, Duration::from_secs(1));
    let (old, new) = (rig.object(1, &[true; 128]).await, rig.object(2, &[true; 128]).await);
    has(&host, old).await;
    let _idle = greedy(host.server.address(), READ_RANGE, &ask(old, 0, 128 * SEG), 4).await;
    let served = || host.node.numbers().served_bytes;
    eventually("it to be stuck", || served() >= 5 * 128 * SEG as u64).await;
    assert!(matches!(replaced(&host, old, new), Err(CacheError::NoRoom)));
    eventually("the slot to be free", || replaced(&host, old, new).is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_has_a_share_and_no_more() {
    let rig = Rig::new();
    let host = rig.threads("a", 8, LONG);
    let (hot, cold) = (rig.object(1, &[true; 128]).await, rig.object(2, &[true; 128]).await);
    has(&host, hot).await;
    let before = host.node.numbers().served_bytes;
    let served = || host.node.numbers().served_bytes - before;
    let mut idle = Vec::new();
    for object in [hot, cold, hot, cold] {
        idle.push(greedy(host.server.address(), READ_RANGE, &ask(object, 0, 128 * SEG), 64).await);
    }
    eventually("all of them to be stuck", || served() >= 4 * (16 << 20)).await;
    let group = reader();
    group.update(Members::new(1, vec![host.member()]).unwrap());
    for first in 0..20 {
        assert_right(hot, first, &group.read(hot, first..first + 30).await.unwrap());
    }
    // A share each, and what their sockets took; not what was asked for, 1 GiB.
    assert!(served() < 4 * (32 << 20) + (20 << 20), "{}", served());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_goes_on_when_a_node_dies_with_much_half_sent() {
    let rig = Rig::new();
    let (a, b, group) = (rig.threads("a", 32, LONG), rig.threads("b", 32, LONG), reader());
    group.update(Members::new(1, vec![a.member(), b.member()]).unwrap());
    let mut objects = Vec::new();
    for number in 1..=16 {
        objects.push(rig.object(number, &[true; 128]).await);
    }
    for object in &objects {
        assert_right(*object, 0, &group.read(*object, 0..128).await.unwrap());
    }
    let gone = a.server.stats();
    let reads = (0..64).map(|n| {
        let (group, object) = (group.clone(), objects[n % 16]);
        tokio::spawn(async move { (object, group.read(object, 0..32).await) })
    });
    let reads: Vec<_> = reads.collect();
    eventually("some of them to be under way", || a.server.stats().answers > gone.answers).await;
    tokio::task::spawn_blocking(move || drop(a.server)).await.unwrap();
    for done in join_all(reads).await {
        let (object, read) = done.unwrap();
        assert_right(object, 0, &read.expect("the other one has it, or gets it"));
    }
}
