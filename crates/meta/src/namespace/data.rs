//! What changes a file's content: one transaction carries new extents or the inline body, the size, the times and, in its
//! log record, the small data itself.

use super::{Attr, Namespace, Read};
use crate::{
    Error, Result,
    extent::{Extent, ExtentPlan, FileExtents},
    keys,
    records::{Inode, ObjectDelta, Usage, flags},
    rpc::codec::Wire,
    store::{Committed, Txn},
};
use sluice_base::{
    Ino, ObjectId, SessionId, Timestamp,
    limits::{FILE_BYTES_MAX, SPAN_BYTES},
};
use std::ops::{ControlFlow, Range};

/// What a change does to the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeChange {
    /// Nothing.
    Keep,
    /// At least so many bytes: a write that ends there.
    AtLeast(u64),
    /// Exactly so many bytes: truncate.
    Exactly(u64),
}

impl SizeChange {
    /// What becomes of a size, in bytes.
    pub fn of(self, size: u64) -> u64 {
        match self {
            SizeChange::Keep => size,
            SizeChange::AtLeast(bytes) => size.max(bytes),
            SizeChange::Exactly(bytes) => bytes,
        }
    }
}

/// An opaque section of the log record: the vfs's own words about data.
#[derive(Clone, Debug)]
pub struct Attachment<'a> {
    /// What it is.
    pub header: Vec<u8>,
    /// Bytes that it carries.
    pub data: &'a [u8],
}

/// A change of a file's content.
pub struct DataChange<'a> {
    /// Extents and holes to put, in order; later ones cover earlier ones.
    pub extents: Vec<Extent>,
    /// The new inline body; `Some(None)` removes it.
    pub body: Option<Option<&'a [u8]>>,
    /// What happens to the size.
    pub size: SizeChange,
    /// Objects that begin with this change.
    pub new_objects: Vec<(ObjectId, SessionId)>,
    /// Objects that must still be there.
    pub needed: Vec<ObjectId>,
    /// Sections for the log record.
    pub attachments: Vec<Attachment<'a>>,
    /// Take setuid and setgid away.
    pub kill_suidgid: bool,
    /// Whether mtime and ctime become now.
    pub touch: bool,
}

impl Default for DataChange<'_> {
    fn default() -> Self {
        let (extents, new_objects, needed, attachments) = Default::default();
        let (body, size) = (None, SizeChange::Keep);
        Self { extents, body, size, new_objects, needed, attachments, kill_suidgid: false, touch: true }
    }
}

impl Namespace {
    /// Loads the spans of `range` that are not in `extents` yet.
    pub fn load_extents(&self, ino: Ino, extents: &mut FileExtents, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        for span in range.start / SPAN_BYTES..=(range.end - 1) / SPAN_BYTES {
            if extents.has(span) {
                continue;
            }
            let (from, to) = (keys::extent(ino, span, 0), keys::extent(ino, span + 1, 0));
            let mut records = Vec::new();
            self.store.snapshot().scan(&from, &to, &mut |key, value| {
                records.push((keys::number_at(key, 17), value.to_vec()));
                ControlFlow::Continue(())
            })?;
            extents.load(span, &records)?;
        }
        Ok(())
    }

    /// An inode's record, for the vfs to see how its bytes are kept.
    pub fn inode(&self, ino: Ino) -> Result<Inode> {
        self.store.snapshot().inode(ino)
    }

    /// The first span from `span` on that has extents.
    pub fn next_span(&self, ino: Ino, span: u64) -> Result<Option<u64>> {
        let (from, to) = keys::extents_from(ino, span);
        let mut found = None;
        self.store.snapshot().scan(&from, &to, &mut |key, _| {
            found = Some(keys::number_at(key, 9));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// The inline body, when the file has one.
    pub fn body(&self, ino: Ino) -> Result<Option<crate::store::Value>> {
        Ok(self.store.snapshot().get(&keys::body(ino))?)
    }

    /// Commits a change of content. The spans of its extents must be loaded; the caller holds the file's lock, so that
    /// nobody else changes its extents meanwhile. When this fails nothing has changed.
    pub fn change_data(&self, ino: Ino, extents: &mut FileExtents, change: &DataChange<'_>) -> Result<Committed<Attr>> {
        self.change_data_at(ino, extents, change, None, |_, inode| Ok(Attr::of(ino, inode)))
    }

    /// [`Namespace::change_data`] of bytes that were written earlier: at `mtime`. `tell` makes the answer of the inode as it is then.
    pub(crate) fn change_data_at<R: for<'r> Wire<'r>>(
        &self,
        ino: Ino,
        extents: &mut FileExtents,
        change: &DataChange<'_>,
        mtime: Option<Timestamp>,
        tell: impl Fn(&mut Txn<'_>, &Inode) -> Result<R>,
    ) -> Result<Committed<R>> {
        let mut plan = ExtentPlan::default();
        for extent in &change.extents {
            extents.put(ino, *extent, &mut plan);
        }
        let now = self.now();
        // A number that a publish gave in one run of a server comes again in no other, although a loss of power may take it back:
        // see the mounts' side, `vfs/src/remote/doubt.rs`.
        let change_min = u64::from(self.ids.lock().life) << 32;
        let result = self.write(|txn| {
            let mut inode = txn.inode(ino)?;
            if inode.is_dir() {
                return Err(Error::IsDirectory);
            }
            if !inode.is_file() {
                return Err(Error::Invalid("not a regular file"));
            }
            let held_before = inode.held_bytes;
            let held = inode.held_bytes.saturating_add_signed(plan.held_bytes);
            inode.held_bytes = held;
            if let Some(body) = change.body {
                let old = if inode.has(flags::INLINE) { txn.get(&keys::body(ino))?.map_or(0, |b| b.len()) } else { 0 };
                inode.held_bytes = (held + body.map_or(0, |b| b.len() as u64)).saturating_sub(old as u64);
                match body {
                    Some(bytes) => txn.put(&keys::body(ino), bytes),
                    None => txn.delete(&keys::body(ino)),
                }
                inode.set(flags::INLINE, body.is_some());
            }
            if !plan.puts.is_empty() {
                inode.set(flags::EXTENTS, true);
            }
            inode.size = change.size.of(inode.size);
            if inode.size > FILE_BYTES_MAX {
                return Err(Error::FileTooLarge);
            }
            if change.kill_suidgid {
                inode.kill_suidgid();
            }
            if change.touch && inode.has(flags::XATTRS) {
                drop_capabilities(txn, ino)?;
            }
            if change.touch {
                inode.mtime = mtime.unwrap_or(now);
                inode.change = inode.change.max(change_min);
                inode.touch(now);
            }
            txn.put(&keys::inode(ino), inode.encode());
            for object in &change.needed {
                if txn.get(&keys::object(*object))?.is_none() {
                    return Err(Error::Gone);
                }
            }
            for (object, session) in &change.new_objects {
                txn.merge(&keys::object(*object), Box::new(ObjectDelta::Open(*session)));
            }
            for (object, by) in plan.live.iter().filter(|(_, by)| **by != 0) {
                txn.merge(&keys::object(*object), Box::new(ObjectDelta::Live(*by)));
            }
            plan.deletes.iter().for_each(|key| txn.delete(key));
            plan.puts.iter().for_each(|(key, value)| txn.put(key, &value[..]));
            let bytes = inode.held_bytes as i64 - held_before as i64;
            if bytes != 0 {
                txn.merge(&keys::volume("usage"), Box::new(Usage { bytes, inodes: 0 }));
            }
            for attachment in &change.attachments {
                txn.attach(attachment.header.clone(), attachment.data);
            }
            tell(txn, &inode)
        });
        if result.is_err() {
            extents.forget();
        }
        result
    }
}

/// A changed file loses its file capabilities, as with setuid (capabilities(7)). The kernel leaves that to us
/// (FUSE_HANDLE_KILLPRIV_V2).
pub(super) fn drop_capabilities(txn: &mut Txn<'_>, ino: Ino) -> Result<()> {
    let key = keys::xattr(ino, b"security.capability");
    if txn.get(&key)?.is_some() {
        txn.delete(&key);
    }
    Ok(())
}
