//! What a mount of a served volume notes for who comes when its process is gone: beside its journal how it was mounted, and below the
//! user's cache directory where that journal is, for it may be anywhere. The second note lies there until the mount has ended with nothing left.

use super::default_base;
use crate::{
    config::{VolumeConfig, write_whole},
    takeover::are_one,
};
use serde::{Deserialize, Serialize};
use sluice_base::crc::crc32c;
use std::{
    fs::{self, File},
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
};

/// How a journal was mounted last: `mount.json` beside it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The server as it was typed.
    pub server: String,
    pub mountpoint: PathBuf,
    /// Where the cache is, if there is one: what is not stored may lie in it.
    pub cache: Option<PathBuf>,
    pub cache_bytes: u64,
    pub journal_bytes: u64,
}

impl Record {
    /// The one in `dir`; none of a mount by an earlier version.
    pub fn load(dir: &Path) -> Option<Self> {
        serde_json::from_str(&fs::read_to_string(path(dir)).ok()?).ok()
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join("mount.json")
}

/// Notes both. That it could not is no reason not to mount.
pub fn note(dir: &Path, config: &VolumeConfig, record: &Record) {
    let text = serde_json::to_string_pretty(record).expect("plain data") + "\n";
    if let Err(error) = write_whole(&path(dir), &text).and_then(|()| Ok(point_at(&config.id, dir)?)) {
        tracing::warn!(%error, "`sluice recover` will not find the journal by itself, should this process be killed");
    }
}

/// Nothing is left in the journal.
pub fn forget(volume: &str, dir: &Path) {
    for (link, _) in links(volume).filter(|(_, there)| are_one(there, dir)) {
        let _ = fs::remove_file(link);
    }
}

/// Where journals of a volume were noted.
pub fn noted(volume: &str) -> impl Iterator<Item = PathBuf> {
    links(volume).map(|(_, dir)| dir)
}

/// Where journals of a volume were noted by whoever has `base` for what [`default_base`] is here.
pub fn noted_in(base: &Path, volume: &str) -> impl Iterator<Item = PathBuf> {
    links_in(Some(base.join(NOTES)), volume).map(|(_, dir)| dir)
}

fn links(volume: &str) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    links_in(notes(), volume)
}

fn links_in(notes: Option<PathBuf>, volume: &str) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let entries = notes.and_then(|notes| fs::read_dir(notes).ok()).into_iter().flatten().flatten();
    let prefix = format!("{volume}-");
    let of_it = entries.filter(move |entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    of_it.filter_map(|entry| Some((entry.path(), fs::read_link(entry.path()).ok()?)))
}

/// The note of a journal.
pub fn link(volume: &str, dir: &Path) -> Option<PathBuf> {
    Some(notes()?.join(format!("{volume}-{:08x}", crc32c(dir.as_os_str().as_bytes()))))
}

const NOTES: &str = "journals";

fn notes() -> Option<PathBuf> {
    Some(default_base()?.join(NOTES))
}

fn point_at(volume: &str, dir: &Path) -> std::io::Result<()> {
    // Without a home nobody looks there either.
    let Some(link) = link(volume, dir) else { return Ok(()) };
    if fs::read_link(&link).is_ok_and(|there| there == dir) {
        return Ok(());
    }
    let notes = link.parent().expect("it has one");
    fs::create_dir_all(notes)?;
    let _ = fs::remove_file(&link);
    symlink(dir, &link)?;
    File::open(notes)?.sync_all()
}
