//! Forms of the crate's own values in messages.

use super::codec::{Item, Reader, Wire, fields, tags};
use crate::{
    Attr, Caller, Error, RenameMode, SetAttributes, SetTime, SizeChange, Unlinked, XattrMode,
    extent::{Extent, Place},
    records::{Inode, ObjectRecord, Usage},
};
use sluice_base::{
    Ino, ObjectId, SessionId, Timestamp,
    limits::{FILE_BYTES_MAX, INLINE_BYTES_MAX, NAME_BYTES_MAX, OBJECT_BYTES, SPAN_BYTES},
};
use std::collections::BTreeSet;

fields! {
    Attr { ino, mode, nlink, uid, gid, rdev, size, held_bytes, change, atime, mtime, ctime, btime }
    Unlinked { ino, orphaned, nlink }
    Caller { uid, gid }
    SetAttributes { mode, uid, gid, atime, mtime, ctime, kill_suidgid }
    Place { object, offset }
}

tags! {
    RenameMode { 0 = Replace, 1 = NoReplace, 2 = Exchange }
    XattrMode { 0 = Set, 1 = Create, 2 = Replace }
}

macro_rules! ids {
    ($($name:ident),*) => {$(
        impl<'a> Wire<'a> for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn take(from: &mut Reader<'a>) -> Option<Self> {
                Some(Self(u64::take(from)?))
            }
        }
        impl Item for $name {}
    )*};
}
ids!(Ino, SessionId);

impl<'a> Wire<'a> for ObjectId {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        from.array().filter(|id| *id != [0; 16]).map(ObjectId)
    }
}
impl Item for ObjectId {}

impl<'a> Wire<'a> for Timestamp {
    fn put(&self, out: &mut Vec<u8>) {
        self.secs.put(out);
        self.nanos.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        Timestamp::new(i64::take(from)?, u32::take(from)?)
    }
}

impl<'a> Wire<'a> for SetTime {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            SetTime::Now => 0u8.put(out),
            SetTime::To(time) => {
                1u8.put(out);
                time.put(out);
            }
        }
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(SetTime::Now),
            1 => Timestamp::take(from).map(SetTime::To),
            _ => None,
        }
    }
}

impl<'a> Wire<'a> for SizeChange {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            SizeChange::Keep => 0u8.put(out),
            SizeChange::AtLeast(bytes) => {
                1u8.put(out);
                bytes.put(out);
            }
            SizeChange::Exactly(bytes) => {
                2u8.put(out);
                bytes.put(out);
            }
        }
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(SizeChange::Keep),
            1 => u64::take(from).map(SizeChange::AtLeast),
            2 => u64::take(from).map(SizeChange::Exactly),
            _ => None,
        }
    }
}

/// Records that travel as they are stored: docs/disk-format.md.
macro_rules! stored {
    ($($name:ident),*) => {$(
        impl<'a> Wire<'a> for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.encode().put(out);
            }
            fn take(from: &mut Reader<'a>) -> Option<Self> {
                $name::decode(<&[u8]>::take(from)?).ok()
            }
        }
    )*};
}
stored!(Inode, ObjectRecord, Usage);

/// A name of a directory entry: 1 to 255 bytes, neither `/` nor NUL. `.` and `..` are names here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// A name; fails as an operation with it would.
    pub fn new(name: &'a [u8]) -> Result<Self, Error> {
        match name {
            b"" => Err(Error::NotFound),
            _ if name.len() > NAME_BYTES_MAX => Err(Error::NameTooLong),
            _ if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid("a name holds neither / nor NUL")),
            _ => Ok(Self(name)),
        }
    }

    /// Its bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Wire<'a> for Name<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.0.len() as u16).put(out);
        out.extend_from_slice(self.0);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        let len = u16::take(from)?;
        Name::new(from.bytes(len.into())?).ok()
    }
}

impl<'a> Wire<'a> for Extent {
    fn put(&self, out: &mut Vec<u8>) {
        self.offset.put(out);
        self.len.put(out);
        self.place.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        let extent = Extent { offset: Wire::take(from)?, len: Wire::take(from)?, place: Wire::take(from)? };
        is_sound(&extent).then_some(extent)
    }
}
impl Item for Extent {}

fn is_sound(extent: &Extent) -> bool {
    let ends = extent.offset.checked_add(extent.len).is_some_and(|end| end <= FILE_BYTES_MAX);
    let fits = |place: Place| u64::from(place.offset) + extent.len <= OBJECT_BYTES as u64;
    extent.len > 0 && ends && extent.place.is_none_or(fits)
}

/// Extents of one change: sound ones, and no more than a server plans for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents(Vec<Extent>);

impl Extents {
    /// Extents in one change: a record of the log holds what they become, and planning them costs their square.
    pub const COUNT_MAX: usize = 4096;
    /// Spans that they touch.
    pub const SPANS_MAX: usize = 1024;

    /// The list; `None` when an extent is out of range, or when they are too many: then they go as several changes.
    pub fn new(extents: Vec<Extent>) -> Option<Self> {
        if extents.len() > Self::COUNT_MAX {
            return None;
        }
        let mut spans = BTreeSet::new();
        for extent in &extents {
            if !is_sound(extent) || extent.len / SPAN_BYTES > Self::SPANS_MAX as u64 {
                return None;
            }
            spans.extend(extent.offset / SPAN_BYTES..=(extent.offset + extent.len - 1) / SPAN_BYTES);
            if spans.len() > Self::SPANS_MAX {
                return None;
            }
        }
        Some(Self(extents))
    }

    /// The extents.
    pub fn list(&self) -> &[Extent] {
        &self.0
    }
}

impl<'a> Wire<'a> for Extents {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        Self::new(Wire::take(from)?)
    }
}

/// An inline body: up to 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    /// The body; `None` when it is too large to be inline.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() <= INLINE_BYTES_MAX).then_some(Self(bytes))
    }

    /// Its bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Wire<'a> for Body<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        Self::new(Wire::take(from)?)
    }
}

/// The bytes of one value.
pub(crate) fn encode<'a>(value: &impl Wire<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}
