//! A reader and a group that changes under it.

use crate::rig::{Host, Rig, SEG, assert_right, eventually, hello, named, reader, registrar};
use sluice_net::{Failure, Peer, Refusal, Server, ServerOptions, Service};
use sluice_node::{GroupError, Members, follow, message, message::Segment};
use sluice_object::StoredObject;
use sluice_wire::{Hello, Payload, PeerKind, Request, Welcome};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

fn members(epoch: u32, hosts: &[&Host]) -> Members {
    Members::new(epoch, hosts.iter().map(|host| host.member(1)).collect()).unwrap()
}

async fn objects(rig: &Rig) -> Vec<StoredObject> {
    let mut objects = Vec::new();
    for number in 1..=20 {
        objects.push(rig.object(number, &[true; 3]).await);
    }
    objects
}

#[tokio::test]
async fn the_owner_is_asked_then_the_next_then_nobody() {
    let rig = Rig::new();
    let (a, b, group) = (rig.host("a").await, rig.host("b").await, reader());
    let objects = objects(&rig).await;
    assert_eq!(group.read(objects[0], 0..3).await, Err(GroupError::Empty));
    let list = members(5, &[&a, &b]);
    group.update(list.clone());
    for object in &objects {
        assert_right(*object, 0, &group.read(*object, 0..3).await.unwrap());
    }
    let owned_by_a = objects.iter().filter(|object| list.owner(object.id()).unwrap().name == a.name).count() as u64;
    assert!((3..18).contains(&owned_by_a));
    assert_eq!((a.node.numbers().misses, b.node.numbers().misses), (owned_by_a, 20 - owned_by_a));
    assert_eq!(group.stats().by_member[0], (named("a"), owned_by_a, owned_by_a * 3 * SEG as u64));
    assert_eq!(rig.gets(), 20, "each object once");
    // Its process ends, with all it has.
    drop(a.server);
    for object in &objects {
        assert_right(*object, 1, &group.read(*object, 1..2).await.unwrap());
    }
    let stats = group.stats();
    assert_eq!((stats.hits, stats.misses, stats.fallbacks), (40, 0, owned_by_a));
    drop(b.server);
    assert_eq!(group.read(objects[0], 0..3).await, Err(GroupError::NoOwner));
}

#[tokio::test]
async fn what_the_store_lacks_is_said_at_once() {
    let rig = Rig::new();
    let (a, b, group) = (rig.host("a").await, rig.host("b").await, reader());
    group.update(members(1, &[&a, &b]));
    let none = StoredObject::new(sluice_base::ObjectId([77; 16]), 2, 60_000).unwrap();
    assert_eq!(group.read(none, 0..1).await, Err(GroupError::Gone));
    assert_eq!(rig.gets(), 1);
}

/// Answers with the right bytes of the wrong segment, or never.
struct Liar {
    silent: bool,
    asked: AtomicUsize,
}

impl Service for Liar {
    async fn hello(&self, _: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        Ok(Welcome { volume: crate::rig::VOLUME, session: None, name: "liar".into() })
    }

    async fn call(&self, _: &Arc<Peer>, request: Request) -> Result<Payload, Failure> {
        self.asked.fetch_add(1, Relaxed);
        if self.silent {
            std::future::pending::<()>().await;
        }
        let ask = message::ReadSegments::decode(&request.body.checked().unwrap()).unwrap();
        let bytes = crate::rig::content(ask.object.id(), 1);
        let crc = sluice_base::crc::segment_crc(ask.object.id(), 1, &bytes);
        Ok(message::answer(ask.object.id(), &[Segment { index: 0, bytes, crc }]))
    }
}

#[tokio::test]
async fn a_node_that_sends_wrong_bytes_or_none_is_left_alone() {
    let rig = Rig::new();
    let objects = objects(&rig).await;
    for silent in [false, true] {
        let service = Arc::new(Liar { silent, asked: AtomicUsize::new(0) });
        let options = ServerOptions::default();
        let liar =
            Server::bind(([127, 0, 0, 1], 0).into(), service.clone(), options, crate::rig::clock()).await.unwrap();
        let (a, group) = (rig.host("a").await, reader());
        let mut bad = a.member(1);
        (bad.name, bad.address) = (named("liar"), liar.address());
        group.update(Members::new(1, vec![a.member(1), bad]).unwrap());
        let its = |object: &&StoredObject| group.members().owner(object.id()).unwrap().name == named("liar");
        let its: Vec<_> = objects.iter().filter(its).collect();
        assert!(its.len() > 2);
        for object in &its {
            assert_right(**object, 0, &group.read(**object, 0..1).await.unwrap());
        }
        let asked = service.asked.load(Relaxed);
        assert!((1..its.len()).contains(&asked), "asked {asked} times for {} objects", its.len());
        assert_eq!(group.stats().by_member[1], (named("liar"), 0, 0));
    }
}

#[tokio::test]
async fn members_come_and_go() {
    let rig = Rig::new();
    let (registrar, server) = registrar().await;
    let (a, b, group) = (rig.host("a").await, rig.host("b").await, reader());
    let kept = a.join(server.address(), 1).await;
    let (following, client) = (group.clone(), crate::rig::client(server.address(), hello(PeerKind::Mount, "m")));
    let follower = tokio::spawn(async move { follow(&client, &following).await });
    eventually("the first member", || group.members().list().len() == 1).await;
    let also = b.join(server.address(), 2).await;
    let epoch = registrar.0.lock().epoch();
    eventually("both", || [&a.group, &b.group, &group].iter().all(|known| known.members().epoch() == epoch)).await;
    let status = registrar.0.lock().group(Duration::from_secs(100));
    assert_eq!(status.iter().map(|status| status.member.weight).collect::<Vec<_>>(), [1, 1]);
    // A server that was restarted knows nobody: they join again.
    registrar.0.lock().leave(&named("a"), 1);
    eventually("a to be back", || registrar.0.lock().members().list().len() == 2).await;
    [kept, also, follower].iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn what_a_node_had_before_the_change_is_not_asked_of_the_store() {
    let rig = Rig::new();
    let (a, b, group) = (rig.host("a").await, rig.host("b").await, reader());
    let objects = objects(&rig).await;
    let alone = members(1, &[&a]);
    [&a.group, &b.group, &group].iter().for_each(|known| known.update(alone.clone()));
    for object in &objects {
        group.read(*object, 0..3).await.unwrap();
    }
    eventually("the cache", || a.node.numbers().used_bytes == 60 * SEG as u64).await;
    let both = members(2, &[&a, &b]);
    [&a.group, &b.group, &group].iter().for_each(|known| known.update(both.clone()));
    for object in &objects {
        assert_right(*object, 0, &group.read(*object, 0..3).await.unwrap());
    }
    assert_eq!(rig.gets(), 20);
    assert!(b.node.numbers().moved_bytes >= 3 * 3 * SEG as u64);
    assert_eq!(b.node.numbers().filled_bytes, 0);
}
