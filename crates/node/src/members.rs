//! Who is in the group, and which of them has which object.

pub(crate) mod codec;
mod rank;

pub use codec::BadList;

use sluice_base::ObjectId;
use std::{fmt, net::SocketAddr, sync::Arc};

/// Most members of a group.
pub const MEMBERS_MAX: usize = 1024;
/// Longest name of a node, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// What a node is called: 1 to 64 bytes of text without control characters. Placement hangs on it, so a node that comes back
/// under its name finds its objects.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// The name, if it may be one.
    pub fn new(text: &str) -> Option<Self> {
        let valid = (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
        valid.then(|| Self(text.into()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// What a member is up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// It serves what is placed with it.
    Active = 1,
    /// Its weight counts as 0: nothing new is placed with it, what it has is still read.
    Draining = 2,
}

/// One node of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name, which no other member has.
    pub name: NodeName,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its share of the objects is in proportion to this; 0 owns none.
    pub weight: u32,
    /// Room of its cache in bytes.
    pub capacity_bytes: u64,
    /// What it is up to.
    pub state: State,
}

impl Member {
    /// The weight that counts.
    pub fn effective_weight(&self) -> u32 {
        if self.state == State::Draining { 0 } else { self.weight }
    }
}

/// The members at one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    epoch: u32,
    list: Vec<Member>,
    /// Hashes of the names, in the order of `list`.
    hashes: Vec<u64>,
}

impl Members {
    /// A list in the order of names; `None` when two share one, or there are too many.
    pub fn new(epoch: u32, mut list: Vec<Member>) -> Option<Self> {
        list.sort_by(|a, b| a.name.cmp(&b.name));
        let valid = list.len() <= MEMBERS_MAX && list.windows(2).all(|pair| pair[0].name != pair[1].name);
        let hashes = list.iter().map(|member| rank::name_hash(member.name.as_str())).collect();
        valid.then_some(Self { epoch, list, hashes })
    }

    /// Grows with each change; 0 before there is a list.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// All, in the order of their names.
    pub fn list(&self) -> &[Member] {
        &self.list
    }

    /// The member of this name.
    pub fn get(&self, name: &NodeName) -> Option<&Member> {
        self.list.binary_search_by(|member| member.name.cmp(name)).ok().map(|at| &self.list[at])
    }

    /// Whether anything is placed with anyone.
    pub fn has_owners(&self) -> bool {
        self.list.iter().any(|member| member.effective_weight() > 0)
    }

    /// The first `count` members of the object's order: its owner, the one who takes its place, and so on. Weighted rendezvous:
    /// a member's place hangs on itself and the object alone, so that who comes or goes moves only its own share.
    pub fn owners(&self, object: ObjectId, count: usize) -> Vec<&Member> {
        self.ranked(object, count, Member::effective_weight)
    }

    /// The member that would own the object if it were not about to leave: who has it, as long as it drains.
    pub fn draining_owner(&self, object: ObjectId) -> Option<&Member> {
        let owner = self.ranked(object, 1, |member| member.weight).first().copied()?;
        (owner.state == State::Draining).then_some(owner)
    }

    fn ranked(&self, object: ObjectId, count: usize, weight: impl Fn(&Member) -> u32) -> Vec<&Member> {
        let mut ranked: Vec<_> = self
            .list
            .iter()
            .zip(&self.hashes)
            .filter_map(|(member, hash)| Some((rank::distance(object, *hash, weight(member))?, member)))
            .collect();
        let order = |a: &(u128, &Member), b: &(u128, &Member)| a.0.cmp(&b.0).then_with(|| a.1.name.cmp(&b.1.name));
        if ranked.len() > count {
            if count == 0 {
                return Vec::new();
            }
            ranked.select_nth_unstable_by(count - 1, order);
            ranked.truncate(count);
        }
        ranked.sort_unstable_by(order);
        ranked.into_iter().map(|(_, member)| member).collect()
    }

    /// The object's owner.
    pub fn owner(&self, object: ObjectId) -> Option<&Member> {
        self.owners(object, 1).first().copied()
    }
}

#[cfg(test)]
mod tests;
