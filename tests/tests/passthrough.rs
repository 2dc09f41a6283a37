//! Files that the kernel reads by itself (`up --passthrough`). Needs root and Linux 6.9.

use sluice_tests::{Mount, Volume, eventually, skipped_in_local_mode};
use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

const LEN: usize = 5 << 20;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    use rand::{RngCore, SeedableRng, rngs::StdRng};
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

fn volume(budget: &str) -> Volume {
    Volume::new().option("--verify", "off").option("--passthrough", budget)
}

/// READs that the process of `mount` has answered.
#[track_caller]
fn reads(mount: &Mount) -> u64 {
    mount.status()["requests"]["read"].as_u64().expect("a count")
}

/// The kernel tells of the last close, it does not wait for us to hear of it.
#[track_caller]
fn write_once_free(path: &Path, bytes: &[u8]) {
    let is_busy = |error: &std::io::Error| error.kind() == ErrorKind::ExecutableFileBusy;
    assert!(eventually(Duration::from_secs(30), || match fs::write(path, bytes) {
        Err(error) if is_busy(&error) => false,
        other => other.map(|()| true).unwrap(),
    }));
}

fn read(file: &File, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// While it is open no read comes, and nobody writes; afterwards everything is as ever.
#[test]
fn the_kernel_reads_until_the_last_close() {
    if skipped_in_local_mode("the_kernel_reads_until_the_last_close") {
        return;
    }
    let mount = volume("64M").up();
    let (path, bytes) = (mount.path("f"), noise(1, LEN));
    fs::write(&path, &bytes).unwrap();
    let (one, two) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    assert!(read(&one, LEN) == bytes && read(&two, LEN) == bytes && fs::read(&path).unwrap() == bytes);
    assert_eq!(reads(&mount), 0);
    drop(one);
    let busy = [
        File::options().write(true).open(&path).map(drop),
        File::options().write(true).truncate(true).open(&path).map(drop),
    ];
    for refused in busy {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ExecutableFileBusy);
    }
    // truncate(2), which opens nothing.
    let script = format!("import os; os.truncate({:?}, 5)", path.to_str().unwrap());
    let ran = Command::new("python3").args(["-c", &script]).output().unwrap();
    assert!(String::from_utf8_lossy(&ran.stderr).contains("Text file busy"), "{ran:?}");
    fs::rename(&path, mount.path("g")).unwrap();
    fs::remove_file(mount.path("g")).unwrap();
    assert!(read(&two, LEN) == bytes);
    drop(two);
    write_once_free(&path, b"new");
    assert_eq!(fs::read(&path).unwrap(), b"new");
    let mount = mount.remount();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    mount.umount();
}

/// Readers that come while the file is copied wait for the copy.
#[test]
fn readers_that_come_at_once() {
    if skipped_in_local_mode("readers_that_come_at_once") {
        return;
    }
    let mount = volume("64M").up();
    let (path, bytes) = (&mount.path("f"), &noise(3, LEN));
    fs::write(path, bytes).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let check = || assert!(read(&File::open(path).unwrap(), LEN) == *bytes);
            std::thread::Builder::new().spawn_scoped(scope, check).unwrap();
        }
    });
    assert_eq!(reads(&mount), 0);
    mount.umount();
}

/// A file that somebody may write, or for which there is no room, is read as ever.
#[test]
fn what_the_kernel_is_not_given() {
    if skipped_in_local_mode("what_the_kernel_is_not_given") {
        return;
    }
    let mount = volume("7M").up();
    let (path, bytes) = (mount.path("f"), noise(2, LEN));
    let mut writer = File::create(&path).unwrap();
    writer.write_all(&bytes).unwrap();
    let reader = File::open(&path).unwrap();
    writer.write_all_at(b"changed", 1000).unwrap();
    let mut found = [0; 7];
    reader.read_exact_at(&mut found, 1000).unwrap();
    assert_eq!(&found, b"changed");
    writer.write_all_at(&bytes[1000..1007], 1000).unwrap();
    drop((writer, reader));
    fs::write(mount.path("second"), &bytes).unwrap();
    let first = File::open(&path).unwrap();
    let before = reads(&mount);
    let second = File::open(mount.path("second")).unwrap();
    assert!(read(&first, LEN) == bytes);
    assert_eq!(reads(&mount), before);
    // It still accepts writers.
    assert!(read(&second, LEN) == bytes);
    File::options().write(true).open(mount.path("second")).unwrap();
    drop((first, second));
    mount.umount();
}

/// To be survived: opens, closes, writes and truncations at the same time. Nobody gets EIO, and what was written last is read.
#[test]
fn readers_and_writers_take_turns() {
    if skipped_in_local_mode("readers_and_writers_take_turns") {
        return;
    }
    let mount = volume("64M").up();
    let path = &mount.path("f");
    fs::write(path, vec![0; 1 << 20]).unwrap();
    let (busy, written) = (&AtomicU64::new(0), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let read = move || {
                for round in 0..150 {
                    let mut bytes = Vec::new();
                    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
                    assert!(bytes.len() <= 1 << 20, "reader {reader}, round {round}");
                }
            };
            std::thread::Builder::new().spawn_scoped(scope, read).unwrap();
        }
        let write = move || {
            // Readers may leave it no turn before they end.
            for round in (1u32..).take_while(|round| *round < 300 || written.load(Relaxed) == 0) {
                let truncates = round % 3 == 0;
                match File::options().write(true).truncate(truncates).open(path) {
                    Ok(file) => {
                        let block = vec![round as u8; 64 << 10];
                        (0..16).for_each(|at| file.write_all_at(&block, at << 16).unwrap());
                        drop(file);
                        // Whoever has the file by then has it as it is now.
                        assert!(fs::read(path).unwrap() == vec![round as u8; 1 << 20], "round {round}");
                        written.fetch_add(1, Relaxed);
                    }
                    Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => drop(busy.fetch_add(1, Relaxed)),
                    Err(error) => panic!("round {round}: {error}"),
                }
            }
        };
        std::thread::Builder::new().spawn_scoped(scope, write).unwrap();
    });
    assert!(written.load(Relaxed) > 0, "{busy:?} {written:?}");
    write_once_free(path, b"end");
    assert_eq!(fs::read(path).unwrap(), b"end");
    mount.umount();
}

#[test]
fn what_is_checked_is_not_passed_through() {
    if skipped_in_local_mode("what_is_checked_is_not_passed_through") {
        return;
    }
    let ran = Volume::new().option("--passthrough", "1G").try_up().unwrap_err();
    assert!(ran.stderr.contains("--verify sampled or --verify off"), "{ran:#?}");
}
