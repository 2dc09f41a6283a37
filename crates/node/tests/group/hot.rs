//! Objects that move between nodes: because they are hot, because their owner is about to leave, because it is another now. None of it
//! may cost the store a request.

use crate::rig::{Host, Rig, SEG, assert_right, eventually, reader};
use sluice_net::{Failure, Peer, Refusal, Server, ServerOptions, Service};
use sluice_node::{
    Group, Member, Members, State,
    message::{READ_SEGMENTS, Read, ReadSegments},
};
use sluice_object::StoredObject;
use sluice_wire::{Hello, Payload, Piece, Region, Request, Welcome};
use std::{
    io,
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

fn know(groups: &[&Arc<Group>], members: &Members) {
    groups.iter().for_each(|group| group.update(members.clone()));
}

async fn cached(host: &Host, segments: usize) {
    let is_full = || host.node.numbers().used_bytes == (segments * SEG) as u64;
    eventually("the cache", || is_full() && host.node.fills().1 == 0).await;
}

#[tokio::test]
async fn a_hot_object_is_read_from_its_first_two_owners() {
    let rig = Rig::new();
    let (a, b, c, group) = (rig.host("a").await, rig.host("b").await, rig.host("c").await, reader());
    let (object, cool) = (rig.object(1, &[true; 128]).await, rig.object(2, &[true; 128]).await);
    let list = Members::new(1, vec![a.member(1), b.member(1), c.member(1)]).unwrap();
    know(&[&a.group, &b.group, &c.group, &group], &list);
    let order = list.owners(object.id(), 3);
    let of = |member: &Member| [&a, &b, &c].into_iter().find(|host| host.name == member.name).unwrap();
    let (first, second, third) = (of(order[0]), of(order[1]), of(order[2]));
    assert_right(cool, 0, &group.read(cool, 0..128).await.unwrap());
    let served = |host: &Host| host.node.numbers().hits + host.node.numbers().misses;
    let before = [first, second, third].map(served);
    for _ in 0..3 {
        assert_right(object, 0, &group.read(object, 0..128).await.unwrap());
    }
    assert_eq!((served(second), group.stats().seconds), (before[1], 0), "not hot yet");
    let gets = rig.gets();
    for first in 0..40 {
        assert_right(object, first, &group.read(object, first..first + 32).await.unwrap());
    }
    // A busy machine may make one overtake the other.
    assert!((10..=20).contains(&group.stats().seconds));
    assert!(served(second) - before[1] >= 5 && served(first) - before[0] >= 10);
    assert_eq!(served(third), before[2]);
    assert_eq!(rig.gets(), gets, "the second owner has it from the first");
    assert!(
        second.node.numbers().moved_bytes >= 71 * SEG as u64 && second.node.numbers().filled_bytes <= 128 * SEG as u64
    );
}

#[tokio::test]
async fn a_member_that_drains_hands_on_what_it_has_however_long_it_takes() {
    let rig = Rig::new();
    let (a, b, group) = (rig.host("a").await, rig.host("b").await, reader());
    let mut objects = Vec::new();
    for number in 1..=6 {
        objects.push(rig.object(number, &[true; 3]).await);
    }
    know(&[&a.group, &b.group, &group], &Members::new(1, vec![a.member(1)]).unwrap());
    for object in &objects {
        group.read(*object, 0..3).await.unwrap();
    }
    cached(&a, 18).await;
    let drains = Member { state: State::Draining, ..a.member(1) };
    // The list before is another one by now.
    for epoch in [2, 3] {
        let weight = epoch;
        know(&[&a.group, &group], &Members::new(epoch, vec![drains.clone(), b.member(weight)]).unwrap());
    }
    know(&[&b.group], &Members::new(3, vec![drains, b.member(3)]).unwrap());
    let gets = rig.gets();
    for object in &objects {
        assert_right(*object, 0, &group.read(*object, 0..3).await.unwrap());
    }
    // Those that would be with b anyway were not with a by its weight; a has them by the first list all the same.
    let moved = b.node.numbers().moved_bytes;
    assert!(moved > 0, "nothing was handed on");
    assert_eq!(moved + b.node.numbers().filled_bytes, 18 * SEG as u64);
    let not_moved = (18 * SEG as u64 - moved) / (3 * SEG as u64);
    assert_eq!(rig.gets() - gets, not_moved);
    assert_eq!(a.node.numbers().misses, 6, "a fetched nothing for it");
}

/// Begins its answer at once and ends it late: a node on a slow network.
struct Slow {
    object: StoredObject,
    node: Arc<sluice_node::Node>,
    asked: AtomicUsize,
}

/// The rest of an answer, which is not to be had before long.
#[derive(Debug)]
struct Late(Vec<u8>);

impl Region for Late {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read_at(&self, offset: usize, buf: &mut [u8]) -> io::Result<()> {
        if offset == 0 {
            let (_never, wait) = mpsc::channel::<()>();
            let _ = wait.recv_timeout(Duration::from_millis(600));
        }
        buf.copy_from_slice(&self.0[offset..offset + buf.len()]);
        Ok(())
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        None
    }
}

impl Service for Slow {
    async fn hello(&self, _: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        Ok(Welcome { volume: crate::rig::VOLUME, session: None, name: "slow".into() })
    }

    async fn call(&self, _: &Arc<Peer>, request: Request) -> Result<Payload, Failure> {
        assert_eq!(request.method, READ_SEGMENTS);
        self.asked.fetch_add(1, Relaxed);
        let range = 0..self.object.segment_count();
        let ask = Read::Segments(ReadSegments { object: self.object, range, cached_only: false });
        let answer = self.node.answer(&ask).await.expect("it has it");
        let (mut begun, crc) = (crate::rig::bytes_of(&answer), answer.crc());
        let late = begun.split_off(512 << 10).to_vec();
        let pieces = vec![Piece::Bytes(begun), Piece::Region(Arc::new(Late(late)))];
        Ok(Payload::from(pieces).with_crc(crc).unchecked())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_owner_whose_answer_has_begun_is_not_overtaken() {
    let rig = Rig::new();
    let object = rig.object(1, &[true; 128]).await;
    let (a, b) = (rig.host("a").await, rig.host("b").await);
    let list = Members::new(1, vec![a.member(1), b.member(1)]).unwrap();
    let (first, next) = if list.owner(object.id()).unwrap().name == a.name { (&a, &b) } else { (&b, &a) };
    for host in [first, next] {
        crate::rig::read(&host.node, &ReadSegments { object, range: 0..128, cached_only: false }).await.unwrap();
        cached(host, 128).await;
    }
    let slow = Arc::new(Slow { object, node: first.node.clone(), asked: AtomicUsize::new(0) });
    let address = ([127, 0, 0, 1], 0).into();
    let server = Server::bind(address, slow.clone(), ServerOptions::default(), crate::rig::clock()).await.unwrap();
    let group = reader();
    let begins = Member { address: server.address(), ..first.member(1) };
    group.update(Members::new(1, vec![begins, next.member(1)]).unwrap());
    let (mut asked, mut quick) = (0, false);
    // On a busy machine it may not begin in time, and is left alone for seconds after a few times; not for ever.
    let (clock, minute) = (crate::rig::clock(), Duration::from_secs(60));
    let until = clock.monotonic() + minute;
    while clock.monotonic() < until {
        let before = next.node.numbers().hits;
        assert_right(object, 0, &group.read(object, 0..128).await.unwrap());
        asked += 1;
        quick |= next.node.numbers().hits == before;
        if quick {
            break;
        }
    }
    assert!(quick && slow.asked.load(Relaxed) <= asked, "the next one was asked each time");
}
