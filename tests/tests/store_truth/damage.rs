//! What is wrong with the metadata in the store.

use crate::{LIMIT, names_below, recover, wait_shipped};
use sluice_tests::{Ran, Scratch, Volume, noise, run};
use std::{fs, path::Path, process::Command};

/// What is wrong with the metadata in the store is found before it is needed, and the next mount puts it right; what nothing needs is removed.
#[test]
fn fsck_and_gc_look_at_the_metadata_in_the_store() {
    let scratch = Scratch::new();
    let (path, copy) = (scratch.path().join("store"), scratch.path().join("copy"));
    let store = format!("file:{}", path.display());
    let volume = Volume::new().option("--store", &store);
    let mount = volume.up();
    fs::write(mount.path("file"), noise(1, 10_000)).unwrap();
    mount.umount();
    let sluice = |words: &[&str]| volume.sluice([words[0], volume.dir().to_str().unwrap()].iter().chain(&words[1..]));
    let finds = |words: &[&str], findings: &[&str]| {
        let ran = sluice(words);
        assert!(ran.code == Some(1) && findings.iter().all(|finding| ran.stdout.contains(finding)), "{ran:?}");
    };
    sluice(&["fsck", "--data"]).ok();
    // Of a checkpoint that was never finished.
    let stray = path.join("meta/checkpoint/0000000000000000-0000000000000001/00000000");
    fs::create_dir_all(stray.parent().unwrap()).unwrap();
    fs::write(&stray, b"a part").unwrap();
    let ran = sluice(&["gc", "--delete"]).ok();
    assert!(!ran.stdout.contains("shipped metadata") && stray.exists(), "it is young: {ran:?}");
    let ran = sluice(&["gc", "--delete", "--min-age", "0s"]).ok();
    assert!(ran.stdout.contains("shipped metadata") && !stray.exists(), "{ran:?}");
    run(Command::new("cp").args(["-a"]).arg(path.join("meta")).arg(&copy), LIMIT).ok();
    let all = names_below(&path.join("meta"));
    let newest = |part: &str, is: fn(&str) -> bool| {
        all.iter().rfind(|name| name.contains(part) && is(name)).expect("one").clone()
    };
    let part = newest("/checkpoint/", |name| !name.ends_with("/head"));
    let head = newest("/checkpoint/", |name| name.ends_with("/head"));
    let log = newest("/log/", |_| true);
    for (name, is_removed, is_read_only_whole) in
        [(&part, false, true), (&part, true, false), (&head, false, false), (&log, false, false)]
    {
        if is_removed {
            fs::remove_file(name).unwrap();
        } else {
            let mut bytes = fs::read(name).unwrap();
            bytes[30] ^= 0x81;
            fs::write(name, bytes).unwrap();
        }
        let key = &name[name.find("meta/").unwrap()..];
        if is_read_only_whole {
            sluice(&["fsck"]).ok();
            finds(&["fsck", "--data"], &["the metadata in the store", key, "checksum"]);
        } else {
            finds(&["fsck"], &["the metadata in the store", key, "makes a new checkpoint"]);
            sluice(&["gc", "--delete"]).refused_with(&[key, "nothing was deleted"]);
            recover(&Volume::new(), &store).refused_with(&[key]);
            volume.up().umount();
            sluice(&["fsck", "--data"]).ok();
            let other = Volume::new();
            recover(&other, &store).ok();
            other.fsck_is_clean();
        }
        fs::remove_dir_all(path.join("meta")).unwrap();
        run(Command::new("cp").args(["-a"]).arg(&copy).arg(path.join("meta")), LIMIT).ok();
    }
}

fn fsck(volume: &Volume, more: &[&str]) -> Ran {
    volume.sluice(["fsck", volume.dir().to_str().unwrap()].iter().chain(more))
}

fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(from).arg(to), LIMIT).ok();
}

/// What was deleted in the store is found by its name, nothing is recovered without it, and the next mount does without it.
#[test]
fn what_is_missing_is_found_and_made_good() {
    let scratch = Scratch::new();
    let (path, aside) = (scratch.path().join("store"), scratch.path().join("aside"));
    let (meta, dir) = (path.join("meta"), scratch.path().join("directory"));
    let store = format!("file:{}", path.display());
    let volume = Volume::new().option("--store", &store);
    let mount = volume.up();
    wait_shipped(&mount);
    for number in 0..3 {
        fs::write(mount.path(format!("file-{number}")), noise(number, 10_000)).unwrap();
        wait_shipped(&mount);
    }
    mount.umount();
    fsck(&volume, &["--data"]).ok();
    copy(&meta, &aside);
    copy(&volume.dir(), &dir);
    let head = names_below(&meta).into_iter().rfind(|name| name.ends_with("/head")).unwrap();
    let (_, directory) = head.trim_end_matches("/head").split_once("/checkpoint/").unwrap();
    let first = meta.join("log").join(&directory[..16]).to_str().unwrap().to_owned();
    let log: Vec<String> = names_below(&meta.join("log")).into_iter().filter(|name| *name >= first).collect();
    assert!(log.len() > 4, "{log:?}");
    let checkpoint = Path::new(&head).parent().unwrap().to_str().unwrap();
    for gone in [&log[0], &log[1], &log[log.len() - 2], &head, checkpoint] {
        let is_directory = Path::new(gone).is_dir();
        if is_directory { fs::remove_dir_all(gone) } else { fs::remove_file(gone) }.unwrap();
        let key = &gone[gone.find("meta/").unwrap()..];
        // Of a whole checkpoint nothing is left that names its run.
        let key = if is_directory { key.rsplit_once('-').unwrap().0 } else { key };
        let ran = fsck(&volume, &[]);
        assert!(ran.code == Some(1) && ran.stdout.contains(key) && ran.stdout.contains("it is missing"), "{ran:?}");
        assert!(ran.stdout.contains("makes a new checkpoint"), "{ran:?}");
        let other = Volume::new();
        recover(&other, &store).refused_with(&[key, "it is missing"]);
        assert!(!other.dir().exists(), "nothing is left behind");
        let mount = volume.up();
        fs::write(mount.path("later"), b"text").unwrap();
        wait_shipped(&mount);
        let metadata = mount.status()["metadata"].clone();
        assert!(metadata["stopped"] == false && metadata["trouble"].is_null(), "{gone}: {metadata}");
        mount.umount();
        fsck(&volume, &["--data"]).ok();
        recover(&other, &store).ok();
        let mount = other.up();
        assert!(fs::read(mount.path("file-2")).unwrap() == noise(2, 10_000));
        assert_eq!(fs::read(mount.path("later")).unwrap(), b"text");
        mount.umount();
        for (place, from) in [(&meta, &aside), (&volume.dir(), &dir)] {
            fs::remove_dir_all(place).unwrap();
            copy(from, place);
        }
    }
}

/// All of it at once: the store says nothing about what it had, the directory does.
#[test]
fn metadata_that_was_removed_as_a_whole_is_missed() {
    let scratch = Scratch::new();
    let path = scratch.path().join("store");
    let store = format!("file:{}", path.display());
    let volume = Volume::new().option("--store", &store);
    volume.sluice(["format", volume.dir().to_str().unwrap(), "--store", &store]).ok();
    fsck(&volume, &[]).ok();
    let mount = volume.up();
    fs::write(mount.path("file"), noise(1, 10_000)).unwrap();
    mount.umount();
    fsck(&volume, &[]).ok();
    let other = Volume::new();
    for _ in 0..2 {
        fs::remove_dir_all(path.join("meta")).unwrap();
        let ran = fsck(&volume, &[]);
        assert!(ran.code == Some(1) && ran.stdout.contains("ships it again"), "{ran:?}");
        volume.up().umount();
        fsck(&volume, &["--data"]).ok();
    }
    recover(&other, &store).ok();
    // Also before it was mounted.
    fs::rename(path.join("meta"), path.join("aside")).unwrap();
    assert_eq!(fsck(&other, &[]).code, Some(1));
    fs::rename(path.join("aside"), path.join("meta")).unwrap();
    let mount = other.up();
    assert!(fs::read(mount.path("file")).unwrap() == noise(1, 10_000));
    mount.umount();
    other.fsck_is_clean();
}

/// What a volume would begin with that is recovered from the store does not refer to what was deleted.
#[test]
fn gc_deletes_what_the_store_knows_to_be_gone() {
    let scratch = Scratch::new();
    let store = format!("file:{}", scratch.path().join("store").display());
    let volume = Volume::new().option("--store", &store);
    let mount = volume.up();
    fs::write(mount.path("kept"), noise(1, 100_000)).unwrap();
    let mount = mount.remount();
    fs::write(mount.path("gone"), noise(2, 100_000)).unwrap();
    let mount = mount.remount();
    wait_shipped(&mount);
    fs::write(mount.path("gone"), b"").unwrap();
    mount.kill9();
    let second = Volume::new();
    let goes_on = format!("`sluice up {}` goes on with it", volume.dir().display());
    recover(&second, &store).refused_with(&[&goes_on]);
    let gc =
        || volume.sluice(["gc", volume.dir().to_str().unwrap(), "--delete", "--min-age", "0s", "--json"]).ok().json();
    gc();
    assert_eq!(gc()["deleted"]["objects"], 1);
    // The store has everything since.
    recover(&second, &store).ok();
    second.fsck_is_clean();
    let mount = second.up();
    assert!(fs::read(mount.path("kept")).unwrap() == noise(1, 100_000));
    assert_eq!(fs::read(mount.path("gone")).unwrap(), b"");
    mount.umount();
}

/// Bytes that only the directory has keep the changes of the metadata from the store, and with them what would be deleted by those.
#[test]
fn gc_waits_for_what_is_not_stored() {
    let scratch = Scratch::new();
    let store = format!("file:{}", scratch.path().join("store").display());
    let volume = Volume::new().option("--store", &store);
    let mount = volume.up();
    fs::write(mount.path("gone"), noise(2, 100_000)).unwrap();
    mount.umount();
    let late = volume.clone().option("--upload-delay", "1h");
    let mount = late.up();
    fs::write(mount.path("unstored"), noise(3, 100_000)).unwrap();
    fs::write(mount.path("gone"), b"").unwrap();
    mount.kill9();
    let gc = || volume.sluice(["gc", volume.dir().to_str().unwrap(), "--delete", "--min-age", "0s"]);
    gc().ok();
    gc().refused_with(&["data that only this directory has", "sluice up"]);
    volume.up().umount();
    gc().ok();
    volume.fsck_is_clean();
}
