//! What fsck tells: one line for each finding, or one JSON object.

use super::counted;
use crate::{output::out, units};
use serde_json::{Value, json};
use sluice_meta::fsck::{Checked, Finding, Severity, User, shown};
use sluice_object::StoreError;

/// One finding, from whichever check.
#[derive(Clone, Debug)]
pub struct Item {
    pub code: &'static str,
    pub severity: Severity,
    /// Whether --repair mends it.
    pub repairable: bool,
    pub mended: bool,
    pub ino: Option<u64>,
    pub path: Option<String>,
    pub text: String,
}

impl Item {
    /// A finding of the metadata's check.
    pub fn of(finding: &Finding, mended: bool) -> Self {
        Self {
            code: finding.problem.code(),
            severity: finding.problem.severity(),
            repairable: true,
            mended,
            ino: finding.problem.ino().map(|ino| ino.0),
            path: finding.path.as_deref().map(shown),
            text: finding.to_string(),
        }
    }

    /// One that --repair can do nothing about.
    pub fn lasting(code: &'static str, severity: Severity, text: String) -> Self {
        Self { code, severity, repairable: false, mended: false, ino: None, path: None, text }
    }

    /// Bytes of a file that the store cannot give.
    pub fn unreadable(user: &User, why: &str) -> Self {
        let ranges: Vec<String> = user.ranges.iter().map(|range| format!("{}..{}", range.start, range.end)).collect();
        let path = user.path.as_deref().map(shown);
        let named = path.as_ref().map_or_else(String::new, |path| format!(" ({path})"));
        let text = format!(
            "inode {}{named}: bytes {} cannot be read: object {} {why}",
            user.ino,
            ranges.join(" "),
            user.object
        );
        Self { ino: Some(user.ino.0), path, ..Self::lasting("unreadable-data", Severity::Loss, text) }
    }

    /// The store cannot be asked.
    pub fn unreachable(error: &StoreError) -> Self {
        let text = match error.is_retryable() {
            true => format!("the store does not answer, so what it has was not checked: {error}"),
            false => format!("the objects in the store were not checked: {error}"),
        };
        Self::lasting("store", Severity::Serious, text)
    }

    /// Something is wrong with the metadata in the store, of which `what` is the matter.
    pub fn shipped(what: &str) -> Self {
        let text = format!("the metadata in the store, by which the volume could be recovered, cannot be used: {what}");
        Self::lasting("shipped-metadata", Severity::Serious, text)
    }

    fn json(&self) -> Value {
        let severity = severity_name(self.severity);
        json!({
            "code": self.code, "severity": severity, "repairable": self.repairable, "mended": self.mended,
            "inode": self.ino, "path": self.path, "text": self.text,
        })
    }
}

fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Minor => "minor",
        Severity::Serious => "serious",
        Severity::Loss => "loss",
    }
}

/// Objects that were read whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataRead {
    pub objects: u64,
    pub bytes: u64,
}

/// Everything that one run found and did.
#[derive(Default)]
pub struct Outcome {
    pub items: Vec<Item>,
    /// Findings that were only counted.
    pub more: u64,
    pub checked: Checked,
    pub data: Option<DataRead>,
}

impl Outcome {
    /// Findings that are still true.
    pub fn left(&self) -> u64 {
        self.items.iter().filter(|item| !item.mended).count() as u64 + self.more
    }

    fn mended(&self) -> usize {
        self.items.iter().filter(|item| item.mended).count()
    }

    pub fn print(&self, as_json: bool, repairing: bool) -> anyhow::Result<()> {
        if as_json {
            out!("{}", serde_json::to_string(&self.json())?);
            return Ok(());
        }
        for item in &self.items {
            let mended = if item.mended { "mended " } else { "" };
            out!("{mended}{:<8} {}", severity_name(item.severity), item.text);
        }
        out!("checked {}", counted(&self.checked));
        if let Some(data) = self.data {
            out!("read {} objects, {}, and verified their checksums", data.objects, units::show_size(data.bytes));
        }
        if self.checked.orphans > 0 {
            out!("{} unlinked inodes wait for the next start to reclaim them", self.checked.orphans);
        }
        if self.checked.unreferenced_objects > 0 {
            out!("{} objects are in no file any more; `sluice gc` removes them", self.checked.unreferenced_objects);
        }
        out!("{}", self.verdict(repairing));
        Ok(())
    }

    fn verdict(&self, repairing: bool) -> String {
        let (left, mended) = (self.left(), self.mended());
        let repairable = self.items.iter().filter(|item| !item.mended && item.repairable).count() as u64 + self.more;
        match (left, mended) {
            (0, 0) => "nothing is wrong".into(),
            (0, mended) => format!("all {mended} problems were mended"),
            (left, 0) if !repairing && repairable > 0 => {
                format!("{left} problems; {repairable} of them can be mended: run again with --repair")
            }
            (left, 0) => format!("{left} problems, which fsck cannot mend"),
            (left, mended) => format!("{mended} problems were mended, {left} are left"),
        }
    }

    fn json(&self) -> Value {
        let checked = &self.checked;
        let data = self.data.map(|data| json!({ "objects": data.objects, "bytes": data.bytes }));
        json!({
            "findings": self.items.iter().map(Item::json).collect::<Vec<_>>(),
            "more": self.more,
            "checked": {
                "inodes": checked.inodes, "directories": checked.directories, "names": checked.entries,
                "extents": checked.extents, "objects": checked.objects, "orphans": checked.orphans,
                "unreferenced_objects": checked.unreferenced_objects, "held_bytes": checked.bytes,
                "records": checked.records, "data": data,
            },
            "repaired": self.mended(),
            "left": self.left(),
        })
    }
}
