//! What can be wrong.

mod text;

use crate::records::{Dirent, Usage};
use sluice_base::{Ino, ObjectId};
use std::ops::Range;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A count or mark that can be derived anew; nothing is lost.
    Minor,
    /// The structure of the tree is wrong; mending may move something to `/lost+found`.
    Serious,
    /// Bytes, a name or attributes are gone.
    Loss,
}

/// What happened to an inode record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeFault {
    /// It is not there, but content of it is.
    Missing,
    /// It does not parse.
    Damaged,
    /// It calls itself something that its content is not.
    WrongType,
}

/// An inode record made anew from what is left around it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Rebuilt {
    pub kind: u32,
    pub nlink: u32,
    pub flags: u8,
    pub size: u64,
    pub held_bytes: u64,
    pub parent: Ino,
}

/// How the two records of a directory entry disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwinFault {
    /// The record by name is missing or damaged.
    ByName,
    /// The record by cookie is missing or damaged.
    ByCookie,
    /// Both are there and say different things.
    Differ,
}

/// Why bytes cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostWhy {
    /// The metadata has no record of the object.
    NoRecord,
    /// The object is shorter.
    PastEnd,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Problem {
    BadKey { key: Vec<u8> },
    Counter { name: &'static str, found: Option<u64>, needed: u64 },
    Inode { ino: Ino, fault: InodeFault, rebuilt: Option<Rebuilt> },
    NoTarget { ino: Ino },
    BadExtents { ino: Ino, span: u64, sequence: u64 },
    BadObject { object: ObjectId },
    Leftover { ino: Ino, table: u8 },
    Twin { dir: Ino, name: Vec<u8>, fault: TwinFault, delete: Vec<Vec<u8>>, keep: Option<Dirent> },
    NoSuchInode { dir: Ino, name: Vec<u8>, cookie: u64, ino: Ino },
    BadName { dir: Ino, name: Vec<u8>, cookie: u64, ino: Ino },
    ExtraName { dir: Ino, name: Vec<u8>, cookie: u64, ino: Ino },
    WrongKind { dir: Ino, name: Vec<u8>, cookie: u64, ino: Ino, kind: u32 },
    Mark { ino: Ino },
    Nameless { ino: Ino },
    Loop { ino: Ino, dir: Ino, name: Vec<u8>, cookie: u64 },
    LostBody { ino: Ino, size: u64 },
    TwoContents { ino: Ino, keep_body: bool },
    LostData { ino: Ino, object: ObjectId, ranges: Vec<Range<u64>>, why: LostWhy },
    Buried { object: ObjectId },
    LinkCount { ino: Ino, found: u32, names: u32 },
    Parent { ino: Ino, found: Ino, parent: Ino },
    DirCounts { ino: Ino, found: Option<(u32, u64)>, nlink: u32, entries: u64 },
    Flags { ino: Ino, found: u8, right: u8 },
    Held { ino: Ino, found: u64, counted: u64 },
    Size { ino: Ino, found: u64, end: u64 },
    LiveBytes { object: ObjectId, found: u64, counted: u64 },
    Usage { found: Option<Usage>, counted: Usage },
}

impl Problem {
    /// Its name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadKey { .. } => "bad-key",
            Self::Counter { .. } => "counter",
            Self::Inode { .. } => "inode",
            Self::NoTarget { .. } => "no-symlink-target",
            Self::BadExtents { .. } => "bad-extents",
            Self::BadObject { .. } => "bad-object",
            Self::Leftover { .. } => "leftover",
            Self::Twin { .. } => "entry-twins",
            Self::NoSuchInode { .. } => "entry-without-inode",
            Self::BadName { .. } => "bad-name",
            Self::ExtraName { .. } => "extra-directory-name",
            Self::WrongKind { .. } => "entry-kind",
            Self::Mark { .. } => "orphan-mark",
            Self::Nameless { .. } => "nameless-inode",
            Self::Loop { .. } => "directory-loop",
            Self::LostBody { .. } => "lost-body",
            Self::TwoContents { .. } => "two-contents",
            Self::LostData { .. } => "lost-data",
            Self::Buried { .. } => "buried-object",
            Self::LinkCount { .. } => "link-count",
            Self::Parent { .. } => "parent",
            Self::DirCounts { .. } => "directory-counts",
            Self::Flags { .. } => "flags",
            Self::Held { .. } => "held-bytes",
            Self::Size { .. } => "size",
            Self::LiveBytes { .. } => "live-bytes",
            Self::Usage { .. } => "usage",
        }
    }

    /// The inode that it is about.
    pub fn ino(&self) -> Option<Ino> {
        use Problem::*;
        match *self {
            BadKey { .. } | Counter { .. } | BadObject { .. } | Buried { .. } | LiveBytes { .. } | Usage { .. } => None,
            Twin { dir, .. } | NoSuchInode { dir, .. } | BadName { dir, .. } | WrongKind { dir, .. } => Some(dir),
            ExtraName { ino, .. } | Loop { ino, .. } | Leftover { ino, .. } | BadExtents { ino, .. } => Some(ino),
            Inode { ino, .. } | NoTarget { ino } | Mark { ino } | Nameless { ino } | LostBody { ino, .. } => Some(ino),
            TwoContents { ino, .. } | LostData { ino, .. } | LinkCount { ino, .. } | Parent { ino, .. } => Some(ino),
            DirCounts { ino, .. } | Flags { ino, .. } | Held { ino, .. } | Size { ino, .. } => Some(ino),
        }
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        use Problem::*;
        match self {
            Inode { fault: InodeFault::WrongType, .. } => Severity::Serious,
            BadKey { .. } | Inode { .. } | NoTarget { .. } | BadExtents { .. } | BadObject { .. } => Severity::Loss,
            NoSuchInode { .. } | LostBody { .. } | TwoContents { .. } | LostData { .. } => Severity::Loss,
            Twin { keep: None, .. } => Severity::Loss,
            Twin { .. } | BadName { .. } | ExtraName { .. } | Nameless { .. } | Loop { .. } => Severity::Serious,
            Counter { .. } | Buried { .. } | Size { .. } | Mark { .. } => Severity::Serious,
            Leftover { .. } | WrongKind { .. } | LinkCount { .. } | Parent { .. } | DirCounts { .. } => Severity::Minor,
            Flags { .. } | Held { .. } | LiveBytes { .. } | Usage { .. } => Severity::Minor,
        }
    }

    /// Problems of a lower stage are mended first: later ones may only follow from them.
    pub(super) fn stage(&self) -> u8 {
        use Problem::*;
        match self {
            BadKey { .. } | Counter { .. } | Inode { .. } | NoTarget { .. } | BadExtents { .. } | BadObject { .. } => 0,
            Leftover { .. } => 0,
            Twin { .. } | NoSuchInode { .. } | BadName { .. } | ExtraName { .. } | WrongKind { .. } => 1,
            Mark { .. } | Nameless { .. } | Loop { .. } | LostBody { .. } | TwoContents { .. } => 2,
            LostData { .. } | Buried { .. } => 2,
            LinkCount { .. } | Parent { .. } | DirCounts { .. } | Flags { .. } | Held { .. } | Size { .. } => 3,
            LiveBytes { .. } | Usage { .. } => 3,
        }
    }
}

/// A problem, and where in the tree it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub problem: Problem,
    /// A path of the inode, when one leads to it.
    pub path: Option<Vec<u8>>,
}
