//! Cache and journal on disks that are too small.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
};

use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount},
};
use sluice_tests::{Mount, Volume};

use crate::{needs_binary, noise};

const MIB: usize = 1 << 20;

/// A disk of its own for one folder of a volume, with what the folder held. Dropped after the mount and before the volume's directory goes.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(path: PathBuf, mib: u32) -> Self {
        let old = path.with_extension("old");
        fs::rename(&path, &old).unwrap();
        fs::create_dir(&path).unwrap();
        let options = std::ffi::CString::new(format!("size={mib}m")).unwrap();
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), &*options).expect("mount tmpfs");
        let disk = Self(path);
        sluice_tests::shell(&old, &format!("cp -a --sparse=always . {}", disk.0.display()));
        fs::remove_dir_all(&old).unwrap();
        disk
    }
}

impl SmallDisk {
    /// Makes room.
    fn grow(&self) {
        mount_remount(&self.0, MountFlags::empty(), c"size=200m").expect("a larger tmpfs");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// To be survived: the cache disk is full long before the cache has its configured size. It is taken out or used as far
/// as it goes; reads and writes go on.
#[test]
fn the_cache_disk_is_full() {
    needs_binary!();
    let volume = Volume::new().option("--cache-size", "4G");
    volume.up().umount();
    let disk = SmallDisk::new(volume.dir().join("cache"), 48);
    let mount = volume.up();
    for i in 0..10 {
        fs::write(mount.path(format!("{i}")), noise(i, 20 * MIB)).unwrap();
    }
    let mount = mount.remount();
    for i in 0..10 {
        assert!(fs::read(mount.path(format!("{i}"))).unwrap() == noise(i, 20 * MIB), "file {i} differs");
    }
    mount.umount();
    volume.fsck_is_clean();
    drop(disk);
}

/// To be survived: the journal disk is full. Writers wait or get ENOSPC; nothing that was acknowledged is lost, not
/// even when the process is killed then.
#[test]
fn the_journal_disk_is_full() {
    needs_binary!();
    let volume = Volume::new().option("--journal-size", "256M");
    volume.up().umount();
    let disk = SmallDisk::new(volume.dir().join("journal"), 48);
    let mount = volume.up();
    let written = fill(&mount);
    mount.kill9();
    let mount = volume.up();
    verify(&mount, written);
    // The volume is usable again once there is room.
    disk.grow();
    fs::remove_file(mount.path("0")).unwrap();
    mount.umount();
    volume.fsck_is_clean();
    drop(disk);
}

/// Writes small files until 200 MiB are written or the volume says that it is full; returns how many.
fn fill(mount: &Mount) -> u64 {
    for i in 0..4000 {
        let result = File::create_new(mount.path(format!("{i}"))).and_then(|mut f| f.write_all(&noise(i, 50_000)));
        if let Err(e) = result {
            assert_eq!(Errno::from_io_error(&e), Some(Errno::NOSPC), "file {i}: {e}");
            return i;
        }
    }
    4000
}

fn verify(mount: &Mount, count: u64) {
    assert!(count > 100, "full after {count} files");
    for i in 0..count {
        let bytes = fs::read(mount.path(format!("{i}"))).unwrap_or_else(|e| panic!("file {i} of {count}: {e}"));
        assert!(bytes == noise(i, 50_000), "file {i} of {count} differs");
    }
}
