//! Bytes of segments and records; docs/disk-format.md has the tables. Pure: no I/O, and no input makes it panic.

use crate::Class;
use sluice_base::{
    Seq, VolumeId,
    crc::{Crc32c, crc32c},
};

/// Version of the format that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// Most payload of one record: 2 MiB.
pub const RECORD_BYTES_MAX: usize = 2 << 20;
/// Records start on multiples of this, so that recovery can look for them.
pub(crate) const ALIGN: usize = 8;

const SEGMENT_MAGIC: [u8; 8] = *b"SLUICEJL";
pub(crate) const RECORD_MAGIC: [u8; 4] = *b"JREC";
const MARK_MAGIC: [u8; 4] = *b"JSYN";

mod segment {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = MAGIC + 8;
    pub const CRC: usize = VERSION + 4;
    pub const VOLUME: usize = CRC + 4;
    pub const NUMBER: usize = VOLUME + 16;
    pub const FIRST_SEQ: usize = NUMBER + 8;
    pub const SYNCED: usize = FIRST_SEQ + 8;
    pub const BYTES: usize = SYNCED + 8;
    pub const END: usize = BYTES + 8;
    /// In a sector of its own: it is rewritten in place and a tear must not reach the header.
    pub const MARK: usize = 512;
}

mod mark {
    pub const MAGIC: usize = 0;
    pub const CRC: usize = MAGIC + 4;
    pub const SYNCED: usize = CRC + 4;
    pub const END: usize = SYNCED + 8;
}

mod record {
    pub const MAGIC: usize = 0;
    pub const CRC: usize = MAGIC + 4;
    pub const LENGTH: usize = CRC + 4;
    pub const CLASS: usize = LENGTH + 4;
    pub const RESERVED: usize = CLASS + 1;
    pub const SEQ: usize = RESERVED + 3;
    pub const SYNCED: usize = SEQ + 8;
    pub const BOOT: usize = SYNCED + 8;
    pub const PAYLOAD: usize = BOOT + 8;
}

/// Bytes before a record's payload.
pub const RECORD_HEADER_BYTES: usize = record::PAYLOAD;
/// Where the first record of a segment starts: header and mark have a page of their own.
pub const SEGMENT_HEADER_BYTES: u64 = 4096;
pub(crate) const MARK_OFFSET: u64 = segment::MARK as u64;

/// Where a record lies; its checksum holds only there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// The place of all records of segment `number` of `volume`.
    pub fn new(volume: VolumeId, number: u64) -> Self {
        let mut crc = Crc32c::default();
        crc.update(&volume.0);
        crc.update(&number.to_le_bytes());
        Self(crc.value())
    }
}

/// A record in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its number.
    pub seq: Seq,
    /// Everything up to here was durable when the record was appended.
    pub synced: Seq,
    /// Tag of the boot that it was appended in.
    pub boot: u64,
    /// Whose share of the room it took.
    pub class: Class,
    /// What was appended.
    pub payload: &'a [u8],
    /// Bytes from the start of this record to the next one's.
    pub stored_bytes: usize,
}

/// Why there is no valid record at the start of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The bytes do not start like a record.
    #[error("no record starts here")]
    NoRecord,
    /// The buffer ends before the record does.
    #[error("the record is cut short")]
    Incomplete,
    /// A field has a value that is never written.
    #[error("a field of the record header is out of range")]
    BadHeader,
    /// The bytes are not those that were written, or not at this place.
    #[error("the record's checksum does not match")]
    BadChecksum,
}

/// The record at the start of `bytes`, which may go on behind it.
pub fn parse_record(bytes: &[u8], place: Place) -> Result<Record<'_>, ParseError> {
    if !bytes.starts_with(&RECORD_MAGIC) {
        return Err(ParseError::NoRecord);
    }
    let header = bytes.get(..RECORD_HEADER_BYTES).ok_or(ParseError::Incomplete)?;
    let payload_bytes = u32_at(header, record::LENGTH) as usize;
    let (seq, synced) = (u64_at(header, record::SEQ), u64_at(header, record::SYNCED));
    let class = match header[record::CLASS] {
        1 => Class::Metadata,
        2 => Class::Data,
        _ => return Err(ParseError::BadHeader),
    };
    if payload_bytes > RECORD_BYTES_MAX || synced >= seq || header[record::RESERVED..record::SEQ] != [0; 3] {
        return Err(ParseError::BadHeader);
    }
    let stored_bytes = stored_bytes(payload_bytes);
    let stored = bytes.get(..stored_bytes).ok_or(ParseError::Incomplete)?;
    if crc32c(&stored[record::LENGTH..]) ^ place.0 != u32_at(header, record::CRC) {
        return Err(ParseError::BadChecksum);
    }
    let payload = &stored[record::PAYLOAD..record::PAYLOAD + payload_bytes];
    Ok(Record { seq: Seq(seq), synced: Seq(synced), boot: u64_at(header, record::BOOT), class, payload, stored_bytes })
}

/// The seq that a record header at the start of `bytes` claims, unchecked.
pub(crate) fn claimed_seq(bytes: &[u8]) -> Option<Seq> {
    let header = bytes.get(..RECORD_HEADER_BYTES).filter(|header| header.starts_with(&RECORD_MAGIC))?;
    Some(Seq(u64_at(header, record::SEQ)))
}

/// Bytes that a record at the start of `bytes` claims to take, if it claims to be `seq`; unchecked.
pub(crate) fn claimed_bytes(bytes: &[u8], seq: Seq) -> Option<usize> {
    let claimed = claimed_seq(bytes)?;
    (claimed == seq).then(|| stored_bytes(u32_at(bytes, record::LENGTH) as usize))
}

/// Bytes that a record with so much payload takes, padding included.
pub(crate) fn stored_bytes(payload_bytes: usize) -> usize {
    (RECORD_HEADER_BYTES + payload_bytes).next_multiple_of(ALIGN)
}

/// What a record header says besides its payload.
pub(crate) struct Envelope {
    pub seq: Seq,
    pub synced: Seq,
    pub boot: u64,
    pub class: Class,
    pub place: Place,
}

/// Puts a record with the payload `parts` behind what is in `buffer`.
pub(crate) fn put_record(buffer: &mut Vec<u8>, envelope: &Envelope, parts: &[&[u8]]) {
    let start = buffer.len();
    buffer.resize(start + RECORD_HEADER_BYTES, 0);
    parts.iter().for_each(|part| buffer.extend_from_slice(part));
    let payload_bytes = buffer.len() - start - RECORD_HEADER_BYTES;
    buffer.resize(start + stored_bytes(payload_bytes), 0);
    let buffer = &mut buffer[start..];
    buffer[record::MAGIC..record::CRC].copy_from_slice(&RECORD_MAGIC);
    buffer[record::LENGTH..record::CLASS].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    buffer[record::CLASS] = match envelope.class {
        Class::Metadata => 1,
        Class::Data => 2,
    };
    buffer[record::SEQ..record::SYNCED].copy_from_slice(&envelope.seq.0.to_le_bytes());
    buffer[record::SYNCED..record::BOOT].copy_from_slice(&envelope.synced.0.to_le_bytes());
    buffer[record::BOOT..record::PAYLOAD].copy_from_slice(&envelope.boot.to_le_bytes());
    let crc = crc32c(&buffer[record::LENGTH..]) ^ envelope.place.0;
    buffer[record::CRC..record::LENGTH].copy_from_slice(&crc.to_le_bytes());
}

/// What the first page of a segment says. It is written once, and synced before the segment gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Whose journal this is.
    pub volume: VolumeId,
    /// Numbers of successive segments are contiguous.
    pub number: u64,
    /// Seq of the first record.
    pub first_seq: Seq,
    /// Everything up to here was durable before this segment existed.
    pub synced: Seq,
    /// Size of the file.
    pub bytes: u64,
}

/// Why a page is no segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    Newer(u32),
    Damaged,
}

impl SegmentHeader {
    /// The first page of the segment, without a mark.
    pub(crate) fn to_page(self) -> Vec<u8> {
        let mut page = vec![0; SEGMENT_HEADER_BYTES as usize];
        page[segment::MAGIC..segment::VERSION].copy_from_slice(&SEGMENT_MAGIC);
        page[segment::VERSION..segment::CRC].copy_from_slice(&VERSION.to_le_bytes());
        page[segment::VOLUME..segment::NUMBER].copy_from_slice(&self.volume.0);
        page[segment::NUMBER..segment::FIRST_SEQ].copy_from_slice(&self.number.to_le_bytes());
        page[segment::FIRST_SEQ..segment::SYNCED].copy_from_slice(&self.first_seq.0.to_le_bytes());
        page[segment::SYNCED..segment::BYTES].copy_from_slice(&self.synced.0.to_le_bytes());
        page[segment::BYTES..segment::END].copy_from_slice(&self.bytes.to_le_bytes());
        let crc = crc32c(&page[segment::VOLUME..segment::END]);
        page[segment::CRC..segment::VOLUME].copy_from_slice(&crc.to_le_bytes());
        page
    }

    pub(crate) fn parse(page: &[u8]) -> Result<Self, HeaderError> {
        if page.len() < segment::END || !page.starts_with(&SEGMENT_MAGIC) {
            return Err(HeaderError::Damaged);
        }
        let version = u32_at(page, segment::VERSION);
        if version > VERSION {
            return Err(HeaderError::Newer(version));
        }
        if version == 0 || crc32c(&page[segment::VOLUME..segment::END]) != u32_at(page, segment::CRC) {
            return Err(HeaderError::Damaged);
        }
        let volume = VolumeId(page[segment::VOLUME..segment::NUMBER].try_into().expect("16 bytes"));
        Ok(Self {
            volume,
            number: u64_at(page, segment::NUMBER),
            first_seq: Seq(u64_at(page, segment::FIRST_SEQ)),
            synced: Seq(u64_at(page, segment::SYNCED)),
            bytes: u64_at(page, segment::BYTES),
        })
    }
}

/// A note in a segment's first page that everything up to `synced` is durable: evidence for records that no later record vouches
/// for. Losing it costs nothing but that evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Everything up to here was durable when the mark was written.
    pub synced: Seq,
}

impl Mark {
    pub(crate) fn to_bytes(self, place: Place) -> [u8; mark::END] {
        let mut bytes = [0; mark::END];
        bytes[mark::MAGIC..mark::CRC].copy_from_slice(&MARK_MAGIC);
        bytes[mark::SYNCED..].copy_from_slice(&self.synced.0.to_le_bytes());
        let crc = crc32c(&bytes[mark::SYNCED..]) ^ place.0;
        bytes[mark::CRC..mark::SYNCED].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The mark in a segment's first page, if there is one.
    pub(crate) fn find(page: &[u8], place: Place) -> Option<Self> {
        let bytes = page.get(segment::MARK..segment::MARK + mark::END)?;
        let valid =
            bytes.starts_with(&MARK_MAGIC) && crc32c(&bytes[mark::SYNCED..]) ^ place.0 == u32_at(bytes, mark::CRC);
        valid.then(|| Self { synced: Seq(u64_at(bytes, mark::SYNCED)) })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests;
