//! Whether a volume can be mounted at a place, asked before anything is made.

use crate::{
    directory,
    lock::VolumeLock,
    mounts::{self, Found},
    units::quoted,
};
use anyhow::{Context, bail};
use rustix::{
    fs::{Access, access},
    io::Errno,
};
use sluice_object::StoreUrl;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The mount point without symbolic links: an existing directory, empty and not in use. A mount that a killed process left is
/// taken away first.
pub fn check(path: &Path) -> anyhow::Result<PathBuf> {
    let place = || format!("the mount point {}", path.display());
    let dead = |error: &std::io::Error| Errno::from_io_error(error) == Some(Errno::NOTCONN);
    if fs::metadata(path).is_err_and(|error| dead(&error))
        && let Some(Found { at, .. }) = mounts::at(path)
    {
        sluice_fuse::unmount(&at, true).with_context(|| format!("taking away the dead mount at {}", at.display()))?;
    }
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("{} does not exist: create the directory first", place())
        }
        Err(error) if dead(&error) => {
            bail!("{} is below a mount whose process is gone: take that away with umount -l first", place())
        }
        Err(error) => return Err(error).with_context(place),
        Ok(found) if !found.is_dir() => bail!("{} is not a directory", place()),
        Ok(_) => {}
    }
    let path = path.canonicalize().with_context(place)?;
    if let Some(Found { dir, .. }) = mounts::at(&path) {
        let holder = VolumeLock::holder(&dir).map_or_else(String::new, |holder| format!(" by {holder}"));
        bail!(
            "{} is mounted already, with the volume {}{holder}; `sluice umount {}` ends it",
            path.display(),
            dir.display(),
            quoted(&path)
        );
    }
    let mut entries = fs::read_dir(&path).with_context(place)?;
    if entries.next().is_some() {
        bail!("{} is not empty: choose an empty directory", place());
    }
    Ok(path)
}

/// That the mount would not hide what it lives from, nor lie in it.
pub fn check_apart(dir: &Path, store: Option<&str>, mountpoint: &Path) -> anyhow::Result<()> {
    let mut used = vec![("the volume's directory", dir.to_path_buf())];
    let config = directory::load(dir)?.map(|config| config.store_url(dir)).transpose()?;
    // A store that does not parse is refused where it is needed.
    let store = config.or_else(|| store.and_then(|store| store.parse().ok()));
    if let Some(StoreUrl::File(path)) = store {
        used.push(("the volume's object store", dir.join(path)));
    }
    for (what, used) in used {
        let real = real_path(&used);
        let how = match (mountpoint.starts_with(&real), real.starts_with(mountpoint)) {
            (true, true) => "is",
            (true, false) => "lies in",
            (false, true) => "contains",
            (false, false) => continue,
        };
        bail!(
            "the mount point {} {how} {what}, {}: choose a directory apart from it",
            mountpoint.display(),
            used.display()
        );
    }
    Ok(())
}

/// Where a path leads, the last parts of which need not exist.
fn real_path(path: &Path) -> PathBuf {
    let resolve = |known: &Path| Some(known.canonicalize().ok()?.join(path.strip_prefix(known).ok()?));
    // Joined with nothing a path would end in a slash, which comparisons ignore.
    path.ancestors().find_map(resolve).unwrap_or_else(|| path.to_path_buf())
}

/// That this user can speak to the kernel at all: fusermount3 opens the device as the user too.
pub fn check_device() -> anyhow::Result<()> {
    match access("/dev/fuse", Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT) => bail!(
            "/dev/fuse is missing: load the kernel module (`modprobe fuse`), or pass the device to the container (docker run \
             --device /dev/fuse --cap-add SYS_ADMIN)"
        ),
        Err(Errno::ACCESS | Errno::PERM) => bail!(
            "/dev/fuse is closed to this user: run as root, join the group that `ls -l /dev/fuse` shows, or have root run \
             `chmod 666 /dev/fuse`"
        ),
        Err(error) => Err(error).context("/dev/fuse"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_lies_apart_from_what_the_volume_uses() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let mnt = root.join("mnt");
        fs::create_dir_all(root.join("vol/inner")).unwrap();
        fs::create_dir(&mnt).unwrap();
        std::os::unix::fs::symlink(&mnt, root.join("link")).unwrap();
        let said = |dir: &str, store: Option<&str>, at: &Path| {
            check_apart(&root.join(dir), store, at).map_or_else(|error| error.to_string(), |()| "apart".into())
        };
        assert_eq!(said("vol", None, &mnt), "apart");
        assert_eq!(said("mnt-2", None, &mnt), "apart");
        assert_eq!(said("new", Some("file:objects"), &mnt), "apart");
        assert!(said("vol", None, &root.join("vol")).contains("is the volume's directory"));
        assert!(said("vol", None, &root.join("vol/inner")).contains("lies in"));
        assert!(said("mnt/new/deep", None, &mnt).contains("contains"));
        assert!(said("link/new", None, &mnt).contains("contains"));
        assert!(said("vol", Some("file:../mnt/objects"), &mnt).contains("object store"));
    }
}
