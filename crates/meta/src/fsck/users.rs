//! What the object store is compared with: all object records, and which files a damaged object belongs to.

use super::paths::Names;
use crate::{
    Result,
    extent::FileExtents,
    keys,
    records::ObjectRecord,
    store::{MetaStore, Snapshot},
};
use sluice_base::{
    Ino, ObjectId, SessionId,
    limits::{FILE_BYTES_MAX, SPAN_BYTES},
};
use sluice_run::collections::HashMap;
use std::{
    collections::BTreeMap,
    ops::{ControlFlow, Range},
};

/// Bytes of a file that lie in a damaged part of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The file.
    pub ino: Ino,
    /// A path of it.
    pub path: Option<Vec<u8>>,
    /// The object.
    pub object: ObjectId,
    /// Where in the file.
    pub ranges: Vec<Range<u64>>,
}

/// Hands every object to `visit`; `None` is a record that does not parse.
pub fn objects(store: &MetaStore, visit: &mut dyn FnMut(ObjectId, Option<ObjectRecord>)) -> Result<()> {
    let (from, to) = keys::whole_table(b'o');
    store.snapshot().scan(&from, &to, &mut |key, value| {
        if let Some(id) = key.get(1..17).and_then(|id| id.try_into().ok()) {
            visit(ObjectId(id), ObjectRecord::decode(value).ok());
        }
        ControlFlow::Continue(())
    })?;
    Ok(())
}

/// Whether a mount has begun this session and not ended it: what it has not stored is in its journal, wherever that is.
pub fn is_session(store: &MetaStore, session: SessionId) -> Result<bool> {
    Ok(store.snapshot().get(&keys::session(session))?.is_some())
}

/// The files that have bytes in these parts of objects, by byte of their payload.
pub fn users(store: &MetaStore, damaged: &HashMap<ObjectId, Vec<Range<u32>>>) -> Result<Vec<User>> {
    if damaged.is_empty() {
        return Ok(Vec::new());
    }
    let snapshot = store.snapshot();
    let mut found: BTreeMap<(Ino, ObjectId), Vec<Range<u64>>> = BTreeMap::new();
    for_each_span(&snapshot, &mut |ino, span, records| {
        let mut extents = FileExtents::default();
        // What does not parse is a finding of the check.
        if span > FILE_BYTES_MAX / SPAN_BYTES || extents.load(span, records).is_err() {
            return;
        }
        for run in extents.map(span * SPAN_BYTES..(span + 1) * SPAN_BYTES) {
            let Some((place, bad)) = run.place.and_then(|place| Some((place, damaged.get(&place.object)?))) else {
                continue;
            };
            for bad in bad {
                let (from, to) =
                    (bad.start.max(place.offset), u64::from(bad.end).min(u64::from(place.offset) + run.len));
                if u64::from(from) < to {
                    let start = run.offset + u64::from(from - place.offset);
                    found.entry((ino, place.object)).or_default().push(start..start + (to - u64::from(from)));
                }
            }
        }
    })?;
    let names = Names::of(&snapshot, &found.keys().map(|(ino, _)| *ino).collect())?;
    let user = |((ino, object), ranges)| User { ino, path: names.path(ino), object, ranges };
    Ok(found.into_iter().map(user).collect())
}

/// Takes a span's number and its records by sequence.
type VisitSpan<'v> = dyn FnMut(Ino, u64, &[(u64, Vec<u8>)]) + 'v;

/// Hands the extent records of each span of each file to `visit`.
fn for_each_span(snapshot: &Snapshot<'_>, visit: &mut VisitSpan<'_>) -> Result<()> {
    let (from, to) = keys::whole_table(b'e');
    let (mut at, mut records) = ((0, 0), Vec::new());
    snapshot.scan(&from, &to, &mut |key, value| {
        let here = (keys::number_at(key, 1), keys::number_at(key, 9));
        if here != at {
            visit(Ino(at.0), at.1, &records);
            records.clear();
            at = here;
        }
        records.push((keys::number_at(key, 17), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    visit(Ino(at.0), at.1, &records);
    Ok(())
}
