//! Record locks (`fcntl`) of the calling process: rustix has no ranges.
#![expect(unsafe_code, reason = "fcntl with a struct flock has no safe wrapper among our dependencies")]

use std::{
    fs::File,
    io::{Error, Result},
    os::fd::AsRawFd,
};

/// What kind of record lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None: unlocks.
    Unlock,
}

impl LockKind {
    fn raw(self) -> libc::c_short {
        let kind = match self {
            Self::Read => libc::F_RDLCK,
            Self::Write => libc::F_WRLCK,
            Self::Unlock => libc::F_UNLCK,
        };
        kind as libc::c_short
    }
}

fn range(kind: LockKind, start: i64, len: i64) -> libc::flock {
    libc::flock { l_type: kind.raw(), l_whence: libc::SEEK_SET as libc::c_short, l_start: start, l_len: len, l_pid: 0 }
}

/// `F_SETLK`: takes or drops a lock on `[start, start + len)`, without waiting.
///
/// # Errors
/// EAGAIN or EACCES when another process holds a lock in the way.
pub fn set_range_lock(file: &File, kind: LockKind, start: i64, len: i64) -> Result<()> {
    let lock = range(kind, start, len);
    // SAFETY: F_SETLK reads a `struct flock`, which outlives the call; the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// `F_GETLK`: the pid of the process whose lock is in the way of this one, if any.
///
/// # Errors
/// Those of the call.
pub fn would_block_on(file: &File, kind: LockKind, start: i64, len: i64) -> Result<Option<i32>> {
    let mut lock = range(kind, start, len);
    // SAFETY: F_GETLK reads and writes a `struct flock`, which outlives the call; the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) } {
        0 if lock.l_type == LockKind::Unlock.raw() => Ok(None),
        0 => Ok(Some(lock.l_pid)),
        _ => Err(Error::last_os_error()),
    }
}
