//! Where a scrub stands, as the file `scrub` of the cache directory keeps it. docs/disk-format.md, "Scrub", has the layout.
//!
//! 128 bytes, written in place after each slot: a sector, so that it is whole or old. A record that is neither is none, which
//! costs a scrub from the start.

use sluice_base::{Disk, DiskFile, crc::crc32c};
use std::{io, path::Path, sync::Arc};
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

const FILE: &str = "scrub";
const MAGIC: [u8; 8] = *b"SLUICESC";
const VERSION: u32 = 1;
/// So far nothing counts: what is added to it stays a number.
const COUNT_MAX: u64 = 1 << 60;
const PASSES_MAX: u32 = 1 << 30;
/// The process that wrote this ended well, after it had written the slot table.
const CLEAN: u32 = 1;
/// A pass is under way.
const RUNNING: u32 = 2;

/// What a pass has looked at and found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubCounts {
    /// Segments that were read.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that failed their check.
    pub bad_segments: u64,
    /// Those that the disk did not give (EIO).
    pub unreadable_segments: u64,
    /// Slots of which the table told what was no longer there, as after a loss of power or of the process: no sign of rot.
    pub stale_slots: u64,
}

impl ScrubCounts {
    /// Segments that were not what had been written.
    pub fn rotten(&self) -> u64 {
        self.bad_segments + self.unreadable_segments
    }

    pub(super) fn add(&mut self, more: &Self) {
        self.segments += more.segments;
        self.bytes += more.bytes;
        self.bad_segments += more.bad_segments;
        self.unreadable_segments += more.unreadable_segments;
        self.stale_slots += more.stale_slots;
    }
}

/// What survives the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The process before this one ended well.
    pub clean: bool,
    pub running: bool,
    /// Slots below this one have been looked at.
    pub next_slot: u32,
    /// Passes that were completed.
    pub passes: u32,
    /// Wall clock, in seconds; 0: never.
    pub began_secs: u64,
    pub ended_secs: u64,
    /// Of the pass under way, or the latest.
    pub counts: ScrubCounts,
    /// Of the last one that was completed.
    pub last: ScrubCounts,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    magic: [u8; 8],
    version: U32,
    flags: U32,
    next_slot: U32,
    passes: U32,
    began_secs: U64,
    ended_secs: U64,
    counts: [U64; 5],
    last: [U64; 5],
    reserved: U32,
    crc: U32,
}
const _: () = assert!(size_of::<Record>() == 128);

fn numbers(counts: &ScrubCounts) -> [U64; 5] {
    let ScrubCounts { segments, bytes, bad_segments, unreadable_segments, stale_slots } = *counts;
    [segments, bytes, bad_segments, unreadable_segments, stale_slots].map(U64::new)
}

fn counts(numbers: &[U64; 5]) -> ScrubCounts {
    let [segments, bytes, bad_segments, unreadable_segments, stale_slots] = numbers.map(U64::get);
    ScrubCounts { segments, bytes, bad_segments, unreadable_segments, stale_slots }
}

fn crc(record: &Record) -> U32 {
    let bytes = record.as_bytes();
    U32::new(crc32c(&bytes[..bytes.len() - 4]))
}

impl State {
    fn to_record(self) -> Record {
        let mut record = Record {
            magic: MAGIC,
            version: U32::new(VERSION),
            flags: U32::new(if self.clean { CLEAN } else { 0 } | if self.running { RUNNING } else { 0 }),
            next_slot: U32::new(self.next_slot),
            passes: U32::new(self.passes),
            began_secs: U64::new(self.began_secs),
            ended_secs: U64::new(self.ended_secs),
            counts: numbers(&self.counts),
            last: numbers(&self.last),
            reserved: U32::new(0),
            crc: U32::new(0),
        };
        record.crc = crc(&record);
        record
    }

    /// What a record says; one that is damaged, or of a later version, says nothing, nor does one with numbers that nothing counts up to.
    fn of_record(record: &Record) -> Option<Self> {
        let known = record.magic == MAGIC && record.version.get() == VERSION && record.crc == crc(record);
        let counted = record.counts.iter().chain(&record.last).all(|count| count.get() <= COUNT_MAX);
        let known = known && counted && record.passes.get() <= PASSES_MAX;
        let flags = record.flags.get();
        known.then(|| Self {
            clean: flags & CLEAN != 0,
            running: flags & RUNNING != 0,
            next_slot: record.next_slot.get(),
            passes: record.passes.get(),
            began_secs: record.began_secs.get(),
            ended_secs: record.ended_secs.get(),
            counts: counts(&record.counts),
            last: counts(&record.last),
        })
    }
}

/// The open file.
pub(super) struct StateFile(Arc<dyn DiskFile>);

impl StateFile {
    pub fn open(disk: &dyn Disk, dir: &Path) -> io::Result<(Self, State)> {
        let file = disk.open(&dir.join(FILE))?;
        let mut record = Record::new_zeroed();
        let found = file.read_exact_at(record.as_mut_bytes(), 0).ok().and_then(|()| State::of_record(&record));
        Ok((Self(file), found.unwrap_or_default()))
    }

    /// Survives the process; power loss only with `durable`.
    pub fn write(&self, state: &State, durable: bool) -> io::Result<()> {
        self.0.write_all_at(state.to_record().as_bytes(), 0)?;
        if durable { self.0.sync_data() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_base::disk::MemoryDisk;

    #[test]
    fn a_state_comes_back_and_a_damaged_one_does_not() {
        let (disk, dir) = (MemoryDisk::default(), Path::new("/cache"));
        disk.create_dir_all(dir).unwrap();
        let (file, none) = StateFile::open(&disk, dir).unwrap();
        assert_eq!(none, State::default());
        let counts = ScrubCounts { segments: 5, bytes: 6, bad_segments: 7, unreadable_segments: 8, stale_slots: 9 };
        let state = State {
            clean: true,
            running: true,
            next_slot: 1,
            passes: 2,
            began_secs: 3,
            ended_secs: 4,
            counts,
            last: ScrubCounts { bytes: 1 << 40, ..counts },
        };
        file.write(&state, true).unwrap();
        assert_eq!(StateFile::open(&disk, dir).unwrap().1, state);
        for at in 0..128 {
            let mut byte = [0];
            file.0.read_exact_at(&mut byte, at).unwrap();
            file.0.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            assert_eq!(StateFile::open(&disk, dir).unwrap().1, State::default(), "byte {at}");
            file.0.write_all_at(&byte, at).unwrap();
        }
    }
}
