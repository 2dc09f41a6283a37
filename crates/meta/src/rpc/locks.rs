//! Who holds which bytes of one file: POSIX record locks, or flock over all of it. No I/O, no time.

use super::codec::{Item, Reader, Wire, tags};
use sluice_base::Ino;

/// Which locks: the two kinds know nothing of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// fcntl(2): a range of bytes, of a process or (OFD) of an open file.
    Record,
    /// flock(2): the whole file, of an open file.
    Flock,
}

tags! { LockKind { 1 = Record, 2 = Flock } }

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Others may share it.
    Shared,
    /// Nobody else holds any of it.
    Exclusive,
}

tags! { LockMode { 1 = Shared, 2 = Exclusive } }

/// The bytes of a lock, from the first to the last, which is [`LockRange::END`] for a lock without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    first: u64,
    last: u64,
}

impl LockRange {
    /// The last byte that any file may have.
    pub const END: u64 = i64::MAX as u64;
    /// All of a file.
    pub const WHOLE: Self = Self { first: 0, last: Self::END };

    /// The range, unless it is empty or ends beyond every file.
    pub fn new(first: u64, last: u64) -> Option<Self> {
        (first <= last && last <= Self::END).then_some(Self { first, last })
    }

    /// Its first byte.
    pub fn first(self) -> u64 {
        self.first
    }

    /// Its last byte.
    pub fn last(self) -> u64 {
        self.last
    }

    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Overlaps, or begins where the other ends.
    fn touches(self, other: Self) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }

    fn union(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// What is left without `cut`.
    fn without(self, cut: Self) -> impl Iterator<Item = Self> {
        let before = (self.first < cut.first).then(|| Self { first: self.first, last: self.last.min(cut.first - 1) });
        let behind = (self.last > cut.last).then(|| Self { first: self.first.max(cut.last + 1), last: self.last });
        before.into_iter().chain(behind)
    }

    /// What both have.
    fn common(self, other: Self) -> Option<Self> {
        Self::new(self.first.max(other.first), self.last.min(other.last))
    }
}

impl<'a> Wire<'a> for LockRange {
    fn put(&self, out: &mut Vec<u8>) {
        self.first.put(out);
        self.last.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        let first = u64::take(from)?;
        Self::new(first, u64::take(from)?)
    }
}

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock<O> {
    /// By whom.
    pub owner: O,
    /// Of which bytes.
    pub range: LockRange,
    /// How.
    pub mode: LockMode,
    /// The process that took it, for F_GETLK.
    pub pid: u32,
}

/// The locks of one kind on one file. What one owner holds is cut and merged as fcntl(2) says: no two of its locks overlap, and
/// none of the same mode lie side by side.
#[derive(Clone, Debug)]
pub struct RangeLocks<O> {
    held: Vec<HeldLock<O>>,
}

impl<O> Default for RangeLocks<O> {
    fn default() -> Self {
        Self { held: Vec::new() }
    }
}

impl<O: Copy + Eq> RangeLocks<O> {
    /// The first lock of somebody else that is in the way of `owner`'s.
    pub fn in_the_way(&self, owner: O, range: LockRange, mode: LockMode) -> Option<&HeldLock<O>> {
        self.all_in_the_way(owner, range, mode).min_by_key(|lock| lock.range.first)
    }

    /// All of them.
    pub fn all_in_the_way(&self, owner: O, range: LockRange, mode: LockMode) -> impl Iterator<Item = &HeldLock<O>> {
        self.held.iter().filter(move |lock| {
            let excluded = mode == LockMode::Exclusive || lock.mode == LockMode::Exclusive;
            lock.owner != owner && excluded && lock.range.overlaps(range)
        })
    }

    /// `owner` holds `range` in this way from now on, `None` for not at all. Others' locks are not looked at.
    pub fn set(&mut self, owner: O, range: LockRange, mode: Option<LockMode>, pid: u32) {
        let (mut whole, mut pieces) = (range, Vec::new());
        self.held.retain(|lock| {
            if lock.owner != owner {
                return true;
            }
            if mode == Some(lock.mode) && lock.range.touches(range) {
                whole = whole.union(lock.range);
                return false;
            }
            if lock.range.overlaps(range) {
                pieces.extend(lock.range.without(range).map(|left| HeldLock { range: left, ..*lock }));
                return false;
            }
            true
        });
        self.held.append(&mut pieces);
        self.held.extend(mode.map(|mode| HeldLock { owner, range: whole, mode, pid }));
    }

    /// What `owner` holds.
    pub fn of(&self, owner: O) -> impl Iterator<Item = &HeldLock<O>> {
        self.held.iter().filter(move |lock| lock.owner == owner)
    }

    /// What `owner` holds within `range`.
    pub fn of_within(&self, owner: O, range: LockRange) -> impl Iterator<Item = HeldLock<O>> {
        self.of(owner).filter_map(move |lock| Some(HeldLock { range: lock.range.common(range)?, ..*lock }))
    }

    /// Whether `owner` holds all of `range` in another way than `mode`, or a part of it.
    pub fn holds_otherwise(&self, owner: O, range: LockRange, mode: LockMode) -> bool {
        self.of(owner).any(|lock| lock.mode != mode && lock.range.overlaps(range))
    }

    /// Drops the locks that are not to be kept.
    pub fn retain(&mut self, keep: impl FnMut(&HeldLock<O>) -> bool) {
        self.held.retain(keep);
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &HeldLock<O>> {
        self.held.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Nobody holds any.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

/// A lock as a session asserts it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssertedLock {
    /// The file.
    pub ino: Ino,
    /// Which kind.
    pub kind: LockKind,
    /// Who holds it within the session.
    pub owner: u64,
    /// Of which bytes.
    pub range: LockRange,
    /// How.
    pub mode: LockMode,
    /// The process that took it.
    pub pid: u32,
}

super::codec::fields! { AssertedLock { ino, kind, owner, range, mode, pid } }
impl Item for AssertedLock {}

#[cfg(test)]
mod tests;
