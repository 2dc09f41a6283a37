//! What people see of it.

use serde::Serialize;

/// How it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ShipStatus {
    /// The store has the metadata up to this record; none before it was asked.
    pub shipped_seq: Option<u64>,
    /// Records behind it.
    pub behind_records: u64,
    /// How long the oldest of them has waited.
    pub behind_ms: u64,
    /// Bytes of the log in the store, from the checkpoint on.
    pub log_bytes: u64,
    /// Bytes of the checkpoint.
    pub checkpoint_bytes: u64,
    /// Why nothing is shipped, when nothing is.
    pub trouble: Option<String>,
    /// It is not tried again.
    pub stopped: bool,
}
