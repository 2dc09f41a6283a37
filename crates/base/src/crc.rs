//! CRC-32C (Castagnoli; RFC 3720 appendix B.4) as every format of the project uses it.

use crate::{ObjectId, limits::SEGMENT_BYTES};
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

/// CRC-32C of two runs of bytes, one behind the other, from the CRC of each and the length of the second: nothing is read.
///
/// The first CRC is multiplied by x^(8 x length) modulo the polynomial, as in zlib's `crc32_combine`. A segment of 32 KiB takes
/// two such products, about 0.1 us; crc-fast's own `checksum_combine` builds matrices, which takes longer than reading it. For a
/// whole segment, whose factor is always the same, four lookups do.
pub fn crc32c_combine(first: u32, second: u32, second_bytes: u32) -> u32 {
    if second_bytes as usize == SEGMENT_BYTES {
        let shifted = first.to_le_bytes().into_iter().zip(&BEHIND_SEGMENT);
        return shifted.fold(second, |crc, (byte, table)| crc ^ table[usize::from(byte)]);
    }
    let (mut left, mut power, mut product) = (second_bytes, 3, first);
    while left != 0 {
        if left & 1 != 0 {
            product = times(POWERS[power], product);
        }
        (left, power) = (left >> 1, power + 1);
    }
    product ^ second
}

/// The polynomial without x^32; the highest bit is the coefficient of x^0, as everywhere below.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^(2^n) modulo the polynomial, up to 8 x 2^31.
const POWERS: [u32; 35] = {
    let mut powers = [1 << 30; 35];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = times(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// Each byte of a CRC, at each of its four places, multiplied by x^(8 x 32768): the CRC behind a whole segment of zeros.
static BEHIND_SEGMENT: [[u32; 256]; 4] = {
    let factor = POWERS[3 + SEGMENT_BYTES.trailing_zeros() as usize];
    let mut tables = [[0; 256]; 4];
    let mut at = 0;
    while at < 4 * 256 {
        tables[at / 256][at % 256] = times(factor, ((at % 256) as u32) << (8 * (at / 256)));
        at += 1;
    }
    tables
};

/// The product of two polynomials modulo the polynomial.
const fn times(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 1 << 31);
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 != 0 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
        bit >>= 1;
    }
    product
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
    fn combined_equals_whole() {
        let bytes: Vec<u8> = (0..70_000u32).map(|i| ((i * 37) >> 4) as u8).collect();
        for at in [0, 1, 2, 777, 32 << 10, 65_535, 69_999, 70_000] {
            let (first, second) = bytes.split_at(at);
            let combined = crc32c_combine(crc32c(first), crc32c(second), second.len() as u32);
            assert_eq!(combined, crc32c(&bytes), "cut at {at}");
        }
        let (first, segment) = bytes.split_at(bytes.len() - SEGMENT_BYTES);
        let combined = crc32c_combine(crc32c(first), crc32c(segment), SEGMENT_BYTES as u32);
        assert_eq!(combined, crc32c(&bytes), "by table");
        let long = crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, 1, 2, u32::MAX.into());
        assert_eq!(u64::from(crc32c_combine(1, 2, u32::MAX)), long);
    }

    #[test]
    fn place_matters() {
        let (a, b) = (ObjectId([1; 16]), ObjectId([2; 16]));
        assert_ne!(segment_crc(a, 0, b"x"), segment_crc(a, 1, b"x"));
        assert_ne!(segment_crc(a, 0, b"x"), segment_crc(b, 0, b"x"));
    }
}
