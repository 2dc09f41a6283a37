//! Paths for findings. Inodes do not know their names, so the names are gone through once more, when there is a need.

use super::Report;
use crate::{
    Result, keys,
    records::{Dirent, mode},
    store::Snapshot,
};
use sluice_base::Ino;
use sluice_run::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

/// Longest chain of directories that is followed; more is a loop.
const DEPTH_MAX: usize = 4096;

/// One name for each directory, and for each inode that was asked for.
pub(super) struct Names(HashMap<Ino, (Ino, Vec<u8>)>);

impl Names {
    pub fn of(snapshot: &Snapshot<'_>, wanted: &HashSet<Ino>) -> Result<Self> {
        let mut names = HashMap::default();
        if wanted.is_empty() {
            return Ok(Self(names));
        }
        let (from, to) = keys::whole_table(b'd');
        snapshot.scan(&from, &to, &mut |key, value| {
            if let Ok(entry) = Dirent::decode(value)
                && (entry.kind == mode::DIRECTORY || wanted.contains(&entry.ino))
                && key.len() > 9
            {
                names.entry(entry.ino).or_insert_with(|| (Ino(keys::number_at(key, 1)), key[9..].to_vec()));
            }
            ControlFlow::Continue(())
        })?;
        Ok(Self(names))
    }

    pub fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        let (mut at, mut parts) = (ino, Vec::new());
        while at != Ino::ROOT {
            let (dir, name) = self.0.get(&at)?;
            parts.push(&name[..]);
            at = *dir;
            if parts.len() > DEPTH_MAX {
                return None;
            }
        }
        parts.reverse();
        Some([b"/", &*parts.join(&b"/"[..])].concat())
    }
}

/// Gives each finding the path of its inode.
pub(super) fn find(snapshot: &Snapshot<'_>, report: &mut Report) -> Result<()> {
    let wanted = report.findings.iter().filter_map(|finding| finding.problem.ino()).collect();
    let names = Names::of(snapshot, &wanted)?;
    for finding in &mut report.findings {
        finding.path = finding.problem.ino().and_then(|ino| names.path(ino));
    }
    Ok(())
}

/// A name or path for a person's terminal: nothing in it can steer the terminal.
pub fn shown(path: &[u8]) -> String {
    let safe = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    String::from_utf8_lossy(path).chars().map(safe).collect()
}
