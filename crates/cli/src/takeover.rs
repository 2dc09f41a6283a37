//! `--takeover`: the mount of another process, which this one goes on with.

use crate::{
    control::{Control, HeirCache, Taken},
    mounts::{self, Found},
    output::note,
    reading::ReadingArgs,
};
use anyhow::{Context, bail};
use rustix::{
    fs::{Access, access},
    io::Errno,
};
use std::path::Path;

/// The mount at `mountpoint`. Nobody is asked, and nothing below the mount point is touched: whoever does waits for an answer while the
/// mount passes from one process to the other.
pub fn mount_at(mountpoint: &Path, reading: &ReadingArgs) -> anyhow::Result<Found> {
    if reading.wants_rings() {
        bail!("--takeover and --fuse-transport uring do not go together: `sluice umount` first");
    }
    let Some(found) = mounts::at(mountpoint) else {
        bail!("nothing of sluice is mounted at {}: leave --takeover out to mount there", mountpoint.display());
    };
    Ok(found)
}

/// Whether two paths lead to the same place.
pub fn are_one(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    real(one) == real(other)
}

/// Its process gives it to nobody but its user.
pub fn check_user(found: &Found) -> anyhow::Result<()> {
    if access(found.dir.join("control.sock"), Access::WRITE_OK) == Err(Errno::ACCESS) {
        bail!("the mount at {} is another user's: run this as the user who mounted it", found.at.display());
    }
    Ok(())
}

/// Takes the mount over; when this returns, the process that served it has ended. `command` mounts it when there is nothing to be taken.
pub fn take(dir: &Path, mountpoint: &Path, cache: HeirCache, command: &str) -> anyhow::Result<Taken> {
    let Some(control) = Control::connect(dir)? else {
        bail!(
            "the process of the mount at {} is gone: `{command}` without --takeover mounts it again",
            mountpoint.display()
        );
    };
    let pid = control.pid();
    let taken =
        control.take_over(mountpoint, cache).with_context(|| format!("taking {} over", mountpoint.display()))?;
    note!("pid {pid} has handed {} over", mountpoint.display());
    Ok(taken)
}

/// What to say when the mount was taken and cannot be served.
pub fn lost(mountpoint: &Path, command: &str) -> String {
    format!(
        "{} was taken over and could not be served: programs that use it get ENOTCONN, nothing acked is lost. When the reason is \
         mended, `{command}` mounts it again",
        mountpoint.display()
    )
}
