//! What files do not have any more leaves the store, while the volume is mounted, and nobody reads anything else for it.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::{Command, Stdio},
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
        numbers["dirty_bytes"] == 0 && stored(&volume) < 20 * MIB as u64 && numbers["gc"]["tombstones"] == 0
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
    let server = Server::with(&[&SOON[..], &["--lease", "2s"]].concat());
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
        stored(server.volume()) < 19 * MIB as u64
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

/// To be survived: a mount sleeps with a file open to write, and with a clone that it has not published, until what it knew was overwritten,
/// rewritten and deleted. It goes on, or is told; nothing in the volume refers to what is gone.
#[test]
fn a_writer_that_wakes_after_everything_was_collected() {
    if skipped_in_local_mode("a_writer_that_wakes_after_everything_was_collected") {
        return;
    }
    // Short, so that the sleeper's session ends soon, and with it its hold on what it has open.
    let mut server = Server::with(&[&SOON[..], &["--lease", "2s"]].concat());
    let awake = server.try_mount("awake", &["--upload-delay", "100ms"]).unwrap();
    let sleeper = server.try_mount("sleeper", &["--upload-delay", "100ms"]).unwrap();
    let source = noise(3, 6 * MIB);
    fs::write(awake.path("source"), &source).unwrap();
    wait_for("the upload", LIMIT, || awake.status()["numbers"]["dirty_bytes"] == 0);
    // A process of its own has the files open: one that starts others would wait for the sleeper in each of them, between fork and exec.
    let program = format!(
        "import os, sys
own, source, clone = (os.open('{at}/' + name, how, 0o644) for name, how in
    (('own', os.O_CREAT | os.O_WRONLY), ('source', os.O_RDONLY), ('clone', os.O_CREAT | os.O_WRONLY)))
os.pwrite(own, b'a' * {MIB}, 0)
print(os.copy_file_range(source, clone, {len}, 0, 0), flush=True)
sys.stdin.readline()
def tried(work):
    try:
        work()
        return 'done'
    except OSError as error:
        return str(error)
def more():
    os.pwrite(own, b'b' * {MIB}, {MIB})
    os.fsync(own)
print(tried(more), flush=True)
print(tried(lambda: os.fsync(clone)), flush=True)",
        at = sleeper.root().display(),
        len = source.len()
    );
    let mut python = Command::new("python3");
    python.args(["-c", &program]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut writer = python.spawn().unwrap();
    let mut told = BufReader::new(writer.stdout.take().unwrap()).lines().map(Result::unwrap);
    let copied: usize = told.next().unwrap().parse().unwrap();
    assert!(copied > 0);
    let pid = Pid::from_raw(sleeper.pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    fs::remove_file(awake.path("source")).unwrap();
    write_and_wear(&awake, "other", 60);
    wait_for("the store to hold little more than the files", Duration::from_secs(120), || {
        awake.status()["numbers"]["dirty_bytes"] == 0 && stored(server.volume()) < 19 * MIB as u64
    });
    kill_process(pid, Signal::CONT).unwrap();
    writeln!(writer.stdin.take().unwrap()).unwrap();
    let own = [vec![b'a'; MIB], vec![b'b'; MIB]].concat();
    for (name, bytes) in [("own", &own[..]), ("clone", &source[..copied])] {
        let end = told.next().unwrap();
        eprintln!("{name}: {end}");
        match (&end[..], fs::read(awake.path(name))) {
            ("done", read) => assert!(read.unwrap() == bytes, "{name} was acked"),
            // It was told that it is lost: then there is nothing of it, or an error. Never other bytes.
            (_, Ok(read)) => assert!(bytes.starts_with(&read), "{name}"),
            (_, Err(_)) => {}
        }
    }
    assert!(writer.wait().unwrap().success());
    // What it had published and not stored is in its journal still: the next one brings it.
    let again = sleeper.again();
    sleeper.kill9();
    again().umount();
    awake.umount();
    server.stop();
    let volume = server.volume();
    let report = volume.sluice(["fsck".as_ref(), volume.dir().as_os_str()]);
    assert_eq!(report.code, Some(0), "{report:#?}");
}
