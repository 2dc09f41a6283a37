//! What is written over again and again: the volume stays as small as its files, and nobody reads what he only writes.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;
use sluice_tests::{Mount, Volume, needs_binary, noise, seed, wait_for};

const LIMIT: Duration = Duration::from_secs(60);
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const TIMES: u64 = 1000;

/// Bytes of all files below `path`.
fn bytes_below(path: &Path) -> u64 {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { bytes_below(&path) } else { path.metadata().unwrap().len() }).sum()
}

/// What the metadata has, by the word of fsck.
fn counted(volume: &Volume) -> Value {
    let ran = volume.sluice(["fsck".as_ref(), volume.dir().as_os_str(), "--json".as_ref()]).ok();
    ran.json()["checked"].clone()
}

fn gets(mount: &Mount) -> u64 {
    mount.status()["numbers"]["store"]["gets"].as_u64().unwrap()
}

/// To be survived: a program saves its file all the time, and a database writes its pages, each a thousand times over. What came of it is there
/// after the next mount, and of what was before nothing has grown.
#[test]
fn a_file_overwritten_a_thousand_times() {
    needs_binary!();
    let seed = seed("a_file_overwritten_a_thousand_times");
    let mut random = StdRng::seed_from_u64(seed);
    // Uploads fall between the writes, so that they meet objects in every state.
    let volume = Volume::new().option("--upload-delay", "50ms");
    let mount = volume.up();
    let mut pages = noise(seed, MIB);
    fs::write(mount.path("pages"), &pages).unwrap();
    let file = OpenOptions::new().write(true).open(mount.path("pages")).unwrap();
    for round in 0..TIMES {
        let at = random.random_range(0..MIB / (4 * KIB)) * 4 * KIB;
        pages[at..at + 4 * KIB].copy_from_slice(&noise(seed ^ round, 4 * KIB));
        file.write_all_at(&pages[at..at + 4 * KIB], at as u64).unwrap();
        fs::write(mount.path("whole"), noise(seed + round, 60 * KIB)).unwrap();
        if round % 100 == 0 {
            file.sync_data().unwrap();
        }
    }
    drop(file);
    let whole = noise(seed + TIMES - 1, 60 * KIB);
    assert!(fs::read(mount.path("pages")).unwrap() == pages && fs::read(mount.path("whole")).unwrap() == whole);
    mount.umount();
    let checked = counted(&volume);
    // Three inodes; an extent for each page at most, and some for the other file.
    let number = |key: &str| checked[key].as_u64().unwrap();
    assert_eq!((number("inodes"), number("held_bytes")), (3, (MIB + 60 * KIB) as u64), "{checked}");
    assert!(number("extents") <= (MIB / (4 * KIB)) as u64 + 16, "{checked}");
    // 64 MB were written, of which each upload leaves an object: fewer than there were writes.
    assert!(number("objects") < TIMES && number("records") < 2 * TIMES, "{checked}");
    let meta = bytes_below(&volume.dir().join("meta"));
    assert!(meta < MIB as u64, "the metadata has {meta} bytes");
    volume.fsck_is_clean();
    // From the store alone.
    fs::remove_dir_all(volume.dir().join("cache")).unwrap();
    let mount = volume.up();
    assert!(fs::read(mount.path("pages")).unwrap() == pages && fs::read(mount.path("whole")).unwrap() == whole);
    mount.umount();
}

/// Pages written into a file that only the store has ask it for nothing.
#[test]
fn pages_written_into_a_stored_file_fetch_nothing() {
    needs_binary!();
    let seed = seed("pages_written_into_a_stored_file_fetch_nothing");
    let mut random = StdRng::seed_from_u64(seed);
    let volume = Volume::new().option("--upload-delay", "50ms");
    let mount = volume.up();
    let mut bytes = noise(seed, 32 * MIB);
    fs::write(mount.path("file"), &bytes).unwrap();
    mount.umount();
    fs::remove_dir_all(volume.dir().join("cache")).unwrap();
    let mount = volume.up();
    // What takes the metadata to the store looks there first.
    wait_for("the first look at the store", LIMIT, || !mount.status()["metadata"]["shipped_seq"].is_null());
    let before = gets(&mount);
    let file = OpenOptions::new().write(true).open(mount.path("file")).unwrap();
    for _ in 0..TIMES {
        let at = random.random_range(0..bytes.len() - 4 * KIB);
        let page = noise(random.random(), 4 * KIB);
        bytes[at..at + 4 * KIB].copy_from_slice(&page);
        file.write_all_at(&page, at as u64).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    wait_for("the uploads", LIMIT, || mount.status()["numbers"]["dirty_bytes"] == 0);
    assert_eq!(gets(&mount), before, "writes have read");
    let mut head = vec![0; 4 * KIB];
    File::open(mount.path("file")).unwrap().read_exact_at(&mut head, 0).unwrap();
    assert!(gets(&mount) > before, "reads are counted");
    assert!(fs::read(mount.path("file")).unwrap() == bytes);
    let mount = mount.remount();
    assert!(fs::read(mount.path("file")).unwrap() == bytes);
    mount.umount();
    volume.fsck_is_clean();
}
