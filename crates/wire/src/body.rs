//! Bodies: what goes out without being copied, and what came in.

use crate::Region;
use bytes::Bytes;
use sluice_base::crc::{Crc32c, crc32c};
use std::sync::Arc;

/// A part of a body to send.
#[derive(Clone, Debug)]
pub enum Piece {
    /// In memory.
    Bytes(Bytes),
    /// In a file.
    Region(Arc<dyn Region>),
}

impl Piece {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Region(region) => region.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A body to send, in one piece or several that nobody joins.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    pieces: Pieces,
    bytes: usize,
    crc: Option<u32>,
    unchecked: bool,
}

#[derive(Clone, Debug)]
enum Pieces {
    One(Piece),
    Many(Vec<Piece>),
}

impl Default for Pieces {
    fn default() -> Self {
        Self::One(Piece::Bytes(Bytes::new()))
    }
}

impl Payload {
    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The sender knows the CRC-32C of the body, for example from those of stored segments; its bytes are then not read. That
    /// of an empty body is 0 whatever is given.
    pub fn with_crc(mut self, crc: u32) -> Self {
        self.crc = Some(crc);
        self
    }

    /// Leaves the check to whoever uses the body: [`Body::checked`].
    pub fn unchecked(mut self) -> Self {
        self.unchecked = true;
        self
    }

    /// Computes the CRC now unless it is known, so that it is not done under a lock later.
    pub fn summed(mut self) -> Self {
        self.crc = Some(self.crc());
        self
    }

    /// CRC-32C of the body.
    ///
    /// # Panics
    /// If it has a region and nobody said what it is: regions are there not to be read.
    pub(crate) fn crc(&self) -> u32 {
        if self.bytes == 0 {
            return 0;
        }
        self.crc.unwrap_or_else(|| {
            let mut crc = Crc32c::default();
            for piece in self.pieces() {
                match piece {
                    Piece::Bytes(bytes) => crc.update(bytes),
                    Piece::Region(region) => panic!("{region:?} is sent with a CRC that is known"),
                }
            }
            crc.value()
        })
    }

    pub(crate) fn is_unchecked(&self) -> bool {
        self.unchecked
    }

    /// What it is made of.
    pub fn pieces(&self) -> &[Piece] {
        match &self.pieces {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Many(pieces) => pieces,
        }
    }
}

impl From<Bytes> for Payload {
    fn from(piece: Bytes) -> Self {
        Self { bytes: piece.len(), pieces: Pieces::One(Piece::Bytes(piece)), crc: None, unchecked: false }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<&'static [u8]> for Payload {
    fn from(bytes: &'static [u8]) -> Self {
        Bytes::from_static(bytes).into()
    }
}

impl From<Vec<Bytes>> for Payload {
    fn from(pieces: Vec<Bytes>) -> Self {
        pieces.into_iter().map(Piece::Bytes).collect::<Vec<_>>().into()
    }
}

/// One with a region needs [`Payload::with_crc`].
impl From<Vec<Piece>> for Payload {
    fn from(pieces: Vec<Piece>) -> Self {
        Self { bytes: pieces.iter().map(Piece::len).sum(), pieces: Pieces::Many(pieces), crc: None, unchecked: false }
    }
}

/// A body that was received. Its bytes are either checked already or come with the CRC that they must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    bytes: Bytes,
    expected_crc: Option<u32>,
}

/// The bytes of a body are not those that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the checksum of a body does not match")]
pub struct BadChecksum;

impl Body {
    pub(crate) fn checked_already(bytes: Bytes) -> Self {
        Self { bytes, expected_crc: None }
    }

    pub(crate) fn to_be_checked(bytes: Bytes, crc: u32) -> Self {
        Self { bytes, expected_crc: Some(crc) }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes; reads them once if the sender left the check to us.
    pub fn checked(self) -> Result<Bytes, BadChecksum> {
        match self.expected_crc {
            Some(crc) if crc32c(&self.bytes) != crc => Err(BadChecksum),
            _ => Ok(self.bytes),
        }
    }

    /// The bytes, and the CRC-32C that they must have if nobody has compared yet.
    pub fn into_parts(self) -> (Bytes, Option<u32>) {
        (self.bytes, self.expected_crc)
    }
}
