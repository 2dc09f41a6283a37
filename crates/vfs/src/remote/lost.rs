//! Files of which something is lost, each to be told once; and once more all together, to who syncs everything (syncfs(2)).

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
    /// Something, since everything was synced.
    any: bool,
}

impl Lost {
    /// Something of a file is lost.
    pub fn add(&mut self, ino: Ino) {
        self.any = true;
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
        self.any |= losses.others;
    }

    /// Whether something of `ino` was lost and is not told. Of more than are remembered it is not known: no file is held up for them.
    pub fn has(&self, ino: Ino) -> bool {
        self.inos.contains(&ino)
    }

    /// Whether something of `ino`, or of anything, was lost since the same was asked last.
    pub fn take(&mut self, ino: Option<Ino>) -> bool {
        match ino {
            Some(ino) => self.inos.remove(&ino) || self.others,
            None => {
                self.others = false;
                std::mem::take(&mut self.any)
            }
        }
    }
}
