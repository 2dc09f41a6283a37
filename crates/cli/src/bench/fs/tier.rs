//! What fsync of a directory promises.

use crate::{mounts, output::note, status};
use anyhow::{Context, anyhow};
use std::path::Path;

pub struct Told {
    /// `journal` in a mount of ours, `local` on a disk of this host, else the type of the file system.
    pub tier: String,
    /// The type of the file system.
    pub fs: String,
    /// Asks how many bytes are acked and not stored, in a mount of ours.
    pub unstored: Option<Box<dyn Fn() -> Option<u64> + Send + Sync>>,
}

pub fn of(dir: &Path) -> anyhow::Result<Told> {
    let path = dir.canonicalize().with_context(|| dir.display().to_string())?;
    if let Some(mount) = mounts::above(&path) {
        let asked = status::told_by(&mount.dir).and_then(|status| {
            let tier = status.as_ref().and_then(|status| status["numbers"]["tier"].as_str());
            tier.map(str::to_owned).ok_or_else(|| anyhow!("its process says nothing of it"))
        });
        let tier = asked.unwrap_or_else(|error| {
            note!("which tier {} has is not known: {error:#}", mount.at.display());
            "unknown".into()
        });
        let unstored = move || status::told_by(&mount.dir).ok()??["numbers"]["dirty_bytes"].as_u64();
        return Ok(Told { tier, fs: "fuse.sluice".into(), unstored: Some(Box::new(unstored)) });
    }
    let (fs, source) = mounts::file_system(&path).unwrap_or_else(|| ("unknown".into(), String::new()));
    // Disks are named by their device; a server is not.
    let tier = if source.starts_with("/dev/") { "local".into() } else { fs.clone() };
    Ok(Told { tier, fs, unstored: None })
}
