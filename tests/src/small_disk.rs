//! Disks that are too small.

use std::{ffi::CString, fs, path::PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

/// A disk of its own for one folder of a volume, with what the folder held. Dropped after the mount and before the volume's directory goes.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// A tmpfs of `mib` MiB in the place of `path`.
    ///
    /// # Panics
    /// When it cannot be mounted, or is too small for what is there.
    #[must_use]
    pub fn new(path: PathBuf, mib: u32) -> Self {
        let old = path.with_extension("old");
        fs::rename(&path, &old).expect("a folder");
        fs::create_dir(&path).expect("mkdir");
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), &*size(mib)).expect("mount tmpfs");
        let disk = Self(path);
        crate::shell(&old, &format!("cp -a --sparse=always . {}", disk.0.display()));
        fs::remove_dir_all(&old).expect("rm");
        disk
    }

    /// Makes room.
    ///
    /// # Panics
    /// When that fails.
    pub fn grow(&self, mib: u32) {
        mount_remount(&self.0, MountFlags::empty(), &*size(mib)).expect("a larger tmpfs");
    }
}

fn size(mib: u32) -> CString {
    CString::new(format!("size={mib}m")).expect("no NUL")
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}
