//! `sluice up --takeover`: the mount of another process, which this one goes on with.

use super::UpArgs;
use crate::{
    control::{Control, Taken},
    mounts::{self, Found},
    output::note,
    units::quoted,
};
use anyhow::{Context, bail};
use rustix::{
    fs::{Access, access},
    io::Errno,
};
use std::path::Path;

/// The mount that `args` names, of the volume in `dir`, which the mount's processes may know by another path. Nobody is asked, and nothing below the mount point is touched: whoever does waits
/// for an answer while the mount passes from one process to the other.
pub fn find(args: &UpArgs, dir: &Path) -> anyhow::Result<Found> {
    if args.passthrough.is_some() {
        bail!("--takeover and --passthrough do not go together: `sluice umount` first");
    }
    if args.reading.wants_rings() {
        bail!("--takeover and --fuse-transport uring do not go together: `sluice umount` first");
    }
    let place = args.mountpoint.display();
    let Some(found) = mounts::at(&args.mountpoint) else {
        bail!("nothing of sluice is mounted at {place}: leave --takeover out to mount there");
    };
    if let Some(server) = &found.server {
        bail!(
            "{place} is a mount of {server}, which cannot be taken over: `sluice umount` it, then `sluice mount` again"
        );
    }
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    if real(&found.dir) != real(dir) {
        bail!("{place} is a mount of the volume {}, not of {}", found.dir.display(), dir.display());
    }
    if access(found.dir.join("control.sock"), Access::WRITE_OK) == Err(Errno::ACCESS) {
        bail!("the mount at {place} is another user's: run this as the user who mounted it");
    }
    Ok(found)
}

/// Takes the mount over; when this returns, the process that served it has ended.
pub fn take(args: &UpArgs, dir: &Path, mountpoint: &Path) -> anyhow::Result<Taken> {
    let Some(control) = Control::connect(dir)? else {
        bail!(
            "the process of the mount at {} is gone: `sluice up {} {}` without --takeover mounts it again",
            mountpoint.display(),
            quoted(dir),
            quoted(mountpoint)
        );
    };
    let pid = control.pid();
    let taken = control
        .take_over(mountpoint, args.cache_size > 0)
        .with_context(|| format!("taking {} over", mountpoint.display()))?;
    note!("pid {pid} has handed {} over", mountpoint.display());
    Ok(taken)
}

/// What to say when the mount was taken and cannot be served.
pub fn lost(dir: &Path, mountpoint: &Path) -> String {
    format!(
        "{} was taken over and could not be served: programs that use it get ENOTCONN, nothing acked is lost. When the reason is \
         mended, `sluice up {} {}` mounts it again",
        mountpoint.display(),
        quoted(dir),
        quoted(mountpoint)
    )
}
