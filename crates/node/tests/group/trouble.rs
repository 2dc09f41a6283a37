//! To be survived: owners that are slow, stopped or rotten.

use crate::rig::{Host, Rig, SEG, VOLUME, assert_right, eventually, named, read, reader, rot_unseen};
use sluice_base::ObjectId;
use sluice_net::{Failure, Peer, Refusal, Server, ServerOptions, Service};
use sluice_node::{Group, Member, Members, message::ReadSegments};
use sluice_object::{
    StoredObject,
    backend::{Fault, RequestKind},
};
use sluice_wire::{Hello, Payload, Request, Welcome};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Lets everybody in and never answers, as a stopped process does.
#[derive(Default)]
struct Stopped(AtomicUsize);

impl Service for Stopped {
    async fn hello(&self, _: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        Ok(Welcome { volume: VOLUME, session: None, name: "stopped".into() })
    }

    async fn call(&self, _: &Arc<Peer>, _: Request) -> Result<Payload, Failure> {
        self.0.fetch_add(1, Relaxed);
        std::future::pending().await
    }
}

/// Objects that the member called `name` owns in `group`.
async fn owned(rig: &Rig, group: &Group, name: &str, count: usize) -> Vec<StoredObject> {
    let mut owned = Vec::new();
    for number in 1..=u8::MAX {
        let owner = group.members().owner(ObjectId([number; 16])).expect("it has members").name.clone();
        if owner == named(name) {
            owned.push(rig.object(number, &[true; 3]).await);
        }
        if owned.len() == count {
            return owned;
        }
    }
    panic!("too few are placed with {name}");
}

async fn has(host: &Host, object: StoredObject) {
    read(&host.node, &ReadSegments { object, range: 0..3, cached_only: false }).await.expect("the store gives it");
}

#[tokio::test]
async fn a_stopped_owner_is_overtaken_and_then_left_alone() {
    let rig = Rig::new();
    let stopped = Arc::new(Stopped::default());
    let address = ([127, 0, 0, 1], 0).into();
    let server = Server::bind(address, stopped.clone(), ServerOptions::default(), crate::rig::clock()).await.unwrap();
    let (host, group) = (rig.host("a").await, reader());
    let bad = Member { name: named("stopped"), address: server.address(), ..host.member(1) };
    group.update(Members::new(1, vec![host.member(1), bad]).unwrap());
    let objects = owned(&rig, &group, "stopped", 12).await;
    for object in &objects {
        has(&host, *object).await;
    }
    let gets = rig.gets();
    for object in &objects {
        assert_right(*object, 0, &group.read(*object, 0..3).await.unwrap());
    }
    assert_eq!(rig.gets(), gets, "the next one had them all");
    // Three in a row; further ones after its first time of rest, if this took as long.
    let asked = stopped.0.load(Relaxed);
    assert!((3..objects.len()).contains(&asked), "it was asked {asked} times");
    // What the next one does not have it fetches, once the owner has been silent for a while.
    let cold = rig.object(250, &[true; 3]).await;
    assert_right(cold, 0, &group.read(cold, 0..3).await.unwrap());
    assert_eq!(rig.gets(), gets + 1);
}

#[tokio::test]
async fn an_owner_that_waits_for_the_store_does_not_make_two_wait() {
    let rig = Rig::new();
    let (a, b, group) = (rig.host("a").await, rig.host("b").await, reader());
    group.update(Members::new(1, vec![a.member(1), b.member(1)]).unwrap());
    let mut gets = Vec::new();
    // On a busy machine the owner may take so long that the other one is asked in earnest; not each time.
    for number in 1..=5 {
        let (object, before) = (rig.object(number, &[true; 3]).await, rig.gets());
        rig.backend.plan(RequestKind::Get, Fault::Delay(Duration::from_millis(350)));
        assert_right(object, 0, &group.read(object, 0..3).await.unwrap());
        gets.push(rig.gets() - before);
    }
    assert!(gets.contains(&1), "{gets:?}");
}

#[tokio::test]
async fn rot_on_a_nodes_disk_is_found_by_its_readers() {
    let rig = Rig::new();
    let (a, b, group) = (rig.host("a").await, rig.host("b").await, reader());
    group.update(Members::new(1, vec![a.member(1), b.member(1)]).unwrap());
    let object = owned(&rig, &group, "a", 1).await[0];
    assert_right(object, 0, &group.read(object, 0..3).await.unwrap());
    eventually("the cache", || a.node.numbers().used_bytes == 3 * SEG as u64).await;
    rot_unseen(&a.disk, SEG as u64 + 99);
    assert_right(object, 0, &group.read(object, 0..3).await.unwrap());
    eventually("the node to hear of it", || a.node.numbers().corrupt_segments == 1).await;
    assert_eq!(b.node.numbers().misses, 1, "the next one gave the bytes");
    // The owner is not to blame, and has the object again.
    let hits = group.stats().by_member[0].1;
    for _ in 0..50 {
        assert_right(object, 0, &group.read(object, 0..3).await.unwrap());
        if group.stats().by_member[0].1 > hits {
            break;
        }
    }
    assert!(group.stats().by_member[0].1 > hits);
    assert_eq!(a.node.numbers().corrupt_segments, 1);
}
