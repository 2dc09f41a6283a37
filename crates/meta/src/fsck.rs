//! Checking and mending the tables of a volume that nobody uses meanwhile.
//!
//! # Check
//! One snapshot, each table scanned once, in this order: what inodes have (attributes, statistics, marks, bodies, targets,
//! extended attributes), objects and extents, entries by cookie, entries by name. A `node` gathers what was seen of each
//! inode; then each is judged, then the tree, then the totals. Memory: some 150 bytes for each inode and 60 for each object.
//!
//! The two tables of directory entries must say the same. They lie in different orders, so each directory has a sum of hashes
//! that one table adds to and the other takes from; only a directory whose sum is not zero is loaded and compared entry by
//! entry.
//!
//! # Repair
//! Problems have stages: what does not parse comes first, then directory entries, then inodes that cannot be reached and
//! bytes that are gone, and counts last. A pass checks, mends the problems of the lowest stage that has any, and begins anew:
//! so each decision is made on tables whose earlier stages are sound. Mending never takes a name or a byte that still leads
//! somewhere: what lost its name gets one in `/lost+found`, an inode record that is gone is rebuilt around the content that is
//! left of it.

mod entries;
mod extents;
mod judge;
mod lost_found;
mod mend;
mod node;
mod paths;
mod problem;
mod repair;
mod scan;
mod tree;
mod twins;
mod users;

pub use paths::shown;
pub use problem::{Finding, InodeFault, LostWhy, Problem, Rebuilt, Severity, TwinFault};
pub use repair::{RepairOptions, Repaired, StoredCopy, repair};
pub use users::{User, is_session, objects, users};

use crate::{Result, store::MetaStore};

/// Findings that a report keeps; more are only counted. A repair meets the rest in its next pass.
pub const FINDINGS_MAX: usize = 1_000_000;
/// No number that a volume gives out comes near this: a larger inode number or cookie is damage.
const ID_MAX: u64 = 1 << 62;

/// How far a check is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// What is being looked at.
    pub table: &'static str,
    /// Records seen so far, in all tables.
    pub records: u64,
}

/// What a check looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Inodes of any kind.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names.
    pub entries: u64,
    /// Runs of bytes in objects.
    pub extents: u64,
    /// Object records.
    pub objects: u64,
    /// Objects among them that nothing refers to; `sluice gc` removes them.
    pub unreferenced_objects: u64,
    /// Inodes that were unlinked while in use; the next start of the volume reclaims them.
    pub orphans: u64,
    /// Bytes that files hold.
    pub bytes: u64,
    /// Records in all tables.
    pub records: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Everything that is wrong, in the order in which it would be mended.
    pub findings: Vec<Finding>,
    /// Findings past [`FINDINGS_MAX`].
    pub more: u64,
    /// What was looked at.
    pub checked: Checked,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn add(&mut self, problem: Problem) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { problem, path: None });
        } else {
            self.more += 1;
        }
    }
}

/// Looks at everything as of now. An error means that the tables could not be read; what is wrong in them is in the report.
pub fn check(store: &MetaStore, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
    let snapshot = store.snapshot();
    let mut scan = scan::Scan::new(&snapshot, progress);
    scan.contents()?;
    scan.objects()?;
    scan.extents()?;
    scan.cookies()?;
    scan.decide_kinds();
    scan.names()?;
    scan.twins()?;
    scan.judge();
    scan.tree()?;
    scan.totals()?;
    let mut report = scan.into_report();
    report
        .findings
        .sort_by_cached_key(|finding| (finding.problem.stage(), finding.problem.ino(), finding.problem.code()));
    paths::find(&snapshot, &mut report)?;
    Ok(report)
}

#[cfg(test)]
mod tests;
