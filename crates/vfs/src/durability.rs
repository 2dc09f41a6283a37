//! What fsync waits for.

use crate::Vfs;
use futures::future::{BoxFuture, join};
use sluice_base::{Errno, Seq};
use sluice_run::lock::Mutex;
use std::{fmt, pin::pin, sync::Arc};

/// Resolves when the store has the metadata up to a record, or says why it will not.
pub type Ship = dyn Fn(Seq) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

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

/// Objects that were forgotten before they were stored: records from the first to the second speak of them, and are of use only together.
/// None are kept where nobody ships.
#[derive(Default)]
pub(crate) struct Forgotten(Mutex<Option<Vec<(Seq, Seq)>>>);

impl Forgotten {
    pub(crate) fn note(&self, first: Seq, last: Seq) {
        self.0.lock().iter_mut().for_each(|all| all.push((first, last)));
    }

    /// The last record up to `end` at which no object is spoken of that never will be stored. What is not behind `known` need not be kept.
    fn cut(&self, known: Seq, mut end: Seq) -> Seq {
        let mut all = self.0.lock();
        let all = all.get_or_insert_default();
        all.retain(|(_, last)| *last > known);
        while let Some((first, _)) = all.iter().find(|(first, last)| *first <= end && end < *last) {
            end = Seq(first.0 - 1);
        }
        end
    }

    /// How far must be shipped, for `seq` to be.
    fn whole(&self, mut seq: Seq) -> Seq {
        let all = self.0.lock();
        while let Some((_, last)) = all.iter().flatten().find(|(first, last)| *first <= seq && seq < *last) {
            seq = *last;
        }
        seq
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
            let (shipped, ()) = join(ship(seq), self.bytes_stored(seq)).await;
            shipped?;
            // What was given up meanwhile, instead of stored, is spoken of up to a later record, and others on the way there.
            match self.forgotten.whole(seq) {
                whole if whole == seq => return Ok(()),
                whole => seq = whole,
            }
        }
    }

    /// However long the store is away: nothing less was asked for.
    async fn bytes_stored(&self, seq: Seq) {
        loop {
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            if self.dirty.first_seq().is_none_or(|first| first > seq) {
                return;
            }
            self.wait_for_room(room).await;
        }
    }
}
