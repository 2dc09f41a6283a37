//! The nodes, as the threads of a mount ask them by themselves: each has its own connections, and asks the owner of an object for
//! what it has in its cache. Whatever else there is to do is the group's (`sluice_node::Group`), which the mount asks then.

use crate::group::Nodes;
use futures::future::BoxFuture;
use sluice_base::{Clock, ObjectId, crc::Crc32c};
use sluice_net::port::{Ask, AskError, Done, PeerKey, Place, Port, PortOptions, Sink};
use sluice_node::{
    Members, NodeName,
    message::{READ_RANGE, ReadRange},
};
use sluice_object::StoredObject;
use sluice_vfs::{
    Group, Piece,
    direct::{Ended, Lanes, Target, Wanted},
};
use sluice_wire::Hello;
use std::{
    net::SocketAddr,
    ops::Range,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

/// Time for an answer; then the group is asked, which asks the next owner beside this one. As long as it waits for an owner itself.
const ANSWER_TIME: Duration = Duration::from_millis(200);
/// A node that did not answer, or whose answer makes no sense, is not asked for this long.
const AVOIDED_TIME: Duration = Duration::from_secs(1);
/// Between looks at the list of members.
const LOOK: Duration = Duration::from_millis(100);
/// Objects whose owner is remembered, by 24 bytes each: 4 GiB of data.
const OWNERS: usize = 1024;

/// The nodes, with lanes for threads.
pub struct NodesByThread {
    nodes: Arc<Nodes>,
    hello: Hello,
    clock: Arc<dyn Clock>,
}

impl NodesByThread {
    /// Threads say `hello` to nodes.
    pub fn new(nodes: Arc<Nodes>, hello: Hello, clock: Arc<dyn Clock>) -> Self {
        Self { nodes, hello, clock }
    }
}

impl Group for NodesByThread {
    fn segments(&self, object: StoredObject, range: Range<u32>) -> BoxFuture<'_, Option<Vec<Piece>>> {
        self.nodes.segments(object, range)
    }

    fn fill(&self, object: StoredObject) -> BoxFuture<'_, Result<u64, String>> {
        self.nodes.fill(object)
    }

    fn held<'a>(&'a self, objects: &'a [ObjectId]) -> BoxFuture<'a, Vec<(String, Vec<u128>)>> {
        self.nodes.held(objects)
    }

    fn lanes(&self) -> Option<Box<dyn Lanes>> {
        let port = Port::new(PortOptions::default(), self.clock.clone());
        let port = port.inspect_err(|error| tracing::warn!(%error, "reads from nodes go by way of tasks")).ok()?;
        let group = self.nodes.0.clone();
        Some(Box::new(NodeLanes {
            port,
            members: group.members(),
            group,
            hello: self.hello.clone(),
            clock: self.clock.clone(),
            looked: Duration::ZERO,
            peers: Vec::new(),
            owners: vec![None; OWNERS].into(),
        }))
    }
}

/// One thread's connections to nodes.
struct NodeLanes {
    port: Port<Answer>,
    group: Arc<sluice_node::Group>,
    hello: Hello,
    clock: Arc<dyn Clock>,
    members: Arc<Members>,
    looked: Duration,
    peers: Vec<Peer>,
    /// By the first bytes of an object's id, which are random: its owner's place among the peers.
    owners: Box<[Option<(ObjectId, u32)>]>,
}

struct Peer {
    name: NodeName,
    address: SocketAddr,
    key: PeerKey,
    avoided_until: Duration,
}

/// Where an answer goes, and whose it is.
struct Answer {
    target: Target,
    peer: PeerKey,
    len: usize,
    /// Bytes in front of the answer in a pipe.
    head: usize,
    /// Of what is to be checked, the sum of the first so many bytes.
    sum: Option<(Crc32c, usize)>,
}

impl Sink for Answer {
    fn place(&mut self, len: usize) -> Option<Place<'_>> {
        if len != self.len {
            return None;
        }
        Some(match &mut self.target {
            Target::Memory(memory) => Place::Memory(memory),
            Target::Pipe(pipe) => Place::Pipe(pipe.writer()),
        })
    }

    fn filled(&mut self, filled: usize) {
        if let (Some((sum, done)), Target::Memory(memory)) = (&mut self.sum, &self.target) {
            sum.update(&memory[*done..filled]);
            *done = filled;
        }
    }

    /// The pieces in which the network gave the bytes are too small for the pipe's slots: the rest is copied.
    fn pipe_is_full(&mut self, filled: usize) -> bool {
        let Target::Pipe(pipe) = &mut self.target else { return false };
        pipe.filled(filled);
        let mut memory = vec![0; self.head.max(self.len)];
        let mut drain = |memory: &mut [u8]| {
            let mut done = 0;
            while done < memory.len() {
                match pipe.take(&mut memory[done..]) {
                    Ok(taken @ 1..) => done += taken,
                    _ => return false,
                }
            }
            true
        };
        let is_drained = drain(&mut memory[..self.head]) && drain(&mut memory[..filled]);
        memory.truncate(self.len);
        self.target = Target::Memory(memory);
        is_drained
    }
}

impl NodeLanes {
    /// Looks whether the list of members has changed.
    fn look(&mut self, now: Duration) {
        if now < self.looked + LOOK {
            return;
        }
        self.looked = now;
        let members = self.group.members();
        if members.epoch() == self.members.epoch() {
            return;
        }
        self.port.set_epoch(members.epoch());
        self.owners.fill(None);
        let port = &mut self.port;
        self.peers.retain(|peer| {
            let found = members.get(&peer.name).is_some_and(|member| member.address == peer.address);
            if !found {
                port.forget(peer.key);
            }
            found
        });
        self.members = members;
    }

    /// The place among the peers of who has the object.
    fn owner(&mut self, object: ObjectId) -> Option<u32> {
        let place = usize::from(u16::from_le_bytes([object.0[0], object.0[1]])) % OWNERS;
        if let Some((known, peer)) = self.owners[place]
            && known == object
        {
            return Some(peer);
        }
        let members = self.members.clone();
        let member = members.owner(object)?;
        let same = |peer: &Peer| peer.name == member.name && peer.address == member.address;
        let peer = match self.peers.iter().position(same) {
            Some(peer) => peer,
            None => {
                let key = self.port.peer(member.address, self.hello.clone());
                let (name, address) = (member.name.clone(), member.address);
                self.peers.push(Peer { name, address, key, avoided_until: Duration::ZERO });
                self.peers.len() - 1
            }
        };
        self.owners[place] = Some((object, peer as u32));
        Some(peer as u32)
    }
}

impl Lanes for NodeLanes {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }

    fn ask(&mut self, wanted: Wanted, into: Target) -> Result<(), Target> {
        let now = self.clock.monotonic();
        self.look(now);
        let Some(peer) = self.owner(wanted.object.id()) else { return Err(into) };
        let Peer { key, avoided_until, .. } = self.peers[peer as usize];
        if now < avoided_until {
            return Err(into);
        }
        let (offset, len) = (wanted.offset, wanted.len as u32);
        let body = ReadRange { object: wanted.object, offset, len, cached_only: true }.encode();
        let head = if let Target::Pipe(pipe) = &into { pipe.held() } else { 0 };
        let ask = Ask {
            method: READ_RANGE,
            body: &body,
            answer_bytes: wanted.len,
            deadline: now + ANSWER_TIME,
            token: wanted.token,
            into: Answer {
                target: into,
                peer: key,
                len: wanted.len,
                head,
                sum: wanted.is_checked.then(Default::default),
            },
        };
        self.port.ask(key, ask).map(drop).map_err(|refused| refused.sink.target)
    }

    fn turn(&mut self, ended: &mut dyn FnMut(Ended)) {
        let Self { port, peers, group, clock, .. } = self;
        let turned = port.turn(Some(Duration::ZERO), |done| {
            let Done { token, sink: Answer { mut target, peer, len, sum, .. }, outcome } = done;
            let is_sound = match outcome {
                Ok(arrived) => {
                    group.saw_epoch(arrived.epoch);
                    if let Target::Pipe(pipe) = &mut target {
                        pipe.filled(len);
                    }
                    Some(sum.is_none_or(|(sum, done)| done == len && sum.value() == arrived.crc))
                }
                Err(error) => {
                    if let AskError::Failed { epoch, .. } = error {
                        group.saw_epoch(epoch);
                    } else if let Some(peer) = peers.iter_mut().find(|known| known.key == peer) {
                        peer.avoided_until = clock.monotonic() + AVOIDED_TIME;
                    }
                    None
                }
            };
            ended(Ended { token, target, is_sound });
        });
        if let Err(error) = turned {
            tracing::error!(%error, "a thread cannot look after its connections to nodes");
        }
    }
}
