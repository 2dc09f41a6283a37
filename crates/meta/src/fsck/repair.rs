//! Mending, pass by pass.

use super::{Finding, Progress, Report, check};
use crate::{Result, store::MetaStore};
use sluice_base::{ObjectId, Timestamp};

/// Passes after which a repair gives up. Four stages, each of which may show one more problem of an earlier stage, take fewer.
const PASSES_MAX: usize = 32;

/// A copy of an object that the store is known to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredCopy {
    /// Segments, from its table.
    pub segments: u32,
    /// Its whole length.
    pub stored_bytes: u64,
}

/// What a repair goes by.
pub struct RepairOptions<'a> {
    /// For the times of what is made anew.
    pub now: Timestamp,
    /// What the object store has under an id whose record is gone or does not fit: then the record is made anew, and no byte is
    /// lost. Without a store at hand, `|_| None`.
    pub copy_of: &'a dyn Fn(ObjectId) -> Option<StoredCopy>,
}

/// What a repair did.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// All that was mended, in order. Counts that followed from other damage are not among them twice.
    pub mended: Vec<Finding>,
    /// The check after it; clean unless something came back pass after pass.
    pub after: Report,
}

/// Mends what [`check`] finds, until it finds nothing. Whoever holds a [`crate::Namespace`] over `store` drops it first: it may
/// have reserved numbers by a counter that was wrong.
pub fn repair(store: &MetaStore, options: &RepairOptions<'_>, progress: &mut dyn FnMut(Progress)) -> Result<Repaired> {
    let mut mended = Vec::new();
    for _ in 0..PASSES_MAX {
        let report = check(store, progress)?;
        let Some(stage) = report.findings.first().map(|finding| finding.problem.stage()) else {
            return Ok(Repaired { mended, after: report });
        };
        for finding in report.findings.into_iter().take_while(|finding| finding.problem.stage() == stage) {
            while !store.transact(|txn| finding.problem.mend(txn, options))?.value {}
            mended.push(finding);
        }
    }
    Ok(Repaired { mended, after: check(store, progress)? })
}
