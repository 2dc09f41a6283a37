//! What the vfs adds to log records, so that a restart finds the data of objects that are not stored yet.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | version: 1 |
//! | 1 | kind: 1 = data follows in the record, 2 = data is in the slot |
//! | 1 | 1 when a slot is named |
//! | 1 | zero |
//! | 16 | object id |
//! | 4 | offset in the object |
//! | 4 | length |
//! | 4, 4, 8 | slab, slot, generation (zeros when no slot is named) |
//! | 8 each | kind 2: length and CRC of every segment that the run touches, from its first one |
//!
//! All little-endian. Source of the kinds: DESIGN "Writes".

use sluice_base::{ObjectId, limits::SEGMENT_BYTES};
use sluice_store::{SegmentSum, SlotLocation};

const VERSION: u8 = 1;
const FIXED_BYTES: usize = 44;

/// Where a piece of an object's data is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataNote {
    /// The object.
    pub object: ObjectId,
    /// First byte in the object.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
    /// The slot that holds the object, when one does.
    pub slot: Option<SlotLocation>,
    /// For data that is only in the slot: the sums of the segments that it touches, as they are after it.
    pub sums: Option<Vec<SegmentSum>>,
}

impl DataNote {
    /// The first segment that the run touches.
    pub fn first_segment(&self) -> u32 {
        self.offset / SEGMENT_BYTES as u32
    }

    /// The header of an attachment.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED_BYTES + self.sums.as_ref().map_or(0, |sums| sums.len() * 8));
        out.extend([VERSION, if self.sums.is_some() { 2 } else { 1 }, u8::from(self.slot.is_some()), 0]);
        out.extend(self.object.0);
        out.extend(self.offset.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        let slot = self.slot.unwrap_or(SlotLocation { slab: 0, slot: 0, generation: 0 });
        out.extend(slot.slab.to_le_bytes());
        out.extend(slot.slot.to_le_bytes());
        out.extend(slot.generation.to_le_bytes());
        for sum in self.sums.iter().flatten() {
            out.extend(sum.len.to_le_bytes());
            out.extend(sum.crc.to_le_bytes());
        }
        out
    }

    /// The note in an attachment's header; `None` when it is none of ours.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (fixed, sums) = bytes.split_at_checked(FIXED_BYTES)?;
        let u32_at = |at: usize| fixed[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        if fixed[0] != VERSION || !matches!(fixed[1], 1 | 2) || fixed[2] > 1 || sums.len() % 8 != 0 {
            return None;
        }
        let generation = u64::from_le_bytes(fixed[36..44].try_into().ok()?);
        let slot = SlotLocation { slab: u32_at(28)?, slot: u32_at(32)?, generation };
        let sum = |pair: &[u8]| SegmentSum {
            len: u32::from_le_bytes(pair[..4].try_into().expect("four bytes")),
            crc: u32::from_le_bytes(pair[4..].try_into().expect("four bytes")),
        };
        Some(Self {
            object: ObjectId(fixed[4..20].try_into().ok()?),
            offset: u32_at(20)?,
            len: u32_at(24)?,
            slot: (fixed[2] == 1).then_some(slot),
            sums: (fixed[1] == 2).then(|| sums.chunks_exact(8).map(sum).collect()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn notes_survive_the_round_trip() {
        let slot = Some(SlotLocation { slab: 3, slot: 77, generation: 1 << 40 });
        let sums = Some(vec![SegmentSum { len: 32768, crc: 5 }, SegmentSum { len: 9, crc: 6 }]);
        for (slot, sums) in [(None, None), (slot, None), (slot, sums)] {
            let note = DataNote { object: ObjectId([7; 16]), offset: 40_000, len: 9, slot, sums };
            assert_eq!(DataNote::decode(&note.encode()), Some(note));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = DataNote::decode(&bytes);
        }
    }
}
