//! `sluice mount --takeover`: the mount of another process, which this one goes on with.

use super::{MountArgs, Place};
use crate::{
    control::{HeirCache, Taken},
    mounts::Found,
    takeover,
    units::quoted,
};
use anyhow::bail;
use std::path::Path;

/// The mount that `args` names.
pub fn find(args: &MountArgs) -> anyhow::Result<Found> {
    let found = takeover::mount_at(&args.mountpoint, &args.reading)?;
    let place = args.mountpoint.display();
    match &found.server {
        Some(server) if *server == args.meta => {}
        Some(server) => bail!("{place} is a mount of {server}, not of {}", args.meta),
        None => bail!(
            "{place} is a mount of the volume {} of this host: `sluice up {} {} --takeover`",
            found.dir.display(),
            quoted(&found.dir),
            quoted(&found.at)
        ),
    }
    takeover::check_user(&found)?;
    Ok(found)
}

/// That this process will have the journal of the mount that it takes over.
pub fn check_place(found: &Found, place: &Place) -> anyhow::Result<()> {
    if !takeover::are_one(&found.dir, &place.state) {
        bail!(
            "the mount at {} has its journal in {}, not in {}: say --journal {}:SIZE",
            found.at.display(),
            found.dir.display(),
            place.state.display(),
            found.dir.display()
        );
    }
    Ok(())
}

/// Takes the mount over; when this returns, the process that served it has ended.
pub fn take(args: &MountArgs, place: &Place, mountpoint: &Path) -> anyhow::Result<Taken> {
    let dir = place.cache.clone().unwrap_or_else(|| place.state.join("cache"));
    let cache = HeirCache { has_one: place.cache_bytes > 0, dir: Some(dir) };
    takeover::take(&place.state, mountpoint, cache, &command(args, mountpoint))
}

/// What to say when the mount was taken and cannot be served.
pub fn lost(args: &MountArgs, mountpoint: &Path) -> String {
    takeover::lost(mountpoint, &command(args, mountpoint))
}

fn command(args: &MountArgs, mountpoint: &Path) -> String {
    let journal = args.journal.as_ref().map(|journal| format!(" --journal {journal}")).unwrap_or_default();
    format!("sluice mount {} {}{journal}", args.meta, quoted(mountpoint))
}
