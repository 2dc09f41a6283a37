//! Answers: plain values of the file system to the structures of the kernel.
//!
//! [`Reply`] has a method for each kind of body. A handler that answers at once calls them on the reactor's
//! [`ReplyBuffer`], one that answers later on a [`Body`].

mod attr;
mod body;
mod buffer;
mod directory;

pub use attr::{Attr, Entry, StatFs};
pub use body::Body;
pub use buffer::{REPLY_CAPACITY, ReplyBuffer};
pub use directory::{DirBuffer, DirPlusBuffer};

use crate::abi::{FileLock, outputs};
use sluice_base::Timestamp;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Bodies by kind. Call one per request; a body that is not what the opcode expects comes back as EIO to the caller.
pub trait Reply {
    /// Appends raw bytes: data of READ, value of READLINK, GETXATTR, LISTXATTR.
    fn put(&mut self, bytes: &[u8]);

    /// LOOKUP, MKNOD, MKDIR, SYMLINK, LINK: counts as one lookup of `entry.nodeid`.
    fn entry(&mut self, entry: &Entry) {
        self.put(attr::entry_out(entry).as_bytes());
    }

    /// LOOKUP of a name that does not exist and may be taken as missing for `valid`.
    fn no_entry(&mut self, valid: Duration) {
        let (entry_valid, entry_valid_nsec) = attr::split(valid);
        self.put(outputs::EntryOut { entry_valid, entry_valid_nsec, ..Default::default() }.as_bytes());
    }

    /// CREATE and TMPFILE; `flags` are [`crate::abi::flags::fopen`].
    fn created(&mut self, entry: &Entry, fh: u64, flags: u32) {
        self.entry(entry);
        self.opened(fh, flags);
    }

    /// GETATTR and SETATTR.
    fn attr(&mut self, attr: &Attr, valid: Duration) {
        self.put(attr::attr_out(attr, valid).as_bytes());
    }

    /// STATX; `birth` if it is known.
    fn statx(&mut self, attr: &Attr, birth: Option<Timestamp>, valid: Duration) {
        self.put(attr::statx_out(attr, birth, valid).as_bytes());
    }

    /// OPEN and OPENDIR; `flags` are [`crate::abi::flags::fopen`].
    fn opened(&mut self, fh: u64, flags: u32) {
        self.put(outputs::OpenOut { fh, open_flags: flags, backing_id: 0 }.as_bytes());
    }

    /// OPEN of a file that the kernel reads by itself: the number that [`crate::Backings::open`] gave it.
    fn opened_through(&mut self, fh: u64, flags: u32, backing_id: i32) {
        let open_flags = flags | crate::abi::flags::fopen::PASSTHROUGH;
        self.put(outputs::OpenOut { fh, open_flags, backing_id }.as_bytes());
    }

    /// WRITE and the narrow COPY_FILE_RANGE: bytes taken.
    fn written(&mut self, size: u32) {
        self.put(outputs::WriteOut { size, padding: 0 }.as_bytes());
    }

    /// The wide COPY_FILE_RANGE: bytes copied.
    fn copied(&mut self, bytes: u64) {
        self.put(outputs::CopyFileRangeOut { bytes_copied: bytes }.as_bytes());
    }

    /// STATFS.
    fn statfs(&mut self, stat: &StatFs) {
        self.put(attr::statfs_out(stat).as_bytes());
    }

    /// GETXATTR and LISTXATTR with size 0: the length in bytes.
    fn xattr_size(&mut self, size: u32) {
        self.put(outputs::GetxattrOut { size, padding: 0 }.as_bytes());
    }

    /// LSEEK.
    fn position(&mut self, offset: u64) {
        self.put(outputs::LseekOut { offset }.as_bytes());
    }

    /// GETLK: the lock in the way, or kind F_UNLCK.
    fn lock(&mut self, lock: FileLock) {
        self.put(outputs::LkOut { lk: lock }.as_bytes());
    }

    /// BMAP.
    fn block(&mut self, block: u64) {
        self.put(outputs::BmapOut { block }.as_bytes());
    }

    /// IOCTL: the call's return value and the bytes for the caller.
    fn ioctl(&mut self, result: i32, data: &[u8]) {
        self.put(outputs::IoctlOut { result, ..Default::default() }.as_bytes());
        self.put(data);
    }

    /// POLL.
    fn polled(&mut self, revents: u32) {
        self.put(outputs::PollOut { revents, padding: 0 }.as_bytes());
    }
}

#[cfg(test)]
mod tests;
