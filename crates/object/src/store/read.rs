//! Reading objects: which requests to send, and the checks that every byte passes.

use super::{Inner, Store, object_key, retry::Call};
use crate::{
    StoreError,
    backend::RequestKind,
    format::{ObjectTable, StoredObject, decode_tail},
};
use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use sluice_base::limits::SEGMENT_BYTES;
use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

/// Up to this many bytes that nobody asked for are read along, if that saves the request for the table.
const READ_ALONG_BYTES_MAX: u64 = 64 << 10;

/// What was read, verified.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The object's table: the one passed in, else the one that was read along.
    pub table: Arc<ObjectTable>,
    /// One for each segment asked for, as stored; empty for an absent one. Several may share one allocation.
    pub segments: Vec<Bytes>,
}

/// A run of bytes of a key.
pub(super) struct Get<'a> {
    pub key: &'a str,
    pub range: Range<u64>,
}

/// A run of segments that one request reads, and the object's bytes where they lie.
struct Part {
    segments: Range<u32>,
    bytes: Range<u64>,
}

impl Store {
    /// Reads and checks an object's table.
    pub async fn read_table(&self, object: &StoredObject) -> Result<ObjectTable, StoreError> {
        let key = object_key(object.id());
        self.0.checked(&key, object.tail_range(), None, |end| table_of(object, end)).await
    }

    /// Reads `segments` of an object. Without a table, and if that of the object was not read lately, data and table are read at the
    /// same time where the object's record allows it. Segments past the end are `Invalid`.
    pub async fn read_segments(
        &self,
        object: &StoredObject,
        table: Option<Arc<ObjectTable>>,
        segments: Range<u32>,
    ) -> Result<Fetched, StoreError> {
        if segments.start >= segments.end || segments.end > object.segment_count() {
            let (id, count) = (object.id(), object.segment_count());
            return Err(StoreError::invalid(format!("object {id} has {count} segments, asked for {segments:?}")));
        }
        let key = object_key(object.id());
        let strided = object.strided_range(segments.clone());
        let known = || self.0.tables.get(object.id()).filter(|table| table.stored_object(object.id()) == *object);
        let table = table.or_else(known);
        let (table, first) = match (table, strided) {
            (Some(table), _) if table.stored_object(object.id()) == *object => (table, Vec::new()),
            (Some(_), _) => return Err(StoreError::invalid(format!("object {}: not its table", object.id()))),
            (None, strided) => {
                let from = strided.as_ref().map_or(0, |bytes| bytes.start);
                let beyond = strided.as_ref().map_or(0, |bytes| object.data_bytes() - bytes.end);
                if object.stored_bytes() - from <= self.0.options.part_bytes && beyond <= READ_ALONG_BYTES_MAX {
                    return self.read_to_end(object, &key, segments, from).await;
                }
                match strided {
                    None => (self.table(object).await?, Vec::new()),
                    Some(_) => {
                        let parts = self.0.parts(segments.clone(), |run| object.strided_range(run));
                        let data = try_join_all(
                            parts.into_iter().map(|p| self.0.get_range(Get { key: &key, range: p.bytes })),
                        );
                        try_join(self.table(object), data).await?
                    }
                }
            }
        };
        let parts = self.0.parts(segments, |run| {
            let (first, last) = (table.segment_range(run.start)?, table.segment_range(run.end - 1)?);
            Some(first.start..last.end)
        });
        let mut first = first.into_iter();
        let reads = parts.into_iter().map(|part| {
            let (key, table, body) = (&key, &table, first.next());
            let start = part.bytes.start;
            let cut = move |body: &Bytes| cut(object, table, part.segments.clone(), body, start);
            async move { self.0.checked(key, part.bytes, body, cut).await }
        });
        let segments = try_join_all(reads).await?.concat();
        Ok(Fetched { table, segments })
    }

    /// The table, read once for all who need it at the same time.
    async fn table(&self, object: &StoredObject) -> Result<Arc<ObjectTable>, StoreError> {
        let table = self.0.tables.get_or_read(object.id(), self.read_table(object)).await?;
        if table.stored_object(object.id()) == *object { Ok(table) } else { Err(another(object)) }
    }

    /// One request for everything from `from` to the end of the object, the table included.
    async fn read_to_end(
        &self,
        object: &StoredObject,
        key: &str,
        segments: Range<u32>,
        from: u64,
    ) -> Result<Fetched, StoreError> {
        let open = |body: &Bytes| {
            let table = Arc::new(table_of(object, body)?);
            let segments = cut(object, &table, segments.clone(), body, from)?;
            Ok(Fetched { table, segments })
        };
        let fetched = self.0.checked(key, from..object.stored_bytes(), None, open).await?;
        self.0.tables.put(object.id(), &fetched.table);
        Ok(fetched)
    }
}

impl Inner {
    /// Splits `segments` into runs of about a part's size; `place` says where a run lies.
    fn parts(&self, segments: Range<u32>, place: impl Fn(Range<u32>) -> Option<Range<u64>>) -> Vec<Part> {
        let step = (self.options.part_bytes / SEGMENT_BYTES as u64).clamp(1, u64::from(u32::MAX)) as usize;
        let runs = segments.clone().step_by(step).map(|from| from..segments.end.min(from.saturating_add(step as u32)));
        runs.map(|run| {
            let bytes = place(run.clone()).expect("the segments are within the object");
            Part { segments: run, bytes }
        })
        .collect()
    }

    /// Reads `range`, or starts with `body` when it was read already, until `open` accepts it: a second time at most.
    pub(super) async fn checked<T>(
        &self,
        key: &str,
        range: Range<u64>,
        mut body: Option<Bytes>,
        open: impl Fn(&Bytes) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut is_second = false;
        loop {
            let bytes = match body.take() {
                Some(bytes) => bytes,
                None => self.get_range(Get { key, range: range.clone() }).await?,
            };
            let wanted = range.end - range.start;
            let opened = if bytes.len() as u64 == wanted {
                open(&bytes)
            } else {
                let detail = format!("{} of {wanted} bytes at {}", bytes.len(), range.start);
                Err(StoreError::Corrupt { key: key.into(), detail })
            };
            match opened {
                Err(StoreError::Corrupt { key, detail }) => {
                    self.counters.corrupt_answers.fetch_add(1, Relaxed);
                    tracing::warn!(key, detail, is_second, "the store's answer is corrupt");
                    if is_second {
                        return Err(StoreError::Corrupt { key, detail });
                    }
                    is_second = true;
                }
                done => return done,
            }
        }
    }

    /// The bytes that the store has in the range, perhaps too few. An empty range asks nobody.
    pub(super) async fn get_range(&self, get: Get<'_>) -> Result<Bytes, StoreError> {
        if get.range.is_empty() {
            return Ok(Bytes::new());
        }
        let call = Call { kind: RequestKind::Get, key: get.key, bytes: get.range.end - get.range.start };
        let found = self.request(call, |_| self.backend.get_range(get.key, get.range.clone())).await?;
        self.counters.received_bytes.fetch_add(found.len() as u64, Relaxed);
        Ok(found)
    }
}

/// The table at the end of `end`, if it is the one that `object` was stored with.
fn table_of(object: &StoredObject, end: &[u8]) -> Result<ObjectTable, StoreError> {
    let key = object_key(object.id());
    let table = decode_tail(object.id(), end).map_err(|error| StoreError::format(&key, error))?;
    if table.stored_object(object.id()) != *object {
        return Err(another(object));
    }
    Ok(table)
}

/// What is stored is not what the record describes.
fn another(object: &StoredObject) -> StoreError {
    let detail = "segment count and length are not those of its record".into();
    StoreError::Corrupt { key: object_key(object.id()), detail }
}

/// Cuts `segments` out of `body`, which begins at the object's byte `body_at`, and checks each.
fn cut(
    object: &StoredObject,
    table: &ObjectTable,
    segments: Range<u32>,
    body: &Bytes,
    body_at: u64,
) -> Result<Vec<Bytes>, StoreError> {
    segments
        .map(|index| {
            let place = table.segment_range(index).expect("the segment is within the object");
            let stored = body.slice((place.start - body_at) as usize..(place.end - body_at) as usize);
            if table.verifies(object.id(), index, &stored) {
                return Ok(stored);
            }
            let detail = format!("the checksum of segment {index} does not match");
            Err(StoreError::Corrupt { key: object_key(object.id()), detail })
        })
        .collect()
}
