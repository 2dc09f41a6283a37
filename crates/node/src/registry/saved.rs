//! The group as the server keeps it; docs/disk-format.md, "Metadata tables", has the layout.

use crate::{
    BadList, MEMBERS_MAX, Members, NodeName,
    members::codec::{name, put_name},
};
use bytes::{Buf, BufMut};
use std::collections::BTreeSet;

/// Layout of the value.
const VERSION: u8 = 1;

/// What was saved.
pub(super) struct Saved {
    pub members: Members,
    pub drained: BTreeSet<NodeName>,
}

pub(super) fn encode(members: &Members, drained: &BTreeSet<NodeName>) -> Vec<u8> {
    let list = members.encode();
    let mut out = vec![VERSION];
    out.put_u32_le(list.len() as u32);
    out.put_slice(&list);
    out.put_u16_le(drained.len() as u16);
    drained.iter().for_each(|name| put_name(&mut out, name));
    out
}

impl Saved {
    pub fn decode(mut bytes: &[u8]) -> Result<Self, BadList> {
        const SHORT: BadList = BadList("what was saved is too short");
        if bytes.try_get_u8().map_err(|_| SHORT)? != VERSION {
            return Err(BadList("it was saved by another version"));
        }
        let len = bytes.try_get_u32_le().map_err(|_| SHORT)? as usize;
        let (list, mut rest) = bytes.split_at_checked(len).ok_or(SHORT)?;
        let members = Members::decode(list)?;
        let count = usize::from(rest.try_get_u16_le().map_err(|_| SHORT)?);
        if count > MEMBERS_MAX {
            return Err(BadList("too many are drained"));
        }
        let mut drained = BTreeSet::new();
        for _ in 0..count {
            drained.insert(name(&mut rest).ok_or(BadList("a drained name does not parse"))?);
        }
        if rest.is_empty() { Ok(Self { members, drained }) } else { Err(BadList("something follows what was saved")) }
    }
}
