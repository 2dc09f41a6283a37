//! Attributes and time-outs.

use crate::abi::AttrWire;
use crate::abi::outputs::{AttrOut, EntryOut, StatfsOut, Statx, StatxOut, SxTime};
use sluice_base::Timestamp;
use std::time::Duration;

/// Attributes of an inode, as stat(2) shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number shown to programs.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Blocks of 512 bytes in use.
    pub blocks: u64,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time.
    pub ctime: Timestamp,
    /// File type and permission bits.
    pub mode: u32,
    /// Names of the inode.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number in the kernel's 32-bit encoding: 12 bits major, 20 bits minor, as MKNOD sends it.
    pub rdev: u32,
    /// Preferred size of I/O in bytes.
    pub blksize: u32,
}

/// A name's inode, and how long the kernel may believe it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// What later requests call the inode; 0 is no inode.
    pub nodeid: u64,
    /// Makes (nodeid, generation) unique for ever.
    pub generation: u64,
    /// Its attributes.
    pub attr: Attr,
    /// How long the name holds.
    pub entry_valid: Duration,
    /// How long the attributes hold.
    pub attr_valid: Duration,
}

/// What statfs(2) shows; blocks are of `frsize` bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of struct statvfs under their own names")]
pub struct StatFs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
}

/// Seconds and nanoseconds of a time-out.
pub(super) fn split(valid: Duration) -> (u64, u32) {
    (valid.as_secs(), valid.subsec_nanos())
}

fn attr_wire(attr: &Attr) -> AttrWire {
    AttrWire {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.secs,
        mtime: attr.mtime.secs,
        ctime: attr.ctime.secs,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

pub(super) fn entry_out(entry: &Entry) -> EntryOut {
    let (entry_valid, entry_valid_nsec) = split(entry.entry_valid);
    let (attr_valid, attr_valid_nsec) = split(entry.attr_valid);
    let Entry { nodeid, generation, attr, .. } = *entry;
    EntryOut { nodeid, generation, entry_valid, attr_valid, entry_valid_nsec, attr_valid_nsec, attr: attr_wire(&attr) }
}

pub(super) fn attr_out(attr: &Attr, valid: Duration) -> AttrOut {
    let (attr_valid, attr_valid_nsec) = split(valid);
    AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attr_wire(attr) }
}

/// STATX_BASIC_STATS and STATX_BTIME of `<linux/stat.h>`.
const BASIC_STATS: u32 = 0x7ff;
const BTIME: u32 = 0x800;

pub(super) fn statx_out(attr: &Attr, birth: Option<Timestamp>, valid: Duration) -> StatxOut {
    let (attr_valid, attr_valid_nsec) = split(valid);
    let time = |at: Timestamp| SxTime { tv_sec: at.secs, tv_nsec: at.nanos, reserved: 0 };
    let stat = Statx {
        mask: BASIC_STATS | if birth.is_some() { BTIME } else { 0 },
        blksize: attr.blksize,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // st_mode has 16 bits in statx; Linux defines none above.
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(birth.unwrap_or_default()),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: (attr.rdev & 0xf_ff00) >> 8,
        rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00),
        ..Default::default()
    };
    StatxOut { attr_valid, attr_valid_nsec, flags: 0, spare: [0; 2], stat }
}

pub(super) fn statfs_out(stat: &StatFs) -> StatfsOut {
    let StatFs { blocks, bfree, bavail, files, ffree, bsize, namelen, frsize } = *stat;
    StatfsOut { blocks, bfree, bavail, files, ffree, bsize, namelen, frsize, padding: 0, spare: [0; 6] }
}
