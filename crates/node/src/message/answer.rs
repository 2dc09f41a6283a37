//! Answers with bytes of objects: put together without being copied or read.

use super::Segment;
use bytes::Bytes;
use sluice_base::{
    ObjectId,
    crc::{crc32c_combine, place_crc},
};
use sluice_store::{ReadError, Region};
use sluice_wire::{Payload, Piece};
use std::{fmt, io, os::fd::BorrowedFd, sync::Arc};

/// Bytes one behind the other, and the CRC-32C of all of them, which is put together from those of the parts.
#[derive(Default)]
pub struct Answer {
    pieces: Vec<Piece>,
    bytes: usize,
    crc: u32,
}

impl Answer {
    /// Adds bytes whose CRC-32C is `crc`.
    pub fn push(&mut self, bytes: Bytes, crc: u32) {
        self.add(Piece::Bytes(bytes), crc);
    }

    /// Adds a segment that is in memory; an absent one has no bytes.
    pub fn push_segment(&mut self, object: ObjectId, segment: &Segment) {
        if !segment.bytes.is_empty() {
            self.push(segment.bytes.clone(), segment.crc ^ place_crc(object, segment.index));
        }
    }

    /// Adds segments that are on the disk.
    pub fn push_region(&mut self, region: Region) {
        let crc = region.crc();
        self.add(Piece::Region(Arc::new(OnDisk(region))), crc);
    }

    fn add(&mut self, piece: Piece, crc: u32) {
        self.bytes += piece.len();
        self.crc = crc32c_combine(self.crc, crc, piece.len() as u32);
        self.pieces.push(piece);
    }

    /// Adds what `other` has.
    pub fn append(&mut self, other: Self) {
        self.crc = crc32c_combine(self.crc, other.crc, other.bytes as u32);
        self.bytes += other.bytes;
        self.pieces.extend(other.pieces);
    }

    /// Bytes of all parts.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// CRC-32C of all bytes.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// The parts, in their order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Drops `held` with the last of the bytes.
    pub fn holding(mut self, held: impl Send + Sync + 'static) -> Self {
        let held: Arc<dyn Send + Sync> = Arc::new(held);
        let hold = |piece| match piece {
            Piece::Bytes(inner) => Piece::Bytes(Bytes::from_owner(Holding { inner, _held: held.clone() })),
            Piece::Region(inner) => Piece::Region(Arc::new(Holding { inner, _held: held.clone() })),
        };
        self.pieces = self.pieces.into_iter().map(hold).collect();
        self
    }

    /// As it is sent: whoever uses the bytes checks them.
    pub fn into_payload(self) -> Payload {
        Payload::from(self.pieces).with_crc(self.crc).unchecked()
    }
}

/// Segments of a slab, as a part of a body.
#[derive(Debug)]
struct OnDisk(Region);

impl sluice_wire::Region for OnDisk {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read_at(&self, offset: usize, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf).map_err(|error| match error {
            ReadError::Io(error) => error,
            other => io::Error::other(other),
        })
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.0.file()
    }
}

/// A part of a body that keeps something else until it is sent.
struct Holding<T> {
    inner: T,
    _held: Arc<dyn Send + Sync>,
}

impl AsRef<[u8]> for Holding<Bytes> {
    fn as_ref(&self) -> &[u8] {
        &self.inner
    }
}

impl fmt::Debug for Holding<Arc<dyn sluice_wire::Region>> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl sluice_wire::Region for Holding<Arc<dyn sluice_wire::Region>> {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn read_at(&self, offset: usize, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.inner.file()
    }
}
