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
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
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
    /// Of another user, whose files this process does not touch; the process that works on it, where one does.
    Foreign {
        /// Whose.
        user: String,
        holder: Option<String>,
    },
}

impl Found {
    /// Whether something may be lost without it.
    pub fn is_pending(&self) -> bool {
        match &self.state {
            State::Missing | State::Damaged(_) => true,
            State::Held(_) | State::Foreign { .. } => false,
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

/// Those that mounts of other users of this host have noted below their homes, as far as this user may read that. What is in them is for their users to
/// look at: a look leaves files.
pub fn of_others(id: &str, own: &[Found]) -> Vec<Found> {
    let homes = fs::read("/etc/passwd").map(|text| homes(&text)).unwrap_or_default();
    foreign(
        id,
        own,
        homes.into_iter().map(|(user, home)| (user, home.join(".cache/sluice"))),
        default_base().as_deref(),
    )
}

fn foreign(
    id: &str,
    own: &[Found],
    bases: impl Iterator<Item = (String, PathBuf)>,
    own_base: Option<&Path>,
) -> Vec<Found> {
    let own_base = own_base.map(real);
    let mut found: Vec<Found> = Vec::new();
    for (user, base) in bases.filter(|(_, base)| Some(real(base)) != own_base) {
        for dir in kept::noted_in(&base, id).map(|dir| real(&dir)) {
            if !own.iter().chain(&found).any(|known| known.dir == dir) {
                let state = State::Foreign { user: user.clone(), holder: VolumeLock::holder(&dir) };
                found.push(Found { record: Record::load(&dir), dir, state });
            }
        }
    }
    found
}

/// Users and their homes, of passwd(5).
fn homes(text: &[u8]) -> Vec<(String, PathBuf)> {
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':').collect::<Vec<_>>());
    let home = |fields: Vec<&[u8]>| {
        let home = Path::new(OsStr::from_bytes(fields.get(5)?));
        (home.is_absolute() && home != Path::new("/")).then(|| (String::from_utf8_lossy(fields[0]).into(), home.into()))
    };
    lines.filter_map(home).collect()
}

fn is_of_interest(found: &Found) -> bool {
    found.is_pending() || matches!(found.state, State::Held(_) | State::Foreign { .. })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_of_users() {
        let text = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:1:1::/:/bin/no\nbad\n#\na:x:2:2::home:/bin/sh\nb\xff:x:3:3:,,:/home/b\xff:";
        let found = homes(text);
        let b = Path::new(OsStr::from_bytes(b"/home/b\xff")).to_path_buf();
        assert_eq!(found, [("root".into(), "/root".into()), ("b\u{fffd}".into(), b)]);
    }

    #[test]
    fn journals_that_others_have_noted_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| real(dir.path()).join(name);
        let bases = ["ann", "bob", "me"].map(|user| (user.to_string(), place(user)));
        for (user, base) in &bases {
            fs::create_dir_all(base.join("journals")).unwrap();
            fs::create_dir_all(place(&format!("{user}.journal"))).unwrap();
            let link = |volume: &str| base.join("journals").join(format!("{volume}-0000000{}", user.len()));
            std::os::unix::fs::symlink(place(&format!("{user}.journal")), link("5a")).unwrap();
            std::os::unix::fs::symlink(place("other"), link("5b")).unwrap();
        }
        let found = foreign("5a", &[], bases.clone().into_iter(), Some(&place("me")));
        let named = |found: &[Found]| {
            let name = |found: &Found| match &found.state {
                State::Foreign { user, holder: None } => (user.clone(), found.dir.clone()),
                _ => panic!("another state"),
            };
            found.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(named(&found), [("ann".into(), place("ann.journal")), ("bob".into(), place("bob.journal"))]);
        assert!(found.iter().all(|found| !found.is_pending() && is_of_interest(found)));
        assert!(foreign("5a", &found, bases.into_iter(), Some(&place("me"))).is_empty(), "they are known");
    }
}
