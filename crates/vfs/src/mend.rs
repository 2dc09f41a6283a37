//! Small writes whose slot went bad before they were stored: the journal has their bytes until then. Whoever meets such a segment, a
//! reader or the uploader, has it put together again, and put back.

use crate::{
    DataNote, Vfs,
    dirty::{Body, DirtyObject, Memory},
    upload::Segments,
};
use bytes::Bytes;
use sluice_base::{crc::segment_crc, limits::SEGMENT_BYTES};
use sluice_meta::store::Record;
use std::collections::BTreeMap;

impl Vfs {
    /// All segments of an object in a slot, those that cannot be read from the journal. `None` when it has no slot any more.
    pub(crate) fn salvaged(&self, object: &DirtyObject) -> Option<Segments> {
        let Body::Slot(slot) = &object.body else { return None };
        let pin = self.parts.cache.as_ref()?.pin(object.id)?;
        let sums = slot.sums();
        let read = |index: usize| {
            let mut bytes = vec![0; sums[index].len as usize];
            let read = pin.read_at((index * SEGMENT_BYTES) as u32, &mut bytes);
            (!bytes.is_empty() && read.is_ok()).then(|| Bytes::from(bytes))
        };
        let mut segments: Vec<_> = (0..sums.len()).map(read).collect();
        let is_missing = |segments: &[Option<Bytes>], index: &usize| segments[*index].is_none() && sums[*index].len > 0;
        let missing: Vec<_> = (0..sums.len()).filter(|index| is_missing(&segments, index)).collect();
        for (index, bytes) in self.mended(object, &missing) {
            segments[index] = Some(bytes);
        }
        let damaged = missing.iter().any(|index| is_missing(&segments, index));
        Some(Segments { segments, damaged })
    }

    /// Those of the segments `wanted` of an object in a slot of which the journal has all bytes, as it says. They are put back into the slot, if
    /// its disk takes them. Reads the journal: for threads that may wait.
    pub(crate) fn mended(&self, object: &DirtyObject, wanted: &[usize]) -> BTreeMap<usize, Bytes> {
        let Body::Slot(slot) = &object.body else { return BTreeMap::new() };
        let wanted: Vec<_> = wanted.iter().copied().filter(|index| !object.is_in_slot_alone(*index)).collect();
        if wanted.is_empty() {
            return BTreeMap::new();
        }
        let sums = slot.sums();
        let mut memory = Memory::default();
        memory.put(sums.len() * SEGMENT_BYTES, &[]);
        let (first, last) = object.records();
        let again = self.parts.journal.read_again(first, last, &mut |_, record| {
            let Ok(record) = Record::parse(record) else { return };
            for (header, data) in record.attachments() {
                let note = DataNote::decode(header).filter(|note| note.object == object.id && note.sums.is_none());
                note.iter().for_each(|note| memory.put(note.offset as usize, data));
            }
        });
        if let Err(error) = again {
            tracing::error!(object = %object.id, %error, "the journal was not read again");
        }
        let mut found = BTreeMap::new();
        for index in wanted {
            let Some(sum) = sums.get(index).filter(|sum| sum.len > 0) else { continue };
            let (at, len) = (index * SEGMENT_BYTES, sum.len as usize);
            let bytes = &memory.bytes[at..at + len];
            if segment_crc(object.id, index as u32, bytes) != sum.crc {
                continue;
            }
            match slot.restore(at as u32, bytes) {
                Ok(()) => tracing::warn!(object = %object.id, index, "a bad segment was mended from the journal"),
                Err(error) => {
                    tracing::warn!(object = %object.id, index, %error, "a bad segment was read from the journal")
                }
            }
            found.insert(index, Bytes::copy_from_slice(bytes));
        }
        found
    }
}
