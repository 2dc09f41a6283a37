//! The blobs: a header and records, which are packed. docs/disk-format.md, "Shipped metadata".

use crate::head::{FORMAT_VERSION, Head};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sluice_base::crc::crc32c;
use std::{borrow::Cow, ops::Range};

const MAGIC: &[u8; 8] = b"SLUICEMD";
const VERSION: u32 = 3;
/// magic 8, version u32, CRC u32, first u64, last u64, since u64, whole u64, start u64, fence u64, base u64, there u64, line u64, wall clock u64,
/// records u32, kind u32, packing u32, bytes of the records u32.
pub(crate) const HEADER_BYTES: usize = 112;
/// Records of a packed blob, unpacked: four times what one is made of. Whoever can write to the store decides what is read, not how much memory it takes.
const UNPACKED_BYTES_MAX: usize = 16 << 20;

/// How the records lie behind the header.
const PLAIN: u32 = 0;
/// One block of LZ4.
const LZ4: u32 = 1;

/// What a blob is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// The transactions `first` to `last`, a record each.
    Log = 1,
    /// Part number `last` of the checkpoint that began at `first`: records of keys with their values.
    Part = 2,
    /// No record: the log ends with `last` where another process goes on with it. What came behind that is void.
    Fence = 3,
}

/// A line of changes: a directory that goes on with a volume, and what it makes of it. Made anew with each volume, and whenever one is recovered
/// from its store: of two directories of a volume only the one whose line the store has may go on there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line(pub u64);

impl Line {
    /// That this line, the store's, is the one of a directory.
    pub fn check(self, here: Line) -> Result<(), OtherLine> {
        if self == here { Ok(()) } else { Err(OtherLine { store: self, here }) }
    }
}

/// The directory is not the one that goes on with the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the metadata in the store is of another line of changes ({store}, this directory has {here}): the volume was recovered from the store \
     since, and goes on elsewhere"
)]
pub struct OtherLine {
    store: Line,
    here: Line,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A blob whose checksum is right.
#[derive(Debug)]
pub(crate) struct Blob<'b> {
    pub(crate) about: About,
    body: Cow<'b, [u8]>,
    /// Where in it they are.
    records: Vec<Range<usize>>,
}

impl Blob<'_> {
    pub(crate) fn records(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.records.iter().map(|at| &self.body[at.clone()])
    }
}

/// What its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) kind: Kind,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Of the log: no record behind this one is missing in it.
    pub(crate) since: u64,
    /// The store had all bytes that the records up to this one speak of.
    pub(crate) whole: u64,
    /// Of the log: what the process that made it found when it began. Records behind those that the store had then are of use up to here only together:
    /// which objects were given up in between, or stored without what was overwritten later, it does not know.
    pub(crate) start: u64,
    /// Of the log: the number of the fence by which the process that made it began. Behind a later fence it is void.
    pub(crate) fence: u64,
    /// Of the log: the number in the name of the checkpoint that this process found, or made. One that somebody else has made since does not count.
    pub(crate) base: u64,
    /// Of the log: every blob with a number below this one was in the store when this was made.
    pub(crate) there: u64,
    /// Whose changes they are.
    pub(crate) line: Line,
    /// When it was made: seconds since 1970.
    pub(crate) wall_secs: u64,
}

/// The bytes are no blob that this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBlob {
    /// Too short, too long, or another file.
    #[error("it is no shipped metadata")]
    Other,
    /// Written by a newer version of this program.
    #[error("it has version {0}, and this sluice knows {VERSION}: use a newer one")]
    Newer(u32),
    /// It was there, is needed, and is not there any more.
    #[error("it is missing")]
    Missing,
    /// Its bytes have changed.
    #[error("its checksum does not match")]
    Checksum,
}

/// The bytes of a blob.
pub(crate) fn encode<R: AsRef<[u8]>>(about: About, records: &[R]) -> Bytes {
    let About { kind, first, last, since, whole, start, fence, base, there, line, wall_secs } = about;
    let mut body = Vec::with_capacity(records.iter().map(|record| 4 + record.as_ref().len()).sum());
    for record in records {
        body.extend((record.as_ref().len() as u32).to_le_bytes());
        body.extend_from_slice(record.as_ref());
    }
    let packed = (body.len() <= UNPACKED_BYTES_MAX).then(|| lz4_flex::block::compress(&body));
    let packed = packed.filter(|packed| packed.len() < body.len());
    let (packing, bytes) = packed.as_ref().map_or((PLAIN, &body), |packed| (LZ4, packed));
    let mut out = Vec::with_capacity(HEADER_BYTES + bytes.len());
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend([0; 4]);
    for number in [first, last, since, whole, start, fence, base, there, line.0, wall_secs] {
        out.extend(number.to_le_bytes());
    }
    for number in [records.len() as u32, kind as u32, packing, body.len() as u32] {
        out.extend(number.to_le_bytes());
    }
    out.extend_from_slice(bytes);
    let crc = crc32c(&out[16..]);
    out[12..16].copy_from_slice(&crc.to_le_bytes());
    out.into()
}

/// Parses any bytes.
pub(crate) fn decode(bytes: &[u8]) -> Result<Blob<'_>, BadBlob> {
    let (header, packed) = bytes.split_at_checked(HEADER_BYTES).ok_or(BadBlob::Other)?;
    let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
    if header[..8] != *MAGIC {
        return Err(BadBlob::Other);
    }
    match u32_at(8) {
        VERSION => {}
        newer if newer > VERSION => return Err(BadBlob::Newer(newer)),
        _ => return Err(BadBlob::Other),
    }
    if crc32c(&bytes[16..]) != u32_at(12) {
        return Err(BadBlob::Checksum);
    }
    let kind = match u32_at(100) {
        1 => Kind::Log,
        2 => Kind::Part,
        3 => Kind::Fence,
        _ => return Err(BadBlob::Other),
    };
    let body = unpacked(packed, u32_at(104), u32_at(108) as usize)?;
    let records = records(&body, u32_at(96)).ok_or(BadBlob::Other)?;
    let (first, last) = (u64_at(16), u64_at(24));
    let count = (last + u64::from(last != u64::MAX)).checked_sub(first);
    if kind != Kind::Part && count != Some(records.len() as u64) {
        return Err(BadBlob::Other);
    }
    let (since, whole, start, fence) = (u64_at(32), u64_at(40), u64_at(48), u64_at(56));
    let (base, there, line, wall_secs) = (u64_at(64), u64_at(72), Line(u64_at(80)), u64_at(88));
    let about = About { kind, first, last, since, whole, start, fence, base, there, line, wall_secs };
    Ok(Blob { about, body, records })
}

/// The records' bytes, of which there are `len`.
fn unpacked(packed: &[u8], packing: u32, len: usize) -> Result<Cow<'_, [u8]>, BadBlob> {
    match packing {
        PLAIN if packed.len() == len => Ok(packed.into()),
        LZ4 if len <= UNPACKED_BYTES_MAX => {
            let mut body = vec![0; len];
            match lz4_flex::block::decompress_into(packed, &mut body) {
                Ok(found) if found == len => Ok(body.into()),
                _ => Err(BadBlob::Other),
            }
        }
        _ => Err(BadBlob::Other),
    }
}

/// Where `count` records are that fill `body`.
fn records(body: &[u8], count: u32) -> Option<Vec<Range<usize>>> {
    let (mut records, mut at) = (Vec::new(), 0);
    for _ in 0..count {
        let len = u32::from_le_bytes(*body.get(at..)?.first_chunk()?) as usize;
        let end = (at + 4).checked_add(len).filter(|end| *end <= body.len())?;
        records.push(at + 4..end);
        at = end;
    }
    (at == body.len()).then_some(records)
}

/// Whether the bytes are a blob: for tests of the parser.
pub fn parse(bytes: &[u8]) -> Result<usize, BadBlob> {
    decode(bytes).map(|blob| blob.records().len())
}

/// Whether the bytes are a checkpoint's head: for tests of the parser.
pub fn parse_head(bytes: &[u8]) -> Result<(), BadBlob> {
    Head::parse(bytes).map(drop)
}

/// One of each kind: for tests of the parser.
pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let of = |kind| {
        let (first, last) = (5, if kind == Kind::Fence { 4 } else { 5 });
        let (since, whole, start, fence, base, there, line, wall_secs) =
            (3, 4, 4, 2, 1, 6, Line(0x1234_5678_9abc_def0), 1_700_000_000);
        About { kind, first, last, since, whole, start, fence, base, there, line, wall_secs }
    };
    let head = Head {
        format_version: FORMAT_VERSION,
        begin: 5,
        end: 6,
        log: 7,
        fence: 2,
        line: Line(3),
        run: 4,
        parts: 1,
        bytes: 93,
    };
    vec![
        ("log", encode(of(Kind::Log), &[b"a record"]).to_vec()),
        ("packed", encode(of(Kind::Log), &[[b'r'; 300]]).to_vec()),
        ("part", encode(of(Kind::Part), &[&b"one"[..], b""]).to_vec()),
        ("fence", encode::<&[u8]>(of(Kind::Fence), &[]).to_vec()),
        ("head", head.to_json().to_vec()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn about(kind: Kind, first: u64, last: u64) -> About {
        let (since, whole, start, fence, base, there, line, wall_secs) = (3, 4, 4, 2, 1, 6, Line(77), 99);
        About { kind, first, last, since, whole, start, fence, base, there, line, wall_secs }
    }

    #[test]
    fn blobs_are_read_back() {
        let records = [b"one".to_vec(), Vec::new(), vec![7; 300]];
        let bytes = encode(about(Kind::Log, 5, 7), &records);
        let blob = decode(&bytes).expect("sound");
        assert_eq!(blob.about, about(Kind::Log, 5, 7));
        assert!(blob.records().eq(records.iter().map(Vec::as_slice)));
        assert_eq!(decode(&encode(about(Kind::Log, 5, 8), &records)).unwrap_err(), BadBlob::Other);
        assert_eq!(decode(&encode(about(Kind::Part, 5, 0), &records)).unwrap().records().len(), 3);
        assert!(decode(&encode::<&[u8]>(about(Kind::Fence, 5, 4), &[])).is_ok());
        for at in 0..bytes.len() {
            let mut bad = bytes.to_vec();
            bad[at] ^= 4;
            assert!(decode(&bad).is_err(), "byte {at}");
            assert!(decode(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut bytes = encode::<&[u8]>(about(Kind::Part, 1, 0), &[]).to_vec();
        bytes[8] = 4;
        assert_eq!(decode(&bytes).unwrap_err(), BadBlob::Newer(4));
    }

    /// A blob with these bytes for its records, which are said to be so long, unpacked.
    fn packed(body: &[u8], packing: u32, len: u32) -> Vec<u8> {
        let mut bytes = encode(about(Kind::Part, 1, 0), &[b"r"]).to_vec();
        bytes.truncate(HEADER_BYTES);
        bytes[104..108].copy_from_slice(&packing.to_le_bytes());
        bytes[108..112].copy_from_slice(&len.to_le_bytes());
        bytes.extend(body);
        let crc = crc32c(&bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn records_are_packed_where_that_is_smaller() {
        let records = vec![vec![7_u8; 1000]; 10];
        let bytes = encode(about(Kind::Part, 1, 0), &records);
        assert!(bytes.len() < 300, "{} bytes", bytes.len());
        assert!(decode(&bytes).expect("sound").records().eq(records.iter().map(Vec::as_slice)));
        let noise: Vec<u8> = (0..200_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        assert_eq!(encode(about(Kind::Part, 1, 0), &[&noise]).len(), HEADER_BYTES + 4 + noise.len());
    }

    #[test]
    fn a_blob_decides_not_how_much_memory_it_takes() {
        let record = [&(UNPACKED_BYTES_MAX as u32 - 4).to_le_bytes()[..], &vec![0; UNPACKED_BYTES_MAX - 4]].concat();
        let squeezed = lz4_flex::block::compress(&record);
        assert!(decode(&packed(&squeezed, LZ4, record.len() as u32)).is_ok());
        assert_eq!(decode(&packed(&squeezed, LZ4, record.len() as u32 - 1)).unwrap_err(), BadBlob::Other);
        assert_eq!(decode(&packed(&squeezed, LZ4, record.len() as u32 + 1)).unwrap_err(), BadBlob::Other, "too long");
        assert_eq!(decode(&packed(&squeezed, LZ4, u32::MAX)).unwrap_err(), BadBlob::Other, "4 GiB");
        assert_eq!(decode(&packed(b"\x01\0\0\0r", PLAIN, 6)).unwrap_err(), BadBlob::Other);
        assert_eq!(decode(&packed(b"\x01\0\0\0r", 2, 5)).unwrap_err(), BadBlob::Other, "another packing");
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut framed = encode(about(Kind::Log, 1, 1), std::slice::from_ref(&bytes)).to_vec();
            framed.truncate(HEADER_BYTES);
            framed.extend(&bytes);
            let crc = crc32c(&framed[16..]);
            framed[12..16].copy_from_slice(&crc.to_le_bytes());
            let _ = (decode(&bytes), decode(&framed), decode(&packed(&bytes, LZ4, 1000)));
        }
    }
}
