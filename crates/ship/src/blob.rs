//! The blobs: a header and records. docs/disk-format.md, "Shipped metadata".

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sluice_base::{Seq, crc::crc32c};

const MAGIC: &[u8; 8] = b"SLUICEMD";
const VERSION: u32 = 2;
/// magic 8, version u32, CRC u32, first u64, last u64, since u64, whole u64, start u64, fence u64, base u64, line u64, wall clock u64, records u32, kind u32.
pub(crate) const HEADER_BYTES: usize = 96;

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
    pub(crate) records: Vec<&'b [u8]>,
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
    /// Part of a checkpoint, and not there.
    #[error("it is missing")]
    Missing,
    /// Its bytes have changed.
    #[error("its checksum does not match")]
    Checksum,
}

/// The bytes of a blob.
pub(crate) fn encode<R: AsRef<[u8]>>(about: About, records: &[R]) -> Bytes {
    let About { kind, first, last, since, whole, start, fence, base, line, wall_secs } = about;
    let len = records.iter().map(|record| 4 + record.as_ref().len()).sum::<usize>();
    let mut out = Vec::with_capacity(HEADER_BYTES + len);
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend([0; 4]);
    [first, last, since, whole, start, fence, base, line.0, wall_secs]
        .iter()
        .for_each(|number| out.extend(number.to_le_bytes()));
    out.extend((records.len() as u32).to_le_bytes());
    out.extend((kind as u32).to_le_bytes());
    for record in records {
        out.extend((record.as_ref().len() as u32).to_le_bytes());
        out.extend_from_slice(record.as_ref());
    }
    let crc = crc32c(&out[16..]);
    out[12..16].copy_from_slice(&crc.to_le_bytes());
    out.into()
}

/// Parses any bytes.
pub(crate) fn decode(bytes: &[u8]) -> Result<Blob<'_>, BadBlob> {
    let (header, mut rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(BadBlob::Other)?;
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
    let kind = match u32_at(92) {
        1 => Kind::Log,
        2 => Kind::Part,
        3 => Kind::Fence,
        _ => return Err(BadBlob::Other),
    };
    let mut records = Vec::new();
    for _ in 0..u32_at(88) {
        let (len, tail) = rest.split_first_chunk::<4>().ok_or(BadBlob::Other)?;
        let (record, tail) = tail.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or(BadBlob::Other)?;
        records.push(record);
        rest = tail;
    }
    let (first, last) = (u64_at(16), u64_at(24));
    let count = (last + u64::from(last != u64::MAX)).checked_sub(first);
    let is_sound = kind == Kind::Part || count == Some(records.len() as u64);
    if !rest.is_empty() || !is_sound {
        return Err(BadBlob::Other);
    }
    let (since, whole, start, fence) = (u64_at(32), u64_at(40), u64_at(48), u64_at(56));
    let (base, line, wall_secs) = (u64_at(64), Line(u64_at(72)), u64_at(80));
    let about = About { kind, first, last, since, whole, start, fence, base, line, wall_secs };
    Ok(Blob { about, records })
}

/// Whether the bytes are a blob: for tests of the parser.
pub fn parse(bytes: &[u8]) -> Result<usize, BadBlob> {
    decode(bytes).map(|blob| blob.records.len())
}

/// Whether the bytes are a checkpoint's head: for tests of the parser.
pub fn parse_head(bytes: &[u8]) -> Result<(), BadBlob> {
    Head::parse(bytes).map(drop)
}

/// One of each kind: for tests of the parser.
pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let of = |kind| {
        let (first, last) = (5, if kind == Kind::Fence { 4 } else { 5 });
        let (since, whole, start, fence, base, line, wall_secs) =
            (3, 4, 4, 2, 1, Line(0x1234_5678_9abc_def0), 1_700_000_000);
        About { kind, first, last, since, whole, start, fence, base, line, wall_secs }
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
        ("part", encode(of(Kind::Part), &[&b"one"[..], b""]).to_vec()),
        ("fence", encode::<&[u8]>(of(Kind::Fence), &[]).to_vec()),
        ("head", head.to_json().to_vec()),
    ]
}

/// A checkpoint's head, as JSON: what is needed to use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) format_version: u32,
    /// The checkpoint began at this record...
    pub(crate) begin: u64,
    /// ... and ended at this one: it needs the log from the first to here.
    pub(crate) end: u64,
    /// The blob of the log that comes next.
    pub(crate) log: u64,
    /// The fence by which the process that made it began.
    pub(crate) fence: u64,
    pub(crate) line: Line,
    pub(crate) run: u64,
    pub(crate) parts: u32,
    pub(crate) bytes: u64,
}

/// The newest layout of it.
pub(crate) const FORMAT_VERSION: u32 = 2;

impl Head {
    pub(crate) fn begin(&self) -> Seq {
        Seq(self.begin)
    }

    /// Parses any bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadBlob> {
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|_| BadBlob::Other)?;
        match value["format_version"].as_u64().and_then(|version| u32::try_from(version).ok()) {
            Some(FORMAT_VERSION) => serde_json::from_value(value).map_err(|_| BadBlob::Other),
            Some(newer) if newer > FORMAT_VERSION => Err(BadBlob::Newer(newer)),
            _ => Err(BadBlob::Other),
        }
    }

    pub(crate) fn to_json(&self) -> Bytes {
        (serde_json::to_string_pretty(self).expect("plain data") + "\n").into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn about(kind: Kind, first: u64, last: u64) -> About {
        About { kind, first, last, since: 3, whole: 4, start: 4, fence: 2, base: 1, line: Line(77), wall_secs: 99 }
    }

    #[test]
    fn blobs_are_read_back() {
        let records = [b"one".to_vec(), Vec::new(), vec![7; 300]];
        let bytes = encode(about(Kind::Log, 5, 7), &records);
        let blob = decode(&bytes).expect("sound");
        assert_eq!(blob.about, about(Kind::Log, 5, 7));
        assert_eq!(blob.records, records.each_ref().map(Vec::as_slice));
        assert_eq!(decode(&encode(about(Kind::Log, 5, 8), &records)).unwrap_err(), BadBlob::Other);
        assert_eq!(decode(&encode(about(Kind::Part, 5, 0), &records)).unwrap().records.len(), 3);
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
        bytes[8] = 3;
        assert_eq!(decode(&bytes).unwrap_err(), BadBlob::Newer(3));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut framed = encode(about(Kind::Log, 1, 1), std::slice::from_ref(&bytes)).to_vec();
            framed.truncate(HEADER_BYTES);
            framed.extend(&bytes);
            let crc = crc32c(&framed[16..]);
            framed[12..16].copy_from_slice(&crc.to_le_bytes());
            let _ = (decode(&bytes), decode(&framed));
        }
    }
}
