//! lookup, and everything that gives or takes one name: create, mkdir, symlink, link, unlink, rmdir.

use super::{Attr, Caller, Namespace, Read, attributes::inherited, check_name, new_inode};
use crate::{
    Error, Result, keys,
    records::{DirDelta, DirStat, Dirent, Inode, ObjectDelta, Usage, flags, mode},
    store::{Committed, Txn},
};
use sluice_base::{
    Ino, Timestamp,
    limits::{LINKS_MAX, NAME_BYTES_MAX, SYMLINK_BYTES_MAX},
};
use std::{collections::BTreeMap, ops::ControlFlow};

/// Something to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// Type and permission bits.
    pub mode: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

/// What an unlink left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlinked {
    /// The inode that lost a name.
    pub ino: Ino,
    /// It has no name left but is in use: [`Namespace::reclaim`] when that ends.
    pub orphaned: bool,
    /// Links that are left.
    pub nlink: u32,
}

/// Most extent records that one transaction removes; what has more is reclaimed in steps.
const EXTENT_RECORDS_MAX: usize = 1024;

impl Namespace {
    /// The entry `name` of `dir`, with attributes.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let mut snapshot = self.store.snapshot();
        match name {
            b"." => return snapshot.attr(dir),
            b".." => {
                let parent = snapshot.directory(dir)?.parent;
                return snapshot.attr(parent);
            }
            _ => {}
        }
        match snapshot.get(&keys::entry(dir, name))? {
            Some(found) => {
                let ino = Dirent::decode(&found)?.ino;
                snapshot.attr(ino)
            }
            None => {
                snapshot.directory(dir)?;
                Err(Error::NotFound)
            }
        }
    }

    /// What the entry `name` of `dir` stands for, without a look at it; `None` when there is no such entry.
    pub fn find(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let found = self.store.snapshot().get(&keys::entry(dir, name))?;
        Ok(found.map(|found| Dirent::decode(&found)).transpose()?.map(|entry| entry.ino))
    }

    /// Makes `name` in `dir`: mkdir, mknod, symlink and create alike.
    pub fn create(&self, dir: Ino, name: &[u8], node: NewNode<'_>, caller: Caller) -> Result<Committed<Attr>> {
        check_name(name)?;
        check_target(&node)?;
        let ((ino, again), cookie, now) = (self.new_ino()?, self.next_id()?, self.now());
        self.write(|txn| {
            check_free(txn, ino, again)?;
            let parent = txn.directory(dir)?;
            if txn.get(&keys::entry(dir, name))?.is_some() {
                return Err(Error::Exists);
            }
            let (gid, mode) = inherited(parent.mode, parent.gid, caller, node.mode);
            let mut inode = new_inode(mode, caller.uid, gid, now);
            inode.rdev = node.rdev;
            if mode & mode::TYPE == mode::SYMLINK {
                inode.size = node.target.len() as u64;
                txn.put(&keys::symlink(ino), node.target);
            }
            let is_dir = inode.is_dir();
            if is_dir {
                inode.parent = dir;
                txn.put(&keys::dir_stat(ino), DirStat::empty(now).encode());
            }
            txn.put(&keys::inode(ino), inode.encode());
            put_entry(txn, dir, name, Dirent { ino, kind: mode & mode::TYPE, cookie, name: Vec::new() });
            count(txn, dir, 1, i32::from(is_dir), now);
            txn.merge(&keys::volume("usage"), Box::new(Usage { bytes: 0, inodes: 1 }));
            Ok(if is_dir { Attr::of_dir(ino, &inode, &DirStat::empty(now)) } else { Attr::of(ino, &inode) })
        })
    }

    /// Makes a file without a name (O_TMPFILE), an orphan until it is linked.
    pub fn create_unnamed(&self, dir: Ino, mode: u32, caller: Caller) -> Result<Committed<Attr>> {
        let ((ino, again), now) = (self.new_ino()?, self.now());
        self.write(|txn| {
            check_free(txn, ino, again)?;
            let parent = txn.directory(dir)?;
            let (gid, mode) = inherited(parent.mode, parent.gid, caller, mode);
            let inode = Inode { nlink: 0, ..new_inode(mode, caller.uid, gid, now) };
            txn.put(&keys::inode(ino), inode.encode());
            txn.put(&keys::orphan(ino), b"");
            txn.merge(&keys::volume("usage"), Box::new(Usage { bytes: 0, inodes: 1 }));
            Ok(Attr::of(ino, &inode))
        })
    }

    /// Another name for `ino`.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Committed<Attr>> {
        check_name(name)?;
        let (cookie, now) = (self.next_id()?, self.now());
        self.write(|txn| {
            let mut inode = txn.inode(ino)?;
            if inode.is_dir() {
                return Err(Error::NotPermitted);
            }
            if inode.nlink >= LINKS_MAX {
                return Err(Error::TooManyLinks);
            }
            txn.directory(dir)?;
            if txn.get(&keys::entry(dir, name))?.is_some() {
                return Err(Error::Exists);
            }
            if inode.nlink == 0 {
                txn.delete(&keys::orphan(ino));
            }
            inode.nlink += 1;
            inode.touch(now);
            txn.put(&keys::inode(ino), inode.encode());
            put_entry(txn, dir, name, Dirent { ino, kind: inode.mode & mode::TYPE, cookie, name: Vec::new() });
            count(txn, dir, 1, 0, now);
            Ok(Attr::of(ino, &inode))
        })
    }

    /// Takes a name that is not a directory's. `in_use` says whether the inode is open, so that it must outlive its last name.
    pub fn unlink(&self, dir: Ino, name: &[u8], in_use: &dyn Fn(Ino) -> bool) -> Result<Committed<Unlinked>> {
        let now = self.now();
        self.write(|txn| {
            let entry = find(txn, dir, name)?;
            if entry.kind == mode::DIRECTORY {
                return Err(Error::IsDirectory);
            }
            remove_entry(txn, dir, name, &entry);
            count(txn, dir, -1, 0, now);
            drop_link(txn, entry.ino, in_use, now)
        })
    }

    /// Takes an empty directory.
    pub fn rmdir(&self, dir: Ino, name: &[u8], in_use: &dyn Fn(Ino) -> bool) -> Result<Committed<Unlinked>> {
        match name {
            b"." => return Err(Error::Invalid("rmdir of .")),
            b".." => return Err(Error::NotEmpty),
            _ => {}
        }
        let now = self.now();
        self.write(|txn| {
            let entry = find(txn, dir, name)?;
            let result = drop_dir(txn, &entry, in_use, now)?;
            remove_entry(txn, dir, name, &entry);
            count(txn, dir, -1, -1, now);
            Ok(result)
        })
    }

    /// Removes what is left of orphans that are no longer in use; what has a name is left alone.
    pub fn reclaim(&self, orphans: &[Ino]) -> Result<()> {
        loop {
            let step = self.write(|txn| {
                for ino in orphans {
                    let Some(bytes) = txn.get(&keys::inode(*ino))? else { continue };
                    let inode = Inode::decode(&bytes)?;
                    // One that is large ends this step: the next one goes on with it.
                    if inode.nlink == 0 && !remove_content(txn, *ino, &inode, true)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            })?;
            if step.value {
                return Ok(());
            }
        }
    }

    /// Orphans that an earlier run left: everything without a name when the volume starts.
    pub fn orphans(&self) -> Result<Vec<Ino>> {
        let (from, to) = keys::whole_table(b'u');
        let mut found = Vec::new();
        self.store.snapshot().scan(&from, &to, &mut |key, _| {
            found.push(Ino(keys::number_at(key, 1)));
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut snapshot = self.store.snapshot();
        match snapshot.get(&keys::symlink(ino))? {
            Some(target) => Ok(target.to_vec()),
            None => snapshot.inode(ino).and(Err(Error::Invalid("not a symbolic link"))),
        }
    }
}

/// An inode that is made `again` is not there.
fn check_free(txn: &mut Txn<'_>, ino: Ino, again: bool) -> Result<()> {
    if again && txn.get(&keys::inode(ino))?.is_some() { Err(Error::Exists) } else { Ok(()) }
}

fn check_target(node: &NewNode<'_>) -> Result<()> {
    match node.mode & mode::TYPE {
        mode::SYMLINK if node.target.is_empty() => Err(Error::NotFound),
        mode::SYMLINK if node.target.len() > SYMLINK_BYTES_MAX => Err(Error::NameTooLong),
        mode::SOCKET | mode::SYMLINK | mode::REGULAR | mode::BLOCK | mode::DIRECTORY | mode::CHARACTER | mode::FIFO => {
            Ok(())
        }
        _ => Err(Error::Invalid("no such file type")),
    }
}

/// The entry `name` of `dir`.
pub(super) fn find(txn: &mut Txn<'_>, dir: Ino, name: &[u8]) -> Result<Dirent> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    match txn.get(&keys::entry(dir, name))? {
        Some(found) => Dirent::decode(&found),
        None => txn.directory(dir).and(Err(Error::NotFound)),
    }
}

/// Writes an entry under its name and under its cookie.
pub(crate) fn put_entry(txn: &mut Txn<'_>, dir: Ino, name: &[u8], entry: Dirent) {
    txn.put(&keys::entry(dir, name), Dirent::encode(entry.ino, entry.kind, entry.cookie, b""));
    txn.put(&keys::cookie(dir, entry.cookie), Dirent::encode(entry.ino, entry.kind, entry.cookie, name));
}

pub(super) fn remove_entry(txn: &mut Txn<'_>, dir: Ino, name: &[u8], entry: &Dirent) {
    txn.delete(&keys::entry(dir, name));
    txn.delete(&keys::cookie(dir, entry.cookie));
}

/// A directory gained or lost entries and subdirectories now.
pub(crate) fn count(txn: &mut Txn<'_>, dir: Ino, entries: i64, subdirs: i32, now: Timestamp) {
    let delta = DirDelta { nlink: subdirs, entries, mtime: Some(now), ctime: Some(now) };
    txn.merge(&keys::dir_stat(dir), Box::new(delta));
}

/// One link less; without links and users the inode goes at once.
pub(super) fn drop_link(txn: &mut Txn<'_>, ino: Ino, in_use: &dyn Fn(Ino) -> bool, now: Timestamp) -> Result<Unlinked> {
    let mut inode = txn.inode(ino)?;
    inode.nlink = inode.nlink.saturating_sub(1);
    inode.touch(now);
    let nlink = inode.nlink;
    if nlink == 0 && !in_use(ino) && remove_content(txn, ino, &inode, false)? {
        return Ok(Unlinked { ino, orphaned: false, nlink });
    }
    txn.put(&keys::inode(ino), inode.encode());
    if nlink == 0 {
        txn.put(&keys::orphan(ino), b"");
    }
    Ok(Unlinked { ino, orphaned: nlink == 0, nlink })
}

/// Removes an empty directory that lost its name.
pub(super) fn drop_dir(
    txn: &mut Txn<'_>,
    entry: &Dirent,
    in_use: &dyn Fn(Ino) -> bool,
    now: Timestamp,
) -> Result<Unlinked> {
    let mut inode = txn.directory(entry.ino)?;
    if txn.dir_stat(entry.ino)?.entries > 0 {
        return Err(Error::NotEmpty);
    }
    txn.delete(&keys::dir_stat(entry.ino));
    let ino = entry.ino;
    inode.nlink = 0;
    if in_use(ino) {
        (inode.mtime, inode.parent) = (now, Ino(0));
        inode.touch(now);
        txn.put(&keys::inode(ino), inode.encode());
        txn.put(&keys::orphan(ino), b"");
        return Ok(Unlinked { ino, orphaned: true, nlink: 0 });
    }
    remove_content(txn, ino, &inode, false)?;
    Ok(Unlinked { ino, orphaned: false, nlink: 0 })
}

/// Removes an inode and what belongs to it; false when there is more than one transaction should hold, of which it then has
/// removed a part. `marked` says that the inode is an orphan already.
fn remove_content(txn: &mut Txn<'_>, ino: Ino, inode: &Inode, marked: bool) -> Result<bool> {
    let mut done = true;
    if inode.has(flags::EXTENTS) {
        done = remove_extents(txn, ino)?;
    }
    if !done {
        // Orphan until the last step; what a crash leaves is found again by its mark.
        txn.put(&keys::inode(ino), Inode { nlink: 0, ..inode.clone() }.encode());
        txn.put(&keys::orphan(ino), b"");
        return Ok(false);
    }
    if inode.has(flags::INLINE) {
        txn.delete(&keys::body(ino));
    }
    if inode.has(flags::XATTRS) {
        let (from, to) = keys::all_of(b'x', ino);
        let mut found = Vec::new();
        txn.scan(&from, &to, &mut |key, _| {
            found.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        found.iter().for_each(|key| txn.delete(key));
    }
    if inode.mode & mode::TYPE == mode::SYMLINK {
        txn.delete(&keys::symlink(ino));
    }
    txn.delete(&keys::inode(ino));
    if marked {
        txn.delete(&keys::orphan(ino));
    }
    txn.merge(&keys::volume("usage"), Box::new(Usage { bytes: -(inode.held_bytes as i64), inodes: -1 }));
    Ok(true)
}

/// Removes extent records, at most [`EXTENT_RECORDS_MAX`] but whole spans; true when none is left.
fn remove_extents(txn: &mut Txn<'_>, ino: Ino) -> Result<bool> {
    let (from, to) = keys::all_of(b'e', ino);
    let mut records: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut whole = true;
    txn.scan(&from, &to, &mut |key, value| {
        let new_span = records.last().is_some_and(|(last, _)| last[..17] != key[..17]);
        if new_span && records.len() >= EXTENT_RECORDS_MAX {
            whole = false;
            return ControlFlow::Break(());
        }
        records.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    let mut live: BTreeMap<_, i64> = BTreeMap::new();
    for span in records.chunk_by(|a, b| a.0[..17] == b.0[..17]) {
        let number = keys::number_at(&span[0].0, 9);
        let list: Vec<_> = span.iter().map(|(key, value)| (keys::number_at(key, 17), value.clone())).collect();
        let mut extents = crate::extent::FileExtents::default();
        extents.load(number, &list)?;
        let start = number * sluice_base::limits::SPAN_BYTES;
        for extent in extents.map(start..start + sluice_base::limits::SPAN_BYTES) {
            if let Some(place) = extent.place {
                *live.entry(place.object).or_default() -= extent.len as i64;
            }
        }
    }
    records.iter().for_each(|(key, _)| txn.delete(key));
    for (object, by) in live {
        txn.merge(&keys::object(object), Box::new(ObjectDelta::Live(by)));
    }
    Ok(whole)
}
