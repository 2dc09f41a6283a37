//! How each problem is mended, each in a transaction of its own.

use super::{
    Problem, Rebuilt, RepairOptions,
    extents::{bytes_max, past_end},
    lost_found::{adopt, next_id},
};
use crate::{
    Result,
    extent::{Extent, ExtentPlan, FileExtents},
    keys,
    namespace::{new_inode, put_entry},
    records::{DirStat, Dirent, Inode, ObjectDelta, ObjectRecord, ObjectState, Usage, flags, mode},
    store::Txn,
};
use sluice_base::{Ino, ObjectId, SessionId, Timestamp, limits::SPAN_BYTES};
use std::ops::{ControlFlow, Range};

/// How far a counter is set past the highest number in use: numbers that were given out and are free again stay unused.
const COUNTER_SLACK: u64 = 1 << 20;

/// Most keys that one transaction removes: of 264 bytes at most, they fit the log's records, which hold 2 MiB.
const KEYS_MAX: usize = 4096;
/// Most runs that one transaction makes holes of. Each may rewrite a span's packed record.
const HOLES_MAX: usize = 64;

impl Problem {
    /// One transaction's share of mending this; false when there is more to do.
    pub(super) fn mend(&self, txn: &mut Txn<'_>, options: &RepairOptions<'_>) -> Result<bool> {
        let now = options.now;
        match self {
            Self::BadKey { key } => txn.delete(key),
            Self::Counter { name, needed, .. } => txn.put(&keys::volume(name), (needed + COUNTER_SLACK).to_le_bytes()),
            Self::Inode { ino, rebuilt, .. } => match rebuilt {
                Some(rebuilt) => rebuild(txn, *ino, rebuilt, now)?,
                None => txn.delete(&keys::inode(*ino)),
            },
            Self::NoTarget { ino } => txn.delete(&keys::inode(*ino)),
            Self::BadExtents { ino, span, sequence } => txn.delete(&keys::extent(*ino, *span, *sequence)),
            Self::BadObject { object } => match (options.copy_of)(*object) {
                Some(copy) => txn.put(&keys::object(*object), stored(None, copy).encode()),
                None => txn.delete(&keys::object(*object)),
            },
            Self::Leftover { ino, table } => return leftover(txn, *ino, *table),
            Self::Twin { dir, name, delete, keep, .. } => twin(txn, *dir, name, delete, keep.as_ref())?,
            Self::NoSuchInode { dir, name, cookie, .. }
            | Self::BadName { dir, name, cookie, .. }
            | Self::ExtraName { dir, name, cookie, .. } => remove_name(txn, *dir, name, *cookie)?,
            Self::WrongKind { dir, name, cookie, ino, kind } => {
                let entry = Dirent { ino: *ino, kind: *kind, cookie: *cookie, name: Vec::new() };
                put_entry(txn, *dir, name, entry);
            }
            Self::Mark { ino } => txn.delete(&keys::orphan(*ino)),
            Self::Nameless { ino } => adopt(txn, *ino, now)?,
            Self::Loop { ino, dir, name, cookie } => {
                remove_name(txn, *dir, name, *cookie)?;
                adopt(txn, *ino, now)?;
            }
            Self::LostBody { ino, .. } => change(txn, *ino, |inode| inode.set(flags::INLINE, false))?,
            Self::TwoContents { ino, keep_body: true } => return leftover(txn, *ino, b'e'),
            Self::TwoContents { ino, keep_body: false } => return leftover(txn, *ino, b'b'),
            Self::LostData { ino, object, ranges, .. } => {
                return lost_data(txn, *ino, *object, ranges, options);
            }
            Self::Buried { object } => object_record(txn, *object, |record| record.state = ObjectState::Stored)?,
            Self::LinkCount { ino, names, .. } => change(txn, *ino, |inode| inode.nlink = *names)?,
            Self::Parent { ino, parent, .. } => change(txn, *ino, |inode| inode.parent = *parent)?,
            Self::DirCounts { ino, nlink, entries, .. } => dir_counts(txn, *ino, *nlink, *entries, now)?,
            Self::Flags { ino, right, .. } => change(txn, *ino, |inode| inode.flags = *right)?,
            Self::Held { ino, counted, .. } => change(txn, *ino, |inode| inode.held_bytes = *counted)?,
            Self::Size { ino, end, .. } => change(txn, *ino, |inode| inode.size = *end)?,
            Self::LiveBytes { object, counted, .. } => {
                object_record(txn, *object, |record| record.live_bytes = *counted)?;
            }
            Self::Usage { counted, .. } => txn.put(&keys::volume("usage"), counted.encode()),
        }
        Ok(true)
    }
}

fn change(txn: &mut Txn<'_>, ino: Ino, with: impl FnOnce(&mut Inode)) -> Result<()> {
    if let Some(bytes) = txn.get(&keys::inode(ino))? {
        let mut inode = Inode::decode(&bytes)?;
        with(&mut inode);
        // Caches that know the inode by its change counter must not trust what they have.
        inode.change += 1;
        txn.put(&keys::inode(ino), inode.encode());
    }
    Ok(())
}

fn rebuild(txn: &mut Txn<'_>, ino: Ino, from: &Rebuilt, now: Timestamp) -> Result<()> {
    let known = txn.get(&keys::inode(ino))?.and_then(|bytes| Inode::decode(&bytes).ok());
    let permissions = if from.kind == mode::DIRECTORY { 0o700 } else { 0o600 };
    let inode = match known {
        // All but the type may be right; what is not is found by the next pass.
        Some(known) => Inode { mode: from.kind | known.mode & mode::PERMISSIONS, ..known },
        None => {
            let Rebuilt { nlink, flags, size, held_bytes, parent, .. } = *from;
            Inode { nlink, flags, size, held_bytes, parent, ..new_inode(from.kind | permissions, 0, 0, now) }
        }
    };
    txn.put(&keys::inode(ino), inode.encode());
    Ok(())
}

/// Keys that `table` has of an inode, not more than two tables' may be removed at once.
fn keys_of(txn: &mut Txn<'_>, table: u8, ino: Ino) -> Result<Vec<Vec<u8>>> {
    let (from, to) = keys::all_of(table, ino);
    let mut found = Vec::new();
    txn.scan(&from, &to, &mut |key, _| {
        found.push(key.to_vec());
        if found.len() < KEYS_MAX / 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(found)
}

/// Removes what `table` has of an inode; entries go from both their tables.
fn leftover(txn: &mut Txn<'_>, ino: Ino, table: u8) -> Result<bool> {
    let mut all = keys_of(txn, table, ino)?;
    if table == b'd' {
        all.extend(keys_of(txn, b'c', ino)?);
    }
    all.iter().for_each(|key| txn.delete(key));
    Ok(all.is_empty())
}

fn twin(txn: &mut Txn<'_>, dir: Ino, name: &[u8], delete: &[Vec<u8>], keep: Option<&Dirent>) -> Result<()> {
    delete.iter().for_each(|key| txn.delete(key));
    if let Some(keep) = keep {
        let cookie = if keep.cookie == 0 { next_id(txn)? } else { keep.cookie };
        put_entry(txn, dir, name, Dirent { cookie, ..keep.clone() });
    }
    Ok(())
}

/// Takes a name from both tables, but not a record by cookie that is another name's.
fn remove_name(txn: &mut Txn<'_>, dir: Ino, name: &[u8], cookie: u64) -> Result<()> {
    txn.delete(&keys::entry(dir, name));
    let key = keys::cookie(dir, cookie);
    let twin = txn.get(&key)?.and_then(|bytes| Dirent::decode(&bytes).ok());
    if twin.is_some_and(|twin| twin.name == name) {
        txn.delete(&key);
    }
    Ok(())
}

fn dir_counts(txn: &mut Txn<'_>, ino: Ino, nlink: u32, entries: u64, now: Timestamp) -> Result<()> {
    let key = keys::dir_stat(ino);
    let known = txn.get(&key)?.and_then(|bytes| DirStat::decode(&bytes).ok());
    let stat = known.unwrap_or_else(|| DirStat::empty(now));
    txn.put(&key, DirStat { nlink, entries, change: stat.change + 1, ..stat }.encode());
    Ok(())
}

fn object_record(txn: &mut Txn<'_>, object: ObjectId, with: impl FnOnce(&mut ObjectRecord)) -> Result<()> {
    let key = keys::object(object);
    if let Some(bytes) = txn.get(&key)? {
        let mut record = ObjectRecord::decode(&bytes)?;
        with(&mut record);
        txn.put(&key, record.encode());
    }
    Ok(())
}

/// The record of an object that the store holds; its live bytes are counted by the next pass.
fn stored(known: Option<ObjectRecord>, copy: super::StoredCopy) -> ObjectRecord {
    let known = known.unwrap_or_else(|| ObjectRecord::open(SessionId(0)));
    ObjectRecord { state: ObjectState::Stored, segments: copy.segments, stored_bytes: copy.stored_bytes, ..known }
}

/// Extents that lead nowhere: the object's record is made anew when the store has the object, else they become holes.
fn lost_data(
    txn: &mut Txn<'_>,
    ino: Ino,
    object: ObjectId,
    ranges: &[Range<u64>],
    options: &RepairOptions<'_>,
) -> Result<bool> {
    let key = keys::object(object);
    let mut known = txn.get(&key)?.map(|bytes| ObjectRecord::decode(&bytes)).transpose()?;
    if let Some(copy) = (options.copy_of)(object) {
        let right = stored(known.clone(), copy);
        if known.as_ref() != Some(&right) {
            txn.put(&key, right.encode());
            known = Some(right);
        }
    }
    // The record may have come back just now, for this file or for another one's sake: then only what it still lacks is gone.
    let limit = known.as_ref().map_or(0, bytes_max);
    let (mut extents, mut plan, mut holes) = (FileExtents::default(), ExtentPlan::default(), 0);
    for range in ranges {
        for span in range.start / SPAN_BYTES..=(range.end - 1) / SPAN_BYTES {
            load(txn, ino, span, &mut extents)?;
        }
        for run in
            extents.map(range.clone()).into_iter().filter(|run| run.place.is_some_and(|place| place.object == object))
        {
            if let Some(lost) = past_end(&run, limit).filter(|_| holes < HOLES_MAX) {
                holes += 1;
                extents.put(ino, Extent { offset: lost.start, len: lost.end - lost.start, place: None }, &mut plan);
            }
        }
    }
    if holes == 0 {
        return Ok(true);
    }
    plan.deletes.iter().for_each(|key| txn.delete(key));
    plan.puts.iter().for_each(|(key, value)| txn.put(key, &value[..]));
    for (object, by) in &plan.live {
        txn.merge(&keys::object(*object), Box::new(ObjectDelta::Live(*by)));
    }
    txn.merge(&keys::volume("usage"), Box::new(Usage { bytes: plan.held_bytes, inodes: 0 }));
    change(txn, ino, |inode| inode.held_bytes = inode.held_bytes.saturating_add_signed(plan.held_bytes))?;
    Ok(false)
}

fn load(txn: &mut Txn<'_>, ino: Ino, span: u64, extents: &mut FileExtents) -> Result<()> {
    if extents.has(span) {
        return Ok(());
    }
    let (from, to) = (keys::extent(ino, span, 0), keys::extent(ino, span + 1, 0));
    let mut records = Vec::new();
    txn.scan(&from, &to, &mut |key, value| {
        records.push((keys::number_at(key, 17), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    extents.load(span, &records)
}
