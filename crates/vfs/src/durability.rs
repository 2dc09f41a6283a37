//! What fsync waits for.

use crate::Vfs;
use futures::future::BoxFuture;
use sluice_base::{Errno, Seq};
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

impl Vfs {
    /// Resolves when the store has all bytes and all metadata of the records up to `seq`. Who waits has everything that is dirty uploaded at
    /// once, so all who wait share objects, and blobs of metadata.
    pub(crate) async fn in_the_store(self: Arc<Self>, ship: Arc<Ship>, seq: Seq) -> Result<(), Errno> {
        let ((), shipped) = futures::join!(self.bytes_stored(seq), ship(seq));
        shipped.map_err(|why| {
            tracing::error!(why, "a sync failed: the store does not take the metadata");
            Errno::EIO
        })
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
