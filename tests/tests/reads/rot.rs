//! A cache disk that returns other bytes than were written, under many readers.

use crate::{needs_binary, noise, open_direct, read_all_over};
use sluice_tests::{Volume, wait_for};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

const LEN: usize = 16 << 20;

/// Flips a bit in every segment that the slabs hold, on the disk.
fn rot(cache: &Path) -> u64 {
    let mut flipped = 0;
    for entry in fs::read_dir(cache).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_string_lossy().starts_with("slab-") {
            continue;
        }
        let slab = File::options().read(true).write(true).open(&path).unwrap();
        let mut segment = vec![0; 32 << 10];
        let mut at = 0;
        while let Ok(start) = rustix::fs::seek(&slab, rustix::fs::SeekFrom::Data(at)) {
            at = start / (32 << 10) * (32 << 10);
            slab.read_exact_at(&mut segment, at).unwrap();
            if segment.iter().any(|byte| *byte != 0) {
                slab.write_all_at(&[segment[777] ^ 1], at + 777).unwrap();
                flipped += 1;
            }
            at += 32 << 10;
        }
        // It is the disk that rots: what memory has of it was checked when it came from there.
        forget(&slab, &path);
    }
    flipped
}

/// Takes a file out of memory. POSIX_FADV_DONTNEED leaves pages that somebody holds at the moment, or that are on their way to the disk.
pub fn forget(file: &File, path: &Path) {
    wait_for("memory to let go of the slab", Duration::from_secs(60), || {
        file.sync_all().unwrap();
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let ran = Command::new("fincore").args(["--noheadings", "--output", "PAGES"]).arg(path).output().unwrap();
        assert!(ran.status.success(), "fincore: {ran:?}");
        String::from_utf8_lossy(&ran.stdout).trim() == "0"
    });
}

/// To be survived: every segment of the cache is rotten, and eight programs read at once. Not one wrong byte, and no error: the store
/// has good copies.
#[test]
fn a_storm_of_failed_checks() {
    needs_binary!();
    let volume = Volume::new().option("--upload-delay", "100ms");
    let mount = volume.up();
    let bytes = noise(6, LEN);
    fs::write(mount.path("f"), &bytes).unwrap();
    let file = open_direct(&mount.path("f"));
    read_all_over(&file, &bytes, 64 << 10, 100);
    wait_for("everything to be stored", Duration::from_secs(60), || {
        mount.status()["numbers"]["dirty_objects"].as_u64() == Some(0)
    });
    assert!(rot(&volume.dir().join("cache")) >= LEN as u64 / (32 << 10));
    thread::scope(|scope| {
        for index in 0..8usize {
            let (path, bytes) = (mount.path("f"), &bytes);
            let read = move || read_all_over(&open_direct(&path), bytes, 4096 << (index % 6), 300);
            thread::Builder::new().spawn_scoped(scope, read).unwrap();
        }
    });
    let cache = &mount.status()["numbers"]["cache"];
    assert!(cache["corrupt_segments"].as_u64() >= Some(4), "{cache}");
    drop(file);
    mount.umount();
    volume.fsck_is_clean();
}
