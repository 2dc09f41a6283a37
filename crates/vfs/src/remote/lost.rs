//! Files of which something is lost, each to be told once.

use sluice_base::Ino;
use std::collections::BTreeSet;

/// Files that are remembered.
const LOST_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Lost {
    inos: BTreeSet<Ino>,
    /// More than are remembered.
    others: bool,
}

impl Lost {
    /// Something of a file is lost.
    pub fn add(&mut self, ino: Ino) {
        if self.inos.len() < LOST_MAX {
            self.inos.insert(ino);
        } else {
            self.others = true;
        }
    }

    /// Whether something of `ino`, or of anything, was lost since this was asked last.
    pub fn take(&mut self, ino: Option<Ino>) -> bool {
        match ino {
            Some(ino) => self.inos.remove(&ino) || self.others,
            None => {
                let others = std::mem::take(&mut self.others);
                !std::mem::take(&mut self.inos).is_empty() || others
            }
        }
    }
}
