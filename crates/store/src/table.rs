//! The slot table on disk. docs/disk-format.md, "Cache directory", has the layout; the structs here are it.
//!
//! Records are written in place, one by one: each carries its own checksum, so a torn one costs its slot and no other, and a
//! terabyte's table of 256 MiB is never rewritten for a few changed slots. The two headers alternate.

use crate::CacheError;
use sluice_base::{
    Disk, DiskFile, ObjectId, VolumeId, crc::crc32c, limits::SEGMENT_BYTES, limits::SEGMENTS_PER_OBJECT,
};
use std::{io, path::Path, sync::Arc};
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

pub(crate) const FILE: &str = "slots";
const MAGIC: [u8; 8] = *b"SLUICESL";
const VERSION: u32 = 1;
/// Room of one header: a write of one never tears the other, whatever the sector size.
const HEADER_BYTES: u64 = 4096;
const RECORDS_AT: u64 = 2 * HEADER_BYTES;
pub(crate) const RECORD_BYTES: u64 = size_of::<Record>() as u64;
const _: () = assert!(RECORD_BYTES == 1024);

/// Slots of a slab at least: 1 GiB. Larger caches get larger slabs, so that 256 open files are enough for any.
const SLAB_SLOTS_MIN: u32 = 256;
const SLABS_MAX: u32 = 256;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HeaderBytes {
    // Magic and version stay where they are in every version.
    magic: [u8; 8],
    version: U32,
    slab_slots: U32,
    volume: [u8; 16],
    slots: U32,
    epoch: U32,
    reserved: [u8; 20],
    crc: U32,
}

/// What a table says about its directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    /// Slots of a slab file.
    pub(crate) slab_slots: u32,
    /// Slots that have a record.
    pub(crate) slots: u32,
    /// Grows with every open: the upper half of generations.
    pub(crate) epoch: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Empty,
    Clean,
    Dirty,
}

/// One slot. All zeros: empty.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Record {
    crc: U32,
    state: u8,
    reserved: [u8; 3],
    generation: U64,
    object: [u8; 16],
    index: U32,
    reserved_too: [u8; 28],
    lens: [U16; SEGMENTS_PER_OBJECT],
    crcs: [U32; SEGMENTS_PER_OBJECT],
    padding: [u8; 192],
}

impl Record {
    pub(crate) fn empty(index: u32, generation: u64) -> Self {
        let mut record = Self::new_zeroed();
        (record.index, record.generation) = (U32::new(index), U64::new(generation));
        record.sealed()
    }

    pub(crate) fn of(entry: &crate::entry::Entry) -> Self {
        let mut record = Self::new_zeroed();
        record.state = if entry.is_dirty() { State::Dirty } else { State::Clean } as u8;
        (record.index, record.generation) = (U32::new(entry.index), U64::new(entry.at.generation));
        record.object = entry.object.0;
        for (index, (len, crc)) in record.lens.iter_mut().zip(&mut record.crcs).enumerate() {
            let kept = entry.sums.get(index);
            if !kept.bad {
                (*len, *crc) = (U16::new(kept.sum.len as u16), U32::new(kept.sum.crc));
            }
        }
        record.sealed()
    }

    fn sealed(mut self) -> Self {
        self.crc = U32::new(crc32c(&self.as_bytes()[4..]));
        self
    }

    /// Whole, and of this slot.
    fn is_valid(&self, index: u32) -> bool {
        self.index.get() == index
            && self.state <= State::Dirty as u8
            && self.lens.iter().all(|len| usize::from(len.get()) <= SEGMENT_BYTES)
            && self.crc.get() == crc32c(&self.as_bytes()[4..])
    }

    pub(crate) fn state(&self) -> State {
        match self.state {
            1 => State::Clean,
            2 => State::Dirty,
            _ => State::Empty,
        }
    }

    pub(crate) fn object(&self) -> ObjectId {
        ObjectId(self.object)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    pub(crate) fn sum(&self, segment: usize) -> crate::SegmentSum {
        crate::SegmentSum { len: u32::from(self.lens[segment].get()), crc: self.crcs[segment].get() }
    }
}

/// The open table file.
pub(crate) struct Table {
    file: Arc<dyn DiskFile>,
    pub(crate) header: Header,
    /// The last write failed: which records are on disk is unknown.
    pub(crate) rewrite: bool,
}

impl Table {
    /// Opens or makes the table in `dir` for a cache of `slots` slots and begins a new epoch, which is durable on return.
    /// `now_secs` (wall clock) is the least epoch: it keeps generations apart even if the table was removed.
    pub(crate) fn open(
        disk: &dyn Disk,
        dir: &Path,
        volume: VolumeId,
        slots: u32,
        now_secs: u32,
    ) -> Result<Self, CacheError> {
        let path = dir.join(FILE);
        let file = disk.open(&path)?;
        let found = find_header(&*file, dir, volume)?;
        let header = match found {
            Some(old) => Header {
                slab_slots: old.slab_slots,
                slots: old.slots.max(slots),
                epoch: old.epoch.saturating_add(1).max(now_secs),
            },
            None => Header {
                slab_slots: slots.div_ceil(SLABS_MAX).next_power_of_two().max(SLAB_SLOTS_MIN),
                slots,
                epoch: now_secs,
            },
        };
        let table = Self { file, header, rewrite: false };
        if found.is_none() {
            // The other copy's place: on a disk that is full by then the next epoch must find it.
            table.file.write_all_at(&[0; HEADER_BYTES as usize], HEADER_BYTES)?;
        }
        table.write_header(volume, found.map(|old| old.epoch))?;
        disk.sync_dir(dir)?;
        Ok(table)
    }

    /// Over the copy that does not hold `previous`: epochs choose by their lowest bit unless that is the previous one's copy.
    fn write_header(&self, volume: VolumeId, previous: Option<u32>) -> io::Result<()> {
        let Header { slab_slots, slots, epoch } = self.header;
        let mut bytes = HeaderBytes {
            magic: MAGIC,
            version: U32::new(VERSION),
            slab_slots: U32::new(slab_slots),
            volume: volume.0,
            slots: U32::new(slots),
            epoch: U32::new(epoch),
            reserved: [0; 20],
            crc: U32::new(0),
        };
        bytes.crc = header_crc(&bytes);
        let mut copy = [0; HEADER_BYTES as usize];
        copy[..size_of::<HeaderBytes>()].copy_from_slice(bytes.as_bytes());
        let holds_previous = |at| previous.is_some() && read_header(&*self.file, at).map(|h| h.epoch.get()) == previous;
        let at = if holds_previous(0) { HEADER_BYTES } else { 0 };
        self.file.write_all_at(&copy, at)?;
        self.file.sync_data()
    }

    /// Hands every whole record to `each`.
    pub(crate) fn load(&self, mut each: impl FnMut(u32, &Record)) -> io::Result<()> {
        let records = (self.file.size()?.saturating_sub(RECORDS_AT) / RECORD_BYTES).min(u64::from(self.header.slots));
        let mut buf = vec![0; 1 << 20];
        let mut index = 0;
        while u64::from(index) < records {
            let bytes = ((records - u64::from(index)) * RECORD_BYTES).min(buf.len() as u64) as usize;
            self.file.read_exact_at(&mut buf[..bytes], RECORDS_AT + u64::from(index) * RECORD_BYTES)?;
            for record in buf[..bytes].chunks_exact(RECORD_BYTES as usize) {
                if let Ok(record) = Record::ref_from_bytes(record)
                    && record.is_valid(index)
                {
                    each(index, record);
                }
                index += 1;
            }
        }
        Ok(())
    }

    /// Writes records of consecutive slots.
    pub(crate) fn write(&self, first: u32, records: &[Record]) -> io::Result<()> {
        self.file.write_all_at(records.as_bytes(), RECORDS_AT + u64::from(first) * RECORD_BYTES)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn header_crc(bytes: &HeaderBytes) -> U32 {
    let bytes = bytes.as_bytes();
    U32::new(crc32c(&bytes[..bytes.len() - 4]))
}

fn read_header(file: &dyn DiskFile, at: u64) -> Option<HeaderBytes> {
    let mut bytes = HeaderBytes::new_zeroed();
    file.read_exact_at(bytes.as_mut_bytes(), at).ok()?;
    (bytes.magic == MAGIC && bytes.crc == header_crc(&bytes)).then_some(bytes)
}

/// The newer of the two headers; `None` in a new file, or in one whose first header was cut short by a crash.
fn find_header(file: &dyn DiskFile, dir: &Path, volume: VolumeId) -> Result<Option<Header>, CacheError> {
    if file.size()? == 0 {
        return Ok(None);
    }
    let mut best: Option<HeaderBytes> = None;
    let mut written = 0;
    for at in [0, HEADER_BYTES] {
        let mut bytes = HeaderBytes::new_zeroed();
        match file.read_exact_at(bytes.as_mut_bytes(), at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
            Err(error) => return Err(error.into()),
        }
        if bytes.magic == MAGIC && bytes.version.get() > VERSION {
            return Err(CacheError::NewerFormat { dir: dir.into(), found: bytes.version.get(), known: VERSION });
        }
        written += u32::from(bytes.as_bytes().iter().any(|byte| *byte != 0));
        if bytes.magic == MAGIC
            && bytes.crc == header_crc(&bytes)
            && best.is_none_or(|best| best.epoch.get() < bytes.epoch.get())
        {
            best = Some(bytes);
        }
    }
    let Some(best) = best else {
        let damaged = written == 2 || file.size()? > RECORDS_AT;
        return if damaged { Err(CacheError::Damaged { file: dir.join(FILE) }) } else { Ok(None) };
    };
    if best.volume != volume.0 {
        return Err(CacheError::OtherVolume { dir: dir.into(), found: VolumeId(best.volume), wanted: volume });
    }
    if best.slab_slots.get() == 0 {
        return Err(CacheError::Damaged { file: dir.join(FILE) });
    }
    Ok(Some(Header { slab_slots: best.slab_slots.get(), slots: best.slots.get(), epoch: best.epoch.get() }))
}
