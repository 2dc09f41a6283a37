//! `sluice up --takeover`: the mount of another process, which this one goes on with.

use super::UpArgs;
use crate::{
    control::{HeirCache, Taken},
    mounts::Found,
    takeover,
    units::quoted,
};
use anyhow::bail;
use std::path::Path;

/// The mount that `args` names, of the volume in `dir`, which the mount's processes may know by another path.
pub fn find(args: &UpArgs, dir: &Path) -> anyhow::Result<Found> {
    if args.passthrough.is_some() {
        bail!("--takeover and --passthrough do not go together: `sluice umount` first");
    }
    let found = takeover::mount_at(&args.mountpoint, &args.reading)?;
    let place = args.mountpoint.display();
    if let Some(server) = &found.server {
        bail!("{place} is a mount of {server}: `sluice mount {server} {} --takeover`", quoted(&found.at));
    }
    if !takeover::are_one(&found.dir, dir) {
        bail!("{place} is a mount of the volume {}, not of {}", found.dir.display(), dir.display());
    }
    takeover::check_user(&found)?;
    Ok(found)
}

/// Takes the mount over; when this returns, the process that served it has ended.
pub fn take(args: &UpArgs, dir: &Path, mountpoint: &Path) -> anyhow::Result<Taken> {
    let cache = HeirCache { has_one: args.cache_size > 0, dir: None };
    takeover::take(dir, mountpoint, cache, &command(dir, mountpoint))
}

/// What to say when the mount was taken and cannot be served.
pub fn lost(dir: &Path, mountpoint: &Path) -> String {
    takeover::lost(mountpoint, &command(dir, mountpoint))
}

fn command(dir: &Path, mountpoint: &Path) -> String {
    format!("sluice up {} {}", quoted(dir), quoted(mountpoint))
}
