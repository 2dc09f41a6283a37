//! CRC-32C (Castagnoli; RFC 3720 appendix B.4) as every format of the project uses it.

use crate::ObjectId;
use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A CRC-32C that grows with its input.
#[derive(Clone)]
pub struct Crc32c(Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc32c {
    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    /// The sum of everything added so far; adding may go on.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// What binds a segment to its place: CRC-32C of the object id and the little-endian index. A segment's stored CRC is the CRC
/// of its bytes xor this, so that a segment served in another's place fails the check.
pub fn place_crc(object: ObjectId, segment_index: u32) -> u32 {
    let mut place = [0; 20];
    place[..16].copy_from_slice(&object.0);
    place[16..].copy_from_slice(&segment_index.to_le_bytes());
    crc32c(&place)
}

/// The CRC kept with segment `segment_index` of `object` whose stored bytes are `stored`.
pub fn segment_crc(object: ObjectId, segment_index: u32, stored: &[u8]) -> u32 {
    crc32c(stored) ^ place_crc(object, segment_index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // RFC 3720 B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn growing_equals_whole() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let mut crc = Crc32c::default();
        for piece in bytes.chunks(777) {
            crc.update(piece);
        }
        assert_eq!(crc.value(), crc32c(&bytes));
    }

    #[test]
    fn place_matters() {
        let (a, b) = (ObjectId([1; 16]), ObjectId([2; 16]));
        assert_ne!(segment_crc(a, 0, b"x"), segment_crc(a, 1, b"x"));
        assert_ne!(segment_crc(a, 0, b"x"), segment_crc(b, 0, b"x"));
    }
}
