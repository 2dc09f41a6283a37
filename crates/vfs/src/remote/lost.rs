//! Files of which something is lost, each to be told once.

use sluice_base::Ino;
use std::collections::BTreeSet;

/// Files that are remembered.
const LOST_MAX: usize = 65_536;

/// What is remembered of losses that nobody was told of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Files, upwards.
    pub inos: Vec<Ino>,
    /// There were more than are remembered.
    pub others: bool,
}

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

    /// All that was not told.
    pub fn losses(&self) -> Losses {
        Losses { inos: self.inos.iter().copied().collect(), others: self.others }
    }

    /// What an earlier process of the mount has not told.
    pub fn inherit(&mut self, losses: Losses) {
        losses.inos.into_iter().for_each(|ino| self.add(ino));
        self.others |= losses.others;
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
