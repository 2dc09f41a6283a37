//! Warm-ups, evictions and what they say, through the binary.

mod group;
mod program;

use serde_json::Value;
use sluice_tests::{Mount, Ran, Volume, needs_binary, noise, skipped_in_local_mode, wait_for};
use std::{ffi::OsStr, fs, path::Path, time::Duration};

const MIB: usize = 1 << 20;

fn number(mount: &Mount, name: &str) -> u64 {
    mount.status()["numbers"][name].as_u64().expect("a number")
}

fn volume() -> Volume {
    Volume::new().option("--cache-size", "256M").option("--scrub-rate", "0")
}

/// A volume with files in its store, mounted, with nothing in its cache: `dir/a`, `dir/sub/b` and `c`.
fn cold(volume: &Volume) -> (Mount, [Vec<u8>; 3]) {
    let mount = volume.up();
    let files = [noise(1, 9 * MIB + 5), noise(2, 3 * MIB), noise(3, 100_000)];
    fs::create_dir_all(mount.path("dir/sub")).unwrap();
    fs::write(mount.path("dir/a"), &files[0]).unwrap();
    fs::write(mount.path("dir/sub/b"), &files[1]).unwrap();
    fs::write(mount.path("c"), &files[2]).unwrap();
    mount.umount();
    fs::remove_dir_all(volume.dir().join("cache")).unwrap();
    (volume.up(), files)
}

fn sluice(volume: &Volume, command: &str, args: &[&OsStr]) -> Ran {
    volume.sluice([OsStr::new(command)].into_iter().chain(args.iter().copied()))
}

fn warm(volume: &Volume, path: &Path) -> Value {
    sluice(volume, "warmup", &[path.as_os_str(), "--wait".as_ref(), "--json".as_ref()]).ok().json()
}

fn check(volume: &Volume, path: &Path) -> Value {
    sluice(volume, "warmup", &[path.as_os_str(), "--check".as_ref(), "--json".as_ref()]).ok().json()
}

#[test]
fn what_is_warm_is_read_without_the_store() {
    if skipped_in_local_mode("what_is_warm_is_read_without_the_store") {
        return;
    }
    let volume = volume();
    let (mount, files) = cold(&volume);
    let dir_bytes = (files[0].len() + files[1].len()) as u64;
    let held = check(&volume, &mount.path("dir"));
    assert_eq!(
        (&held["files"], &held["bytes"], &held["local_bytes"]),
        (&2.into(), &dir_bytes.into(), &0.into()),
        "{held}"
    );
    // A part first: the rest goes on from there.
    let first = warm(&volume, &mount.path("dir/sub"));
    assert_eq!((&first["files_done"], &first["brought_bytes"]), (&1.into(), &files[1].len().into()), "{first}");
    let rest = warm(&volume, mount.root());
    assert_eq!(
        (&rest["files_done"], &rest["files_failed"], &rest["over"]),
        (&3.into(), &0.into(), &true.into()),
        "{rest}"
    );
    assert!(rest["present_bytes"].as_u64().unwrap() >= files[1].len() as u64, "{rest}");
    let again = warm(&volume, mount.root());
    assert_eq!(
        (&again["brought_bytes"], &again["present_bytes"]),
        (&0.into(), &(dir_bytes + 100_000).into()),
        "{again}"
    );
    assert_eq!(check(&volume, mount.root())["local_bytes"], dir_bytes + 100_000);
    let before = (number(&mount, "fetches"), number(&mount, "read_stored_bytes"));
    for (name, bytes) in ["dir/a", "dir/sub/b", "c"].iter().zip(&files) {
        assert!(fs::read(mount.path(name)).unwrap() == *bytes, "{name}");
    }
    assert_eq!((number(&mount, "fetches"), number(&mount, "read_stored_bytes")), before, "the store was asked");
}

#[test]
fn what_is_evicted_is_fetched_again() {
    if skipped_in_local_mode("what_is_evicted_is_fetched_again") {
        return;
    }
    let volume = volume();
    let (mount, files) = cold(&volume);
    warm(&volume, mount.root());
    // The kernel has its pages too.
    assert!(fs::read(mount.path("dir/a")).unwrap() == files[0]);
    let before = number(&mount, "fetches");
    let evicted = sluice(&volume, "evict", &[mount.path("dir").as_os_str(), "--json".as_ref()]).ok().json();
    assert!(evicted["evicted_bytes"].as_u64().unwrap() >= (files[0].len() + files[1].len()) as u64, "{evicted}");
    assert_eq!(check(&volume, &mount.path("dir"))["local_bytes"], 0);
    assert!(fs::read(mount.path("dir/a")).unwrap() == files[0]);
    assert!(number(&mount, "fetches") > before, "it was in the cache, or in the kernel's, all the same");
    // What nobody else has stays.
    fs::write(mount.path("new"), noise(9, 2 * MIB)).unwrap();
    sluice(&volume, "evict", &[mount.path("new").as_os_str()]).ok();
    assert!(fs::read(mount.path("new")).unwrap() == noise(9, 2 * MIB));
    assert_eq!(check(&volume, &mount.path("new"))["local_bytes"], 2 * MIB);
}

/// To be survived: a cache full of other things, and a warm-up of more than the tenth that a scan may take of it.
#[test]
fn a_warm_up_is_no_scan() {
    if skipped_in_local_mode("a_warm_up_is_no_scan") {
        return;
    }
    let volume = Volume::new().option("--cache-size", "64M").option("--scrub-rate", "0");
    let mount = volume.up();
    for n in 0..3 {
        fs::write(mount.path(format!("f{n}")), noise(n, 30 * MIB)).unwrap();
    }
    mount.umount();
    let mount = volume.up();
    let numbers = warm(&volume, &mount.path("f0"));
    assert_eq!(numbers["files_failed"], 0, "{numbers}");
    assert_eq!(check(&volume, &mount.path("f0"))["local_bytes"], 30 * MIB, "what was warmed first is gone already");
}

/// To be survived: the mount is killed in the middle of a warm-up. The next one goes on with what there is, and every byte is right.
#[test]
fn a_warm_up_killed_half_way_is_taken_up() {
    needs_binary!();
    let volume = volume();
    let (mount, files) = cold(&volume);
    let dir = mount.path("dir");
    sluice(&volume, "warmup", &[dir.as_os_str()]).ok();
    wait_for("a part to be warm", Duration::from_secs(60), || check(&volume, &dir)["local_bytes"] != 0);
    mount.kill9();
    let mount = volume.up();
    let numbers = warm(&volume, mount.root());
    assert_eq!((&numbers["files_done"], &numbers["files_failed"]), (&3.into(), &0.into()), "{numbers}");
    let all: usize = files.iter().map(Vec::len).sum();
    assert_eq!(check(&volume, mount.root())["local_bytes"], all);
    let before = number(&mount, "fetches");
    for (name, bytes) in ["dir/a", "dir/sub/b", "c"].iter().zip(&files) {
        assert!(fs::read(mount.path(name)).unwrap() == *bytes, "{name}");
    }
    assert_eq!(number(&mount, "fetches"), before, "the store was asked");
    mount.umount();
    volume.fsck_is_clean();
}

#[test]
fn mistakes_are_told() {
    if skipped_in_local_mode("mistakes_are_told") {
        return;
    }
    let volume = volume();
    let (mount, _) = cold(&volume);
    let missing = mount.path("none");
    sluice(&volume, "warmup", &[missing.as_os_str()]).refused_with(&["none", "No such file"]);
    sluice(&volume, "warmup", &["/etc".as_ref()]).refused_with(&["/etc is in no mount of sluice"]);
    // One that is missing is told of, the others are warmed.
    let ran = sluice(&volume, "warmup", &[mount.path("c").as_os_str(), missing.as_os_str(), "--wait".as_ref()]);
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    assert!(ran.stderr.contains("none") && ran.stdout.contains("1 files warm"), "{ran:#?}");
    sluice(&volume, "warmup", &[mount.root().as_os_str(), "--to".as_ref(), "group".as_ref(), "--wait".as_ref()])
        .refused_with(&["no nodes"]);
}
