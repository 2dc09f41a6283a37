//! What lies behind the last record of the last segment: nothing, an unsynced tail of which the disk kept some, or damage.

use crate::format::{
    ALIGN, ParseError, Place, RECORD_HEADER_BYTES, RECORD_MAGIC, claimed_bytes, claimed_seq, parse_record,
};
use sluice_base::Seq;

#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Valid records behind the first that is not.
    pub records: u64,
    /// Bytes up to the end of what can be recognized.
    pub bytes: u64,
    /// Highest seq that those records say was durable.
    pub evidence: Seq,
    /// One of them was written in this boot, so the page cache cannot have lost the one that is missing.
    pub same_boot: bool,
}

/// Searches `behind`, where the record `missing` should start. `boot` is the tag of this boot, 0 when not known.
pub(super) fn examine(behind: &[u8], place: Place, missing: Seq, boot: u64) -> Tail {
    let mut tail = Tail::default();
    // A recycled segment is full of old records, so a header counts only if it claims to be the missing one.
    if let (Err(ParseError::BadChecksum | ParseError::Incomplete), Some(stored_bytes)) =
        (parse_record(behind, place), claimed_bytes(behind, missing))
    {
        tail.bytes = stored_bytes.min(behind.len()) as u64;
    }
    let seq_max = missing.0.saturating_add((behind.len() / RECORD_HEADER_BYTES) as u64);
    let magic = memchr::memmem::Finder::new(&RECORD_MAGIC);
    let mut at = ALIGN;
    while let Some(next) = behind.get(at..).and_then(|rest| magic.find(rest)) {
        // Payloads may have the magic anywhere; records begin at multiples of the alignment.
        let found = at + next;
        at = found.next_multiple_of(ALIGN);
        if at > found {
            continue;
        }
        match parse_record_if_near(&behind[at..], place, missing.0 + 1..=seq_max) {
            Some(record) => {
                at += record.stored_bytes;
                tail.records += 1;
                tail.bytes = tail.bytes.max(at as u64);
                tail.evidence = tail.evidence.max(record.synced);
                tail.same_boot |= boot != 0 && record.boot == boot;
            }
            None => at += ALIGN,
        }
    }
    tail
}

/// The checksum is the expensive part, so the seq is looked at first.
fn parse_record_if_near(bytes: &[u8], place: Place, seqs: std::ops::RangeInclusive<u64>) -> Option<crate::Record<'_>> {
    seqs.contains(&claimed_seq(bytes)?.0).then(|| parse_record(bytes, place).ok())?
}
