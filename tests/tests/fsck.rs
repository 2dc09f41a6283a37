//! `sluice fsck` and `sluice gc` on volumes that were used, killed and damaged.

use std::{
    ffi::OsStr,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};

use sluice_tests::{Gateway, Ran, Stopwatch, Volume, noise, skipped_in_local_mode};

fn ran(volume: &Volume, command: &str, options: &[&str]) -> Ran {
    let dir = volume.dir();
    let args = [OsStr::new(command), dir.as_os_str()].into_iter().chain(options.iter().map(OsStr::new));
    volume.sluice(args)
}

fn fsck(volume: &Volume, options: &[&str]) -> Ran {
    ran(volume, "fsck", options)
}

fn volume() -> Volume {
    Volume::new().option("--cache-size", "256M").option("--journal-size", "64M")
}

/// Every object in the volume's store.
fn objects(volume: &Volume) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![volume.dir().join("objects/objects")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.path().is_dir() { dirs.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}

/// To be survived: a kill with data in the journal alone. fsck sees it and does not take it away.
#[test]
fn data_that_is_not_stored_yet_is_sound_and_stays() {
    if skipped_in_local_mode("data_that_is_not_stored_yet_is_sound_and_stays") {
        return;
    }
    let volume = volume().option("--upload-delay", "1h");
    let mount = volume.up();
    let (small, large) = (noise(1, 50_000), noise(2, 3 << 20));
    fs::write(mount.path("small"), &small).unwrap();
    fs::write(mount.path("large"), &large).unwrap();
    fs::write(mount.path("inline"), b"few bytes").unwrap();
    fs::hard_link(mount.path("small"), mount.path("link")).unwrap();
    let open = File::create(mount.path("unlinked")).unwrap();
    fs::remove_file(mount.path("unlinked")).unwrap();
    fsck(&volume, &[]).refused_with(&["in use", &mount.pid().to_string()]);
    mount.kill9();
    drop(open);
    for options in [&["--data"][..], &["--repair"], &["--json"]] {
        let ran = fsck(&volume, options).ok();
        assert!(options != ["--json"] || ran.json()["checked"]["orphans"] == 1, "{ran:#?}");
    }
    assert!(objects(&volume).is_empty(), "nothing was stored");
    let mount = volume.up();
    assert!(fs::read(mount.path("link")).unwrap() == small && fs::read(mount.path("large")).unwrap() == large);
    mount.umount();
    let checked = fsck(&volume, &["--data", "--json"]).ok().json();
    assert_eq!(
        (&checked["repaired"], &checked["left"], &checked["checked"]["orphans"]),
        (&0.into(), &0.into(), &0.into())
    );
}

/// To be survived: objects vanish from the store, shrink, or change. Each file that this concerns is named.
#[test]
fn objects_that_are_gone_or_damaged_are_told_with_their_files() {
    if skipped_in_local_mode("objects_that_are_gone_or_damaged_are_told_with_their_files") {
        return;
    }
    let volume = volume();
    let mount = volume.up();
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("dir/file"), noise(3, 3 << 20)).unwrap();
    mount.umount();
    let object = objects(&volume).remove(0);
    let bytes = fs::read(&object).unwrap();
    let told = |options: &[&str], words: &[&str]| {
        let ran = fsck(&volume, options);
        assert_eq!(ran.code, Some(1), "{ran:#?}");
        words.iter().for_each(|word| assert!(ran.stdout.contains(word), "`{word}` is missing: {ran:#?}"));
    };
    fs::remove_file(&object).unwrap();
    told(&[], &["/dir/file", "is not in the store"]);
    told(&["--repair"], &["/dir/file", "cannot mend"]);
    fs::write(&object, &bytes[..100_000]).unwrap();
    told(&[], &["/dir/file", "100000 bytes in the store"]);
    let mut damaged = bytes.clone();
    damaged[40_000] ^= 1;
    fs::write(&object, damaged).unwrap();
    fsck(&volume, &[]).ok();
    told(&["--data"], &["(/dir/file): bytes 32768..65536 cannot be read"]);
    fs::write(&object, bytes).unwrap();
    volume.fsck_is_clean();
}

fn flip_in_journal(journal: &Path, needle: &[u8]) {
    for entry in fs::read_dir(journal).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(needle.len()).position(|window| window == needle) {
            let file = File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
            return;
        }
    }
    panic!("the data is not in the journal");
}

/// To be survived: a journal record that was durable goes bad. Nothing is dropped in silence, and what came before stays.
#[test]
fn a_damaged_journal_is_cut_on_request_only() {
    if skipped_in_local_mode("a_damaged_journal_is_cut_on_request_only") {
        return;
    }
    let volume = volume().option("--upload-delay", "1h");
    let mount = volume.up();
    let bad = noise(4, 10_000);
    for (name, bytes) in [("before", &noise(5, 10_000)), ("bad", &bad), ("after", &noise(6, 10_000))] {
        fs::write(mount.path(name), bytes).unwrap();
        File::open(mount.path(name)).unwrap().sync_all().unwrap();
    }
    mount.kill9();
    flip_in_journal(&volume.dir().join("journal"), &bad[100..200]);
    volume.try_up().expect_err("mounted on a damaged journal").refused_with(&["damaged", "fsck --repair"]);
    for _ in 0..2 {
        let ran = fsck(&volume, &[]);
        assert!(ran.code == Some(1) && ran.stdout.contains("is damaged at byte"), "{ran:#?}");
    }
    let ran = fsck(&volume, &["--repair"]).ok();
    assert!(ran.stdout.contains("DROPPED record"), "{ran:#?}");
    volume.fsck_is_clean();
    let mount = volume.up();
    assert!(fs::read(mount.path("before")).unwrap() == noise(5, 10_000));
    assert!(fs::metadata(mount.path("after")).is_err(), "it came after the damage");
    mount.umount();
    volume.fsck_is_clean();
}

/// To be survived: the journal is gone, as when its disk was not mounted. The volume is not begun anew in silence, so that nothing
/// mistakes what only the journal knew for garbage.
#[test]
fn a_missing_journal_is_told_and_begun_on_request_only() {
    if skipped_in_local_mode("a_missing_journal_is_told_and_begun_on_request_only") {
        return;
    }
    let volume = volume().option("--upload-delay", "0s");
    let mount = volume.up();
    fs::write(mount.path("before"), noise(11, 300_000)).unwrap();
    mount.umount();
    let mount = volume.up();
    fs::write(mount.path("after"), noise(12, 300_000)).unwrap();
    mount.kill9();
    let (journal, aside) = (volume.dir().join("journal"), volume.dir().join("meta/aside"));
    fs::rename(&journal, &aside).unwrap();
    let known = objects(&volume);
    volume.try_up().expect_err("mounted without its journal").refused_with(&["journal is missing", "fsck --repair"]);
    let ran = ran(&volume, "gc", &["--delete", "--min-age", "0s"]);
    assert!(ran.code == Some(1) && objects(&volume) == known, "{ran:#?}");
    assert_eq!(fsck(&volume, &[]).code, Some(1));
    // It comes back: nothing has happened.
    fs::remove_dir_all(&journal).ok();
    fs::rename(&aside, &journal).unwrap();
    let mount = volume.up();
    assert!(fs::read(mount.path("after")).unwrap() == noise(12, 300_000));
    fs::write(mount.path("last"), b"in the journal alone").unwrap();
    mount.kill9();
    fs::remove_dir_all(&journal).unwrap();
    let ran = fsck(&volume, &["--repair"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("BEGAN an empty one"), "{ran:#?}");
    let mount = volume.up();
    assert!(fs::read(mount.path("before")).unwrap() == noise(11, 300_000));
    fs::write(mount.path("new"), b"goes on").unwrap();
    mount.kill9();
    let mount = volume.up();
    assert_eq!(fs::read(mount.path("new")).unwrap(), b"goes on");
    mount.umount();
    volume.fsck_is_clean();
}

/// To be survived: damage in a journal whose tables have seen records behind the damage. Their numbers are not given out again; what
/// only the cut journal held is told.
#[test]
fn a_journal_that_ends_before_the_tables_is_set_aside() {
    if skipped_in_local_mode("a_journal_that_ends_before_the_tables_is_set_aside") {
        return;
    }
    let volume = volume().option("--upload-delay", "1h");
    let mount = volume.up();
    let bad = noise(9, 10_000);
    for (name, bytes) in [("bad", &bad), ("after", &noise(10, 10_000))] {
        fs::write(mount.path(name), bytes).unwrap();
        File::open(mount.path(name)).unwrap().sync_all().unwrap();
    }
    mount.kill9();
    fsck(&volume, &["--repair"]).ok();
    flip_in_journal(&volume.dir().join("journal"), &bad[100..200]);
    let ran = fsck(&volume, &["--repair"]);
    assert!(ran.code == Some(1) && ran.stdout.contains("journal.damaged-1"), "{ran:#?}");
    assert!(ran.stdout.contains("not in the store yet"), "{ran:#?}");
    let mount = volume.up();
    assert!(fs::read(mount.path("after")).is_err(), "its bytes are lost, and that is an error, not zeros");
    fs::write(mount.path("new"), b"goes on").unwrap();
    mount.kill9();
    let mount = volume.up();
    assert_eq!(fs::read(mount.path("new")).unwrap(), b"goes on");
}

#[test]
fn gc_deletes_what_no_file_needs_and_nothing_else() {
    if skipped_in_local_mode("gc_deletes_what_no_file_needs_and_nothing_else") {
        return;
    }
    let volume = volume();
    let mount = volume.up();
    fs::write(mount.path("kept"), noise(7, 1 << 20)).unwrap();
    let mount = mount.remount();
    let kept = objects(&volume);
    fs::write(mount.path("gone"), noise(8, 1 << 20)).unwrap();
    let mount = mount.remount();
    fs::remove_file(mount.path("gone")).unwrap();
    ran(&volume, "gc", &[]).refused_with(&["in use"]);
    mount.umount();
    let stray = volume.dir().join("objects/objects/ab/abababababababababababababababab");
    fs::create_dir_all(stray.parent().unwrap()).unwrap();
    fs::write(&stray, b"left by nobody").unwrap();

    let all = objects(&volume);
    let now = ["--min-age", "0s", "--json"];
    let listed = ran(&volume, "gc", &now).ok().json();
    assert_eq!((&listed["unknown"]["objects"], &listed["unreferenced"]["objects"]), (&1.into(), &1.into()), "{listed}");
    let young = ran(&volume, "gc", &["--delete", "--json"]).ok().json();
    assert_eq!((&young["young"]["objects"], &young["deleted"]["objects"]), (&1.into(), &0.into()), "{young}");
    assert_eq!(objects(&volume), all, "too young to be deleted");
    let deleted = ran(&volume, "gc", &[&now[..], &["--delete"]].concat()).ok().json();
    assert_eq!(deleted["deleted"]["objects"], 2, "{deleted}");
    assert_eq!(objects(&volume), kept);
    let again = ran(&volume, "gc", &[]).ok();
    assert!(again.stdout.contains("nothing to delete"), "{again:#?}");
    volume.fsck_is_clean();
    let mount = volume.up();
    assert!(fs::read(mount.path("kept")).unwrap() == noise(7, 1 << 20));
}

/// A store that is down keeps nobody waiting: who has the volume is told at once, and the metadata is checked without the store.
#[test]
fn a_store_that_is_down_is_a_finding() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let volume = gateway.credentials(volume()).option("--store", gateway.url("bucket", "volume"));
    let mount = volume.up();
    fs::write(mount.path("file"), noise(1, 300_000)).unwrap();
    gateway.stop();
    let watch = Stopwatch::start();
    fsck(&volume, &[]).refused_with(&["in use", &mount.pid().to_string()]);
    assert!(watch.elapsed() < Duration::from_secs(3), "it asked the store first: {:?}", watch.elapsed());
    mount.kill9();
    let watch = Stopwatch::start();
    let ran = fsck(&volume, &["--data"]);
    assert!(watch.elapsed() < Duration::from_secs(30), "it waited for the store: {:?}", watch.elapsed());
    let findings: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    assert!(findings[0].contains("the store does not answer"), "{ran:#?}");
    assert!(findings[1].starts_with("checked 2 inodes") && findings.len() == 3, "{ran:#?}");
    // What is wrong is on standard output, without what the parts say to each other.
    assert_eq!(ran.stderr, "");
    gateway.start();
    volume.up().umount();
    volume.fsck_is_clean();
    gateway.stop();
}

/// To be survived: a table of the metadata rots. It is told which file that is, and what else there is.
#[test]
fn a_damaged_table_of_the_metadata_is_named() {
    if skipped_in_local_mode("a_damaged_table_of_the_metadata_is_named") {
        return;
    }
    let volume = volume();
    let mount = volume.up();
    for number in 0..200 {
        fs::write(mount.path(format!("file-{number}")), noise(number, 3000)).unwrap();
    }
    mount.umount();
    let tables = volume.dir().join("meta/tables/tables");
    let files = fs::read_dir(&tables).unwrap().map(|entry| entry.unwrap().path());
    let table = files.max_by_key(|path| path.metadata().unwrap().len()).expect("a table");
    let file = fs::OpenOptions::new().write(true).open(&table).unwrap();
    file.write_all_at(&[0xa5; 64], table.metadata().unwrap().len() / 4).unwrap();
    for options in [&[][..], &["--repair"]] {
        let ran = fsck(&volume, options);
        assert_eq!((ran.code, &ran.stderr[..]), (Some(1), ""), "{ran:#?}");
        let words = ["loss ", table.to_str().unwrap(), "is damaged", "sluice recover --from-store"];
        assert!(words.iter().all(|words| ran.stdout.contains(words)), "{ran:#?}");
    }
}
