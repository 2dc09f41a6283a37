//! `sluice dump` and `sluice load`: a volume's metadata as a file, and the volume made of it again.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
use sluice_tests::{Ran, Scratch, Server, TreeOptions, Volume, noise, read_tree, run};

const LIMIT: Duration = Duration::from_secs(60);

fn node(path: &Path, kind: FileType, device: u64) {
    mknodat(CWD, path, kind, Mode::from_bits_retain(0o640), device).unwrap();
}

/// Every kind of node, names that are no text, links, holes, attributes.
fn fill(root: &Path) {
    let dir = root.join("a directory/deep");
    fs::create_dir_all(&dir).unwrap();
    for (number, len) in [0, 1, 4000, 4097, 70_000, 200_000, 9 << 20].into_iter().enumerate() {
        fs::write(dir.join(format!("file-{number}")), noise(number as u64, len)).unwrap();
    }
    let mut sparse = File::create(root.join("sparse")).unwrap();
    for span in [0, 2, 3] {
        sparse.seek(SeekFrom::Start(span << 26)).unwrap();
        sparse.write_all(&noise(span, 150_000)).unwrap();
    }
    sparse.set_len(300 << 20).unwrap();
    fs::hard_link(dir.join("file-4"), root.join("another name")).unwrap();
    symlink(OsStr::from_bytes(b"deep/\xff\n\"\\"), root.join("a directory/link")).unwrap();
    symlink("x".repeat(4000), root.join("a long link")).unwrap();
    for name in [
        &b"new\nline"[..],
        b"\xff\xfe",
        b"\"quoted\\\"",
        "é漢\u{202e}".as_bytes(),
        b" ",
        &[b'n'; 255],
        b"{\"base64\":\"QQ==\"}",
    ] {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
    }
    setxattr(dir.join("file-2"), "user.colour", b"blue", XattrFlags::empty()).unwrap();
    setxattr(dir.join("file-2"), OsStr::from_bytes(b"user.\xfe"), &noise(9, 60_000), XattrFlags::empty()).unwrap();
    setxattr(&dir, "user.empty", b"", XattrFlags::empty()).unwrap();
    node(&root.join("fifo"), FileType::Fifo, 0);
    node(&root.join("socket"), FileType::Socket, 0);
    node(&root.join("device"), FileType::CharacterDevice, makedev(1, 3));
    node(&root.join("block"), FileType::BlockDevice, makedev(250, 1_000_000));
    fs::set_permissions(dir.join("file-3"), fs::Permissions::from_mode(0o6751)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(dir.join("gone"), noise(99, 10_000)).unwrap();
    fs::remove_file(dir.join("gone")).unwrap();
    for number in 0..2000 {
        fs::write(dir.join(format!("one of many {number}")), format!("{number}")).unwrap();
    }
}

fn load(volume: &Volume, file: &Path, store: &str, options: &[&str]) -> Ran {
    let mut command = volume.command(["load"]);
    command.arg(file).arg(volume.dir()).args(["--store", store]).args(options);
    run(&mut command, LIMIT)
}

/// The records of a dump, without header, checksums, and what a load may not keep: it begins another line of changes, which has a record more.
fn records(text: &str) -> Vec<&str> {
    let all = text.lines().skip(1).map(|line| line.rsplit_once(",\"crc\":").unwrap().0);
    let of_line = ["line", "lost-sessions"].map(|name| format!("\"record\":\"volume\",\"name\":\"{name}\""));
    let of_line = [&of_line[..], &["counter", "end"].map(|kind| format!("\"record\":\"{kind}\""))].concat();
    all.filter(|record| !of_line.iter().any(|kept| record.contains(kept))).collect()
}

#[test]
fn a_volume_comes_back_from_its_dump() {
    let scratch = Scratch::new();
    let store = format!("file:{}", scratch.path().join("store").display());
    let first = Volume::new().option("--store", &store);
    let mount = first.up();
    fill(mount.root());
    let options = TreeOptions { times: true, xattrs: true };
    let before = read_tree(mount.root(), options).unwrap();
    let blocks = fs::metadata(mount.path("sparse")).unwrap().blocks();
    let mount = mount.remount();
    let (live, none) = (scratch.path().join("live dump"), Volume::new());
    first.sluice(["dump".as_ref(), first.dir().as_os_str(), live.as_os_str()]).ok();
    sluice_tests::wait_for("the metadata in the store", LIMIT, || {
        mount.status()["metadata"]["checkpoint_bytes"].as_u64() > Some(0)
    });
    load(&none, &live, &store, &["--force"]).refused_with(&["in use here", "unmount it first"]);
    mount.umount();
    let file = scratch.path().join("dump");
    let ran = first.sluice(["dump".as_ref(), first.dir().as_os_str(), file.as_os_str()]).ok();
    assert!(ran.stderr.contains("inodes") && !ran.stderr.contains("warning"), "{ran:?}");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600, "there are bytes of files in it");
    first.sluice(["dump".as_ref(), first.dir().as_os_str(), file.as_os_str()]).refused_with(&["exists"]);

    let second = Volume::new();
    load(&second, &file, &store, &[]).refused_with(&["has metadata of this volume", "--force", "recover --from-store"]);
    assert!(!second.dir().exists(), "something is left");
    let ran = load(&second, &file, &store, &["--force"]).ok();
    assert!(ran.stdout.contains("loaded volume"), "{ran:?}");
    let ran = load(&second, &file, &store, &["--force"]);
    assert!(!ran.stderr.contains("--force"), "it would not help: {ran:?}");
    ran.refused_with(&["holds volume", "already", "choose another directory"]);
    let again = second.sluice(["dump".as_ref(), second.dir().as_os_str()]).ok().stdout;
    let text = fs::read_to_string(&file).unwrap();
    assert!(records(&again) == records(&text), "the dumps differ");
    second.fsck_is_clean();
    let mount = second.up();
    assert_eq!(read_tree(mount.root(), options).unwrap(), before);
    assert_eq!(fs::metadata(mount.path("sparse")).unwrap().blocks(), blocks);
    // It goes on: with new names and bytes, and its metadata in the store.
    fs::write(mount.path("later"), noise(5, 300_000)).unwrap();
    mount.umount();
    second.fsck_is_clean();
    fs::remove_dir_all(second.dir()).unwrap();
    let third = Volume::new();
    let mut command = third.command(["recover", "--from-store", &store]);
    run(command.arg(third.dir()), LIMIT).ok();
    let mount = third.up();
    assert!(fs::read(mount.path("later")).unwrap() == noise(5, 300_000));
    assert!(fs::read(mount.path("another name")).unwrap() == noise(4, 70_000));
    mount.umount();
}

#[test]
fn a_dump_goes_through_a_pipe() {
    let scratch = Scratch::new();
    let store = format!("file:{}", scratch.path().join("store").display());
    let first = Volume::new().option("--store", &store);
    let mount = first.up();
    fs::write(mount.path("file"), noise(1, 100_000)).unwrap();
    mount.umount();
    let second = Volume::new();
    let sluice = sluice_tests::sluice_binary();
    let script = format!(
        "set -o pipefail; '{0}' dump '{1}' | '{0}' load - '{2}' --store '{store}' --force --json",
        sluice.display(),
        first.dir().display(),
        second.dir().display()
    );
    let ran = sluice_tests::shell(scratch.path(), &script).ok();
    let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&told["inodes"], &told["objects_lost"]), (&2.into(), &0.into()));
    let mount = second.up();
    assert!(fs::read(mount.path("file")).unwrap() == noise(1, 100_000));
    mount.umount();
}

#[test]
fn a_dump_that_was_cut_or_changed_makes_nothing() {
    let scratch = Scratch::new();
    let store = format!("file:{}", scratch.path().join("store").display());
    let first = Volume::new().option("--store", &store);
    let mount = first.up();
    for name in ["one", "two", "three"] {
        fs::write(mount.path(name), name).unwrap();
    }
    mount.umount();
    let text = first.sluice(["dump".as_ref(), first.dir().as_os_str()]).ok().stdout;
    let at = text.lines().position(|line| line.contains("\"name\":\"two\"")).unwrap() + 1;
    let file = scratch.path().join("dump");
    let refused = |text: &str, words: &[&str]| {
        fs::write(&file, text).unwrap();
        let volume = Volume::new();
        load(&volume, &file, &store, &["--force"]).refused_with(words);
        assert!(!volume.dir().exists(), "something is left");
    };
    refused(&text.replace("\"two\"", "\"tow\""), &[&format!("line {at}: "), "checksum"]);
    refused(&text[..text.len() - 1], &["it is cut"]);
    let lines = text.lines().count();
    let cut: String = text.lines().take(lines - 1).map(|line| format!("{line}\n")).collect();
    refused(&cut, &[&format!("line {lines}: "), "it was cut"]);
    let missing: String =
        text.lines().enumerate().filter(|(n, _)| *n != at - 1).map(|(_, line)| format!("{line}\n")).collect();
    refused(&missing, &[&format!("line {at}: "), "missing"]);
    refused(&text.replacen("\"format\":1", "\"format\":2", 1), &["format 2", "use a newer one"]);
    refused("text\n", &["no dump of sluice"]);
    // What the store has was left alone each time.
    let mount = first.up();
    assert_eq!(fs::read(mount.path("two")).unwrap(), b"two");
    mount.umount();

    fs::write(&file, &text).unwrap();
    let other = Volume::new();
    let elsewhere = format!("file:{}", scratch.path().join("elsewhere").display());
    other.sluice(["format".as_ref(), other.dir().as_os_str(), "--store".as_ref(), elsewhere.as_ref()]).ok();
    load(&Volume::new(), &file, &elsewhere, &["--force"]).refused_with(&["the dump is of", "nothing was made"]);
    let none = format!("file:{}", scratch.path().join("none").display());
    load(&Volume::new(), &file, &none, &[]).refused_with(&["is no directory"]);
}

#[test]
fn what_is_not_stored_is_told() {
    let scratch = Scratch::new();
    let store = format!("file:{}", scratch.path().join("store").display());
    let volume = Volume::new().option("--store", &store).option("--upload-delay", "1h");
    let mount = volume.up();
    fs::write(mount.path("file"), noise(1, 100_000)).unwrap();
    for target in [volume.dir(), mount.root().to_path_buf()] {
        let ran = volume.sluice(["dump".as_ref(), target.as_os_str()]).ok();
        assert!(ran.stderr.contains("warning: 1 objects were not in the store yet"), "{ran:?}");
    }
    mount.kill9();
    let file = scratch.path().join("dump");
    let ran = volume.sluice(["dump".as_ref(), volume.dir().as_os_str(), file.as_os_str()]).ok();
    assert!(ran.stderr.contains("warning: 1 objects were not in the store yet"), "{ran:?}");
    let second = Volume::new();
    let ran = load(&second, &file, &store, &["--force"]).ok();
    assert!(ran.stderr.contains("1 objects had not arrived") && ran.stderr.contains("/file"), "{ran:?}");
}

/// Programs make, rename and remove files while the volume is dumped: each dump is of one moment.
#[test]
fn a_volume_in_use_is_dumped() {
    let scratch = Scratch::new();
    let store = format!("file:{}", scratch.path().join("store").display());
    let volume = Volume::new().option("--store", &store);
    let mount = volume.up();
    let len = |number: u64| if number.is_multiple_of(20) { 10_000 } else { 100 };
    for number in 0..2000 {
        fs::write(mount.path(format!("file {number}")), noise(number, len(number))).unwrap();
    }
    volume.sluice(["flush".as_ref(), mount.root().as_os_str()]).ok();
    let stop = AtomicBool::new(false);
    let made: Vec<_> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (mount, stop) = (&mount, &stop);
                scope.spawn(move || {
                    let dir = mount.path(format!("of {writer}"));
                    fs::create_dir(&dir).unwrap();
                    let mut made = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let (new, old) = (dir.join(format!("{made} new")), dir.join(format!("{made}")));
                        fs::write(&new, noise(made, 3000)).unwrap();
                        fs::rename(&new, &old).unwrap();
                        if made >= 50 {
                            fs::remove_file(dir.join(format!("{}", made - 50))).unwrap();
                        }
                        made += 1;
                    }
                    made
                })
            })
            .collect();
        let dumps = (0..5).map(|number| {
            let file = scratch.path().join(format!("dump {number}"));
            let target = if number % 2 == 0 { mount.root().to_path_buf() } else { volume.dir() };
            volume.sluice(["dump".as_ref(), target.as_os_str(), file.as_os_str()]).ok();
            file
        });
        let dumps: Vec<_> = dumps.collect();
        stop.store(true, Ordering::Relaxed);
        assert!(writers.into_iter().all(|writer| writer.join().unwrap() > 50), "the dumps were too quick");
        dumps
    });
    mount.umount();
    for file in made {
        let second = Volume::new();
        load(&second, &file, &store, &["--force"]).ok();
        second.fsck_is_clean();
        let mount = second.up();
        for number in 0..2000 {
            assert!(fs::read(mount.path(format!("file {number}"))).unwrap() == noise(number, len(number)));
        }
        for writer in 0..3 {
            // In each moment there are the last 50, and one of them may have its first name, and another one be there yet.
            let dir = mount.path(format!("of {writer}"));
            let Ok(entries) = fs::read_dir(&dir) else { continue };
            let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            let numbers: Vec<u64> = names.iter().map(|name| name.trim_end_matches(" new").parse().unwrap()).collect();
            let (first, last) = (numbers.iter().min(), numbers.iter().max());
            let between = first.zip(last).map_or(0, |(first, last)| last + 1 - first);
            assert_eq!(between, names.len() as u64, "some of between are missing: {names:?}");
            assert!(between <= 52 && names.iter().filter(|name| name.ends_with("new")).count() <= 1, "{names:?}");
        }
        mount.umount();
    }
}

/// The asker's output is not read, as before a pager: the volume is unmounted all the same, and the dump is no whole one.
#[test]
fn a_dump_that_nobody_reads_keeps_no_mount() {
    let volume = Volume::new();
    let mount = volume.up();
    for number in 0..1500 {
        fs::write(mount.path(format!("file {number}")), noise(number, 4000)).unwrap();
    }
    let mut command = volume.command(["dump"]);
    let mut dump = command.arg(volume.dir()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 10];
    dump.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"{\"record\":");
    mount.umount();
    let ended = dump.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && told.contains("before the dump was complete"), "{told}");
    assert!(!String::from_utf8_lossy(&ended.stdout).contains("\"record\":\"end\""));
}

/// A served volume is dumped on its server's host, while mounts use it.
#[test]
fn a_served_volume_is_dumped_by_its_server() {
    let scratch = Scratch::new();
    let store = format!("file:{}", scratch.path().join("store").display());
    let volume = Volume::new();
    let mut server = Server::over(volume.clone(), &store, &[]);
    let mount = server.mount("a");
    fs::write(mount.path("file"), noise(1, 100_000)).unwrap();
    volume.sluice(["dump".as_ref(), mount.root().as_os_str()]).refused_with(&["on its server's"]);
    volume.sluice(["flush".as_ref(), mount.root().as_os_str()]).ok();
    let file = scratch.path().join("dump");
    let ran = volume.sluice(["dump".as_ref(), volume.dir().as_os_str(), file.as_os_str()]).ok();
    assert!(!ran.stderr.contains("warning"), "{ran:?}");
    mount.umount();
    server.stop();
    let second = Volume::new();
    load(&second, &file, &store, &["--force"]).ok();
    second.fsck_is_clean();
    let mount = second.up();
    assert!(fs::read(mount.path("file")).unwrap() == noise(1, 100_000));
    mount.umount();
}
