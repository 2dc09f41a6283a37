//! The operations, typed.

use crate::abi::{FileLock, inputs};
use sluice_base::Timestamp;
use zerocopy::FromBytes;

/// One operation. RENAME arrives as `Rename` without flags, SETLKW as `SetLk` that waits. Names are bytes without NUL.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields are those of linux/fuse.h under their own names; where not, a comment says so")]
pub enum Operation<'a> {
    /// Session start; handled by the session.
    Init(inputs::InitIn),
    /// Find `name` in the directory; success is one more reference on the inode.
    Lookup { name: &'a [u8] },
    /// References dropped; no reply.
    Forget { lookups: u64 },
    /// References dropped on many inodes; no reply.
    BatchForget(Forgets<'a>),
    /// Attributes, through an open handle if there is one.
    GetAttr { fh: Option<u64> },
    /// Change attributes.
    SetAttr(SetAttr),
    /// Target of a symbolic link.
    ReadLink,
    /// Create a symbolic link.
    SymLink { name: &'a [u8], target: &'a [u8] },
    /// Create a file, fifo, socket or device. `rdev` is in the kernel's 32-bit encoding, as in `Attr`.
    MkNod { name: &'a [u8], mode: u32, rdev: u32, umask: u32 },
    /// Create a directory.
    MkDir { name: &'a [u8], mode: u32, umask: u32 },
    /// Remove a name of a file.
    Unlink { name: &'a [u8] },
    /// Remove an empty directory.
    RmDir { name: &'a [u8] },
    /// Rename; `flags` are RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT of renameat2(2).
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    /// A further name in this directory for the inode `target`.
    Link { target: u64, name: &'a [u8] },
    /// Open a file. Without O_TRUNC: that comes as a SETATTR.
    Open { flags: u32 },
    /// Read up to `size` bytes; fewer mean end of file.
    Read { fh: u64, offset: u64, size: u32, flags: u32, lock_owner: Option<u64> },
    /// Write. `cached`: from the page cache (mmap), so that `fh` and `pid` may be anybody's.
    Write {
        fh: u64,
        offset: u64,
        data: &'a [u8],
        flags: u32,
        cached: bool,
        kill_suidgid: bool,
        lock_owner: Option<u64>,
    },
    /// Sizes of the file system.
    StatFs,
    /// The last user of a handle is gone. `flags` are those of open(2).
    Release { fh: u64, flags: u32, flush: bool, flock_unlock: bool, lock_owner: u64 },
    /// fsync, or fdatasync with `data_only`.
    Fsync { fh: u64, data_only: bool },
    /// Set an extended attribute; `flags` are XATTR_CREATE and XATTR_REPLACE.
    SetXattr { name: &'a [u8], value: &'a [u8], flags: u32, acl_kill_sgid: bool },
    /// Read an extended attribute; size 0 asks for its length.
    GetXattr { name: &'a [u8], size: u32 },
    /// List the names, each followed by NUL; size 0 asks for the length.
    ListXattr { size: u32 },
    /// Remove an extended attribute.
    RemoveXattr { name: &'a [u8] },
    /// close(2) of one descriptor of the handle.
    Flush { fh: u64, lock_owner: u64 },
    /// Open a directory.
    OpenDir { flags: u32 },
    /// Entries from the cookie `offset` on (0: the start), at most `size` bytes of them.
    ReadDir { fh: u64, offset: u64, size: u32 },
    /// The same with attributes; every entry other than . and .. counts as a lookup.
    ReadDirPlus { fh: u64, offset: u64, size: u32 },
    /// The last user of a directory handle is gone.
    ReleaseDir { fh: u64, flags: u32 },
    /// fsync of a directory.
    FsyncDir { fh: u64, data_only: bool },
    /// Is there a lock in the way?
    GetLk(LockRequest),
    /// Take or drop a lock, waiting for it or not.
    SetLk { lock: LockRequest, wait: bool },
    /// access(2); not sent under default_permissions.
    Access { mask: u32 },
    /// Create and open.
    Create { name: &'a [u8], flags: u32, mode: u32, umask: u32, kill_suidgid: bool },
    /// Create and open a file without a name (O_TMPFILE).
    TmpFile { flags: u32, mode: u32, umask: u32 },
    /// The caller of request `unique` got a signal; handled by the session.
    Interrupt { unique: u64 },
    /// The file system is going; handled by the session.
    Destroy,
    /// ioctl(2).
    Ioctl { fh: u64, flags: u32, cmd: u32, arg: u64, data: &'a [u8], out_size: u32 },
    /// poll(2).
    Poll { fh: u64, kh: u64, flags: u32, events: u32 },
    /// fallocate(2).
    FAllocate { fh: u64, offset: u64, length: u64, mode: u32 },
    /// lseek(2) with SEEK_DATA or SEEK_HOLE.
    LSeek { fh: u64, offset: u64, whence: u32 },
    /// copy_file_range(2). `wide`: answer with `Reply::copied`, otherwise with `Reply::written`.
    CopyFileRange {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
        wide: bool,
    },
    /// syncfs(2); the kernel sends it to privileged servers only.
    SyncFs,
    /// statx(2) when more than GETATTR can say is asked for.
    Statx { fh: Option<u64>, flags: u32, mask: u32 },
    /// Map a block; only for block device mounts.
    BMap { block: u64, blocksize: u32 },
    /// Anything else: answer ENOSYS.
    Unknown { opcode: u32 },
}

/// Attributes to change; `None` leaves one alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, with the file type bits as they are.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time; sent under a write-back cache only.
    pub ctime: Option<Timestamp>,
    /// Open handle the change goes through (ftruncate).
    pub fh: Option<u64>,
    /// Drop setuid and setgid (truncate by somebody without CAP_FSETID).
    pub kill_suidgid: bool,
    /// Owner of mandatory locks, with `size`.
    pub lock_owner: Option<u64>,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's present.
    Now,
    /// This one.
    At(Timestamp),
}

/// A record lock or flock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// Handle.
    pub fh: u64,
    /// Opaque owner.
    pub owner: u64,
    /// Range (end inclusive), kind (F_RDLCK, F_WRLCK, F_UNLCK) and process.
    pub lock: FileLock,
    /// An flock(2), not a record lock.
    pub flock: bool,
}

/// The pairs of a BATCH_FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(pub(super) &'a [u8]);

impl Forgets<'_> {
    /// (nodeid, lookups) of each.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0
            .chunks_exact(size_of::<inputs::ForgetOne>())
            .filter_map(|pair| inputs::ForgetOne::read_from_bytes(pair).ok())
            .map(|one| (one.nodeid, one.nlookup))
    }
}
