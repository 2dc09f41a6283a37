//! getattr and setattr.

use super::{Attr, Caller, Namespace, Read};
use crate::{
    Result, keys,
    records::{DirDelta, flags, mode},
    store::Committed,
};
use sluice_base::{Ino, Timestamp};

/// A new file time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This one.
    To(Timestamp),
}

impl SetTime {
    fn at(self, now: Timestamp) -> Timestamp {
        match self {
            SetTime::Now => now,
            SetTime::To(time) => time,
        }
    }
}

/// What setattr changes; sizes are changed with the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// New permission bits.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// New change time, which only a kernel that caches times sends.
    pub ctime: Option<Timestamp>,
    /// Take setuid and setgid away.
    pub kill_suidgid: bool,
}

impl Namespace {
    /// The attributes of an inode.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.store.snapshot().attr(ino)
    }

    /// Changes attributes; permissions were checked by the front end.
    pub fn setattr(&self, ino: Ino, set: &SetAttributes) -> Result<Committed<Attr>> {
        let now = self.now();
        if set.atime.is_some() {
            // Before the transaction: then that of the times that wait sees it gone, or conflicts with this one.
            self.accesses.drop_of(ino);
        }
        self.write(|txn| {
            let mut inode = txn.inode(ino)?;
            if let Some(bits) = set.mode {
                inode.mode = inode.mode & mode::TYPE | bits & mode::PERMISSIONS;
            }
            if set.uid.is_some() || set.gid.is_some() {
                inode.uid = set.uid.unwrap_or(inode.uid);
                inode.gid = set.gid.unwrap_or(inode.gid);
                if !inode.is_dir() {
                    inode.kill_suidgid();
                    if inode.has(flags::XATTRS) {
                        super::data::drop_capabilities(txn, ino)?;
                    }
                }
            }
            if set.kill_suidgid && !inode.is_dir() {
                inode.kill_suidgid();
            }
            inode.atime = set.atime.map_or(inode.atime, |t| t.at(now));
            inode.mtime = set.mtime.map_or(inode.mtime, |t| t.at(now));
            inode.touch(set.ctime.unwrap_or(now));
            txn.put(&keys::inode(ino), inode.encode());
            if !inode.is_dir() || inode.nlink == 0 {
                return Ok(Attr::of(ino, &inode));
            }
            let mut stat = txn.dir_stat(ino)?;
            let mtime = set.mtime.map(|t| t.at(now));
            txn.merge(
                &keys::dir_stat(ino),
                Box::new(DirDelta { mtime, ctime: Some(inode.ctime), ..DirDelta::default() }),
            );
            (stat.mtime, stat.ctime) = (mtime.unwrap_or(stat.mtime), inode.ctime);
            stat.change += 1;
            Ok(Attr::of_dir(ino, &inode, &stat))
        })
    }
}

/// The group and mode of something new in a directory of these attributes: a setgid directory hands its group on, and to
/// directories the bit as well (inode(7)); elsewhere setgid needs membership, which the front end has checked.
pub(super) fn inherited(parent_mode: u32, parent_gid: u32, caller: Caller, new_mode: u32) -> (u32, u32) {
    if parent_mode & mode::SETGID == 0 {
        return (caller.gid, new_mode);
    }
    let is_dir = new_mode & mode::TYPE == mode::DIRECTORY;
    (parent_gid, if is_dir { new_mode | mode::SETGID } else { new_mode })
}
