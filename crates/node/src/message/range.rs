//! Bytes of an object by their place, asked of a node for somebody who uses them at once.

use super::ReadSegments;
use bytes::{Buf, BufMut};
use sluice_base::{
    ObjectId,
    limits::{OBJECT_BYTES, SEGMENT_BYTES},
};
use sluice_object::StoredObject;
use std::ops::Range;

/// Asked of a node: a range of a stored object's plain form. The answer is these bytes and nothing else.
pub const READ_RANGE: u16 = 222;

/// Length of the body of [`READ_RANGE`].
pub const READ_RANGE_BYTES: usize = 37;

/// Only what is cached is wanted.
const CACHED_ONLY: u8 = 1;

/// The body of [`READ_RANGE`]. It has what the metadata says of the object, so that a node needs no metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRange {
    /// The object.
    pub object: StoredObject,
    /// Where the bytes begin.
    pub offset: u32,
    /// How many, at least one, within the object's segments.
    pub len: u32,
    /// Nothing is to be fetched for this: what is not in the cache is a failure.
    pub cached_only: bool,
}

impl ReadRange {
    /// The bytes. Nothing is allocated for them.
    pub fn encode(&self) -> [u8; READ_RANGE_BYTES] {
        let mut bytes = [0; READ_RANGE_BYTES];
        let mut out = &mut bytes[..];
        out.put_slice(&self.object.id().0);
        out.put_u64_le(self.object.stored_bytes());
        out.put_u32_le(self.object.segment_count());
        out.put_u32_le(self.offset);
        out.put_u32_le(self.len);
        out.put_u8(if self.cached_only { CACHED_ONLY } else { 0 });
        bytes
    }

    /// What the bytes say, if such an object can be and may have these bytes.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let id = ObjectId(bytes.split_off(..16)?.try_into().ok()?);
        let (stored_bytes, count) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u32_le().ok()?);
        let object = StoredObject::new(id, count, stored_bytes).ok()?;
        let (offset, len) = (bytes.try_get_u32_le().ok()?, bytes.try_get_u32_le().ok()?);
        let end = offset.checked_add(len)? as usize;
        let flags = bytes.try_get_u8().ok().filter(|flags| *flags <= CACHED_ONLY)?;
        let sound = bytes.is_empty() && len > 0 && end <= (count as usize * SEGMENT_BYTES).min(OBJECT_BYTES);
        sound.then_some(Self { object, offset, len, cached_only: flags == CACHED_ONLY })
    }

    /// The segments that the bytes are in.
    pub fn segments(&self) -> Range<u32> {
        let segment_bytes = SEGMENT_BYTES as u32;
        self.offset / segment_bytes..(self.offset + self.len).div_ceil(segment_bytes)
    }

    /// Of segment `index`, the bytes that are asked for: where they begin and end in it.
    pub fn within(&self, index: u32) -> Range<usize> {
        let at = |place: u32| (place as usize).saturating_sub(index as usize * SEGMENT_BYTES).min(SEGMENT_BYTES);
        at(self.offset)..at(self.offset + self.len)
    }
}

/// What a node is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Whole segments, each with its sum: for who keeps them.
    Segments(ReadSegments),
    /// Bytes: for who uses them.
    Range(ReadRange),
}

impl Read {
    /// The object.
    pub fn object(&self) -> StoredObject {
        match self {
            Self::Segments(ask) => ask.object,
            Self::Range(ask) => ask.object,
        }
    }

    /// The segments that are needed for it.
    pub fn segments(&self) -> Range<u32> {
        match self {
            Self::Segments(ask) => ask.range.clone(),
            Self::Range(ask) => ask.segments(),
        }
    }

    /// Nothing is to be fetched for it.
    pub fn cached_only(&self) -> bool {
        match self {
            Self::Segments(ask) => ask.cached_only,
            Self::Range(ask) => ask.cached_only,
        }
    }
}
