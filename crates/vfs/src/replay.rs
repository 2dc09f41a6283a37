//! After a restart: the data of objects that are not stored yet is found again, in the journal and in the slots it names.

use crate::{DataNote, dirty::DirtyObject};
use sluice_base::{ObjectId, Seq};
use sluice_meta::{
    Namespace,
    records::ObjectState,
};
use sluice_store::{Cache, CacheError, DirtySlot};
use std::{
    collections::{HashMap, HashSet},
    ops::ControlFlow,
};

/// What replay found.
#[derive(Default)]
pub struct Recovered {
    /// Objects to be uploaded.
    pub(crate) objects: Vec<DirtyObject>,
    /// Segments whose bytes match neither the journal nor the slot: reads of them fail.
    pub damaged_segments: usize,
    /// Bytes found again.
    pub bytes: u64,
}

/// Restores data from log records, once their metadata is replayed.
pub struct Replay<'a> {
    cache: &'a Cache,
    wanted: HashSet<ObjectId>,
    slots: HashMap<ObjectId, (Seq, DirtySlot)>,
    found: Recovered,
}

/// Begins to restore the data of the objects that the metadata calls not stored.
pub fn replay_data<'a>(namespace: &Namespace, cache: &'a Cache) -> sluice_meta::Result<Replay<'a>> {
    let mut wanted = HashSet::new();
    namespace.objects(&mut |id, record| {
        if matches!(record.state, ObjectState::Open | ObjectState::Sealed) && record.live_bytes > 0 {
            wanted.insert(id);
        }
        ControlFlow::Continue(())
    })?;
    Ok(Replay { cache, wanted, slots: HashMap::new(), found: Recovered::default() })
}

impl Replay<'_> {
    /// One attachment of a log record, in order.
    pub fn attachment(&mut self, seq: Seq, header: &[u8], data: &[u8]) {
        let Some(note) = DataNote::decode(header).filter(|note| self.wanted.contains(&note.object)) else { return };
        let slot = match self.slot(seq, &note) {
            Ok(slot) => slot,
            Err(error) => {
                tracing::error!(object = %note.object, %error, "a slot of the journal cannot be taken again");
                self.found.damaged_segments += 1;
                return;
            }
        };
        self.found.bytes += u64::from(note.len);
        match &note.sums {
            None => {
                if let Err(error) = slot.restore(note.offset, data) {
                    tracing::error!(object = %note.object, %error, "journalled bytes were not written to their slot");
                    self.found.damaged_segments += 1;
                }
            }
            Some(sums) => {
                if let Err(bad) = slot.verify_run(note.first_segment(), sums) {
                    tracing::error!(object = %note.object, segments = ?bad, "bytes in a slot do not match the journal");
                    self.found.damaged_segments += bad.len();
                }
            }
        }
    }

    fn slot(&mut self, seq: Seq, note: &DataNote) -> Result<DirtySlot, CacheError> {
        if let Some((_, slot)) = self.slots.get(&note.object) {
            return Ok(slot.clone());
        }
        // Data that was in memory only, or whose cache directory is new, gets a slot now.
        let slot = match note.slot {
            Some(at) => match self.cache.adopt_dirty(note.object, at) {
                Err(CacheError::Taken(_)) if note.sums.is_none() => self.cache.create_dirty(note.object)?,
                other => other?,
            },
            None => self.cache.create_dirty(note.object)?,
        };
        self.slots.insert(note.object, (seq, slot.clone()));
        Ok(slot)
    }

    /// All records were seen.
    pub fn finish(mut self) -> Recovered {
        for (id, (seq, slot)) in self.slots {
            if let Err(error) = slot.finish_replay() {
                tracing::error!(object = %id, %error, "a replayed slot did not settle");
                self.found.damaged_segments += 1;
            }
            self.wanted.remove(&id);
            self.found.objects.push(DirtyObject::recovered(id, seq, slot));
        }
        for lost in self.wanted {
            tracing::error!(object = %lost, "an object that is not stored has no data in the journal");
            self.found.damaged_segments += 1;
        }
        self.found
    }
}
