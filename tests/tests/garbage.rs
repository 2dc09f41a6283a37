//! What files do not have any more leaves the store, while the volume is mounted, and nobody reads anything else for it.

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use sluice_tests::{Mount, Server, Volume, noise, skipped_in_local_mode, wait_for};

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);
const SOON: [&str; 4] = ["--gc-interval", "300ms", "--gc-min-age", "2s"];

/// Bytes of the objects in a store that is a directory.
fn stored(volume: &Volume) -> u64 {
    let mut dirs = vec![volume.dir().join("objects/objects")];
    let mut bytes = 0;
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            // It may be deleted at this moment.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() { dirs.push(entry.path()) } else { bytes += found.len() }
        }
    }
    bytes
}

/// Writes `bytes`, and over most of them again once they are stored: of the first objects a quarter is left.
fn write_and_wear(mount: &Mount, name: &str, seed: u64) -> Vec<u8> {
    let mut bytes = noise(seed, 12 * MIB);
    fs::write(mount.path(name), &bytes).unwrap();
    wait_for("the upload", LIMIT, || mount.status()["numbers"]["dirty_bytes"] == 0);
    let file = OpenOptions::new().write(true).open(mount.path(name)).unwrap();
    for (n, chunk) in bytes.chunks_mut(4 * MIB).enumerate() {
        chunk[MIB..].copy_from_slice(&noise(seed + 1 + n as u64, 3 * MIB));
        file.write_all_at(&chunk[MIB..], (n * 4 * MIB + MIB) as u64).unwrap();
    }
    bytes
}

#[test]
fn a_mount_gives_back_what_was_overwritten_and_deleted() {
    let mut volume = Volume::new().option("--upload-delay", "100ms");
    for option in SOON.chunks(2) {
        volume = volume.option(option[0], option[1]);
    }
    let mount = volume.up();
    let bytes = write_and_wear(&mount, "kept", 1);
    let clone = mount.path("clone");
    {
        let (mut from, mut to) = (File::open(mount.path("kept")).unwrap(), File::create(&clone).unwrap());
        std::io::copy(&mut (&mut from).take(2 * MIB as u64), &mut to).unwrap();
    }
    write_and_wear(&mount, "deleted", 40);
    let times = |name: &str| fs::metadata(mount.path(name)).map(|found| (found.mtime(), found.ctime())).unwrap();
    let before = times("kept");
    fs::remove_file(mount.path("deleted")).unwrap();
    wait_for("the store to hold little more than the files", LIMIT, || {
        let numbers = &mount.status()["numbers"];
        numbers["dirty_bytes"] == 0 && stored(&volume) < 15 * MIB as u64 && numbers["gc"]["tombstones"] == 0
    });
    assert_eq!(times("kept"), before);
    let gc = mount.status()["numbers"]["gc"].clone();
    assert!(gc["repacked_objects"].as_u64() > Some(0) && gc["deleted_objects"].as_u64() > Some(3), "{gc}");
    assert!(fs::read(mount.path("kept")).unwrap() == bytes);
    mount.umount();
    volume.fsck_is_clean();
    // Another cache, so that all of it comes from the store.
    fs::remove_dir_all(volume.dir().join("cache")).unwrap();
    let mount = volume.up();
    assert!(fs::read(mount.path("kept")).unwrap() == bytes);
    assert!(fs::read(&clone).unwrap() == bytes[..2 * MIB]);
    mount.umount();
}

fn read_all(path: &Path, len: usize) -> Vec<u8> {
    let file = File::open(path).unwrap();
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Mounts read on while the server rewrites and deletes what they read; one of them sleeps through all of it with the file open.
#[test]
fn readers_of_a_served_volume_go_on_through_a_repack() {
    if skipped_in_local_mode("readers_of_a_served_volume_go_on_through_a_repack") {
        return;
    }
    let server = Server::with(&SOON);
    let writer = server.try_mount("writer", &["--upload-delay", "100ms"]).unwrap();
    let reader = server.try_mount("reader", &["--cache", "none"]).unwrap();
    let sleeper = server.try_mount("sleeper", &["--cache", "none"]).unwrap();
    let bytes = write_and_wear(&writer, "file", 7);
    wait_for("the upload", LIMIT, || writer.status()["numbers"]["dirty_bytes"] == 0);
    let open = File::open(sleeper.path("file")).unwrap();
    let mut head = vec![0; 4096];
    open.read_exact_at(&mut head, 0).unwrap();
    assert!(head == bytes[..4096]);
    let pid = Pid::from_raw(sleeper.pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    wait_for("the old objects to be gone", LIMIT, || {
        assert!(read_all(&reader.path("file"), bytes.len()) == bytes);
        stored(server.volume()) < 14 * MIB as u64
    });
    kill_process(pid, Signal::CONT).unwrap();
    for at in (0..bytes.len()).step_by(MIB) {
        let mut part = vec![0; MIB];
        open.read_exact_at(&mut part, at as u64).unwrap();
        assert!(part == bytes[at..at + MIB]);
    }
    drop(open);
    assert!(fs::read(writer.path("file")).unwrap() == bytes);
    [writer, reader, sleeper].into_iter().for_each(Mount::umount);
}
