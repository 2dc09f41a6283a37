//! Reading every object and verifying it.

use super::{
    byte_bar,
    report::{DataRead, Item},
    stored::{Listing, segment_bytes},
};
use crate::volume::Volume;
use futures::{StreamExt, stream};
use sluice_base::{ObjectId, limits::SEGMENT_BYTES};
use sluice_meta::{
    fsck::{self, Severity},
    records::ObjectState,
};
use sluice_object::{Store, StoreError, StoredObject};
use sluice_run::collections::HashMap;
use std::ops::Range;

/// Objects read at once: 16 of 4 MiB keep a network of 10 Gbit/s busy at 50 ms a request.
const READS_MAX: usize = 16;

/// Payload of so many segments, at most.
pub fn payload(segments: u32) -> u32 {
    segments.saturating_mul(SEGMENT_BYTES as u32)
}

/// Reads every object that is in use and, by the listing, where its record says.
pub async fn verify(volume: &Volume, listing: &Listing, read: &mut Option<DataRead>) -> anyhow::Result<Vec<Item>> {
    let mut wanted = Vec::new();
    fsck::objects(volume.namespace.store(), &mut |id, record| {
        let Some(record) = record.filter(|record| record.state == ObjectState::Stored && record.live_bytes > 0) else {
            return;
        };
        if listing.get(&id).is_some_and(|listed| listed.stored_bytes == record.stored_bytes) {
            wanted.push((id, record.segments, record.stored_bytes));
        }
    })?;
    let bar = byte_bar(wanted.iter().map(|(_, _, bytes)| bytes).sum(), "verifying the data");
    let mut done = DataRead::default();
    let (mut items, mut damaged) = (Vec::new(), HashMap::default());
    let mut reads = stream::iter(wanted)
        .map(
            |(id, segments, bytes)| async move { (id, bytes, verify_object(&volume.store, id, segments, bytes).await) },
        )
        .buffer_unordered(READS_MAX);
    while let Some((id, bytes, outcome)) = reads.next().await {
        bar.inc(bytes);
        (done.objects, done.bytes) = (done.objects + 1, done.bytes + bytes);
        match outcome {
            Ok(bad) if bad.is_empty() => {}
            Ok(bad) => drop(damaged.insert(id, bad)),
            Err(error) => {
                let text = format!("object {id} could not be verified: {error}");
                items.push(Item::lasting("unverified-object", Severity::Serious, text));
            }
        }
    }
    bar.finish_and_clear();
    *read = Some(done);
    let users = fsck::users(volume.namespace.store(), &damaged)?;
    for id in damaged.keys() {
        // Damage where no file has bytes harms nobody; a repack leaves it behind.
        if users.iter().any(|user| user.object == *id) {
            let text = format!("object {id} is damaged in the store: its checksums do not match");
            items.push(Item::lasting("damaged-object", Severity::Loss, text));
        }
    }
    items.extend(users.iter().map(|user| Item::unreadable(user, "is damaged in the store")));
    Ok(items)
}

/// The parts of an object's payload that cannot be read.
async fn verify_object(store: &Store, id: ObjectId, segments: u32, bytes: u64) -> Result<Vec<Range<u32>>, StoreError> {
    let everything = || std::iter::once(0..payload(segments)).collect();
    let Ok(object) = StoredObject::new(id, segments, bytes) else { return Ok(everything()) };
    let mut bad = Vec::new();
    match store.read_segments(&object, None, 0..segments).await {
        Ok(fetched) => {
            let absent = fetched.segments.iter().zip(0..).filter(|(segment, _)| segment.is_empty());
            bad.extend(absent.map(|(_, index)| segment_bytes(index)));
            return Ok(bad);
        }
        Err(StoreError::Corrupt { .. } | StoreError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    // One by one, to tell which.
    for index in 0..segments {
        match store.read_segments(&object, None, index..index + 1).await {
            Ok(fetched) if fetched.segments.iter().all(|segment| !segment.is_empty()) => {}
            Ok(_) | Err(StoreError::Corrupt { .. } | StoreError::NotFound { .. }) => bad.push(segment_bytes(index)),
            Err(error) => return Err(error),
        }
    }
    Ok(bad)
}
