//! What the server tells a session unasked.

use super::VERSION;
use crate::rpc::{
    codec::{Item, Reader, Wire, whole},
    fault::Fault,
    values::Name,
};
use sluice_base::Ino;

/// Number of the one method that goes from the server to a session; its answer is an [`Ack`].
pub const PUSH_METHOD: u16 = 128;

/// Something that a session must no longer believe.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invalidation {
    /// Attributes, extended ones too; the target of a link; a directory's parent.
    Attr(Ino),
    /// How the bytes of a file are kept: body and extents, and with them the bytes; its attributes too.
    Data(Ino),
    /// In which objects the bytes of a file are. The bytes are the same.
    Extents(Ino),
    /// One entry of a directory, or that there is none.
    Entry(Ino, Vec<u8>),
    /// Everything about an inode, with all entries when it is a directory: the server no longer notes that it is cached.
    Inode(Ino),
    /// The inode lost its last name: its attributes too. It lives until all who were told so release it.
    Unlinked(Ino),
    /// Everything. Which inodes were unlinked was not told, so whatever is forgotten from now on is to be released.
    Everything,
}

impl Invalidation {
    /// The inode that it is about; `None` for everything.
    pub fn ino(&self) -> Option<Ino> {
        match self {
            Self::Attr(ino) | Self::Data(ino) | Self::Extents(ino) => Some(*ino),
            Self::Entry(ino, _) | Self::Inode(ino) | Self::Unlinked(ino) => Some(*ino),
            Self::Everything => None,
        }
    }

    /// Whether `self` says all that `other` says.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Data(ino) | Self::Unlinked(ino), Self::Attr(other)) => ino == other,
            (Self::Data(ino) | Self::Inode(ino), Self::Extents(other)) => ino == other,
            (Self::Inode(ino), Self::Attr(other) | Self::Data(other) | Self::Entry(other, _)) => ino == other,
            (Self::Everything, _) => true,
            _ => self == other,
        }
    }
}

impl Item for Invalidation {}

impl<'a> Wire<'a> for Invalidation {
    fn put(&self, out: &mut Vec<u8>) {
        let (tag, ino) = match self {
            Self::Attr(ino) => (1u8, *ino),
            Self::Data(ino) => (2, *ino),
            Self::Entry(ino, _) => (3, *ino),
            Self::Inode(ino) => (4, *ino),
            Self::Unlinked(ino) => (5, *ino),
            Self::Everything => (6, Ino(0)),
            Self::Extents(ino) => (7, *ino),
        };
        tag.put(out);
        ino.put(out);
        if let Self::Entry(_, name) = self {
            name.put(out);
        }
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        let (tag, ino) = (u8::take(from)?, Ino::take(from)?);
        Some(match tag {
            1 => Self::Attr(ino),
            2 => Self::Data(ino),
            3 => {
                let name: &[u8] = Wire::take(from)?;
                Name::new(name).ok()?;
                Self::Entry(ino, name.to_vec())
            }
            4 => Self::Inode(ino),
            5 => Self::Unlinked(ino),
            6 if ino == Ino(0) => Self::Everything,
            7 => Self::Extents(ino),
            _ => return None,
        })
    }
}

/// Invalidations. Numbers ascend from push to push; one not above the last that was taken is old news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// What an [`Ack`] of it names.
    pub number: u64,
    /// At least one.
    pub items: Vec<Invalidation>,
}

impl Push {
    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        self.number.put(&mut out);
        self.items.put(&mut out);
        out
    }

    /// The push of a body.
    pub fn decode(body: &[u8]) -> Result<Self, Fault> {
        let (number, items): (u64, Vec<Invalidation>) = versioned(body)?;
        if number > 0 && !items.is_empty() { Ok(Self { number, items }) } else { Err(Fault::Malformed) }
    }
}

/// All pushes up to a number were taken: nothing that they name is served from the cache any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The number.
    pub up_to: u64,
}

impl Ack {
    /// The body.
    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![VERSION];
        self.up_to.put(&mut out);
        out
    }

    /// The ack of a body.
    pub fn decode(body: &[u8]) -> Result<Self, Fault> {
        versioned(body).map(|up_to| Self { up_to })
    }
}

fn versioned<'a, T: Wire<'a>>(body: &'a [u8]) -> Result<T, Fault> {
    match body.split_first() {
        Some((&VERSION, rest)) => whole(rest).ok_or(Fault::Malformed),
        Some((version, _)) => Err(Fault::Version(*version)),
        None => Err(Fault::Malformed),
    }
}

impl<'a, A: Wire<'a>, B: Wire<'a>> Wire<'a> for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        let first = A::take(from)?;
        Some((first, B::take(from)?))
    }
}
