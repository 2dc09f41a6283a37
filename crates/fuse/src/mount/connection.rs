//! The kernel's side of a mount, ended from another process than the one that serves it.

use super::FS_TYPE;
use crate::mountinfo;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::io;
use std::path::{Path, PathBuf};

/// A mount as the kernel knows it, whoever serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    device: String,
    mountpoint: PathBuf,
}

impl Connection {
    /// That of the mount at `mountpoint`, an absolute path.
    pub fn at(mountpoint: &Path) -> io::Result<Self> {
        let mount = mountinfo::find(mountpoint)?.filter(|mount| mount.kind == FS_TYPE);
        let mount = mount.ok_or_else(|| io::Error::other(format!("{} is no mount of ours", mountpoint.display())))?;
        Ok(Self::new(mount.device, mountpoint))
    }

    /// That of `device` (`MAJOR:MINOR`, as [`Connection::device`] says), if it is still the one at `mountpoint`.
    pub fn new(device: String, mountpoint: &Path) -> Self {
        Self { device, mountpoint: mountpoint.into() }
    }

    /// `MAJOR:MINOR` of the mount's device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Ends it: requests under way fail, later ones get ENOTCONN. The mount stays where it is, so that nobody writes into the directory
    /// below it. Nothing happens if it is not there any more. Never waits for whoever serves it.
    ///
    /// By the control file system where that is mounted (fuse.rst, "How do I abort a filesystem connection?"), which the owner of the
    /// mount may use; else by a forced unmount, for root.
    pub fn abort(&self) -> io::Result<()> {
        let number = self.device.rsplit(':').next().unwrap_or_default();
        if std::fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), "1").is_ok() {
            return Ok(());
        }
        // Neither looking it up nor holding it asks the file system anything.
        let held = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = match rustix::fs::open(&self.mountpoint, held, Mode::empty()) {
            Ok(held) => held,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if Self::at(&self.mountpoint).is_ok_and(|now| now == *self) {
            // Aborts, and then leaves the mount in its place because it is held.
            match rustix::mount::unmount(&self.mountpoint, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
                Ok(()) | Err(Errno::BUSY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        drop(held);
        Ok(())
    }
}
