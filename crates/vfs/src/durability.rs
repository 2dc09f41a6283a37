//! What fsync waits for.

use crate::Vfs;
use futures::future::{BoxFuture, try_join};
use sluice_base::{Errno, Seq};
use sluice_run::lock::Mutex;
use std::{
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Resolves when the store has the metadata up to a record, or says why it will not.
pub type Ship = dyn Fn(Seq) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

/// Whose changes the store has the metadata of, in the process that takes it there. Another one may have gone on with the volume from the store.
pub trait Owner: fmt::Debug + Send + Sync {
    /// Resolves once it is known that the store has this process's, or why not.
    fn is_ours(&self) -> BoxFuture<'static, Result<(), String>>;
    /// Resolves when whoever recovers the volume from the store would look at it again after this was called; or why that is not this process's any more.
    fn confirmed(&self) -> BoxFuture<'static, Result<(), String>>;
    /// Why the store is not this process's any more, where that is known.
    fn lost(&self) -> Option<String>;
}

/// When fsync returns.
#[derive(Clone, Default)]
pub enum Durability {
    /// When the disks of this host have it.
    #[default]
    Journal,
    /// When the store has it too: bytes and metadata.
    Object(Arc<Ship>),
}

impl Durability {
    /// As people call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Object(_) => "object",
        }
    }
}

impl fmt::Debug for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Ranges that are remembered; beyond, they count as one.
const RANGES_MAX: usize = 4096;
/// Objects that are forgotten, or stored with holes, while the metadata of others is not shipped: ranges that overlap are shipped as one, so
/// who always adds another would ship nothing.
const HOLES_MAX: usize = 16;

/// Objects that were forgotten before they were stored, or as far as they were: records from the first to the second speak of them, and are of use
/// only together.
#[derive(Default)]
pub(crate) struct Forgotten {
    ranges: Mutex<Vec<Range>>,
    /// Somebody ships.
    is_asked: AtomicBool,
}

#[derive(Clone, Copy)]
struct Range {
    first: Seq,
    last: Seq,
    objects: usize,
}

impl Range {
    /// Whether the metadata as of record `seq` speaks of what is not there.
    fn is_torn_at(&self, seq: Seq) -> bool {
        self.first <= seq && seq < self.last
    }

    /// Both as one.
    fn with(self, other: Self) -> Self {
        let (first, last) = (self.first.min(other.first), self.last.max(other.last));
        Self { first, last, objects: self.objects + other.objects }
    }
}

impl Forgotten {
    pub(crate) fn note(&self, first: Seq, last: Seq) {
        let mut all = self.ranges.lock();
        let mut new = Range { first, last, objects: 1 };
        let is_full = all.len() >= RANGES_MAX;
        all.retain(|old| {
            let joins = is_full || (old.first <= new.last && new.first <= old.last);
            if joins {
                new = new.with(*old);
            }
            !joins
        });
        all.push(new);
    }

    /// Whether an object may be forgotten, or be stored with holes.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_asked.load(Relaxed) || self.ranges.lock().iter().map(|range| range.objects).sum::<usize>() < HOLES_MAX
    }

    /// The last record up to `end` at which no object is spoken of that never will be stored. What is not behind `known` need not be kept.
    fn cut(&self, known: Seq, end: Seq) -> Seq {
        self.is_asked.store(true, Relaxed);
        let mut all = self.ranges.lock();
        all.retain(|range| range.last > known);
        all.iter().find(|range| range.is_torn_at(end)).map_or(end, |range| Seq(range.first.0 - 1))
    }

    /// How far must be shipped, for `seq` to be.
    fn whole(&self, seq: Seq) -> Seq {
        self.ranges.lock().iter().find(|range| range.is_torn_at(seq)).map_or(seq, |range| range.last)
    }
}

impl Vfs {
    /// Up to where, of what is not behind `end`, the store has all bytes that the metadata speaks of. `known` is what an earlier answer was, or less.
    pub fn stored_up_to(&self, known: Seq, end: Seq) -> Seq {
        let stored = self.dirty.first_seq().map_or(end, |first| end.min(Seq(first.0 - 1)));
        self.forgotten.cut(known, stored)
    }

    /// Resolves when the store has all bytes and all metadata of the records up to `seq`. Who waits has everything that is dirty uploaded at
    /// once, so all who wait share objects, and blobs of metadata. Both are under way at the same time.
    pub(crate) async fn in_the_store(self: Arc<Self>, ship: Arc<Ship>, seq: Seq) -> Result<(), Errno> {
        self.comes_back(ship, seq).await.map_err(|why| {
            tracing::error!(why, "a sync failed: the store does not take the metadata");
            Errno::EIO
        })
    }

    /// The same, or why not: what the store has up to `seq` comes back should this host be lost.
    pub(crate) async fn comes_back(&self, ship: Arc<Ship>, mut seq: Seq) -> Result<(), String> {
        loop {
            try_join(ship(seq), self.bytes_stored(seq)).await?;
            self.is_owner()?;
            // What was given up meanwhile, instead of stored, is spoken of up to a later record, and others on the way there.
            match self.forgotten.whole(seq) {
                whole if whole == seq => return Ok(()),
                whole => seq = whole,
            }
        }
    }

    /// Whether nobody is known to go on with the volume elsewhere: bytes that arrive in the store then are nobody's.
    fn is_owner(&self) -> Result<(), String> {
        self.settings.owner.as_ref().and_then(|owner| owner.lost()).map_or(Ok(()), Err)
    }

    /// However long the store is away: nothing less was asked for.
    async fn bytes_stored(&self, seq: Seq) -> Result<(), String> {
        loop {
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            if self.dirty.first_seq().is_none_or(|first| first > seq) {
                return Ok(());
            }
            self.is_owner()?;
            self.wait_for_room(room).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_of_use_together() {
        let forgotten = Forgotten::default();
        for (first, last) in [(10, 20), (30, 40), (15, 32)] {
            forgotten.note(Seq(first), Seq(last));
        }
        let cut = |end| forgotten.cut(Seq(0), Seq(end)).0;
        assert_eq!([9, 10, 25, 39, 40, 41].map(cut), [9, 9, 9, 9, 40, 41]);
        assert_eq!([9, 10, 25, 39, 40].map(|seq| forgotten.whole(Seq(seq)).0), [9, 40, 40, 40, 40]);
        assert_eq!(forgotten.cut(Seq(40), Seq(50)), Seq(50));
        assert_eq!(forgotten.whole(Seq(15)), Seq(15), "what is shipped is not kept");
    }

    #[test]
    fn holes_and_ranges_are_bounded() {
        let forgotten = Forgotten::default();
        forgotten.cut(Seq(0), Seq(0));
        for n in 0..HOLES_MAX as u64 {
            assert!(forgotten.has_room());
            forgotten.note(Seq(10 * n + 1), Seq(10 * n + 5));
        }
        assert!(!forgotten.has_room());
        for n in 0..2 * RANGES_MAX as u64 {
            forgotten.note(Seq(10 * n + 1), Seq(10 * n + 5));
        }
        assert!(forgotten.ranges.lock().len() <= RANGES_MAX);
        forgotten.cut(Seq(u64::MAX), Seq(u64::MAX));
        assert!(forgotten.has_room());
    }
}
