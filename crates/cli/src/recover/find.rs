//! The journals of a volume's mounts on this host.

use crate::{
    directory,
    lock::VolumeLock,
    mount::{
        default_base,
        kept::{self, Record},
    },
    volume,
};
use sluice_vfs::remote::Left;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// A journal of a mount.
pub struct Found {
    pub dir: PathBuf,
    /// How it was mounted last.
    pub record: Option<Record>,
    pub state: State,
}

/// What is in a journal, or why that is not known.
pub enum State {
    /// Only its note is there.
    Missing,
    /// A process works on it.
    Held(String),
    /// It cannot be read.
    Damaged(anyhow::Error),
    /// What is left, with the bytes of its objects.
    Left(Left, u64),
}

impl Found {
    /// Whether something may be lost without it.
    pub fn is_pending(&self) -> bool {
        match &self.state {
            State::Missing | State::Damaged(_) => true,
            State::Held(_) => false,
            State::Left(left, _) => !left.is_nothing(),
        }
    }
}

/// The journals of the volume `id` that this user's mounts have made, but for `own` and those in which nothing is left.
pub fn all(id: &str, own: Option<&Path>) -> Vec<Found> {
    let defaults = default_base().and_then(|base| fs::read_dir(base).ok());
    let defaults = defaults.into_iter().flatten().flatten().map(|entry| entry.path());
    let defaults = defaults.filter(|dir| matches!(directory::load(dir), Ok(Some(config)) if config.id == id));
    let dirs: BTreeSet<PathBuf> = defaults.chain(kept::noted(id)).map(|dir| real(&dir)).collect();
    let own = own.map(real);
    dirs.into_iter()
        .filter(|dir| Some(dir) != own.as_ref())
        .filter_map(|dir| find(id, dir))
        .filter(is_of_interest)
        .collect()
}

fn is_of_interest(found: &Found) -> bool {
    found.is_pending() || matches!(found.state, State::Held(_))
}

fn real(dir: &Path) -> PathBuf {
    dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf())
}

/// `None` of what is another volume's, or nobody's.
fn find(id: &str, dir: PathBuf) -> Option<Found> {
    let state = match directory::load(&dir) {
        Ok(Some(config)) if config.id == id => look(&dir, || config.id()),
        Ok(None) if fs::metadata(&dir).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) => State::Missing,
        Ok(_) => return None,
        Err(error) => State::Damaged(error),
    };
    Some(Found { record: Record::load(&dir), dir, state })
}

fn look(dir: &Path, id: impl FnOnce() -> anyhow::Result<sluice_base::VolumeId>) -> State {
    let _lock = match VolumeLock::look(dir) {
        Ok(Ok(lock)) => lock,
        Ok(Err(holder)) => return State::Held(holder),
        Err(error) => return State::Damaged(error),
    };
    match id().and_then(|id| volume::look(dir, id)) {
        Ok((left, bytes)) => State::Left(left, bytes),
        Err(error) => State::Damaged(error),
    }
}
