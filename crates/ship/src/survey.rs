//! What is shipped, for whoever only looks.

use crate::{
    Damage, Line,
    found::{self, unneeded},
};
use sluice_base::Seq;
use sluice_object::{Store, StoreError, backend::ListEntry};

/// What the store has of the metadata.
#[derive(Debug, Default)]
pub struct Survey {
    /// Whose it is; none where nothing was shipped.
    pub line: Option<Line>,
    /// The last record that comes back.
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
