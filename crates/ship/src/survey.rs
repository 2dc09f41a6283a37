//! What is shipped, for whoever only looks.

use crate::{
    Damage, Line, RestoreError,
    found::{self, unneeded},
    restore,
};
use sluice_base::Seq;
use sluice_meta::store::{Batch, EngineError, Tables, Value, Visit};
use sluice_object::{Store, StoreError, backend::ListEntry};

/// What the store has of the metadata.
#[derive(Debug, Default)]
pub struct Survey {
    /// Whose it is; none where nothing was shipped.
    pub line: Option<Line>,
    /// The last record that comes back, as far as the newest checkpoint and the end of the log tell.
    pub end: Option<Seq>,
    /// What cannot be used.
    pub damage: Option<Damage>,
    /// Blobs that the newest checkpoint and the log behind it do not need.
    pub unneeded: Vec<ListEntry>,
}

/// Looks at the newest checkpoint and the end of the log.
pub async fn survey(store: &Store) -> Result<Survey, StoreError> {
    let found = found::find(store).await?;
    let unneeded = match &found.head {
        Some(head) => unneeded(store, head).await?,
        None => Vec::new(),
    };
    Ok(Survey { line: found.line(), end: found.end(), damage: found.damage, unneeded })
}

/// Reads all that a restore would read; returns the last record that would come back, and the bytes.
pub async fn verify(store: &Store, progress: impl FnMut(u64, u64)) -> Result<(Seq, u64), RestoreError> {
    restore::read_all(store, &Nowhere, progress).await
}

/// Tables that keep nothing.
struct Nowhere;

impl Tables for Nowhere {
    fn get(&self, _: &[u8], _: Seq) -> Result<Option<Value>, EngineError> {
        Ok(None)
    }

    fn scan(&self, _: &[u8], _: &[u8], _: Seq, _: &mut Visit<'_>) -> Result<(), EngineError> {
        Ok(())
    }

    fn apply(&self, _: Seq, _: &Batch) {}

    fn applied(&self) -> Seq {
        Seq(0)
    }

    fn persisted(&self) -> Seq {
        Seq(0)
    }

    fn memtable_bytes(&self) -> u64 {
        0
    }

    fn rotate(&self) {}

    fn flush(&self, _: Seq) -> Result<Seq, EngineError> {
        Ok(Seq(0))
    }
}
