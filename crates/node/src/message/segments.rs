//! Segments of an object, asked of a node and sent by it.

use super::Answer;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use sluice_base::{
    ObjectId,
    crc::{crc32c, crc32c_combine, place_crc, segment_crc},
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use sluice_object::StoredObject;
use sluice_run::Bug;
use sluice_wire::{Body, Payload};
use std::{fmt, ops::Range};

/// Asked of a node: segments of a stored object.
pub const READ_SEGMENTS: u16 = 220;

/// Told to a node: segments that it sent failed their check. It checks them on its disk.
pub const CHECK_SEGMENTS: u16 = 221;

/// Segments of an object, as bits.
pub type Set = u128;

/// Only what is cached is wanted.
const CACHED_ONLY: u8 = 1;
/// Length and CRC of each segment.
const HEAD_BYTES: usize = 8;

/// The body of [`READ_SEGMENTS`]. It has what the metadata says of the object, so that a node needs no metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadSegments {
    /// The object.
    pub object: StoredObject,
    /// Its segments, at least one, within the object.
    pub range: Range<u32>,
    /// Nothing is to be fetched for this: what is not in the cache is a failure.
    pub cached_only: bool,
}

/// A segment in its stored form.
#[derive(Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its number in the object.
    pub index: u32,
    /// Its stored bytes; none when it is absent.
    pub bytes: Bytes,
    /// Its `segment_crc`; 0 when it is absent.
    pub crc: u32,
}

/// An answer is not what was asked for. Who sent it is not to be believed for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// Lengths and body do not fit.
    #[error("the answer is not laid out as segments")]
    Malformed,
    /// Bytes that are not those of these segments.
    #[error("segments {} fail their checksums", list(*.0))]
    Corrupt(Set),
    /// Segments are sound, the rest is not.
    #[error("the answer fails its checksum")]
    Checksum,
}

impl ReadSegments {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        out.put_slice(&self.object.id().0);
        out.put_u64_le(self.object.stored_bytes());
        out.put_u32_le(self.object.segment_count());
        out.put_u32_le(self.range.start);
        out.put_u32_le(self.range.end - self.range.start);
        out.put_u8(if self.cached_only { CACHED_ONLY } else { 0 });
        out
    }

    /// What the bytes say, if such an object can be and has these segments.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let id = ObjectId(bytes.split_off(..16)?.try_into().ok()?);
        let (stored_bytes, count) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u32_le().ok()?);
        let object = StoredObject::new(id, count, stored_bytes).ok()?;
        let (first, wanted) = (bytes.try_get_u32_le().ok()?, bytes.try_get_u32_le().ok()?);
        let range = first..first.checked_add(wanted)?;
        let flags = bytes.try_get_u8().ok().filter(|flags| *flags <= CACHED_ONLY)?;
        let sound = bytes.is_empty() && !range.is_empty() && range.end <= count;
        sound.then_some(Self { object, range, cached_only: flags == CACHED_ONLY })
    }
}

/// The body of [`CHECK_SEGMENTS`]. The answer is the set of those that were damaged, which the node has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckSegments {
    /// The object.
    pub object: ObjectId,
    /// Its segments, at least one.
    pub segments: Set,
}

impl CheckSegments {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        [&self.object.0[..], &encode_set(self.segments)].concat()
    }

    /// What the bytes say.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (object, segments) = bytes.split_first_chunk()?;
        let segments = decode_set(segments).filter(|segments| *segments != 0)?;
        Some(Self { object: ObjectId(*object), segments })
    }
}

/// The answer to [`CHECK_SEGMENTS`].
pub fn encode_set(segments: Set) -> Vec<u8> {
    segments.to_le_bytes().to_vec()
}

/// What an answer to [`CHECK_SEGMENTS`] says.
pub fn decode_set(bytes: &[u8]) -> Option<Set> {
    Some(Set::from_le_bytes(bytes.try_into().ok()?))
}

/// The numbers in a set.
pub fn indices(segments: Set) -> impl Iterator<Item = u32> {
    (0..Set::BITS).filter(move |index| segments >> index & 1 != 0)
}

fn list(segments: Set) -> String {
    indices(segments).map(|index| index.to_string()).collect::<Vec<_>>().join(", ")
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({}, {} bytes, {:08x})", self.index, self.bytes.len(), self.crc)
    }
}

impl Segment {
    /// One without stored bytes.
    pub fn absent(index: u32) -> Self {
        Self { index, bytes: Bytes::new(), crc: 0 }
    }

    /// Whether the bytes are those that the object's writer sealed.
    pub fn is_sound(&self, object: ObjectId) -> bool {
        match self.bytes.len() {
            0 => self.crc == 0,
            len => len <= SEGMENT_BYTES && segment_crc(object, self.index, &self.bytes) == self.crc,
        }
    }
}

/// The answer with segments that are all in memory.
pub fn answer(object: ObjectId, segments: &[Segment]) -> Payload {
    gathered(object, segments).into_payload()
}

pub(super) fn gathered(object: ObjectId, segments: &[Segment]) -> Answer {
    let sums: Vec<_> = segments.iter().map(|segment| (segment.bytes.len() as u32, segment.crc)).collect();
    let mut answer = head(&sums);
    segments.iter().for_each(|segment| answer.push_segment(object, segment));
    answer
}

/// What an answer begins with: the length and `segment_crc` of each segment. Their bytes follow.
pub fn head(sums: &[(u32, u32)]) -> Answer {
    let mut head = BytesMut::with_capacity(HEAD_BYTES * sums.len());
    for (len, crc) in sums {
        head.put_u32_le(*len);
        head.put_u32_le(*crc);
    }
    let (mut answer, crc) = (Answer::default(), crc32c(&head));
    answer.push(head.freeze(), crc);
    answer
}

/// The segments of `range` that an answer has, each one checked.
pub fn segments(body: Body, object: ObjectId, range: Range<u32>) -> Result<Vec<Segment>, BadAnswer> {
    let (bytes, expected) = body.into_parts();
    open(bytes, expected, object, range)
}

/// The segments in `bytes`, which have this CRC unless somebody has compared already.
pub(super) fn open(
    mut bytes: Bytes,
    expected: Option<u32>,
    object: ObjectId,
    range: Range<u32>,
) -> Result<Vec<Segment>, BadAnswer> {
    debug_assert!(range.len() <= SEGMENTS_PER_OBJECT);
    if bytes.len() < HEAD_BYTES * range.len() {
        return Err(BadAnswer::Malformed);
    }
    let mut head = bytes.split_to(HEAD_BYTES * range.len());
    let mut crc = crc32c(&head);
    let (mut found, mut corrupt) = (Vec::with_capacity(range.len()), 0);
    for index in range {
        let (len, sum) = (head.get_u32_le() as usize, head.get_u32_le());
        if len > SEGMENT_BYTES || len > bytes.len() {
            return Err(BadAnswer::Malformed);
        }
        let segment = Segment { index, bytes: bytes.split_to(len), crc: sum };
        if !segment.is_sound(object) && !Bug::SegmentsUnchecked.is_planted() {
            corrupt |= 1 << index;
        }
        crc = followed_by(crc, object, &segment);
        found.push(segment);
    }
    match expected {
        _ if !bytes.is_empty() => Err(BadAnswer::Malformed),
        _ if corrupt != 0 => Err(BadAnswer::Corrupt(corrupt)),
        Some(expected) if expected != crc => Err(BadAnswer::Checksum),
        _ => Ok(found),
    }
}

/// The CRC of bytes whose CRC is `crc` and the segment's behind them.
fn followed_by(crc: u32, object: ObjectId, segment: &Segment) -> u32 {
    if segment.bytes.is_empty() {
        return crc;
    }
    crc32c_combine(crc, segment.crc ^ place_crc(object, segment.index), segment.bytes.len() as u32)
}
