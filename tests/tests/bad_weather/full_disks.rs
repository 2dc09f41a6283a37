//! Cache and journal on disks that are too small.

use std::{
    fs::{self, File},
    io::Write,
};

use rustix::io::Errno;
use sluice_tests::{Mount, SmallDisk, Volume};

use crate::{needs_binary, noise};

const MIB: usize = 1 << 20;

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
    assert!(mount.log().contains("warning: the journal may grow to 256.00 MiB"), "{}", mount.log());
    let written = fill(&mount);
    mount.kill9();
    let mount = volume.up();
    verify(&mount, written);
    // The volume is usable again once there is room.
    disk.grow(200);
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
