//! The journal as the log of the metadata store.

use sluice_base::Seq;
use sluice_journal::{Class, Committer, Journal, JournalError};
use sluice_meta::store::{Log, LogClass, LogError};
use std::sync::Arc;

/// Appends to the journal; a sync is the committer's, shared with everyone who waits for one.
pub struct JournalLog {
    journal: Arc<Journal>,
    committer: Arc<Committer>,
}

impl JournalLog {
    /// The log over `journal`.
    pub fn new(journal: Arc<Journal>, committer: Arc<Committer>) -> Self {
        Self { journal, committer }
    }
}

impl Log for JournalLog {
    fn append(&self, class: LogClass, parts: &[&[u8]]) -> Result<Seq, LogError> {
        let class = match class {
            LogClass::Metadata => Class::Metadata,
            LogClass::Data => Class::Data,
        };
        self.journal.append(class, parts).map_err(|error| match error {
            JournalError::Full { .. } => LogError::Full,
            JournalError::DiskFull { .. } => LogError::DiskFull,
            // A segment whose room was not reserved for good, as on a disk that somebody copied the journal to.
            JournalError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => LogError::DiskFull,
            other => LogError::Failed(other.to_string()),
        })
    }

    fn ensure_synced(&self, seq: Seq) -> Result<(), LogError> {
        self.committer.wait_synced_blocking(seq).map_err(|error| LogError::Failed(error.to_string()))
    }

    fn synced(&self) -> Seq {
        self.committer.synced()
    }
}
