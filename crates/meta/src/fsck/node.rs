//! What a scan gathers about one inode, and what kind of thing it must be.

use super::{InodeFault, Problem, Rebuilt};
use crate::records::{Inode, flags, mode};
use sluice_base::{Ino, limits::INLINE_BYTES_MAX};

/// A record that should be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stored<T> {
    #[default]
    Missing,
    Damaged,
    Found(T),
}

impl<T: Copy> Stored<T> {
    pub fn found(&self) -> Option<T> {
        match self {
            Self::Found(value) => Some(*value),
            _ => None,
        }
    }
}

/// The part of an inode record that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attrs {
    pub kind: u32,
    pub nlink: u32,
    pub flags: u8,
    pub size: u64,
    pub held_bytes: u64,
    pub parent: Ino,
}

impl Attrs {
    pub fn of(inode: &Inode) -> Self {
        let Inode { nlink, flags, size, held_bytes, parent, .. } = *inode;
        Self { kind: inode.mode & mode::TYPE, nlink, flags, size, held_bytes, parent }
    }
}

/// Everything seen of one inode.
#[derive(Default)]
pub(super) struct Node {
    pub attrs: Stored<Attrs>,
    /// File type, once decided; 0 when there is no such inode.
    pub kind: u32,
    /// Link count and entries of table `s`.
    pub stat: Stored<(u32, u64)>,
    pub mark: bool,
    pub body: Option<u32>,
    pub target: Option<u32>,
    pub has_xattrs: bool,
    pub extent_records: u64,
    pub extent_bytes: u64,
    pub extent_end: u64,
    /// Names that lead here; for a directory at most one is counted.
    pub names: u32,
    /// The file type that the first name tells.
    pub named_kind: u32,
    /// The directory and cookie of a directory's name.
    pub named_in: Option<(Ino, u64)>,
    /// Entries by cookie and by name.
    pub cookies: u64,
    pub entries: u64,
    pub subdirs: u32,
    /// Sum of the hashes of entries by name less those by cookie.
    pub twin_sum: u64,
    /// An entry record below it does not parse.
    pub bad_entries: bool,
}

const KINDS: [u32; 7] =
    [mode::SOCKET, mode::SYMLINK, mode::REGULAR, mode::BLOCK, mode::DIRECTORY, mode::CHARACTER, mode::FIFO];

impl Node {
    pub fn has_file_content(&self) -> bool {
        self.body.is_some() || self.extent_records > 0
    }

    /// Unlinked while in use: waits for the next start.
    pub fn is_orphan(&self) -> bool {
        self.mark && self.names == 0 && self.entries == 0 && self.attrs.found().is_some_and(|attrs| attrs.nlink == 0)
    }

    /// The file type that content proves, strongest proof first.
    fn content_kind(&self) -> Option<u32> {
        if self.cookies > 0 || self.entries > 0 {
            Some(mode::DIRECTORY)
        } else if self.has_file_content() {
            Some(mode::REGULAR)
        } else if self.target.is_some() {
            Some(mode::SYMLINK)
        } else {
            // Statistics without a name or a record may be all that a removed directory left.
            let known = self.names > 0 || !matches!(self.attrs, Stored::Missing);
            (self.stat.found().is_some() && known).then_some(mode::DIRECTORY)
        }
    }

    fn fits(&self, kind: u32) -> bool {
        match kind {
            mode::DIRECTORY => self.cookies > 0 || self.entries > 0 || self.stat.found().is_some(),
            mode::REGULAR => self.has_file_content(),
            mode::SYMLINK => self.target.is_some(),
            _ => false,
        }
    }

    /// What this inode is: its record is believed unless all content speaks against it. 0 when it is nothing.
    pub fn decide(&self, ino: Ino) -> u32 {
        if ino == Ino::ROOT {
            return mode::DIRECTORY;
        }
        let content = self.content_kind();
        match self.attrs {
            Stored::Found(attrs) if KINDS.contains(&attrs.kind) && (content.is_none() || self.fits(attrs.kind)) => {
                attrs.kind
            }
            Stored::Missing => content.unwrap_or(0),
            // Of a device nothing is left without its record, nor of a link without its target.
            _ => content.unwrap_or(match self.named_kind {
                kind @ (mode::REGULAR | mode::DIRECTORY | mode::FIFO | mode::SOCKET) => kind,
                _ => 0,
            }),
        }
    }

    /// What is wrong with the record itself.
    pub fn record_problem(&self, ino: Ino) -> Option<Problem> {
        let fault = match self.attrs {
            Stored::Found(attrs) if attrs.kind == self.kind => return None,
            Stored::Found(_) => InodeFault::WrongType,
            Stored::Damaged => InodeFault::Damaged,
            Stored::Missing if self.kind == 0 => return None,
            Stored::Missing => InodeFault::Missing,
        };
        Some(Problem::Inode { ino, fault, rebuilt: (self.kind != 0).then(|| self.rebuilt(ino)) })
    }

    fn rebuilt(&self, ino: Ino) -> Rebuilt {
        let mut rebuilt = Rebuilt { kind: self.kind, nlink: 1, flags: 0, size: 0, held_bytes: 0, parent: Ino(0) };
        if self.has_xattrs {
            rebuilt.flags |= flags::XATTRS;
        }
        match self.kind {
            mode::DIRECTORY if ino == Ino::ROOT => rebuilt.parent = Ino::ROOT,
            mode::DIRECTORY => rebuilt.parent = self.named_in.map_or(Ino(0), |(dir, _)| dir),
            mode::REGULAR => {
                rebuilt.size = self.content_end();
                rebuilt.held_bytes = self.held();
                rebuilt.flags |= self.content_flags();
            }
            mode::SYMLINK => rebuilt.size = self.target.unwrap_or(0).into(),
            _ => {}
        }
        if self.kind != mode::DIRECTORY {
            rebuilt.nlink = self.names.max(u32::from(!self.mark));
        }
        rebuilt
    }

    /// Where a file's content ends.
    pub fn content_end(&self) -> u64 {
        self.extent_end.max(self.body.unwrap_or(0).into())
    }

    /// Bytes that a file holds.
    pub fn held(&self) -> u64 {
        if self.kind == mode::REGULAR { self.extent_bytes + u64::from(self.body.unwrap_or(0)) } else { 0 }
    }

    pub fn content_flags(&self) -> u8 {
        let inline = if self.body.is_some() { flags::INLINE } else { 0 };
        inline | if self.extent_records > 0 { flags::EXTENTS } else { 0 }
    }

    /// Of a file that has both: whether the inline body is the one to believe. Reads prefer it, but a size that it cannot
    /// have gives it away.
    pub fn believes_body(&self) -> bool {
        let attrs = self.attrs.found();
        attrs.is_some_and(|attrs| attrs.flags & flags::INLINE != 0 && attrs.size <= INLINE_BYTES_MAX as u64)
    }
}
