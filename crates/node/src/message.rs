//! What nodes, mounts and the volume's server ask each other; docs/protocol.md, "Node methods", has the layouts.

mod answer;
mod range;
mod segments;
mod warm;

pub use answer::Answer;
pub use range::{READ_RANGE, READ_RANGE_BYTES, Read, ReadRange};
pub use segments::{
    BadAnswer, CHECK_SEGMENTS, CheckSegments, READ_SEGMENTS, ReadSegments, Segment, Set, answer, decode_set,
    encode_set, head, indices, segments,
};
pub use warm::{
    FILL, HELD, HELD_MAX, decode_fill, decode_filled, decode_objects, decode_sets, encode_fill, encode_filled,
    encode_objects, encode_sets,
};

use crate::{
    Member, NodeName,
    members::codec::{address, member, name, put_address, put_member, put_name},
};
use bytes::{Buf, BufMut};
use std::net::SocketAddr;

/// Asked of the server by a node: to be a member.
pub const JOIN: u16 = 210;
/// Asked of the server by a node, every [`HEARTBEAT_INTERVAL`](crate::HEARTBEAT_INTERVAL): it is there.
pub const HEARTBEAT: u16 = 211;
/// Asked of the server by a node: to be a member no longer.
pub const LEAVE: u16 = 212;
/// Asked of the server: the list of members, unless it is known.
pub const MEMBERS: u16 = 213;
/// Asked of the server: members with their numbers.
pub const GROUP: u16 = 214;
/// Asked of the server: to place nothing more with a member, or to do so again.
pub const DRAIN: u16 = 215;

/// Whether the volume's server answers this, from its [`Registry`](crate::Registry).
pub fn is_for_server(method: u16) -> bool {
    (JOIN..=DRAIN).contains(&method)
}

/// Code of a failure: somebody else has this name.
pub const FAILED_NAME: u32 = 1;
/// Code of a failure: this member is not known, or not any more; it may join again.
pub const FAILED_UNKNOWN: u32 = 2;
/// Code of a failure: the request does not parse.
pub const FAILED_MALFORMED: u32 = 3;
/// Code of a failure: there are as many members as may be.
pub const FAILED_CROWDED: u32 = 4;
/// Code of a failure: only what is cached was asked for, and it is not.
pub const FAILED_NOT_HERE: u32 = 8;
/// Code of a failure: too much is being fetched already; ask somebody else.
pub const FAILED_BUSY: u32 = 9;
/// Code of a failure: the object is not in the store; look at its record again.
pub const FAILED_GONE: u32 = 10;
/// Code of a failure: the store did not give the object to the node.
pub const FAILED_STORE: u32 = 11;
/// Code of a failure: bytes were asked for that the object does not have; look at its segments.
pub const FAILED_ABSENT: u32 = 12;

/// The body of [`JOIN`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// What it will be called.
    pub name: NodeName,
    /// A random number of the process, so that two under one name are told apart.
    pub instance: u64,
    /// Where it listens. An unspecified address is that which it connects from.
    pub address: SocketAddr,
    /// Its share.
    pub weight: u32,
    /// Room of its cache in bytes.
    pub capacity_bytes: u64,
}

/// The body of [`HEARTBEAT`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Who.
    pub name: NodeName,
    /// Which process.
    pub instance: u64,
    /// How it fares.
    pub numbers: Numbers,
}

/// Counts of a node since its start, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Bytes of segments in its cache.
    pub used_bytes: u64,
    /// Reads that its cache answered.
    pub hits: u64,
    /// Reads that had to wait for the store or another node.
    pub misses: u64,
    /// Reads that it turned down or that failed.
    pub failures: u64,
    /// Bytes sent to readers.
    pub served_bytes: u64,
    /// Bytes fetched from the store.
    pub filled_bytes: u64,
    /// Bytes fetched from nodes that had them before the list changed.
    pub moved_bytes: u64,
    /// Segments in its cache that failed their check.
    pub corrupt_segments: u64,
    /// How much of its latest scrub is done, 0 to 1000.
    pub scrub_permille: u64,
    /// Segments that its last two scrubs found to be bad.
    pub rotten_segments: u64,
}

/// A member as [`GROUP`] shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub member: Member,
    /// Time since its last sign of life, in milliseconds.
    pub silent_ms: u32,
    /// Its numbers.
    pub numbers: Numbers,
}

impl Join {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = who(&self.name, self.instance);
        put_address(&mut out, self.address);
        out.put_u32_le(self.weight);
        out.put_u64_le(self.capacity_bytes);
        out
    }

    /// What the bytes say.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let (name, instance) = take_who(&mut bytes)?;
        let address = address(&mut bytes)?;
        let (weight, capacity_bytes) = (bytes.try_get_u32_le().ok()?, bytes.try_get_u64_le().ok()?);
        bytes.is_empty().then_some(Self { name, instance, address, weight, capacity_bytes })
    }
}

impl Heartbeat {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = who(&self.name, self.instance);
        self.numbers.put(&mut out);
        out
    }

    /// What the bytes say.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let (name, instance) = take_who(&mut bytes)?;
        let numbers = Numbers::take(&mut bytes)?;
        bytes.is_empty().then_some(Self { name, instance, numbers })
    }
}

/// The body of [`LEAVE`].
pub fn encode_leave(name: &NodeName, instance: u64) -> Vec<u8> {
    who(name, instance)
}

/// What a body of [`LEAVE`] says.
pub fn decode_leave(mut bytes: &[u8]) -> Option<(NodeName, u64)> {
    take_who(&mut bytes).filter(|_| bytes.is_empty())
}

/// The body of [`DRAIN`].
pub fn encode_drain(name: &NodeName, drains: bool) -> Vec<u8> {
    let mut out = vec![u8::from(drains)];
    put_name(&mut out, name);
    out
}

/// What a body of [`DRAIN`] says.
pub fn decode_drain(mut bytes: &[u8]) -> Option<(NodeName, bool)> {
    let drains = bytes.try_get_u8().ok().filter(|flag| *flag <= 1)? == 1;
    let name = name(&mut bytes)?;
    bytes.is_empty().then_some((name, drains))
}

/// An epoch: the body of [`MEMBERS`], and the answer to [`JOIN`] and [`HEARTBEAT`].
pub fn encode_epoch(epoch: u32) -> Vec<u8> {
    epoch.to_le_bytes().to_vec()
}

/// What the bytes of an epoch say.
pub fn decode_epoch(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The answer to [`GROUP`].
pub fn encode_group(group: &[MemberStatus]) -> Vec<u8> {
    let mut out = Vec::new();
    for status in group {
        put_member(&mut out, &status.member);
        out.put_u32_le(status.silent_ms);
        status.numbers.put(&mut out);
    }
    out
}

/// What an answer to [`GROUP`] says.
pub fn decode_group(mut bytes: &[u8]) -> Option<Vec<MemberStatus>> {
    let mut group = Vec::new();
    while !bytes.is_empty() {
        let (member, silent_ms) = (member(&mut bytes)?, bytes.try_get_u32_le().ok()?);
        group.push(MemberStatus { member, silent_ms, numbers: Numbers::take(&mut bytes)? });
    }
    Some(group)
}

impl Numbers {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { used_bytes, hits, misses, failures, .. } = *self;
        let Self { served_bytes, filled_bytes, moved_bytes, .. } = *self;
        let Self { corrupt_segments, scrub_permille, rotten_segments, .. } = *self;
        let reads = [used_bytes, hits, misses, failures, served_bytes, filled_bytes, moved_bytes];
        let all = reads.into_iter().chain([corrupt_segments, scrub_permille, rotten_segments]);
        all.for_each(|number| out.put_u64_le(number));
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let mut next = || bytes.try_get_u64_le().ok();
        Some(Self {
            used_bytes: next()?,
            hits: next()?,
            misses: next()?,
            failures: next()?,
            served_bytes: next()?,
            filled_bytes: next()?,
            moved_bytes: next()?,
            corrupt_segments: next()?,
            scrub_permille: next()?,
            rotten_segments: next()?,
        })
    }
}

fn who(name: &NodeName, instance: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    put_name(&mut out, name);
    out.put_u64_le(instance);
    out
}

fn take_who(bytes: &mut &[u8]) -> Option<(NodeName, u64)> {
    Some((name(bytes)?, bytes.try_get_u64_le().ok()?))
}

#[cfg(test)]
mod tests;
