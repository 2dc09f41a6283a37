//! What fsck says, compared with what a program reads.

use std::{collections::BTreeMap, ops::Range};

use serde_json::Value;

use crate::check::{FINEST, Found};

/// Findings by their codes, and the bytes of files among them, by inode.
#[derive(Debug)]
pub struct Findings {
    codes: Vec<String>,
    unreadable: BTreeMap<u64, Vec<Range<usize>>>,
    told: String,
}

impl Findings {
    pub fn parse(stdout: &str) -> Option<Self> {
        let told: Value = serde_json::from_str(stdout).ok()?;
        let (mut codes, mut unreadable) = (Vec::new(), BTreeMap::<u64, Vec<_>>::new());
        for one in told["findings"].as_array()? {
            let code = one["code"].as_str()?;
            codes.push(code.to_owned());
            if code == "unreadable-data" {
                let ranges = one["text"].as_str()?.split_once(": bytes ")?.1.split_once(" cannot be read")?.0;
                for range in ranges.split(' ') {
                    let (start, end) = range.split_once("..")?;
                    let range = start.parse().ok()?..end.parse().ok()?;
                    unreadable.entry(one["inode"].as_u64()?).or_default().push(range);
                }
            }
        }
        Some(Self { codes, unreadable, told: told.to_string() })
    }

    /// Of a volume that has stored everything: exactly the bytes that a program cannot read, as far as reads can tell where they end.
    pub fn are_of(&self, found: &Found) -> Result<(), String> {
        if let Some(other) = self.codes.iter().find(|code| !["unreadable-data", "damaged-object"].contains(&&***code)) {
            return Err(format!("fsck finds {other}: {}", self.told));
        }
        for (path, thing) in &found.0 {
            let told = self.unreadable.get(&thing.ino).map_or(&[][..], Vec::as_slice);
            let is_lost = |range: &Range<usize>| thing.lost.iter().any(|lost| meets(lost, range));
            let is_told = |lost: &Range<usize>| {
                lost.clone().step_by(FINEST).all(|at| told.iter().any(|t| meets(t, &(at..lost.end.min(at + FINEST)))))
            };
            if !told.iter().all(is_lost) || !thing.lost.iter().all(is_told) {
                return Err(format!(
                    "of {path} {:?} cannot be read, and fsck says {told:?}: {}",
                    thing.lost, self.told
                ));
            }
        }
        let known = |ino: &u64| found.0.values().any(|thing| thing.ino == *ino);
        match self.unreadable.keys().find(|ino| !known(ino)) {
            Some(ino) => Err(format!("fsck speaks of inode {ino}, which has no name: {}", self.told)),
            None => Ok(()),
        }
    }

    /// Of a volume that was not started yet: what is lost is counted, not named, also where no file has it any more. Only unsynced large
    /// writes can be.
    pub fn are_of_unstored(&self, is_lost: bool, may_be_lost: bool) -> Result<(), String> {
        let is_told = self.codes == ["unstored-data"];
        match is_told {
            true if may_be_lost => Ok(()),
            false if !is_lost && self.codes.is_empty() => Ok(()),
            _ => Err(format!(
                "fsck before the start, with bytes lost: {is_lost}; possible: {may_be_lost}: {}",
                self.told
            )),
        }
    }
}

fn meets(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}
