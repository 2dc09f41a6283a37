//! Object records: what the uploader, gc and fsck ask for.

use super::{DataChange, Namespace, SESSION, last_session};
use crate::{
    Error, Result,
    extent::{Extent, FileExtents, Place, decode_runs},
    keys,
    records::{Inode, ObjectDelta, ObjectRecord, ObjectState},
    store::{Committed, Txn},
};
use sluice_base::{Ino, ObjectId, SessionId};
use sluice_run::Bug;
use std::ops::ControlFlow;

/// A span of a file.
pub type FileSpan = (Ino, u64);

/// Most extents that one change lets go elsewhere, at some 60 bytes of the log each.
const RELOCATED_MAX: usize = 4096;

/// Bytes of a file that are in another object too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// First byte in the file.
    pub offset: u64,
    /// How many.
    pub len: u32,
    /// Where they were.
    pub from: Place,
    /// Where they are as well.
    pub to: Place,
}

impl Namespace {
    /// The record of an object.
    pub fn object(&self, id: ObjectId) -> Result<Option<ObjectRecord>> {
        self.store.snapshot().get(&keys::object(id))?.map(|bytes| ObjectRecord::decode(&bytes)).transpose()
    }

    /// An object of `session` begins, which nothing refers to yet.
    pub fn begin_object(&self, id: ObjectId, session: SessionId) -> Result<Committed<()>> {
        self.write(|txn| {
            txn.merge(&keys::object(id), Box::new(ObjectDelta::Open(session)));
            Ok(())
        })
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

    /// Makes an unreferenced object a tombstone; false when something refers to it. One that is not stored must have no writer any more.
    pub fn bury_object(&self, id: ObjectId) -> Result<bool> {
        let (key, now) = (keys::object(id), self.now());
        let done = self.write(|txn| {
            let Some(bytes) = txn.get(&key)? else { return Ok(false) };
            let mut record = ObjectRecord::decode(&bytes)?;
            if record.live_bytes != 0 || record.state == ObjectState::Tombstone {
                return Ok(false);
            }
            (record.state, record.since) = (ObjectState::Tombstone, now);
            txn.put(&key, record.encode());
            Ok(true)
        })?;
        Ok(done.value)
    }

    /// Removes the record of a tombstone; false when it is none any more.
    pub fn drop_tombstone(&self, id: ObjectId) -> Result<bool> {
        let key = keys::object(id);
        let done = self.write(|txn| {
            let record = txn.get(&key)?.map(|bytes| ObjectRecord::decode(&bytes)).transpose()?;
            let is_dead = record.is_some_and(|record| record.state == ObjectState::Tombstone && record.live_bytes == 0);
            if is_dead {
                txn.delete(&key);
            }
            Ok(is_dead)
        })?;
        Ok(done.value)
    }

    /// The spans from `from` on in whose records an object is that is `wanted`, among the next `keys_max` records or some more, and where to go
    /// on. A span may be there although nothing in it refers to such an object any more.
    pub fn spans_of(
        &self,
        wanted: &dyn Fn(ObjectId) -> bool,
        from: FileSpan,
        keys_max: usize,
    ) -> Result<(Vec<FileSpan>, Option<FileSpan>)> {
        let (_, to) = keys::whole_table(b'e');
        let (mut found, mut next) = (Vec::new(), None);
        let (mut count, mut at) = (0, from);
        self.store.snapshot().scan(&keys::extent(from.0, from.1, 0), &to, &mut |key, value| {
            let here = (Ino(keys::number_at(key, 1)), keys::number_at(key, 9));
            count += 1;
            if count > keys_max && here != at {
                next = Some(here);
                return ControlFlow::Break(());
            }
            at = here;
            let names = |run: &Extent| run.place.is_some_and(|place| wanted(place.object));
            match decode_runs(value) {
                Ok(runs) if found.last() != Some(&here) && runs.iter().any(names) => found.push(here),
                Ok(_) => {}
                // `fsck` says more of it. The others must not wait for that.
                Err(error) => tracing::warn!(ino = %here.0, span = here.1, %error, "extents that are not looked at"),
            }
            ControlFlow::Continue(())
        })?;
        Ok((found, next))
    }

    /// Lets the bytes `moved` of a file be found where they were moved to, as far as the file still has them where they were. Its extents must be
    /// those of now, as for [`Namespace::change_data`]. Nobody sees a difference: neither times nor size nor content change. Returns the
    /// bytes that moved.
    pub fn relocate(&self, ino: Ino, extents: &mut FileExtents, moved: &[Moved]) -> Result<u64> {
        let mut change = DataChange { touch: false, ..DataChange::default() };
        for Moved { offset, len, from, to } in moved {
            let range = *offset..offset + u64::from(*len);
            self.load_extents(ino, extents, range.clone())?;
            let at = |place: &Place, by: u64| Place { object: place.object, offset: place.offset + by as u32 };
            for here in extents.map(range) {
                let is_as_before = here.place == Some(at(from, here.offset - offset));
                if is_as_before || Bug::MovedOverNewer.is_planted() {
                    change.extents.push(Extent { place: Some(at(to, here.offset - offset)), ..here });
                }
            }
        }
        change.extents.truncate(RELOCATED_MAX);
        if !change.extents.is_empty() {
            // Who removes a file does so in steps, and not under its lock.
            let is_there = |_: &mut Txn<'_>, inode: &Inode| if inode.nlink > 0 { Ok(()) } else { Err(Error::Stale) };
            self.change_data_at(ino, extents, &change, None, is_there)?;
        }
        Ok(change.extents.iter().map(|extent| extent.len).sum())
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
        Ok(self.write(next_session)?.value)
    }
}

/// A session that there was never before.
pub(super) fn next_session(txn: &mut Txn<'_>) -> Result<SessionId> {
    let session = last_session(txn)? + 1;
    txn.put(&keys::volume(SESSION), session.to_le_bytes());
    Ok(SessionId(session))
}
