//! The error numbers that a file system operation may end with.

use rustix::io::Errno as Raw;
use std::{fmt, io};

/// A Linux errno, as positive number. Every error enum of the inner crates maps to it in one place, `sluice_vfs::error`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! names {
    ($($name:ident = $raw:ident: $text:literal),* $(,)?) => {
        impl Errno { $(#[doc = $text] pub const $name: Errno = Errno(Raw::$raw.raw_os_error());)* }
        impl fmt::Debug for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self { $(Self::$name => f.write_str(stringify!($name)),)* Errno(n) => write!(f, "errno {n}") }
            }
        }
    };
}

names! {
    EPERM = PERM: "Operation not permitted.",
    ENOENT = NOENT: "No such file or directory.",
    EINTR = INTR: "Interrupted.",
    EIO = IO: "Input/output error.",
    ENXIO = NXIO: "No such address; SEEK_DATA past the end.",
    E2BIG = TOOBIG: "Too big.",
    EBADF = BADF: "Not an open file.",
    EAGAIN = AGAIN: "Try again.",
    ENOMEM = NOMEM: "Out of memory.",
    EACCES = ACCESS: "Permission denied.",
    EBUSY = BUSY: "Busy.",
    EDEADLK = DEADLK: "Each waits for the other.",
    ENOLCK = NOLCK: "Too many locks.",
    EEXIST = EXIST: "Exists.",
    ETXTBSY = TXTBSY: "The file is open in a way that keeps it from being written.",
    EXDEV = XDEV: "Crosses file systems.",
    ENODEV = NODEV: "No such device.",
    ENOTDIR = NOTDIR: "Not a directory.",
    EISDIR = ISDIR: "Is a directory.",
    EINVAL = INVAL: "Invalid argument.",
    ENFILE = NFILE: "Too many open files in the system.",
    EFBIG = FBIG: "File too large.",
    ENOSPC = NOSPC: "No space left.",
    EROFS = ROFS: "Read-only.",
    EMLINK = MLINK: "Too many links.",
    ERANGE = RANGE: "Buffer too small.",
    ENAMETOOLONG = NAMETOOLONG: "Name too long.",
    ENOSYS = NOSYS: "Not implemented by this file system.",
    ENOTEMPTY = NOTEMPTY: "Directory not empty.",
    ELOOP = LOOP: "Too many symbolic links.",
    ENODATA = NODATA: "No such extended attribute.",
    EOVERFLOW = OVERFLOW: "Value too large.",
    EOPNOTSUPP = OPNOTSUPP: "Not supported.",
    ETIMEDOUT = TIMEDOUT: "Timed out.",
    ESTALE = STALE: "The inode is gone.",
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}
