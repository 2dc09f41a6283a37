//! Object records: what the uploader, gc and fsck ask for.

use super::Namespace;
use crate::{
    Error, Result, keys,
    records::{ObjectDelta, ObjectRecord, ObjectState},
    store::Committed,
};
use sluice_base::{ObjectId, SessionId};
use std::ops::ControlFlow;

impl Namespace {
    /// The record of an object.
    pub fn object(&self, id: ObjectId) -> Result<Option<ObjectRecord>> {
        self.store.snapshot().get(&keys::object(id))?.map(|bytes| ObjectRecord::decode(&bytes)).transpose()
    }

    /// The store acknowledged an object of so many segments and bytes.
    pub fn object_stored(&self, id: ObjectId, segments: u32, bytes: u64) -> Result<Committed<()>> {
        self.write(|txn| {
            txn.merge(&keys::object(id), Box::new(ObjectDelta::Stored(segments, bytes)));
            Ok(())
        })
    }

    /// Removes the record of an object that nothing refers to, of which the store has no copy. False when something does.
    pub fn forget_object(&self, id: ObjectId) -> Result<bool> {
        let key = keys::object(id);
        let done = self.write(|txn| {
            let Some(bytes) = txn.get(&key)? else { return Ok(true) };
            if ObjectRecord::decode(&bytes)?.live_bytes != 0 {
                return Ok(false);
            }
            txn.delete(&key);
            Ok(true)
        })?;
        Ok(done.value)
    }

    /// Makes an unreferenced stored object a tombstone; false when something refers to it.
    pub fn bury_object(&self, id: ObjectId) -> Result<bool> {
        let (key, now) = (keys::object(id), self.now());
        let done = self.write(|txn| {
            let Some(bytes) = txn.get(&key)? else { return Ok(false) };
            let mut record = ObjectRecord::decode(&bytes)?;
            if record.live_bytes != 0 || record.state != ObjectState::Stored {
                return Ok(false);
            }
            (record.state, record.since) = (ObjectState::Tombstone, now);
            txn.put(&key, record.encode());
            Ok(true)
        })?;
        Ok(done.value)
    }

    /// Hands every object record to `visit` until it breaks.
    pub fn objects(&self, visit: &mut dyn FnMut(ObjectId, ObjectRecord) -> ControlFlow<()>) -> Result<()> {
        let (from, to) = keys::whole_table(b'o');
        let mut failed = None;
        self.store.snapshot().scan(&from, &to, &mut |key, value| {
            let id = key.get(1..17).and_then(|bytes| bytes.try_into().ok()).map(ObjectId);
            match (id, ObjectRecord::decode(value)) {
                (Some(id), Ok(record)) => visit(id, record),
                (_, record) => {
                    failed =
                        Some(record.err().unwrap_or_else(|| Error::Corrupt("an object key does not parse".into())));
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// A new session of this volume.
    pub fn begin_session(&self) -> Result<SessionId> {
        let key = keys::volume("session");
        let done = self.write(|txn| {
            let last = txn.get(&key)?.and_then(|v| Some(u64::from_le_bytes(v.get(..8)?.try_into().ok()?))).unwrap_or(0);
            txn.put(&key, (last + 1).to_le_bytes());
            Ok(SessionId(last + 1))
        })?;
        Ok(done.value)
    }
}
