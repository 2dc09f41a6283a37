//! What mounts and the server of a volume ask each other beside the metadata: who the volume is, and bytes that are acked and
//! not stored. docs/protocol.md, "Volume methods", has the layouts.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use sluice_base::{ObjectId, SessionId, limits::SEGMENT_BYTES};
use sluice_vfs::Piece;
use std::ops::Range;

/// Asked of a server: its volume's configuration, as `volume.json` has it, with the store's place as the server means it.
pub const VOLUME: u16 = 200;
/// Asked both ways: segments of an object that is not stored.
pub const UNSTORED: u16 = 201;

/// Told the server by a mount: how much of its bytes the store does not have.
pub const REPORT: u16 = 202;
/// Asked of a server: its volume as `sluice status --json` shows it.
pub const STATUS: u16 = 203;

/// Code of a failure: the object is not unstored here (any more); look at its record again.
pub const FAILED_GONE: u32 = 1;
/// Code of a failure: the text says why; its mount gets EIO.
pub const FAILED_OTHER: u32 = 2;

/// Segments asked for at once.
const SEGMENTS_MAX: u32 = 128;

/// The body of [`UNSTORED`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unstored {
    /// Whose object it is.
    pub session: SessionId,
    /// The object.
    pub object: ObjectId,
    /// Its segments.
    pub range: Range<u32>,
}

impl Unstored {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        out.put_u64_le(self.session.0);
        out.put_slice(&self.object.0);
        out.put_u32_le(self.range.start);
        out.put_u32_le(self.range.end);
        out
    }

    /// The request in `bytes`; `None` when it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (session, rest) = bytes.split_first_chunk::<8>()?;
        let (object, rest) = rest.split_first_chunk::<16>()?;
        let (start, rest) = rest.split_first_chunk::<4>()?;
        let end = rest.first_chunk::<4>().filter(|_| rest.len() == 4)?;
        let range = u32::from_le_bytes(*start)..u32::from_le_bytes(*end);
        let session = SessionId(u64::from_le_bytes(*session));
        let sound = range.start < range.end && range.end - range.start <= SEGMENTS_MAX;
        sound.then_some(Self { session, object: ObjectId(*object), range })
    }
}

/// The body of [`REPORT`]: what a mount has acked and the store does not have yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The mount's session.
    pub session: SessionId,
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Its syncs wait for the store.
    pub waits_for_store: bool,
}

impl Report {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(25);
        [self.session.0, self.objects, self.bytes].into_iter().for_each(|number| out.put_u64_le(number));
        out.put_u8(self.waits_for_store.into());
        out
    }

    /// The report in `bytes`; `None` when it is none.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut next = || bytes.try_get_u64_le().ok();
        let (session, objects, unstored) = (SessionId(next()?), next()?, next()?);
        let waits_for_store = match bytes {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        Some(Self { session, objects, bytes: unstored, waits_for_store })
    }
}

/// The answer: for each segment its number, its CRC and its bytes behind their length.
pub fn encode_pieces(pieces: &[Piece]) -> Vec<Bytes> {
    let mut out = Vec::with_capacity(2 * pieces.len());
    for piece in pieces {
        let mut head = BytesMut::with_capacity(12);
        head.put_u32_le(piece.index);
        head.put_u32_le(piece.crc);
        head.put_u32_le(piece.bytes.len() as u32);
        out.extend([head.freeze(), piece.bytes.clone()]);
    }
    out
}

/// The pieces of an answer; `None` when it is none.
pub fn decode_pieces(mut bytes: Bytes) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    while bytes.has_remaining() {
        if bytes.remaining() < 12 {
            return None;
        }
        let (index, crc, len) = (bytes.get_u32_le(), bytes.get_u32_le(), bytes.get_u32_le() as usize);
        if len > SEGMENT_BYTES || bytes.remaining() < len {
            return None;
        }
        pieces.push(Piece { index, crc, bytes: bytes.split_to(len) });
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_survive_the_round_trip() {
        let ask = Unstored { session: SessionId(7), object: ObjectId([3; 16]), range: 2..9 };
        assert_eq!(Unstored::decode(&ask.encode()), Some(ask.clone()));
        for len in 0..32 {
            assert_eq!(Unstored::decode(&ask.encode()[..len]), None);
        }
        assert_eq!(Unstored::decode(&Unstored { range: 0..SEGMENTS_MAX + 1, ..ask }.encode()), None);
        let report = Report { session: SessionId(3), objects: 4, bytes: u64::MAX, waits_for_store: true };
        assert_eq!(Report::decode(&report.encode()), Some(report));
        assert_eq!(Report::decode(&report.encode()[..23]), None);
        assert_eq!(Report::decode(&[report.encode(), vec![0]].concat()), None);
        let pieces = vec![
            Piece { index: 1, bytes: Bytes::from(vec![1; SEGMENT_BYTES]), crc: 5 },
            Piece { index: 2, bytes: Bytes::new(), crc: 6 },
        ];
        let whole = Bytes::from(encode_pieces(&pieces).concat());
        assert_eq!(decode_pieces(whole.clone()), Some(pieces));
        assert_eq!(decode_pieces(whole.slice(..whole.len() - 1)), None);
    }
}
