//! A cache disk that rots: `sluice scrub` finds it before a reader does.

use crate::{corruption::flip, needs_binary, noise};
use sluice_tests::{Mount, Ran, Stopwatch, Volume, wait_for};
use std::{ffi::OsStr, fs, time::Duration};

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn volume(rate: &str) -> Volume {
    Volume::new().option("--cache-size", "256M").option("--scrub-rate", rate)
}

fn scrub(volume: &Volume, target: &OsStr) -> Ran {
    volume.sluice(["scrub".as_ref(), target, "--json".as_ref()])
}

fn scrub_of(mount: &Mount) -> serde_json::Value {
    mount.status()["numbers"]["cache"]["scrub"].clone()
}

/// A file that the cache has, and the table on its disk too.
fn cached(volume: &Volume, len: usize) -> Vec<u8> {
    let (mount, bytes) = (volume.up(), noise(7, len));
    fs::write(mount.path("f"), &bytes).unwrap();
    mount.umount();
    bytes
}

/// To be survived: a cache disk returns other bytes than were written. The scrub finds it, reads stay right.
#[test]
fn flipped_bits_are_found_given_up_and_counted() {
    needs_binary!();
    let volume = volume("0");
    let bytes = cached(&volume, 12 * MIB);
    let cache = volume.dir().join("cache");
    // Segments of the second object, and of it alone.
    let rotten: Vec<usize> = (0..10).map(|n| 5 * MIB + n * (64 << 10)).collect();
    let mount = volume.up();
    let sound = scrub(&volume, mount.root().as_os_str()).ok().json();
    assert_eq!(sound["last"]["bad_segments"], 0, "{sound}");
    assert!(sound["last"]["bytes"].as_u64().unwrap() >= 12 * MIB as u64, "{sound}");
    assert!(rotten.iter().all(|at| flip(&cache, &bytes[*at..at + 64]) == 1), "the file is not in the cache");
    let ran = scrub(&volume, volume.dir().as_os_str());
    assert_eq!(ran.code, Some(2), "rot is told by the exit status: {ran:#?}");
    let found: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&found["last"]["bad_segments"], &found["rotting"]), (&10.into(), &true.into()), "{found}");
    assert_eq!(mount.status()["numbers"]["cache"]["corrupt_segments"], 10);
    let shown = volume.sluice(["status".as_ref(), mount.root().as_os_str()]).ok();
    assert!(shown.stdout.contains("the disk is rotting"), "{}", shown.stdout);
    assert!(mount.log().contains("the cache disk is rotting"), "{}", mount.log());
    assert!(fs::read(mount.path("f")).unwrap() == bytes, "wrong bytes reached a reader");
    // What was fetched again is sound.
    let mended = scrub(&volume, mount.root().as_os_str()).ok().json();
    assert_eq!((&mended["last"]["bad_segments"], &mended["rotting"]), (&0.into(), &false.into()), "{mended}");
    assert!(mended["last"]["bytes"].as_u64().unwrap() >= 12 * MIB as u64, "{mended}");
}

/// To be survived: kill -9 in the middle of a pass. It goes on where it stood, at its rate, and files are read meanwhile.
#[test]
fn a_pass_goes_on_after_a_kill() {
    needs_binary!();
    let volume = volume("3M");
    let bytes = cached(&volume, 24 * MIB);
    let done = |mount: &Mount| scrub_of(mount)["slots_done"].as_u64().unwrap();
    // The first pass is over before there is anything; the interval is a day.
    fs::remove_file(volume.dir().join("cache/scrub")).unwrap();
    let mount = volume.up();
    wait_for("two slots", LIMIT, || (2..20).contains(&done(&mount)));
    let again = mount.again();
    let before = scrub_of(&mount);
    mount.kill9();
    let mount = again();
    let after = scrub_of(&mount);
    assert_eq!((&after["began_secs"], &after["passes"]), (&before["began_secs"], &0.into()), "{after}");
    assert!(after["slots_done"].as_u64() >= before["slots_done"].as_u64(), "{before}, then {after}");
    let (watch, read) = (Stopwatch::start(), after["pass"]["bytes"].as_u64().unwrap());
    assert!(fs::read(mount.path("f")).unwrap() == bytes);
    wait_for("the end of the pass", LIMIT, || scrub_of(&mount)["passes"] == 1);
    let end = scrub_of(&mount);
    assert_eq!((&end["last"]["bad_segments"], &end["last"]["unreadable_segments"]), (&0.into(), &0.into()), "{end}");
    let rest = end["last"]["bytes"].as_u64().unwrap() - read;
    let least = Duration::from_secs_f64(rest as f64 / (3 * MIB) as f64 * 0.8);
    assert!(watch.elapsed() >= least, "{rest} bytes at 3 MiB/s took {:?}", watch.elapsed());
}

#[test]
fn mistakes_are_told() {
    needs_binary!();
    let volume = volume("0");
    cached(&volume, 1000);
    scrub(&volume, volume.dir().as_os_str()).refused_with(&["nothing works on", "sluice up"]);
    scrub(&volume, volume.mountpoint().join("none").as_os_str()).refused_with(&["none"]);
}
