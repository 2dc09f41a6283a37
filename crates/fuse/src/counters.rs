//! What a session did, in numbers.

use crate::request::Operation;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Classes of operations that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Class {
    /// LOOKUP.
    Lookup,
    /// GETATTR, STATX, ACCESS, STATFS, READLINK.
    Attributes,
    /// SETATTR.
    SetAttr,
    /// Operations that change names.
    Namespace,
    /// OPEN, RELEASE, FLUSH, OPENDIR, RELEASEDIR.
    Handle,
    /// READ.
    Read,
    /// WRITE, FALLOCATE, COPY_FILE_RANGE.
    Write,
    /// READDIR, READDIRPLUS.
    Directory,
    /// FSYNC, FSYNCDIR, SYNCFS.
    Sync,
    /// Extended attributes.
    Xattr,
    /// FORGET, BATCH_FORGET.
    Forget,
    /// The rest.
    Other,
}

/// How many [`Class`]es there are.
const CLASSES: usize = Class::Other as usize + 1;

impl Class {
    /// The class of an operation.
    pub fn of(operation: &Operation<'_>) -> Self {
        use Operation as O;
        match operation {
            O::Lookup { .. } => Class::Lookup,
            O::GetAttr { .. } | O::Statx { .. } | O::Access { .. } | O::StatFs | O::ReadLink => Class::Attributes,
            O::SetAttr(_) => Class::SetAttr,
            O::SymLink { .. } | O::MkNod { .. } | O::MkDir { .. } | O::Unlink { .. } | O::RmDir { .. } => {
                Class::Namespace
            }
            O::Rename { .. } | O::Link { .. } | O::Create { .. } | O::TmpFile { .. } => Class::Namespace,
            O::Open { .. } | O::Release { .. } | O::Flush { .. } | O::OpenDir { .. } | O::ReleaseDir { .. } => {
                Class::Handle
            }
            O::Read { .. } => Class::Read,
            O::Write { .. } | O::FAllocate { .. } | O::CopyFileRange { .. } => Class::Write,
            O::ReadDir { .. } | O::ReadDirPlus { .. } => Class::Directory,
            O::Fsync { .. } | O::FsyncDir { .. } | O::SyncFs => Class::Sync,
            O::SetXattr { .. } | O::GetXattr { .. } | O::ListXattr { .. } | O::RemoveXattr { .. } => Class::Xattr,
            O::Forget { .. } | O::BatchForget(_) => Class::Forget,
            _ => Class::Other,
        }
    }
}

/// One reactor's counters, so that reactors share no cache line.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    requests: [AtomicU64; CLASSES],
    pub(crate) later: AtomicU64,
    pub(crate) interrupts: AtomicU64,
    pub(crate) replies_lost: AtomicU64,
    pub(crate) panics: AtomicU64,
    /// READs answered with a copy by a companion, and by reference.
    pub(crate) copied: AtomicU64,
    pub(crate) spliced: AtomicU64,
    /// Why some were copied that were to be spliced.
    pub(crate) pipes_too_small: AtomicU64,
    pub(crate) splice_failures: AtomicU64,
    /// Memory that reactors asked for while they answered READs.
    pub(crate) read_allocations: AtomicU64,
}

impl Counters {
    pub(crate) fn request(&self, class: Class) {
        add(&self.requests[class as usize]);
    }
}

/// One more.
pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Sums over all reactors of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    requests: [u64; CLASSES],
    /// Requests answered later.
    pub later: u64,
    /// INTERRUPT requests.
    pub interrupts: u64,
    /// Replies that nobody waited for any more, or that the kernel refused.
    pub replies_lost: u64,
    /// Panics of the handler that were turned into EIO.
    pub panics: u64,
    /// READs that a reactor answered by itself with a copy of the bytes.
    pub reads_copied: u64,
    /// READs whose bytes the kernel took by reference.
    pub reads_spliced: u64,
    /// READs that were copied because no pipe has as many slots as they need.
    pub pipes_too_small: u64,
    /// READs that were copied because the kernel refused a pipe, or to splice.
    pub splice_failures: u64,
    /// How often reactors asked for memory while they answered READs at once; 0 where the allocator does not count.
    pub read_allocations: u64,
}

impl Counts {
    /// Requests of a class.
    pub fn requests(&self, class: Class) -> u64 {
        self.requests[class as usize]
    }

    /// Every count with its name.
    pub fn named(&self) -> BTreeMap<&'static str, u64> {
        let others = [
            ("later", self.later),
            ("interrupts", self.interrupts),
            ("replies_lost", self.replies_lost),
            ("panics", self.panics),
            ("reads_copied", self.reads_copied),
            ("reads_spliced", self.reads_spliced),
            ("pipes_too_small", self.pipes_too_small),
            ("splice_failures", self.splice_failures),
            ("read_allocations", self.read_allocations),
        ];
        self.classes().chain(others).collect()
    }

    /// Requests of each class with its name.
    pub fn classes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        const NAMES: [&str; CLASSES] = [
            "lookup",
            "attributes",
            "setattr",
            "namespace",
            "handle",
            "read",
            "write",
            "directory",
            "sync",
            "xattr",
            "forget",
            "other",
        ];
        NAMES.into_iter().zip(self.requests)
    }

    /// Requests in all.
    pub fn total(&self) -> u64 {
        self.requests.iter().sum()
    }

    pub(crate) fn add(&mut self, counters: &Counters) {
        for (sum, counter) in self.requests.iter_mut().zip(&counters.requests) {
            *sum += counter.load(Relaxed);
        }
        self.later += counters.later.load(Relaxed);
        self.interrupts += counters.interrupts.load(Relaxed);
        self.replies_lost += counters.replies_lost.load(Relaxed);
        self.panics += counters.panics.load(Relaxed);
        self.reads_copied += counters.copied.load(Relaxed);
        self.reads_spliced += counters.spliced.load(Relaxed);
        self.pipes_too_small += counters.pipes_too_small.load(Relaxed);
        self.splice_failures += counters.splice_failures.load(Relaxed);
        self.read_allocations += counters.read_allocations.load(Relaxed);
    }
}
