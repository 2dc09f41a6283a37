//! What is measured.

use super::content::SECTOR;
use rand::{Rng, rngs::SmallRng};
use std::time::Duration;

/// Bytes of a read or write in order, as in the published program.
pub(super) const CHUNK: u64 = 1 << 20;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Large files are written from begin to end.
    SeqWrite,
    /// They are read from begin to end.
    SeqRead,
    /// Blocks of large files are written at random.
    RandWrite,
    /// Blocks are read at random.
    RandRead,
    /// Tiny files in one directory: create all, stat all, delete all.
    Metadata,
    /// Files of 1 to 32 KiB, 100 in a directory: create all, read all, stat all, delete all.
    SmallFiles,
}

impl Workload {
    /// In the order of the published table.
    pub const EVERY: [Self; 6] =
        [Self::SeqWrite, Self::SeqRead, Self::RandWrite, Self::RandRead, Self::Metadata, Self::SmallFiles];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::SeqWrite => "seq-write",
            Self::SeqRead => "seq-read",
            Self::RandWrite => "rand-write",
            Self::RandRead => "rand-read",
            Self::Metadata => "metadata",
            Self::SmallFiles => "small-files",
        }
    }

    /// Whether blocks are chosen at random.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandWrite | Self::RandRead)
    }

    /// Whether it works on large files.
    pub fn is_large(self) -> bool {
        !matches!(self, Self::Metadata | Self::SmallFiles)
    }
}

/// How a workload is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As the published program does it.
    Seed,
    /// As its description says.
    Corrected,
}

impl Variant {
    /// Both.
    pub const EVERY: [Self; 2] = [Self::Seed, Self::Corrected];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seed => "seed",
            Self::Corrected => "corrected",
        }
    }

    /// Seeds read at random what they wrote at random. Corrected reads are of what was written in order, before that is overwritten.
    pub(super) fn order(self) -> [Workload; 6] {
        let mut order = Workload::EVERY;
        if self == Self::Corrected {
            order.swap(2, 3);
        }
        order
    }
}

/// Which offsets blocks at random have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// Multiples of a block.
    Aligned,
    /// Any byte that no sector begins with.
    Unaligned,
}

impl Offsets {
    /// Both.
    pub const EVERY: [Self; 2] = [Self::Aligned, Self::Unaligned];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aligned => "aligned",
            Self::Unaligned => "unaligned",
        }
    }

    /// A block's place in a file that has at least two.
    pub(super) fn choose(self, random: &mut SmallRng, file_bytes: u64, block_bytes: u64) -> u64 {
        match self {
            Self::Aligned => random.random_range(0..file_bytes / block_bytes) * block_bytes,
            Self::Unaligned => {
                let offset = random.random_range(0..file_bytes - block_bytes);
                if offset.is_multiple_of(SECTOR) { offset + 1 } else { offset }
            }
        }
    }
}

/// What is measured, with all sizes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In any order.
    pub workloads: Vec<Workload>,
    /// In the order they are measured in.
    pub variants: Vec<Variant>,
    /// Of corrected workloads at random.
    pub offsets: Vec<Offsets>,
    /// Threads, and large files.
    pub threads: usize,
    /// Bytes of a large file: at least two blocks.
    pub file_bytes: u64,
    /// Bytes of a read or write at random: at least 512.
    pub block_bytes: u64,
    /// Time of a workload at random.
    pub time: Duration,
    /// Files of `metadata`.
    pub metadata_files: usize,
    /// Files of `small-files`.
    pub small_files: usize,
    /// Times that each is measured.
    pub rounds: usize,
}

impl Plan {
    /// Room that a place must have, at most.
    pub fn room(&self) -> u64 {
        const PAGE: u64 = 4096;
        let of = |workload: &Workload| match workload {
            Workload::Metadata => self.metadata_files as u64 * PAGE,
            Workload::SmallFiles => self.small_files as u64 * super::small::FILE_BYTES_MAX,
            _ => self.file_bytes.saturating_mul(self.threads as u64),
        };
        self.workloads.iter().map(of).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn blocks_lie_where_they_are_said_to_and_within_the_file() {
        let mut random = SmallRng::seed_from_u64(1);
        for (file, block) in [(64 << 10, 4096), (10_000, 5000), (1024, 512)] {
            let mut draw = |offsets: Offsets| -> Vec<u64> {
                (0..1000).map(|_| offsets.choose(&mut random, file, block)).collect()
            };
            let (aligned, unaligned) = (draw(Offsets::Aligned), draw(Offsets::Unaligned));
            assert!(aligned.iter().chain(&unaligned).all(|offset| offset + block <= file));
            assert!(
                aligned.iter().all(|offset| offset % block == 0) && aligned.contains(&(file / block * block - block))
            );
            assert!(unaligned.iter().all(|offset| offset % SECTOR != 0));
        }
    }
}
