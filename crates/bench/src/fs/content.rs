//! Bytes that cannot be compressed, are nowhere else the same, and know where they belong.
//!
//! Every 512 bytes of a file begin with 8 that follow from the file and the place in it; the others are random, of a buffer that
//! is used again and again. A hole, or what belongs somewhere else, is found with the cost of 8 bytes.

use rand::{RngCore, SeedableRng, rngs::SmallRng};
use std::ops::Range;

pub(super) const SECTOR: u64 = 512;
const MARK: u64 = 8;

/// Which bytes: those of a file, which differ each time it is written for another purpose.
#[derive(Clone, Copy)]
pub(super) struct Key(u64);

impl Key {
    /// `salt` is the place's: two of them may be one file system.
    pub(super) fn new(salt: u64, file: usize, generation: u64) -> Self {
        Self(scrambled(scrambled(salt ^ generation) ^ file as u64))
    }

    /// Makes `buffer` what belongs at `offset`.
    pub(super) fn mark(self, offset: u64, buffer: &mut [u8]) {
        for (sector, at, part) in marks(offset, buffer.len()) {
            buffer[at].copy_from_slice(&self.of(sector)[part]);
        }
    }

    /// Whether `buffer` is what belongs at `offset`. Of fewer than [`SECTOR`] bytes nobody may know.
    pub(super) fn is(self, offset: u64, buffer: &[u8]) -> bool {
        marks(offset, buffer.len()).all(|(sector, at, part)| buffer[at] == self.of(sector)[part])
    }

    fn of(self, sector: u64) -> [u8; MARK as usize] {
        scrambled(self.0 ^ sector).to_le_bytes()
    }
}

/// A buffer of random bytes.
pub(super) fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut buffer = vec![0; len];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut buffer);
    buffer
}

/// The marks that `len` bytes at `offset` have something of: the sector, where in the bytes, and which part of the mark.
fn marks(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let end = offset + len as u64;
    (offset / SECTOR..end.div_ceil(SECTOR)).filter_map(move |sector| {
        let mark = sector * SECTOR;
        let (first, last) = (mark.max(offset), (mark + MARK).min(end));
        let part = |base: u64| (first - base) as usize..(last - base) as usize;
        (first < last).then(|| (sector, part(offset), part(mark)))
    })
}

/// The output function of SplitMix64.
fn scrambled(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_told_from_others_at_every_offset() {
        let key = Key::new(0, 3, 1);
        let mut file = random(8192, 1);
        key.mark(0, &mut file);
        for offset in 0..4096 {
            let part = &file[offset..offset + 512];
            assert!(key.is(offset as u64, part), "{offset}");
            assert!(!key.is(offset as u64 + 512, part), "of another place: {offset}");
            for other in [Key::new(1, 3, 1), Key::new(0, 4, 1), Key::new(0, 3, 2)] {
                assert!(!other.is(offset as u64, part), "of another place, file or time: {offset}");
            }
            assert!(!key.is(offset as u64, &[0; 512]), "a hole: {offset}");
        }
    }

    #[test]
    fn what_is_written_in_parts_is_the_same() {
        let key = Key::new(0, 0, 7);
        let mut file = random(8192, 2);
        for (offset, len) in [(0, 700), (700, 3), (703, 4097), (4800, 3392)] {
            key.mark(offset, &mut file[offset as usize..][..len]);
        }
        assert!(key.is(0, &file));
    }
}
