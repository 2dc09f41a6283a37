//! Reads of what memory has lost.

use crate::{needs_binary, noise, open_direct, read_all_over, requests, rot::forget};
use sluice_tests::{Volume, wait_for};
use std::{
    fs::{self, File},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

const LEN: usize = 16 << 20;
const BLOCK: usize = 64 << 10;
/// Reads of what is hot while others wait for the disk.
const HOT_READS: usize = 64;

/// The page cache has lost the slab. What is read again comes from there alone and is right, and no reactor waits for the disk: what
/// another file's reads find in memory, a reactor answers, all the while.
#[test]
fn a_cold_slab_is_read_beside_a_hot_one() {
    needs_binary!();
    let volume = Volume::new().option("--reactors", "2").option("--upload-delay", "100ms").option("--scrub-rate", "0");
    let mount = volume.up();
    let (cold, hot) = (noise(7, LEN), noise(8, LEN));
    for (name, bytes) in [("cold", &cold), ("hot", &hot)] {
        fs::write(mount.path(name), bytes).unwrap();
    }
    wait_for("everything to be stored", Duration::from_secs(60), || {
        mount.status()["numbers"]["dirty_objects"].as_u64() == Some(0)
    });
    let (cold_file, hot_file) = (open_direct(&mount.path("cold")), open_direct(&mount.path("hot")));
    let fetches = || mount.status()["numbers"]["fetches"].as_u64();
    let before = fetches();
    for round in 0..3 {
        for entry in fs::read_dir(volume.dir().join("cache")).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_string_lossy().starts_with("slab-") {
                forget(&File::open(&path).unwrap(), &path);
            }
        }
        // One of them is hot again. Twice, as both reactors are to know it.
        (0..2).for_each(|_| read_all_over(&hot_file, &hot, BLOCK, HOT_READS));
        let (later, is_over) = (requests(&mount, "later"), AtomicBool::new(false));
        thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|reader| {
                    let (file, bytes) = (cold_file.try_clone().unwrap(), &cold);
                    let read = move || read_part(&file, bytes, reader);
                    thread::Builder::new().spawn_scoped(scope, read).unwrap()
                })
                .collect();
            let beside = thread::Builder::new().spawn_scoped(scope, || {
                while !is_over.load(Ordering::Relaxed) {
                    read_all_over(&hot_file, &hot, BLOCK, HOT_READS);
                }
            });
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            is_over.store(true, Ordering::Relaxed);
            beside.unwrap().join().unwrap();
        });
        let waited = requests(&mount, "later") - later;
        // A quarter, as a quick disk may have some of it at once; each block was cold once, and nothing else.
        let blocks = (LEN / BLOCK) as u64;
        assert!(
            (blocks / 4..=blocks + 8).contains(&waited),
            "round {round}: {waited} of {blocks} reads waited for the disk"
        );
    }
    assert_eq!(fetches(), before, "the store was asked");
    drop((cold_file, hot_file));
    mount.umount();
}

/// A fourth of the file, once.
fn read_part(file: &File, bytes: &[u8], part: usize) {
    use std::os::unix::fs::FileExt;
    let (mut found, len) = (crate::Aligned::new(BLOCK), bytes.len() / 4);
    for at in (part * len..(part + 1) * len).step_by(BLOCK) {
        file.read_exact_at(found.get(), at as u64).expect("read");
        assert!(*found.get() == bytes[at..at + BLOCK], "cold bytes at {at}");
    }
}
