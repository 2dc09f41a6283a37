//! A volume's directory: its name on the command line, and what it says of the volume.

use crate::{
    config::{Newer, VolumeConfig, config_path},
    output::explained,
    units::quoted,
};
use anyhow::{Context, bail};
use std::{
    ffi::OsStr,
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
};

/// The directory that META names: `local:DIR` or plain DIR.
pub fn volume_dir(meta: &OsStr) -> anyhow::Result<PathBuf> {
    let not_utf8 = |path: &OsStr| {
        anyhow::anyhow!("the path {path:?} is not UTF-8, as a volume's directory has to be: choose another name")
    };
    let meta = meta.to_str().ok_or_else(|| not_utf8(meta))?;
    let path = meta.strip_prefix("local:").unwrap_or(meta);
    if meta != path && path.starts_with("~/") {
        bail!("`{meta}`: the shell does not replace ~ behind local:, write $HOME or leave local: out");
    }
    if path.is_empty() {
        bail!("`{meta}` names no volume: write local:DIR or DIR");
    }
    if meta.starts_with("sluice://") {
        bail!(
            "`{meta}` is another host's: mount it with `sluice mount`; this command runs on the host of the volume, on its directory"
        );
    }
    let path = std::path::absolute(path).with_context(|| format!("the path `{path}`"))?;
    if path.to_str().is_none() {
        return Err(not_utf8(path.as_os_str()));
    }
    Ok(path)
}

/// There while a volume is made from its store.
fn recovering(dir: &Path) -> PathBuf {
    dir.join("meta/recovering")
}

/// Whether a recovery into `dir` has begun and not ended.
pub fn is_recovering(dir: &Path) -> bool {
    recovering(dir).exists()
}

/// From now on `dir` holds no volume, until [`end_recovery`].
pub fn begin_recovery(dir: &Path) -> anyhow::Result<()> {
    let path = recovering(dir);
    let write = || File::create(&path)?.sync_all().and_then(|()| File::open(dir.join("meta"))?.sync_all());
    write().map_err(|error| explained(&format!("writing {}", path.display()), &error))
}

/// All of the volume is in `dir`.
pub fn end_recovery(dir: &Path) -> anyhow::Result<()> {
    let path = recovering(dir);
    let remove = || fs::remove_file(&path).and_then(|()| File::open(dir.join("meta"))?.sync_all());
    remove().map_err(|error| explained(&format!("removing {}", path.display()), &error))
}

/// The configuration of the volume in `dir`; `None` when there is no volume.
pub fn load(dir: &Path) -> anyhow::Result<Option<VolumeConfig>> {
    if is_recovering(dir) {
        bail!(
            "a recovery into {} is under way or was interrupted: run `sluice recover --from-store STORE {1}`, or `sluice load FILE {1} \
             --store STORE`, again",
            dir.display(),
            quoted(dir)
        );
    }
    let path = config_path(dir);
    let text = match fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(explained(&format!("reading {}", path.display()), &error)),
    };
    parse_copy(&text, &path.display().to_string(), dir).map(Some)
}

/// Parses one of the copies, which lies at `place`; what is damaged is an error of type [`Damaged`].
pub fn parse_copy(text: &str, place: &str, dir: &Path) -> anyhow::Result<VolumeConfig> {
    VolumeConfig::parse(text).map_err(|error| {
        if error.is::<Newer>() {
            return error.context(place.to_string());
        }
        Damaged(format!(
            "{place} is damaged ({error:#}): `sluice fsck --repair {}` restores it. There is a copy in the volume's directory \
             and one in the store",
            quoted(dir),
        ))
        .into()
    })
}

/// Whether `dir` has metadata or a log, whatever its configuration says.
pub fn has_parts(dir: &Path) -> bool {
    let names =
        |part: &str| fs::read_dir(dir.join(part)).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names("meta/tables").next().is_some() || names("journal").any(|name| name.to_string_lossy().ends_with(".log"))
}

/// One of the two copies does not parse.
#[derive(Debug)]
pub struct Damaged(String);

impl std::error::Error for Damaged {}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
