//! Packed directory entries.

use super::Entry;
use super::attr::entry_out;
use crate::abi::outputs::{Dirent, EntryOut};
use zerocopy::IntoBytes;

/// Entries of READDIR, in memory lent by a [`super::ReplyBuffer`] or by the caller.
pub struct DirBuffer<'a> {
    memory: &'a mut [u8],
    /// The bytes in use, kept with the lender when it wants to know.
    len: Len<'a>,
}

enum Len<'a> {
    Own(usize),
    Lent(&'a mut usize),
}

impl<'a> DirBuffer<'a> {
    /// Packs into `memory`, of the size that the request names. Afterwards cut it at [`Self::len`].
    pub fn new(memory: &'a mut [u8]) -> Self {
        Self { memory, len: Len::Own(0) }
    }

    pub(super) fn counted(memory: &'a mut [u8], len: &'a mut usize) -> Self {
        Self { memory, len: Len::Lent(len) }
    }

    /// Bytes packed.
    pub fn len(&self) -> usize {
        match &self.len {
            Len::Own(len) => *len,
            Len::Lent(len) => **len,
        }
    }

    /// Whether nothing is packed, which tells the kernel that the directory ends here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry; false when it does not fit, and nothing is added. `next` is the cookie that continues after it,
    /// `mode` gives the type.
    pub fn push(&mut self, ino: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        self.pack(&[], ino, next, mode, name)
    }

    fn pack(&mut self, prefix: &[u8], ino: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        let start = self.len();
        let Ok(namelen) = u32::try_from(name.len()) else { return false };
        // FUSE_DIRENT_ALIGN: entries start on multiples of 8 and the padding counts.
        let len = (prefix.len() + size_of::<Dirent>() + name.len()).next_multiple_of(8);
        let Some(mut slot) = self.memory.get_mut(start..start + len) else { return false };
        let dirent = Dirent { ino, off: next, namelen, kind: (mode & 0o170000) >> 12 };
        for part in [prefix, dirent.as_bytes(), name] {
            let (head, rest) = slot.split_at_mut(part.len());
            head.copy_from_slice(part);
            slot = rest;
        }
        slot.fill(0);
        match &mut self.len {
            Len::Own(used) => *used += len,
            Len::Lent(used) => **used += len,
        }
        true
    }
}

/// Entries of READDIRPLUS.
pub struct DirPlusBuffer<'a>(pub(super) DirBuffer<'a>);

impl<'a> DirPlusBuffer<'a> {
    /// Packs into `memory`, of the size that the request names. Afterwards cut it at [`Self::len`].
    pub fn new(memory: &'a mut [u8]) -> Self {
        Self(DirBuffer::new(memory))
    }

    /// Bytes packed.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is packed, which tells the kernel that the directory ends here.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an entry with its attributes; false when it does not fit, and nothing is added. Counts as one lookup unless
    /// the name is . or .. or `entry.nodeid` is 0, which leaves the attributes for a later LOOKUP.
    pub fn push(&mut self, entry: &Entry, next: u64, name: &[u8]) -> bool {
        let wire: EntryOut = entry_out(entry);
        self.0.pack(wire.as_bytes(), entry.attr.ino, next, entry.attr.mode, name)
    }
}
