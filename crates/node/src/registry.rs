//! Who is a member: the server's side, without I/O. Time is an argument, monotonic.
//!
//! The list outlives the server: [`Registry::unsaved`] is what it looks like on disk, and whoever finds that begins with
//! [`Registry::restore`]. Nodes of an earlier run are members until it is clear that they are gone, as if they had just been heard of.
//! Where nothing was saved, mounts and nodes go on with the lists that they have: the server keeps silent about its own for as long as
//! it takes every node to come back.

mod saved;

use crate::{
    BadList, MEMBERS_MAX, Member, Members, NodeName, State,
    message::{self, Heartbeat, Join, MemberStatus, Numbers},
};
use saved::Saved;
use sluice_run::Bug;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// How often a node says that it is there.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// A node that says nothing for this long is a member no longer: three heartbeats, so that one may be lost and one late.
pub const EXPIRY: Duration = Duration::from_secs(6);

/// Lists that may have been handed out and were not saved before a power cut: one for each member is many for a second.
const EPOCHS_LOST_MAX: u32 = MEMBERS_MAX as u32;

/// Why a node may not be a member, or is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Another process has the name.
    #[error("a node at {1} is called `{0}` already: choose another name, or wait {wait} s if it is gone", wait = EXPIRY.as_secs())]
    NameTaken(NodeName, SocketAddr),
    /// It was not heard of for too long, or never joined. It may join again.
    #[error("no node `{0}` is in the group, or it is another process")]
    Unknown(NodeName),
    /// None has this name.
    #[error("no node `{0}` is in the group: `sluice status` lists them")]
    NoNode(NodeName),
    /// No more can be members.
    #[error("the group has {MEMBERS_MAX} nodes already")]
    Crowded,
    /// The request does not parse.
    #[error("the request does not parse")]
    Malformed,
}

impl RegistryError {
    /// For programs: `message::FAILED_*`.
    pub fn code(&self) -> u32 {
        match self {
            Self::NameTaken(..) => message::FAILED_NAME,
            Self::Unknown(_) | Self::NoNode(_) => message::FAILED_UNKNOWN,
            Self::Crowded => message::FAILED_CROWDED,
            Self::Malformed => message::FAILED_MALFORMED,
        }
    }
}

/// The members of one volume's group.
#[derive(Debug)]
pub struct Registry {
    epoch: u32,
    started: Duration,
    nodes: BTreeMap<NodeName, Node>,
    /// Names that nothing is placed with, members or not: a node that was stopped is still drained when it is back.
    drained: BTreeSet<NodeName>,
    /// The nodes are those of an earlier run.
    restored: bool,
    /// Changed since [`Self::unsaved`].
    dirty: bool,
}

#[derive(Debug)]
struct Node {
    member: Member,
    /// The process; `None` while only an earlier run of the server knew it.
    instance: Option<u64>,
    heard: Duration,
    numbers: Numbers,
    /// Bytes a second that it sent between its last two heartbeats.
    rate: u64,
}

impl Registry {
    /// An empty group. `epoch` must be one that no list of an earlier run had: the time of day in seconds will do.
    pub fn new(now: Duration, epoch: u32) -> Self {
        let (nodes, drained) = (BTreeMap::new(), BTreeSet::new());
        Self { epoch: epoch.max(1), started: now, nodes, drained, restored: false, dirty: false }
    }

    /// The group as [`Self::unsaved`] had it in an earlier run. `epoch` as for [`Self::new`]; a larger one is taken if clocks went
    /// back.
    pub fn restore(now: Duration, epoch: u32, saved: &[u8]) -> Result<Self, BadList> {
        let Saved { members, drained } = Saved::decode(saved)?;
        let mut registry = Self::new(now, epoch.max(members.epoch().saturating_add(EPOCHS_LOST_MAX)));
        for member in members.list() {
            let node =
                Node { member: member.clone(), instance: None, heard: now, numbers: Numbers::default(), rate: 0 };
            registry.nodes.insert(member.name.clone(), node);
        }
        registry.drained = drained;
        registry.restored = !registry.nodes.is_empty();
        // The epoch is new.
        registry.dirty = true;
        Ok(registry)
    }

    /// What an earlier run is restored from, if it has changed since this was asked last.
    pub fn unsaved(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.dirty).then(|| saved::encode(&self.members(), &self.drained))
    }

    /// What was given out by [`Self::unsaved`] was not saved.
    pub fn not_saved(&mut self) {
        self.dirty = true;
    }

    fn changed(&mut self) {
        self.epoch += 1;
        self.dirty = true;
    }

    /// Answers a request with one of the methods of [`message`]; `None` when the method is none of them. `from` is where the
    /// asker connected from.
    pub fn handle(
        &mut self,
        now: Duration,
        from: IpAddr,
        method: u16,
        body: &[u8],
    ) -> Option<Result<Vec<u8>, RegistryError>> {
        self.expire(now);
        Some(match method {
            message::JOIN => Join::decode(body)
                .ok_or(RegistryError::Malformed)
                .and_then(|join| self.join(now, from, join))
                .map(message::encode_epoch),
            message::HEARTBEAT => Heartbeat::decode(body)
                .ok_or(RegistryError::Malformed)
                .and_then(|beat| self.heartbeat(now, &beat))
                .map(message::encode_epoch),
            message::LEAVE => message::decode_leave(body).ok_or(RegistryError::Malformed).map(|(name, instance)| {
                self.leave(&name, instance);
                Vec::new()
            }),
            message::MEMBERS => message::decode_epoch(body)
                .ok_or(RegistryError::Malformed)
                .map(|known| self.news(now, known).map_or(Vec::new(), |members| members.encode())),
            message::GROUP => Ok(message::encode_group(&self.group(now))),
            message::DRAIN => message::decode_drain(body)
                .ok_or(RegistryError::Malformed)
                .and_then(|(name, drains)| self.drain(&name, drains))
                .map(|()| Vec::new()),
            _ => return None,
        })
    }

    /// The epoch of the list.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Takes a node in, again if it is the same process; returns the epoch. Who comes under the name and address of another
    /// process has its port, so that one is gone.
    pub fn join(&mut self, now: Duration, from: IpAddr, join: Join) -> Result<u32, RegistryError> {
        let Join { name, instance, mut address, weight, capacity_bytes } = join;
        if address.ip().is_unspecified() {
            address.set_ip(from.to_canonical());
        }
        // Every reader would try to connect to it.
        if address.port() == 0 || address.ip().is_multicast() {
            return Err(RegistryError::Malformed);
        }
        let known = self.nodes.get(&name);
        if let Some(other) = known.filter(|other| other.instance != Some(instance) && other.member.address != address) {
            return Err(RegistryError::NameTaken(name, other.member.address));
        }
        if known.is_none() && self.nodes.len() >= MEMBERS_MAX {
            return Err(RegistryError::Crowded);
        }
        let state = if self.drained.contains(&name) && !Bug::DrainForgotten.is_planted() {
            State::Draining
        } else {
            State::Active
        };
        let member = Member { name: name.clone(), address, weight, capacity_bytes, state };
        if known.is_none_or(|known| known.member != member) {
            tracing::info!(%name, %address, weight, "a node joins the group");
            self.changed();
        }
        self.nodes
            .insert(name, Node { member, instance: Some(instance), heard: now, numbers: Numbers::default(), rate: 0 });
        Ok(self.epoch)
    }

    /// A node says that it is there; returns the epoch.
    pub fn heartbeat(&mut self, now: Duration, beat: &Heartbeat) -> Result<u32, RegistryError> {
        // One of an earlier run is whoever speaks for it first: its process has lived on, or its name is free.
        let node =
            self.nodes.get_mut(&beat.name).filter(|node| node.instance.is_none_or(|known| known == beat.instance));
        let node = node.ok_or_else(|| RegistryError::Unknown(beat.name.clone()))?;
        node.instance = Some(beat.instance);
        let sent = beat.numbers.served_bytes.saturating_sub(node.numbers.served_bytes);
        let passed_ms = now.saturating_sub(node.heard).as_millis().max(1);
        node.rate = u64::try_from(u128::from(sent) * 1000 / passed_ms).unwrap_or(u64::MAX);
        (node.heard, node.numbers) = (now, beat.numbers);
        Ok(self.epoch)
    }

    /// A node goes. Nothing if it is another process.
    pub fn leave(&mut self, name: &NodeName, instance: u64) {
        if self.nodes.get(name).is_some_and(|node| node.instance.is_none_or(|known| known == instance)) {
            tracing::info!(%name, "a node leaves the group");
            self.nodes.remove(name);
            self.changed();
        }
    }

    /// Places nothing more with a node, or does so again. A drained one that is gone may be undone too.
    pub fn drain(&mut self, name: &NodeName, drains: bool) -> Result<(), RegistryError> {
        if !self.nodes.contains_key(name) && (drains || !self.drained.contains(name)) {
            return Err(RegistryError::NoNode(name.clone()));
        }
        if drains && !self.drained.contains(name) && self.drained.len() >= MEMBERS_MAX {
            return Err(RegistryError::Crowded);
        }
        let changes = if drains { self.drained.insert(name.clone()) } else { self.drained.remove(name) };
        if let Some(node) = self.nodes.get_mut(name) {
            node.member.state = if drains { State::Draining } else { State::Active };
        }
        if changes {
            self.changed();
        }
        Ok(())
    }

    /// Drops those that were not heard of for too long.
    pub fn expire(&mut self, now: Duration) {
        let before = self.nodes.len();
        self.nodes.retain(|name, node| {
            let alive = now.saturating_sub(node.heard) < EXPIRY;
            if !alive {
                tracing::warn!(%name, address = %node.member.address, "a node was not heard of for {EXPIRY:?}: it is out of the group");
            }
            alive
        });
        if self.nodes.len() != before {
            self.changed();
        }
    }

    /// When [`Self::expire`] has something to do, if nobody is heard of until then.
    pub fn expires_at(&self) -> Option<Duration> {
        self.nodes.values().map(|node| node.heard + EXPIRY).min()
    }

    /// The list.
    pub fn members(&self) -> Members {
        let list = self.nodes.values().map(|node| node.member.clone()).collect();
        Members::new(self.epoch, list).expect("names are keys, and their number is bounded")
    }

    /// The list, unless the asker knows it, or knows an older server's while nodes are still coming back.
    pub fn news(&self, now: Duration, known: u32) -> Option<Members> {
        let gathers = !self.restored && now.saturating_sub(self.started) < EXPIRY && known != 0;
        (known != self.epoch && !gathers).then(|| self.members())
    }

    /// All members with their numbers.
    pub fn group(&self, now: Duration) -> Vec<MemberStatus> {
        let status = |node: &Node| MemberStatus {
            member: node.member.clone(),
            silent_ms: now.saturating_sub(node.heard).as_millis().try_into().unwrap_or(u32::MAX),
            numbers: node.numbers,
        };
        self.nodes.values().map(status).collect()
    }

    /// What each member, in the order of [`Self::group`], sends in bytes a second.
    pub fn rates(&self) -> Vec<u64> {
        self.nodes.values().map(|node| node.rate).collect()
    }
}

#[cfg(test)]
mod tests;
