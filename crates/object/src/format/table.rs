//! Table and footer: the part of an object after its segments.

use super::{FOOTER_BYTES, FormatError, StoredObject, TABLE_ENTRY_BYTES, VERSION, tail_len};
use bytes::Bytes;
use sluice_base::{
    ObjectId,
    crc::{crc32c, segment_crc},
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use std::ops::Range;

const MAGIC: [u8; 8] = *b"SLUICEOB";

// Footer, offsets from its start.
const VERSION_AT: usize = MAGIC.len();
const FLAGS_AT: usize = VERSION_AT + 2;
const COUNT_AT: usize = FLAGS_AT + 2;
const ID_AT: usize = COUNT_AT + 4;
const SALT_AT: usize = ID_AT + 16;
const DATA_BYTES_AT: usize = SALT_AT + 16;
const TABLE_CRC_AT: usize = DATA_BYTES_AT + 8;
const FOOTER_CRC_AT: usize = TABLE_CRC_AT + 4;
const _: () = assert!(FOOTER_CRC_AT + 4 == FOOTER_BYTES);

// Table entry, offsets from its start.
const CODEC_AT: usize = 0;
const STORED_LEN_AT: usize = 4;
const CRC_AT: usize = STORED_LEN_AT + 4;
const TAG_AT: usize = CRC_AT + 8;
const _: () = assert!(TAG_AT + 16 == TABLE_ENTRY_BYTES);

/// How a segment's bytes are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Codec {
    /// The bytes died before upload: nothing is stored, and nothing refers to them.
    Absent = 0,
    /// As they are.
    Plain = 1,
    // 2 and 3 are reserved for zstd and lz4.
}

/// A segment as its object's table has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentEntry {
    /// How the bytes are stored.
    pub codec: Codec,
    /// Stored length in bytes: 0 when absent, else 1 to 32 KiB.
    pub stored_len: u32,
    /// [`segment_crc`] of the stored bytes; 0 when absent.
    pub crc: u32,
    /// Authentication tag of an encrypted segment, else zeros.
    pub tag: [u8; 16],
}

impl SegmentEntry {
    /// A segment that is not stored.
    pub const ABSENT: Self = Self { codec: Codec::Absent, stored_len: 0, crc: 0, tag: [0; 16] };

    /// Whether any bytes are stored.
    pub fn is_present(&self) -> bool {
        self.codec != Codec::Absent
    }

    fn check(&self, is_last: bool) -> Result<(), FormatError> {
        match self.codec {
            Codec::Absent if *self == Self::ABSENT => Ok(()),
            Codec::Absent => Err(FormatError::Invalid("an absent segment has a length, sum or tag")),
            Codec::Plain if self.tag != [0; 16] => Err(FormatError::Invalid("a plain segment has a tag")),
            Codec::Plain if self.stored_len == SEGMENT_BYTES as u32 => Ok(()),
            Codec::Plain if is_last && (1..SEGMENT_BYTES as u32).contains(&self.stored_len) => Ok(()),
            Codec::Plain => {
                Err(FormatError::Invalid("a plain segment before the last is not full, or the last one empty"))
            }
        }
    }
}

/// The table of one object: always one that a writer may produce.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectTable {
    segments: Vec<SegmentEntry>,
    salt: [u8; 16],
}

impl ObjectTable {
    /// A table of these entries; the error says which rule they break. `salt` is zeros unless the object is encrypted.
    pub fn new(segments: Vec<SegmentEntry>, salt: [u8; 16]) -> Result<Self, FormatError> {
        if segments.is_empty() || segments.len() > SEGMENTS_PER_OBJECT {
            return Err(FormatError::Invalid("an object has 1 to 128 segments"));
        }
        let last = segments.len() - 1;
        segments.iter().enumerate().try_for_each(|(i, entry)| entry.check(i == last))?;
        Ok(Self { segments, salt })
    }

    /// The table of a plain object; `None` is an absent segment. Every segment but the last must be full.
    pub fn plain(object: ObjectId, segments: &[Option<Bytes>]) -> Result<Self, FormatError> {
        let entry = |(index, segment): (usize, &Option<Bytes>)| match segment {
            None => SegmentEntry::ABSENT,
            Some(bytes) => SegmentEntry {
                codec: Codec::Plain,
                stored_len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                crc: segment_crc(object, index as u32, bytes),
                tag: [0; 16],
            },
        };
        Self::new(segments.iter().enumerate().map(entry).collect(), [0; 16])
    }

    /// All entries, absent ones included.
    pub fn segments(&self) -> &[SegmentEntry] {
        &self.segments
    }

    /// Number of entries: 1 to 128.
    pub fn segment_count(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Length of all stored segments: where the table begins in the object.
    pub fn data_bytes(&self) -> u64 {
        self.segments.iter().map(|entry| u64::from(entry.stored_len)).sum()
    }

    /// The record of `object` with this table.
    pub fn stored_object(&self, object: ObjectId) -> StoredObject {
        let stored_bytes = self.data_bytes() + tail_len(self.segment_count()) as u64;
        StoredObject::new(object, self.segment_count(), stored_bytes).expect("a table holds what a record allows")
    }

    /// Where segment `index` lies in the object: empty when absent, `None` past the last.
    pub fn segment_range(&self, index: u32) -> Option<Range<u64>> {
        let entry = self.segments.get(index as usize)?;
        let start: u64 = self.segments[..index as usize].iter().map(|entry| u64::from(entry.stored_len)).sum();
        Some(start..start + u64::from(entry.stored_len))
    }

    /// Whether `stored` are the bytes that were stored as segment `index` of `object`.
    pub fn verifies(&self, object: ObjectId, index: u32, stored: &[u8]) -> bool {
        self.segments.get(index as usize).is_some_and(|entry| {
            entry.stored_len as usize == stored.len()
                && (!entry.is_present() || entry.crc == segment_crc(object, index, stored))
        })
    }
}

/// Table and footer as they follow the segments of `object`: [`tail_len`] bytes.
pub fn encode_tail(object: ObjectId, table: &ObjectTable) -> Vec<u8> {
    let mut tail = vec![0; tail_len(table.segment_count())];
    let (entries, footer) = tail.split_at_mut(table.segments.len() * TABLE_ENTRY_BYTES);
    for (out, entry) in entries.chunks_exact_mut(TABLE_ENTRY_BYTES).zip(&table.segments) {
        out[CODEC_AT] = entry.codec as u8;
        put(out, STORED_LEN_AT, &entry.stored_len.to_le_bytes());
        put(out, CRC_AT, &entry.crc.to_le_bytes());
        put(out, TAG_AT, &entry.tag);
    }
    put(footer, 0, &MAGIC);
    put(footer, VERSION_AT, &VERSION.to_le_bytes());
    put(footer, COUNT_AT, &table.segment_count().to_le_bytes());
    put(footer, ID_AT, &object.0);
    put(footer, SALT_AT, &table.salt);
    put(footer, DATA_BYTES_AT, &table.data_bytes().to_le_bytes());
    put(footer, TABLE_CRC_AT, &crc32c(entries).to_le_bytes());
    let crc = crc32c(&footer[..FOOTER_CRC_AT]);
    put(footer, FOOTER_CRC_AT, &crc.to_le_bytes());
    tail
}

/// Reads the tail of `object`. `end` is any run of the object's bytes that reaches to its end and holds the whole tail.
pub fn decode_tail(object: ObjectId, end: &[u8]) -> Result<ObjectTable, FormatError> {
    let invalid = |text| Err(FormatError::Invalid(text));
    let Some((rest, footer)) = end.split_last_chunk::<FOOTER_BYTES>() else {
        return invalid("shorter than a footer");
    };
    if footer[..VERSION_AT] != MAGIC {
        return invalid("no footer of an object");
    }
    // Magic, version and the footer's own CRC stay where they are in every version: damage is told from a newer version.
    if u32_at(footer, FOOTER_CRC_AT) != crc32c(&footer[..FOOTER_CRC_AT]) {
        return invalid("the footer's checksum does not match");
    }
    let version = u16::from_le_bytes([footer[VERSION_AT], footer[VERSION_AT + 1]]);
    if version > VERSION {
        return Err(FormatError::Newer { found: version, supported: VERSION });
    }
    if version == 0 || footer[FLAGS_AT..COUNT_AT] != [0; 2] {
        return invalid("unknown flags or version 0");
    }
    if footer[ID_AT..SALT_AT] != object.0 {
        return invalid("the footer names another object");
    }
    let count = u32_at(footer, COUNT_AT) as usize;
    if count == 0 || count > SEGMENTS_PER_OBJECT || rest.len() < count * TABLE_ENTRY_BYTES {
        return invalid("the segment count does not fit");
    }
    let entries = &rest[rest.len() - count * TABLE_ENTRY_BYTES..];
    if u32_at(footer, TABLE_CRC_AT) != crc32c(entries) {
        return invalid("the table's checksum does not match");
    }
    let segments = entries.chunks_exact(TABLE_ENTRY_BYTES).map(decode_entry).collect::<Result<_, _>>()?;
    let table = ObjectTable::new(segments, array_at(footer, SALT_AT))?;
    if u64::from_le_bytes(array_at(footer, DATA_BYTES_AT)) != table.data_bytes() {
        return invalid("the footer and the table disagree about the length");
    }
    Ok(table)
}

fn decode_entry(entry: &[u8]) -> Result<SegmentEntry, FormatError> {
    let codec = match entry[CODEC_AT] {
        0 => Codec::Absent,
        1 => Codec::Plain,
        _ => return Err(FormatError::Invalid("a codec that this version of the format does not have")),
    };
    if entry[CODEC_AT + 1..STORED_LEN_AT] != [0; 3] || entry[CRC_AT + 4..TAG_AT] != [0; 4] {
        return Err(FormatError::Invalid("reserved bytes are not zero"));
    }
    let (stored_len, crc) = (u32_at(entry, STORED_LEN_AT), u32_at(entry, CRC_AT));
    Ok(SegmentEntry { codec, stored_len, crc, tag: array_at(entry, TAG_AT) })
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn array_at<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    from[at..at + N].try_into().expect("the slice has N bytes")
}

fn u32_at(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(from, at))
}
