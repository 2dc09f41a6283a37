//! After a restart: the data of objects that are not stored yet is found again, in the journal and in the slots it names.

use crate::{
    DataNote,
    dirty::{Body, DirtyObject, Memory},
};
use sluice_base::{ObjectId, Seq, limits::SEGMENT_BYTES};
use sluice_meta::{Namespace, records::ObjectState};
use sluice_run::Bug;
use sluice_run::collections::HashSet;
use sluice_store::{Cache, CacheError, DirtySlot};
use std::{collections::BTreeMap, ops::ControlFlow, path::PathBuf};

/// What replay found.
#[derive(Default)]
pub struct Recovered {
    /// Objects to be uploaded.
    pub(crate) objects: Vec<DirtyObject>,
    /// Segments whose bytes match neither the journal nor the slot: reads of them fail.
    pub damaged_segments: usize,
    /// Objects of which the journal says that their bytes are in a cache that was not given. To start nevertheless is to lose
    /// them.
    pub without_cache: usize,
    /// Bytes found again.
    pub bytes: u64,
}

impl Recovered {
    /// Whether nothing waits to be stored.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.without_cache == 0
    }
}

/// The cache disk has no room for what the journal would put back into it.
#[derive(Debug, thiserror::Error)]
#[error(
    "the disk of the cache in {} has no room for {bytes} bytes of data that are not in the store yet: free as much on it, then start again. \
     Nothing is lost", dir.display()
)]
pub struct NoRoom {
    /// The cache's directory.
    pub dir: PathBuf,
    /// What is to be written, from the first that was refused on.
    pub bytes: u64,
}

/// Restores data from log records, once their metadata is replayed.
pub struct Replay<'a> {
    cache: Option<&'a Cache>,
    wanted: HashSet<ObjectId>,
    bodies: BTreeMap<ObjectId, (Seq, Found)>,
    found: Recovered,
    /// Bytes that the cache disk has no room for. Once there are any nothing is written, and nothing given up.
    refused_bytes: u64,
}

/// Where the bytes of an object are put together.
enum Found {
    Slot(DirtySlot),
    /// It was in memory before, or its slot cannot be had again. Only once all slots are taken again may such objects get one:
    /// a claim could take, and punch, a slot that a later record names.
    Memory(Memory),
}

/// The objects that the metadata calls not stored, and whose bytes the volume's own process has: those of mounts elsewhere are in their journals.
pub fn unstored(namespace: &Namespace) -> sluice_meta::Result<HashSet<ObjectId>> {
    let mut found = Vec::new();
    namespace.objects(&mut |id, record| {
        if matches!(record.state, ObjectState::Open | ObjectState::Sealed) && record.live_bytes > 0 {
            found.push((id, record.session));
        }
        ControlFlow::Continue(())
    })?;
    let mut wanted = HashSet::default();
    for (id, session) in found {
        if !namespace.is_session(session)? {
            wanted.insert(id);
        }
    }
    Ok(wanted)
}

impl<'a> Replay<'a> {
    /// Begins to restore the data of the objects `wanted`; without `cache`, to memory.
    pub fn new(wanted: HashSet<ObjectId>, cache: Option<&'a Cache>) -> Self {
        Self { cache, wanted, bodies: BTreeMap::new(), found: Recovered::default(), refused_bytes: 0 }
    }

    /// One attachment of a log record, in order.
    pub fn attachment(&mut self, seq: Seq, header: &[u8], data: &[u8]) {
        if Bug::JournalDataForgotten.is_planted() {
            return;
        }
        let Some(note) = DataNote::decode(header).filter(|note| self.wanted.contains(&note.object)) else { return };
        if self.refused_bytes > 0 {
            self.refused_bytes += if note.sums.is_none() { data.len() as u64 } else { 0 };
            return;
        }
        let cache = self.cache;
        let (_, body) = self.bodies.entry(note.object).or_insert_with(|| (seq, find_body(cache, &note)));
        self.found.bytes += u64::from(note.len);
        match (&mut *body, &note.sums) {
            (Found::Slot(slot), None) => {
                let restored = restore(cache, slot, note.offset, data);
                if let Err(CacheError::DiskFull) = restored {
                    self.refused_bytes = data.len() as u64;
                } else if let Err(error) = restored {
                    tracing::error!(object = %note.object, %error, "journalled bytes were not written to their slot");
                    let mut memory = give_up(slot);
                    if let Some(cache) = cache {
                        cache.discard(note.object);
                    }
                    memory.put(note.offset as usize, data);
                    *body = Found::Memory(memory);
                }
            }
            (Found::Slot(slot), Some(sums)) => {
                if let Err(bad) = slot.verify_run(note.first_segment(), sums) {
                    tracing::error!(object = %note.object, segments = ?bad, "bytes in a slot do not match the journal");
                    self.found.damaged_segments += bad.len();
                }
            }
            (Found::Memory(memory), None) => memory.put(note.offset as usize, data),
            (Found::Memory(memory), Some(sums)) => {
                let (offset, end) = (note.offset as usize, (note.offset + note.len) as usize);
                memory.put(end, &[]);
                memory.lost.extend(offset / SEGMENT_BYTES..end.div_ceil(SEGMENT_BYTES));
                self.found.damaged_segments += sums.len();
                self.found.without_cache += usize::from(cache.is_none());
            }
        }
    }

    /// All records were seen. Without room on the cache disk nothing was given up: there is another try.
    pub fn finish(mut self) -> Result<Recovered, NoRoom> {
        let no_room =
            |bytes| NoRoom { dir: self.cache.map_or_else(PathBuf::new, |cache| cache.dir().to_owned()), bytes };
        if self.refused_bytes > 0 {
            return Err(no_room(self.refused_bytes));
        }
        for (id, (seq, body)) in self.bodies {
            let body = match body {
                Found::Slot(slot) => {
                    let settled = slot.finish_replay();
                    if let Err(CacheError::DiskFull) = settled {
                        return Err(no_room(SEGMENT_BYTES as u64));
                    }
                    if let Err(error) = settled {
                        tracing::error!(object = %id, %error, "a replayed slot did not settle");
                        self.found.damaged_segments += 1;
                    }
                    Body::Slot(slot)
                }
                Found::Memory(memory) => settle_memory(self.cache, id, memory),
            };
            self.wanted.remove(&id);
            self.found.objects.push(DirtyObject::recovered(id, seq, body));
        }
        for lost in self.wanted {
            tracing::error!(object = %lost, "an object that is not stored has no data in the journal");
            self.found.damaged_segments += 1;
        }
        // The log counts as synced from here on, so what it says of slots must be.
        if let Some(Err(error)) = self.cache.map(Cache::sync_replayed) {
            tracing::error!(%error, "what an earlier process wrote to the cache may not survive a power loss until it is stored");
        }
        Ok(self.found)
    }
}

/// Writes bytes back into a slot, whatever clean slots that costs.
fn restore(cache: Option<&Cache>, slot: &DirtySlot, offset: u32, data: &[u8]) -> Result<(), CacheError> {
    loop {
        let clean_slots = cache.map_or(0, |cache| cache.stats().clean_slots);
        match slot.restore(offset, data) {
            // Each try gives some back.
            Err(CacheError::DiskFull) if cache.is_some_and(|cache| cache.stats().clean_slots < clean_slots) => {}
            outcome => return outcome,
        }
    }
}

fn find_body(cache: Option<&Cache>, note: &DataNote) -> Found {
    match (cache, note.slot) {
        (Some(cache), Some(at)) => match cache.adopt_dirty(note.object, at) {
            Ok(slot) => Found::Slot(slot),
            Err(error) => {
                tracing::error!(object = %note.object, %error, "a slot of the journal cannot be taken again");
                Found::Memory(Memory::default())
            }
        },
        _ => Found::Memory(Memory::default()),
    }
}

/// What a slot, whose disk refuses writes, can still give.
fn give_up(slot: &DirtySlot) -> Memory {
    let mut memory = Memory::default();
    for (index, segment) in slot.salvage().into_iter().enumerate() {
        match segment {
            Some(bytes) => memory.put(index * SEGMENT_BYTES, &bytes),
            None => {
                tracing::error!(object = %slot.object(), index, "a segment cannot be read");
                memory.put((index + 1) * SEGMENT_BYTES, &[]);
                memory.lost.insert(index);
            }
        }
    }
    memory
}

/// A slot for an object that has none, when there is room for it.
fn settle_memory(cache: Option<&Cache>, id: ObjectId, memory: Memory) -> Body {
    if let Some(cache) = cache.filter(|_| memory.lost.is_empty())
        && let Ok(slot) = cache.create_dirty(id)
    {
        match slot.append(0, &memory.bytes) {
            Ok(()) => return Body::Slot(slot),
            Err(CacheError::Gone(_)) => {}
            Err(_) => cache.discard(id),
        }
    }
    Body::Memory(memory.into())
}
