//! Which files programs open, and in which order: for warm-ups under way, and for who wants to be ahead of a program next time.

use super::Warming;
use crate::Vfs;
use sluice_base::{Errno, Ino};
use sluice_run::{
    collections::{HashMap, HashSet},
    lock::Mutex,
};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use tokio::sync::mpsc;

/// Files that are remembered, 40 bytes each.
const OPENINGS_MAX: usize = 1 << 20;
/// Files of the walk that wait.
const QUEUE_MAX: usize = 1024;

/// Files that were opened since this was made.
#[derive(Default)]
pub struct Openings(Mutex<Opened>);

#[derive(Default)]
struct Opened {
    order: Vec<Ino>,
    known: HashSet<Ino>,
}

impl Openings {
    pub(super) fn has(&self, ino: Ino) -> bool {
        self.0.lock().known.contains(&ino)
    }

    fn note(&self, ino: Ino) {
        let mut opened = self.0.lock();
        if opened.order.len() < OPENINGS_MAX && opened.known.insert(ino) {
            opened.order.push(ino);
        }
    }

    /// Their paths from the root of the volume, as far as they are below one of `paths`, in the order of their first opening.
    pub async fn named(&self, vfs: &Arc<Vfs>, paths: &[Vec<u8>]) -> Result<Vec<String>, Errno> {
        let order = self.0.lock().order.clone();
        let mut names: HashMap<_, _> = HashMap::default();
        for path in paths {
            let (files, mut found) = mpsc::channel(QUEUE_MAX);
            let walk = async { vfs.files_below(path, &{ files }).await };
            let collect = async {
                while let Some(file) = found.recv().await {
                    names.insert(file.ino, file.name);
                }
            };
            futures::join!(walk, collect).0?;
        }
        Ok(order.iter().filter_map(|ino| names.remove(ino)).collect())
    }
}

impl Warming {
    /// A program opens a file.
    pub fn note_opening(&self, ino: Ino) {
        if self.is_noting.load(Relaxed) {
            self.openings
                .lock()
                .iter()
                .filter_map(|openings| openings.upgrade())
                .for_each(|openings| openings.note(ino));
        }
    }

    pub(super) fn openings(&self) -> Arc<Openings> {
        let openings = Arc::default();
        let mut all = self.openings.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&openings));
        self.is_noting.store(true, Relaxed);
        openings
    }

    /// Those that nobody has any more cost nothing.
    pub(super) fn drop_openings(&self) {
        let mut all = self.openings.lock();
        all.retain(|other| other.strong_count() > 0);
        self.is_noting.store(!all.is_empty(), Relaxed);
    }
}

impl Vfs {
    /// Notes from here on which files are opened.
    pub fn note_openings(&self) -> Arc<Openings> {
        self.warming.openings()
    }
}
