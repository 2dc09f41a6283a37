//! Objects: put, remove, list. Reading is in `read`.

use super::{OBJECTS, Store, object_key, retry::Call};
use crate::{
    PutMode, StoreError,
    backend::{ListEntry, RequestKind},
    format::{FormatError, ObjectTable, StoredObject, decode_tail, encode_tail, tail_len},
};
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use sluice_base::{ObjectId, Timestamp, limits::SEGMENTS_PER_OBJECT};
use std::sync::atomic::Ordering::Relaxed;

/// Listings of directories of objects that run at once.
const LISTINGS_MAX: usize = 8;

/// An object in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedObject {
    /// Its id.
    pub id: ObjectId,
    /// Whole length in the store, in bytes.
    pub stored_bytes: u64,
    /// When it was stored, by the store's clock.
    pub modified: Timestamp,
}

impl Store {
    /// Stores a plain object of 1 to 128 segments, `None` for one whose bytes died; all but the last are 32 KiB long.
    ///
    /// `Exists` means that the id is taken by other bytes; finding the same ones is success.
    pub async fn put_object(&self, id: ObjectId, segments: &[Option<Bytes>]) -> Result<StoredObject, StoreError> {
        let broken = |error: FormatError| StoreError::invalid(format!("object {id}: {error}"));
        let table = ObjectTable::plain(id, segments).map_err(broken)?;
        let object = table.stored_object(id);
        let tail = Bytes::from(encode_tail(id, &table));
        let body: Vec<Bytes> = segments.iter().flatten().cloned().chain([tail]).collect();
        let key = object_key(id);
        let call = Call { kind: RequestKind::Put, key: &key, bytes: object.stored_bytes() };
        let done = self.0.request(call, |tries| self.0.put(&key, body.clone(), PutMode::Create, tries)).await;
        match done {
            Ok(()) => {
                self.0.counters.sent_bytes.fetch_add(object.stored_bytes(), Relaxed);
            }
            Err(StoreError::Exists { .. }) if self.has_table(&object, &table).await? => {
                tracing::debug!(%id, "was in the store already");
            }
            Err(error) => return Err(error),
        }
        Ok(object)
    }

    /// Whether the stored object is the one with this table. The table has every segment's length and checksum, so it stands
    /// for all bytes; it is read with its own checksum, so that damage on the way does not look like another object.
    async fn has_table(&self, object: &StoredObject, table: &ObjectTable) -> Result<bool, StoreError> {
        let key = object_key(object.id());
        let call = Call { kind: RequestKind::Head, key: &key, bytes: 0 };
        let stored_bytes = self.0.request(call, |_| self.0.backend.head(&key)).await?;
        Ok(stored_bytes == object.stored_bytes() && self.read_table(object).await? == *table)
    }

    /// Takes an object's place with nothing, so that it cannot be stored there unless somebody removes that; false where it is stored already.
    pub async fn give_up_object(&self, id: ObjectId) -> Result<bool, StoreError> {
        let key = object_key(id);
        let call = Call { kind: RequestKind::Put, key: &key, bytes: 0 };
        match self.0.request(call, |tries| self.0.put(&key, Vec::new(), PutMode::Create, tries)).await {
            Err(StoreError::Exists { .. }) => {
                let call = Call { kind: RequestKind::Head, key: &key, bytes: 0 };
                Ok(self.0.request(call, |_| self.0.backend.head(&key)).await? == 0)
            }
            done => done.map(|()| true),
        }
    }

    /// What is stored under an id of which nothing else is known; `None` where nothing is, or it was given up.
    pub async fn find_object(&self, id: ObjectId) -> Result<Option<StoredObject>, StoreError> {
        let key = object_key(id);
        let call = Call { kind: RequestKind::Head, key: &key, bytes: 0 };
        let stored_bytes = match self.0.request(call, |_| self.0.backend.head(&key)).await {
            Err(StoreError::NotFound { .. }) | Ok(0) => return Ok(None),
            other => other?,
        };
        let tail_bytes = tail_len(SEGMENTS_PER_OBJECT as u32) as u64;
        let range = stored_bytes.saturating_sub(tail_bytes)..stored_bytes;
        let open = |bytes: &Bytes| {
            let table = decode_tail(id, bytes).map_err(|error| StoreError::format(&key, error))?;
            let object = table.stored_object(id);
            if object.stored_bytes() == stored_bytes {
                return Ok(object);
            }
            let detail = format!("it has {stored_bytes} bytes, its table says {}", object.stored_bytes());
            Err(StoreError::Corrupt { key: key.clone(), detail })
        };
        self.0.checked(&key, range, None, open).await.map(Some)
    }

    /// Removes an object; what is not there counts as removed.
    pub async fn delete_object(&self, id: ObjectId) -> Result<(), StoreError> {
        self.0.delete(&object_key(id)).await
    }

    /// Every object, in no particular order. Objects stored or removed meanwhile may be missing or not. Ends at the first
    /// error. Keys that are no object's are passed over.
    pub fn list_objects(&self) -> impl Stream<Item = Result<ListedObject, StoreError>> + Send + use<> {
        let store = self.clone();
        let directories = (0..=u8::MAX).map(move |first| {
            let store = store.clone();
            async move { store.0.list(&format!("{OBJECTS}/{first:02x}")).await }
        });
        let pages = stream::iter(directories).buffered(LISTINGS_MAX);
        pages.map_ok(|entries| stream::iter(entries).filter_map(|entry| async { listed(entry).map(Ok) })).try_flatten()
    }
}

fn listed(entry: ListEntry) -> Option<ListedObject> {
    let id = entry.key.rsplit('/').next()?.parse().ok()?;
    if object_key(id) != entry.key {
        tracing::debug!(key = entry.key, "not an object's key");
        return None;
    }
    Some(ListedObject { id, stored_bytes: entry.bytes, modified: entry.modified })
}
