//! The ways of the bytes to the kernel, and what `--verify` decides.

use crate::{needs_binary, noise, open_direct, read_all_over, requests};
use sluice_tests::Volume;
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    process::Command,
    thread,
};

const LEN: usize = 9 << 20;

/// What is checked is copied; what is not goes by reference where that is faster, or where it was asked for.
#[test]
fn settings_decide_how_bytes_go() {
    needs_binary!();
    for (verify, io, small, large) in [
        ("full", "auto", "copied", "copied"),
        ("full", "splice", "copied", "copied"),
        ("off", "auto", "copied", "spliced"),
        ("off", "copy", "copied", "copied"),
        ("off", "splice", "spliced", "spliced"),
    ] {
        let mount = Volume::new().option("--verify", verify).option("--io", io).up();
        let bytes = noise(2, LEN);
        fs::write(mount.path("f"), &bytes).unwrap();
        let file = open_direct(&mount.path("f"));
        // The first read of a handle finds nothing known.
        read_all_over(&file, &bytes, 4096, 1);
        for (block, way) in [(4096, small), (128 << 10, large)] {
            let counts = || (requests(&mount, "reads_copied"), requests(&mount, "reads_spliced"));
            let before = counts();
            read_all_over(&file, &bytes, block, 50);
            let after = counts();
            let more = (after.0 - before.0, after.1 - before.1);
            assert_eq!(more, if way == "copied" { (50, 0) } else { (0, 50) }, "{verify} {io} {block}");
        }
        assert_eq!(requests(&mount, "splice_failures"), 0);
        drop(file);
        mount.umount();
    }
}

/// One read in 64 is checked.
#[test]
fn sampled_reads_are_checked_now_and_then() {
    needs_binary!();
    let mount = Volume::new().option("--verify", "sampled").option("--reactors", "2").up();
    let bytes = noise(3, LEN);
    fs::write(mount.path("f"), &bytes).unwrap();
    let file = open_direct(&mount.path("f"));
    read_all_over(&file, &bytes, 64 << 10, 1280);
    let (copied, spliced) = (requests(&mount, "reads_copied"), requests(&mount, "reads_spliced"));
    // Each of the two reactors counts for itself.
    assert!((18..=21).contains(&copied) && copied + spliced >= 1278, "{copied} of {}", copied + spliced);
    drop(file);
    mount.umount();
}

/// To be survived: the file changes under readers that remember what it is made of. What a write returned for is read.
#[test]
fn files_that_change_under_readers() {
    needs_binary!();
    let mount = Volume::new().option("--verify", "off").option("--io", "splice").up();
    let path = mount.path("f");
    fs::write(&path, noise(4, LEN)).unwrap();
    let read = open_direct(&path);
    let write = File::options().write(true).open(&path).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    for round in 0..60u64 {
        let (at, len) = ((round * 1_234_567 % (LEN as u64 - 300_000)) as usize, 1 + (round * 4999 % 250_000) as usize);
        bytes[at..at + len].copy_from_slice(&noise(100 + round, len));
        write.write_all_at(&bytes[at..at + len], at as u64).unwrap();
        read_all_over(&read, &bytes, 64 << 10, 20);
        let around = at / 4096 * 4096;
        let mut found = crate::Aligned::new(256 << 10);
        read.read_exact_at(found.get(), around as u64).unwrap();
        assert!(*found.get() == bytes[around..][..256 << 10], "round {round}");
    }
    // A hole, and an end that comes nearer.
    write.set_len(1 << 20).unwrap();
    write.set_len(3 << 20).unwrap();
    bytes.truncate(1 << 20);
    bytes.resize(3 << 20, 0);
    read_all_over(&read, &bytes, 64 << 10, 100);
    assert_eq!(read.read_at(crate::Aligned::new(4096).get(), 3 << 20).unwrap(), 0);
    drop((read, write));
    mount.umount();
}

/// To be survived: programs that are killed while they read, and an unmount among readers. No error for the others, no process left.
#[test]
fn readers_are_killed_and_the_mount_goes() {
    needs_binary!();
    let mount = Volume::new().option("--verify", "off").up();
    let bytes = noise(5, LEN);
    fs::write(mount.path("f"), &bytes).unwrap();
    let file = open_direct(&mount.path("f"));
    for _ in 0..20 {
        let mut reader = Command::new("dd")
            .arg(format!("if={}", mount.path("f").display()))
            .args(["of=/dev/null", "bs=64k", "iflag=direct", "status=none"])
            .spawn()
            .unwrap();
        read_all_over(&file, &bytes, 128 << 10, 30);
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    let path = mount.path("f");
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let (file, bytes) = (open_direct(&path), &bytes);
                thread::Builder::new().spawn_scoped(scope, move || read_all_over(&file, bytes, 128 << 10, 200)).unwrap()
            })
            .collect();
        assert_ne!(mount.try_umount().code, Some(0), "files are open");
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    drop(file);
    mount.umount();
}
