//! Problems in one line each, as people read them.

use super::{Finding, InodeFault, LostWhy, Problem, Rebuilt, TwinFault};
use crate::{fsck::paths::shown, records::mode};
use sluice_base::limits::SPAN_BYTES;
use std::fmt;

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ino) = self.problem.ino() {
            write!(f, "inode {ino}")?;
            if let Some(path) = &self.path {
                write!(f, " ({})", shown(path))?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{}", self.problem)
    }
}

fn kind_name(kind: u32) -> &'static str {
    match kind {
        mode::DIRECTORY => "directory",
        mode::REGULAR => "file",
        mode::SYMLINK => "symbolic link",
        mode::FIFO => "fifo",
        mode::SOCKET => "socket",
        _ => "device",
    }
}

impl fmt::Display for Rebuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rebuilt as a {} of {} bytes for root alone; its owner, mode and times are lost",
            kind_name(self.kind),
            self.size
        )
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadKey { key } => write!(f, "a key that no table has: {}; its record is removed", key.escape_ascii()),
            Self::Counter { name, found, needed } => match found {
                Some(found) => {
                    write!(f, "the counter of {name} is {found}, which does not fit the highest in use, {needed}")
                }
                None => write!(f, "the counter of {name} is missing or damaged"),
            },
            Self::Inode { fault, rebuilt, .. } => {
                f.write_str(match fault {
                    InodeFault::Missing => "the attributes are missing",
                    InodeFault::Damaged => "the attributes do not parse",
                    InodeFault::WrongType => "the file type does not fit the content",
                })?;
                match (fault, rebuilt) {
                    (InodeFault::WrongType, Some(rebuilt)) => write!(f, ": it is a {}", kind_name(rebuilt.kind)),
                    (_, Some(rebuilt)) => write!(f, ": {rebuilt}"),
                    (_, None) => f.write_str(" and nothing is left to rebuild it from: it is removed"),
                }
            }
            Self::NoTarget { .. } => f.write_str("the target of this symbolic link is lost: the link is removed"),
            Self::BadExtents { span, .. } => {
                let (from, to) = (span * SPAN_BYTES, (span + 1) * SPAN_BYTES);
                write!(
                    f,
                    "DATA LOST: a record of extents within {from}..{to} does not parse; what it placed reads as older bytes or zeros"
                )
            }
            Self::BadObject { object } => write!(f, "the record of object {object} does not parse"),
            Self::Leftover { table, .. } => write!(f, "{} without an inode that has any: removed", table_name(*table)),
            Self::Twin { .. } | Self::NoSuchInode { .. } | Self::BadName { .. } | Self::WrongKind { .. } => {
                self.entry(f)
            }
            Self::ExtraName { .. } | Self::Loop { .. } => self.entry(f),
            Self::Mark { .. } => f.write_str("marked as unlinked, but it has names, entries or links"),
            Self::Nameless { .. } => f.write_str("no name leads to it: it goes to /lost+found"),
            Self::LostBody { size, .. } => write!(f, "DATA LOST: the content is missing; {size} bytes read as zeros"),
            Self::TwoContents { keep_body, .. } => {
                let (kept, dropped) = if *keep_body { ("inline body", "extents") } else { ("extents", "inline body") };
                write!(f, "it has an inline body and extents: the {kept} stays, the {dropped} goes")
            }
            Self::LostData { object, ranges, why, .. } => {
                let why = match why {
                    LostWhy::NoRecord => "which has no record",
                    LostWhy::PastEnd => "past its end",
                };
                let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                write!(f, "DATA LOST: {bytes} bytes are in object {object}, {why}; without it they read as zeros:")?;
                ranges.iter().try_for_each(|range| write!(f, " {}..{}", range.start, range.end))
            }
            Self::Buried { object } => write!(f, "object {object} is to be deleted, but files refer to it"),
            Self::LinkCount { found, names, .. } => write!(f, "link count {found}, should be {names}"),
            Self::Parent { found, parent, .. } => write!(f, "`..` leads to inode {found}, should be {parent}"),
            Self::DirCounts { found, nlink, entries, .. } => match found {
                Some((links, had)) => {
                    write!(f, "{had} entries and link count {links} recorded, should be {entries} and {nlink}")
                }
                None => write!(
                    f,
                    "the directory's counts are missing or damaged, should be {entries} entries, link count {nlink}"
                ),
            },
            Self::Flags { found, right, .. } => write!(f, "content flags {found:#x}, should be {right:#x}"),
            Self::Held { found, counted, .. } => write!(f, "said to hold {found} bytes, holds {counted}"),
            Self::Size { found, end, .. } => write!(f, "size {found}, but the content ends at {end}"),
            Self::LiveBytes { object, found, counted } => {
                write!(f, "object {object}: {found} bytes said to be in use, {counted} are")
            }
            Self::Usage { found, counted } => match found {
                Some(found) => write!(
                    f,
                    "the volume is said to use {} bytes and {} inodes, it uses {} and {}",
                    found.bytes, found.inodes, counted.bytes, counted.inodes
                ),
                None => f.write_str("the volume's usage is missing or damaged"),
            },
        }
    }
}

impl Problem {
    /// Those that are about a directory entry.
    fn entry(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twin { name, fault, keep, .. } => {
                let fault = match fault {
                    TwinFault::ByName => "is not in the table by name",
                    TwinFault::ByCookie => "is not in the table by cookie",
                    TwinFault::Differ => "differs between its two tables",
                };
                write!(f, "entry \"{}\" {fault}: ", shown(name))?;
                match keep {
                    Some(keep) => write!(f, "kept for inode {}", keep.ino),
                    None => f.write_str("removed, as it leads nowhere"),
                }
            }
            Self::NoSuchInode { name, ino, .. } => {
                write!(f, "entry \"{}\" leads to inode {ino}, which does not exist: the entry is removed", shown(name))
            }
            Self::BadName { name, .. } => {
                write!(f, "entry \"{}\" has a name that no entry may have: removed", shown(name))
            }
            Self::ExtraName { dir, name, .. } => {
                write!(f, "one name too many for a directory: \"{}\" in inode {dir} is removed", shown(name))
            }
            Self::WrongKind { name, ino, kind, .. } => {
                write!(f, "entry \"{}\" has the wrong file type: inode {ino} is a {}", shown(name), kind_name(*kind))
            }
            Self::Loop { dir, .. } => {
                write!(f, "a loop of directories: it lies below itself, in inode {dir}; it goes to /lost+found")
            }
            _ => Ok(()),
        }
    }
}

fn table_name(table: u8) -> &'static str {
    match table {
        b'b' => "inline content",
        b'd' => "directory entries",
        b'e' => "extents",
        b'l' => "a symbolic link's target",
        b's' => "a directory's counts",
        b'u' => "the mark of an unlinked inode",
        _ => "extended attributes",
    }
}
