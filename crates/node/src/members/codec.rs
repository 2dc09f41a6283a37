//! The list as bytes; docs/protocol.md, "Member list", has the table.

use super::{MEMBERS_MAX, Member, Members, NodeName, State};
use bytes::{Buf, BufMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Layout of the list.
const VERSION: u16 = 1;

/// The bytes are no list of members that this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no list of members: {0}")]
pub struct BadList(pub &'static str);

impl Members {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12 + 64 * self.list.len());
        out.put_u16_le(VERSION);
        out.put_u16_le(self.list.len() as u16);
        out.put_u32_le(self.epoch);
        self.list.iter().for_each(|member| put_member(&mut out, member));
        out
    }

    /// The list that the bytes say, to their end.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, BadList> {
        if bytes.len() < 8 {
            return Err(BadList("it is too short"));
        }
        let (version, count, epoch) = (bytes.get_u16_le(), usize::from(bytes.get_u16_le()), bytes.get_u32_le());
        if version != VERSION {
            return Err(BadList("its layout is of another version"));
        }
        if count > MEMBERS_MAX {
            return Err(BadList("it has too many members"));
        }
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(member(&mut bytes).ok_or(BadList("a member does not parse"))?);
        }
        if !bytes.is_empty() {
            return Err(BadList("something follows it"));
        }
        Self::new(epoch, list).ok_or(BadList("two members have one name"))
    }
}

pub(crate) fn put_member(out: &mut Vec<u8>, member: &Member) {
    out.put_u8(member.state as u8);
    put_name(out, &member.name);
    put_address(out, member.address);
    out.put_u32_le(member.weight);
    out.put_u64_le(member.capacity_bytes);
}

pub(crate) fn member(bytes: &mut &[u8]) -> Option<Member> {
    let state = match bytes.try_get_u8().ok()? {
        1 => State::Active,
        2 => State::Draining,
        _ => return None,
    };
    let (name, address) = (name(bytes)?, address(bytes)?);
    let (weight, capacity_bytes) = (bytes.try_get_u32_le().ok()?, bytes.try_get_u64_le().ok()?);
    Some(Member { name, address, weight, capacity_bytes, state })
}

pub(crate) fn put_name(out: &mut Vec<u8>, name: &NodeName) {
    out.put_u8(name.as_str().len() as u8);
    out.put_slice(name.as_str().as_bytes());
}

pub(crate) fn name(bytes: &mut &[u8]) -> Option<NodeName> {
    let len = usize::from(bytes.try_get_u8().ok()?);
    let text = bytes.split_off(..len)?;
    NodeName::new(std::str::from_utf8(text).ok()?)
}

pub(crate) fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    let ip = match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    out.put_slice(&ip.octets());
    out.put_u16_le(address.port());
}

pub(crate) fn address(bytes: &mut &[u8]) -> Option<SocketAddr> {
    let ip: [u8; 16] = bytes.split_off(..16)?.try_into().ok()?;
    Some(SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), bytes.try_get_u16_le().ok()?))
}
