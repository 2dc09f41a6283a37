//! How the transaction layer may fail.

/// A transaction, replay or checkpoint failed. Nothing of a failed transaction is visible or logged.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// The engine could not read or write its files.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The log refused the record or could not be synced.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A log record does not parse.
    #[error("metadata log damaged: {0}; run `sluice fsck`")]
    Record(#[from] RecordError),
    /// Memory for metadata is full, because checkpoints fail.
    #[error(
        "metadata cannot be written to its tables: {0}; free space or repair the disk, it is tried again each second"
    )]
    Checkpoint(String),
}

/// An engine's files cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The LSM tree failed.
    #[error("metadata tables: {0}")]
    Lsm(lsm_tree::Error),
    /// The tables hold something that this version did not write.
    #[error("metadata tables damaged: {0}; run `sluice fsck`")]
    Damaged(&'static str),
    /// A test said so.
    #[error("metadata tables: injected failure")]
    Injected,
}

impl From<lsm_tree::Error> for EngineError {
    fn from(error: lsm_tree::Error) -> Self {
        Self::Lsm(error)
    }
}

/// The log took nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The room that this class of records may take is used up until a checkpoint or an upload frees some.
    #[error("the journal is full; it empties as data reaches the store")]
    Full,
    /// The disk that holds the log is full.
    #[error("the journal's disk is full; free space on it")]
    DiskFull,
    /// The log cannot be written any more.
    #[error("the journal failed: {0}")]
    Failed(String),
}

/// The bytes are not a metadata record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Written by a newer version.
    #[error("record version {0} is not known; a newer sluice wrote it")]
    Version(u8),
    /// It ends early, or goes on after its end.
    #[error("record length does not match its contents")]
    Length,
    /// Keys out of order or out of range.
    #[error("record keys are not ascending")]
    Keys,
}
