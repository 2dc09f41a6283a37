//! Object records against what the store lists.

use super::{data::payload, report::Item};
use crate::volume::Volume;
use futures::TryStreamExt;
use sluice_base::{ObjectId, limits::SEGMENT_BYTES};
use sluice_meta::{
    fsck::{self, Severity, StoredCopy},
    records::ObjectState,
};
use sluice_object::{ListedObject, Store, StoreError, StoredObject};
use sluice_run::collections::HashMap;

/// What the store has.
pub type Listing = HashMap<ObjectId, ListedObject>;

/// Lists every object.
pub async fn list(store: &Store) -> Result<Listing, StoreError> {
    store.list_objects().map_ok(|object| (object.id, object)).try_collect().await
}

/// Stored objects that the store has with another length.
pub fn of_other_length(volume: &Volume, listing: &Listing) -> anyhow::Result<Vec<ObjectId>> {
    let mut found = Vec::new();
    fsck::objects(volume.namespace.store(), &mut |id, record| {
        let stored = record.filter(|record| record.state == ObjectState::Stored);
        if let (Some(record), Some(listed)) = (stored, listing.get(&id))
            && record.stored_bytes != listed.stored_bytes
        {
            found.push(id);
        }
    })?;
    Ok(found)
}

/// What the store has of these objects, as their own tables tell. What has no sound table is left out.
pub async fn copies(volume: &Volume, listing: &Listing, wanted: &[ObjectId]) -> HashMap<ObjectId, StoredCopy> {
    let mut found = HashMap::default();
    for listed in wanted.iter().filter_map(|id| listing.get(id)) {
        // The tail's length tells the segment count, and only the right count finds a table that says the same.
        for segments in 1..=128 {
            let Ok(object) = StoredObject::new(listed.id, segments, listed.stored_bytes) else { continue };
            if volume.store.read_table(&object).await.is_ok() {
                found.insert(listed.id, StoredCopy { segments, stored_bytes: listed.stored_bytes });
                break;
            }
        }
    }
    found
}

/// Sets records of another length to what the store's own table proves.
pub fn mend_lengths(volume: &Volume, copies: &HashMap<ObjectId, StoredCopy>) -> anyhow::Result<Vec<Item>> {
    let mut wrong = Vec::new();
    fsck::objects(volume.namespace.store(), &mut |id, record| {
        if let (Some(record), Some(copy)) = (record, copies.get(&id))
            && record.state == ObjectState::Stored
            && (record.segments, record.stored_bytes) != (copy.segments, copy.stored_bytes)
        {
            wrong.push((id, record.stored_bytes, *copy));
        }
    })?;
    let mut items = Vec::new();
    for (id, had, copy) in wrong {
        volume.namespace.object_stored(id, copy.segments, copy.stored_bytes)?;
        let text = format!("object {id} has {} bytes in the store, its record said {had}", copy.stored_bytes);
        items.push(Item { repairable: true, mended: true, ..Item::lasting("object-length", Severity::Minor, text) });
    }
    Ok(items)
}

/// Stored objects that are not in the store as their records say, and the files that this concerns.
pub fn compare(volume: &Volume, listing: &Listing) -> anyhow::Result<Vec<Item>> {
    let (mut items, mut missing, mut wrong) = (Vec::new(), HashMap::default(), HashMap::default());
    fsck::objects(volume.namespace.store(), &mut |id, record| {
        // A tombstone's object may be gone already.
        let Some(record) = record.filter(|record| record.state == ObjectState::Stored && record.live_bytes > 0) else {
            return;
        };
        match listing.get(&id) {
            None => {
                let text = format!("object {id} is not in the store, {} live bytes are in it", record.live_bytes);
                items.push(Item::lasting("missing-object", Severity::Loss, text));
                missing.insert(id, std::iter::once(0..u32::MAX).collect());
            }
            Some(listed) if listed.stored_bytes != record.stored_bytes => {
                let text = format!(
                    "object {id} has {} bytes in the store, its record says {}",
                    listed.stored_bytes, record.stored_bytes
                );
                items.push(Item { repairable: true, ..Item::lasting("object-length", Severity::Loss, text) });
                wrong.insert(id, std::iter::once(0..payload(record.segments)).collect());
            }
            Some(_) => {}
        }
    })?;
    for (damaged, why) in [(missing, "is not in the store"), (wrong, "has another length in the store")] {
        items.extend(fsck::users(volume.namespace.store(), &damaged)?.iter().map(|user| Item::unreadable(user, why)));
    }
    Ok(items)
}

/// The part of the payload that a segment holds: the unit of damage.
pub fn segment_bytes(index: u32) -> std::ops::Range<u32> {
    let start = index * SEGMENT_BYTES as u32;
    start..start + SEGMENT_BYTES as u32
}
