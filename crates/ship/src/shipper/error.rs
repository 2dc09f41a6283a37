//! Why shipping fails.

use crate::{blob::OtherLine, checkpoint::CheckpointError};
use sluice_meta::store::MetaError;
use sluice_object::StoreError;

/// Why a look ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShipError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Meta(#[from] MetaError),
    #[error("noting that there is a checkpoint: {0}")]
    Note(#[from] sluice_meta::Error),
    #[error("a checkpoint: {0}")]
    Checkpoint(#[from] CheckpointError),
    #[error("the checkpoint ended early")]
    Ended,
    /// Nothing but an operator helps.
    #[error(
        "the store has the metadata up to change {store}, this directory only up to {here}: it is an older copy, and what is written now is \
         not kept in the store. `sluice recover --from-store` makes a directory of what the store has"
    )]
    Older { store: u64, here: u64 },
    #[error(
        "another process ships the metadata of this volume: it was recovered elsewhere, or this directory was copied. What is written here \
         is not kept in the store any more; umount one of the two"
    )]
    Fenced,
    #[error(
        "{0}. What is written here is not kept in the store. Copy what only this directory has from its mount, and \
         mount it no more. Of it remove nothing but `meta`, `journal` and `cache`: a store that lies in it (`objects`) is the other directory's, too. \
         `sluice recover --from-store` makes another directory of what the store has"
    )]
    OtherLine(#[from] OtherLine),
}

impl ShipError {
    /// It is of no use to try again.
    pub(super) fn is_last(&self) -> bool {
        // What else the store says may change, whatever it is: its operator mends it while this goes on.
        let is_newer = matches!(self, Self::Store(StoreError::Newer { .. }));
        is_newer || matches!(self, Self::Older { .. } | Self::Fenced | Self::OtherLine(_))
    }
}
