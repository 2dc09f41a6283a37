//! What a sync waits for.

use crate::{LIMIT, recover_lost, wait_shipped};
use sluice_tests::{Gateway, Mount, Ran, Scratch, Server, Volume, noise, wait_for};
use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Inline, packed, and in a slot of its own.
const LENS: [usize; 4] = [100, 8192, 40_000, 300_000];

/// What the file with this name was written with.
fn synced(name: &str) -> Vec<u8> {
    let numbers = name.split_once('-').and_then(|(writer, number)| Some((writer.parse().ok()?, number.parse().ok()?)));
    let (writer, number): (u64, usize) = numbers.expect("two numbers");
    noise(writer * 10 + number as u64, LENS[number])
}

/// Files by several writers at once, whose fsyncs share what they wait for. A directory's fsync is for its names.
fn write_synced(mount: &Mount, writers: usize) {
    std::thread::scope(|scope| {
        for writer in 0..writers {
            scope.spawn(move || {
                for name in (0..LENS.len()).map(|number| format!("{writer}-{number}")) {
                    let mut file = File::create_new(mount.path(&name)).unwrap();
                    file.write_all(&synced(&name)).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
    fs::create_dir(mount.path("directory")).unwrap();
    fs::rename(mount.path("0-0"), mount.path("directory/renamed")).unwrap();
    File::open(mount.path("directory")).unwrap().sync_all().unwrap();
}

fn check_synced(mount: &Mount, writers: usize, wanted: impl Fn(&str) -> Vec<u8>) {
    for name in (0..writers).flat_map(|writer| (0..LENS.len()).map(move |number| format!("{writer}-{number}"))) {
        let path = if name == "0-0" { "directory/renamed" } else { &name };
        assert!(fs::read(mount.path(path)).unwrap() == wanted(&name), "{name} differs");
    }
}

/// In tier `object` what fsync returned for is in the store: the host may be lost in that moment.
#[test]
fn what_fsync_returned_for_survives_its_host() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let object = |volume: Volume| volume.option("--durability", "object").option("--upload-delay", "1h");
    let first = object(gateway.credentials(Volume::new()).option("--store", &store));
    let mount = first.up();
    assert_eq!(mount.status()["numbers"]["tier"], "object");
    write_synced(&mount, 4);
    mount.kill9();
    fs::remove_dir_all(first.dir()).unwrap();
    let second = object(gateway.credentials(Volume::new()));
    let ran = recover_lost(&second, &store).ok();
    assert!(!ran.stderr.contains("had not arrived"), "{ran:?}");
    let mount = second.up();
    check_synced(&mount, 4, synced);
    mount.umount();
    second.fsck_is_clean();
    gateway.stop();
}

/// The same of a served volume whose tier it is: mount and server may both be lost, with all that they have.
#[test]
fn what_fsync_returned_for_survives_mount_and_server() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let volume = gateway.credentials(Volume::new());
    let dir = volume.dir();
    let dir = dir.to_str().unwrap();
    volume.sluice(["format", dir, "--store", &store, "--durability", "object"]).ok();
    let mut server = Server::of(volume.clone(), &[]);
    let mount = server.try_mount("a", &["--upload-delay", "1h"]).unwrap();
    let other = server.try_mount("b", &["--upload-delay", "1h", "--durability", "journal"]).unwrap();
    assert_eq!((mount.tier(), other.tier()), ("object".into(), "journal".into()));
    // Its bytes are nobody's business here.
    fs::write(other.path("of the other"), noise(77, 300_000)).unwrap();
    write_synced(&mount, 12);
    let sync = rustix::fs::OFlags::SYNC.bits() as i32;
    let mut file = File::options().write(true).create_new(true).custom_flags(sync).open(mount.path("o_sync")).unwrap();
    file.write_all(&noise(500, 50_000)).unwrap();
    // Again into what is synced, and still open when the end comes.
    let mut again = File::options().write(true).open(mount.path("1-3")).unwrap();
    again.write_all(&noise(501, 200_000)).unwrap();
    again.sync_data().unwrap();
    drop((file, again));
    mount.kill9();
    server.kill9();
    other.kill9();
    for name in ["volume", "a.journal", "b.journal"] {
        fs::remove_dir_all(volume.mountpoint().with_file_name(name)).unwrap();
    }

    let second = gateway.credentials(Volume::new());
    recover_lost(&second, &store).ok();
    let mount = second.up();
    assert_eq!(mount.tier(), "object", "it is the volume's");
    check_synced(&mount, 12, |name| {
        let mut wanted = synced(name);
        if name == "1-3" {
            wanted[..200_000].copy_from_slice(&noise(501, 200_000));
        }
        wanted
    });
    assert!(fs::read(mount.path("o_sync")).unwrap() == noise(500, 50_000));
    mount.umount();
    gateway.stop();
}

/// The store is away: a sync of a served volume's mount waits for it, other work does not.
#[test]
fn fsync_of_a_served_volume_waits_for_the_store() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let volume = gateway.credentials(Volume::new());
    let mut server = Server::over(volume, &gateway.url("bucket", "volume"), &[]);
    let mount = server.try_mount("a", &["--durability", "object"]).unwrap();
    let mut file = File::create_new(mount.path("file")).unwrap();
    file.write_all(&noise(1, 8192)).unwrap();
    file.sync_all().unwrap();
    gateway.stop();
    // Inline: nothing but metadata is to be stored, which is the server's.
    let small = File::create_new(mount.path("small")).unwrap();
    (&small).write_all(b"text").unwrap();
    file.write_all(&noise(2, 8192)).unwrap();
    std::thread::scope(|scope| {
        let waits = [scope.spawn(|| file.sync_all()), scope.spawn(|| small.sync_all())];
        fs::write(mount.path("another"), b"text").unwrap();
        assert_eq!(fs::read(mount.path("another")).unwrap(), b"text");
        // Longer than an answer of the server is waited for.
        let watch = sluice_tests::Stopwatch::start();
        wait_for("some time", LIMIT, || watch.elapsed() > Duration::from_secs(18));
        assert!(waits.iter().all(|waits| !waits.is_finished()), "the store is away");
        server.kill9();
        server.start();
        gateway.start();
        waits.into_iter().for_each(|waits| waits.join().unwrap().unwrap());
    });
    drop((file, small));
    mount.umount();
    server.stop();
    gateway.stop();
}

/// The tier is the volume's, unless a mount says otherwise; one that does not exist is refused.
#[test]
fn the_tier_is_the_volumes() {
    let volume = Volume::new();
    let dir = volume.dir();
    let format =
        |tier: &str| volume.sluice(["format", dir.to_str().unwrap(), "--store", "file:objects", "--durability", tier]);
    let refused = |ran: Ran, why: &str| assert!(ran.code == Some(2) && ran.stderr.contains(why), "{ran:?}");
    refused(format("replicated"), "is not built yet: choose journal or object");
    refused(format("best"), "no tier `best`");
    assert!(format("object").ok().stdout.contains("tier object"));
    let mount = volume.up();
    assert_eq!(mount.tier(), "object");
    mount.umount();
    let mount = volume.clone().option("--durability", "journal").up();
    assert_eq!(mount.tier(), "journal");
    mount.umount();
    let tried = volume.clone().option("--durability", "replicated").try_up().map(Mount::umount);
    refused(tried.expect_err("refused"), "not built yet");
    let server = Server::of(volume.clone(), &[]);
    let mount = server.mount("a");
    assert_eq!(mount.tier(), "object");
    mount.umount();
    let tried = server.try_mount("a", &["--durability", "replicated"]).map(Mount::umount);
    refused(tried.expect_err("refused"), "not built yet");
    drop(server);
    // A volume that is made by the way has the tier of its first mount.
    let made = Volume::new();
    made.clone().option("--durability", "object").up().umount();
    let mount = made.up();
    assert_eq!(mount.tier(), "object");
    mount.umount();
    // By hand, or by a newer sluice.
    let config = dir.join("meta/volume.json");
    let text = fs::read_to_string(&config).unwrap().replace("\"object\"", "\"replicated\"");
    fs::write(&config, text).unwrap();
    let tried = volume.try_up().map(Mount::umount).expect_err("refused");
    assert!(tried.stderr.contains("not built yet"), "{tried:?}");
}

/// fsync waits for a store that is away, and ends well when it is back; nothing else waits.
#[test]
fn fsync_waits_for_the_store_in_tier_object() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let volume = gateway.credentials(Volume::new()).option("--store", &store).option("--durability", "object");
    let mount = volume.up();
    let mut file = File::create_new(mount.path("file")).unwrap();
    file.write_all(&noise(1, 8192)).unwrap();
    file.sync_all().unwrap();
    gateway.stop();
    file.write_all(&noise(2, 8192)).unwrap();
    let synced = std::thread::scope(|scope| {
        let waits = scope.spawn(|| file.sync_all());
        fs::write(mount.path("another"), b"text").unwrap();
        assert_eq!(fs::read(mount.path("another")).unwrap(), b"text");
        assert!(!waits.is_finished(), "the store is away");
        gateway.start();
        waits.join().unwrap()
    });
    synced.unwrap();
    drop(file);
    mount.umount();
    gateway.stop();
}

/// A volume of tier `object` whose host is lost after the store took names, but not the bytes that two syncs waited for: `kept` was synced before,
/// and is overwritten; `never` is new; `removed` was synced, and goes.
fn names_without_bytes() -> (Gateway, String, Volume) {
    let gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let volume = gateway.credentials(Volume::new()).option("--store", &store).option("--durability", "object");
    let mount = volume.up();
    let root = mount.root().to_owned();
    let sync = |name: &str, seed: u64| {
        let mut file = File::options().write(true).create(true).truncate(false).open(root.join(name))?;
        file.write_all(&noise(seed, 20_000))?;
        file.sync_all()
    };
    sync("kept", 1).unwrap();
    sync("removed", 2).unwrap();
    let objects = gateway.buckets().join("bucket/volume/objects");
    let aside = objects.with_file_name("aside");
    fs::rename(&objects, &aside).unwrap();
    // No object has a place in this.
    fs::write(&objects, b"").unwrap();
    std::thread::scope(|scope| {
        let syncs = [scope.spawn(|| sync("kept", 3)), scope.spawn(|| sync("never", 4))];
        wait_for("both to be written", LIMIT, || {
            root.join("never").metadata().is_ok_and(|found| found.len() == 20_000)
        });
        fs::remove_file(root.join("removed")).unwrap();
        wait_shipped(&mount);
        assert!(syncs.iter().all(|sync| !sync.is_finished()), "bytes are not there");
        mount.kill9();
        syncs.into_iter().for_each(|sync| drop(sync.join().unwrap().expect_err("it was killed")));
    });
    fs::remove_file(&objects).unwrap();
    fs::rename(&aside, &objects).unwrap();
    (gateway, store, volume)
}

/// What was synced before is there, and nothing else in its place.
#[test]
fn names_that_arrived_before_their_bytes_do_not_count() {
    let (mut gateway, store, first) = names_without_bytes();
    fs::remove_dir_all(first.dir()).unwrap();
    let second = gateway.credentials(Volume::new());
    let ran = recover_lost(&second, &store).ok();
    assert!(ran.stdout.contains("were left out") && !ran.stderr.contains("had not arrived"), "{ran:?}");
    let mount = second.up();
    assert!(fs::read(mount.path("kept")).unwrap() == noise(1, 20_000));
    assert!(fs::read(mount.path("removed")).unwrap() == noise(2, 20_000));
    assert_eq!(fs::metadata(mount.path("never")).map_or(0, |found| found.len()), 0, "its name may be there");
    mount.umount();
    second.fsck_is_clean();
    gateway.stop();
}

/// Only the process was lost: the next one has the bytes in its journal, stores them, and ships what is missing in the store.
#[test]
fn names_that_arrived_before_their_bytes_get_them_from_the_journal() {
    let (mut gateway, store, first) = names_without_bytes();
    let mount = first.up();
    let sync = |mount: &Mount, name: &str, seed| {
        let mut file = File::create(mount.path(name)).unwrap();
        file.write_all(&noise(seed, 20_000)).unwrap();
        file.sync_all().unwrap();
    };
    sync(&mount, "later", 5);
    mount.kill9();
    fs::remove_dir_all(first.dir()).unwrap();
    let second = gateway.credentials(Volume::new()).option("--durability", "object");
    recover_lost(&second, &store).ok();
    let mount = second.up();
    for (name, seed) in [("kept", 3), ("never", 4), ("later", 5)] {
        assert!(fs::read(mount.path(name)).unwrap() == noise(seed, 20_000), "{name}");
    }
    assert!(!mount.path("removed").exists());
    sync(&mount, "last", 6);
    mount.umount();
    second.fsck_is_clean();
    gateway.stop();
}

/// To be survived: the server's host is lost while a mount waits in an fsync, and the volume is recovered from its store at the old address. What the
/// mount has published, the server had answered, and is not there, is no success.
#[test]
fn a_sync_is_not_answered_by_a_server_of_another_line() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let volume = gateway.credentials(Volume::new());
    let mut server = Server::over(volume.clone(), &store, &[]);
    let mount = server.try_mount("a", &["--durability", "object"]).unwrap();
    let sync = |name: &str| {
        let mut file = File::create(mount.path(name))?;
        file.write_all(b"text")?;
        file.sync_all()
    };
    sync("before").unwrap();
    gateway.stop();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| sync("lost"));
        // Published, and answered.
        wait_for("its name", LIMIT, || mount.path("lost").metadata().is_ok_and(|found| found.len() == 4));
        server.kill9();
        gateway.start();
        fs::remove_dir_all(volume.dir()).unwrap();
        recover_lost(&volume, &store).ok();
        server.start();
        let outcome = waits.join().unwrap().map_err(|error| error.raw_os_error());
        assert_eq!(outcome, Err(Some(rustix::io::Errno::IO.raw_os_error())));
    });
    let log = mount.log();
    assert!(log.contains("recovered from its store since") || log.contains("recovered from an earlier state"), "{log}");
    // It goes on, a moment later.
    wait_for("changes to be done again", LIMIT, || sync("after").is_ok());
    assert_eq!(fs::read(mount.path("before")).unwrap(), b"text");
    mount.umount();
    server.stop();
    gateway.stop();
}

/// To be survived: a server is lost with what the store had not heard of, and recovered, under mounts that have more to send: one that the store knows, and one that
/// began since. Nothing that depends on what is lost is done, an open file is none that others have made since, and its sync says that it is lost.
#[test]
fn what_a_mount_did_last_is_lost_as_a_whole() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let volume = gateway.credentials(Volume::new());
    let mut server = Server::over(volume.clone(), &store, &[]);
    let (mount, other) = (server.mount("a"), server.mount("b"));
    let write = |path: PathBuf, bytes: &[u8]| {
        let mut file = File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
        file.write_all(bytes).unwrap();
        file.sync_all().unwrap();
        file
    };
    // A process of its own: what this one has open and not published, each program that it starts would wait to publish.
    let writer = |path: PathBuf| {
        let mut shell = Command::new("sh");
        let script = "exec 1<>\"$0\" && echo open >&2 && read go && printf unsynced && echo done >&2 && read end";
        shell.args(["-c", script]).arg(path).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let told = |child: &mut Child| {
        let mut told = [0; 5];
        child.stderr.as_mut().unwrap().read_exact(&mut told).unwrap();
        String::from_utf8(told.to_vec()).unwrap()
    };
    let is_eio = |done: std::io::Result<()>| {
        assert_eq!(done.unwrap_err().raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    };
    let long = noise(3, 300_000);
    let older = ["older-0", "older-1", "older-2"];
    let oldest = ["oldest-0", "oldest-1", "oldest-2"];
    let cut = ["cut-0", "cut-1"];
    let names = || ["old"].into_iter().chain(older).chain(oldest).chain(cut);
    names().for_each(|name| drop(write(mount.path(name), &long)));
    volume.sluice(["flush".as_ref(), mount.root().as_os_str()]).ok();
    gateway.stop();
    let late = server.mount("late");
    let mounts = [("a", &mount), ("late", &late)];
    let mut held = Vec::new();
    let mut writers = Vec::new();
    for ((name, mount), base) in mounts.into_iter().zip(["older-0", "oldest-0"]) {
        held.extend((0..20).map(|n| write(mount.path(format!("{name}-{n}")), b"ours")));
        // A second descriptor is told as well.
        held.push(File::open(mount.path(format!("{name}-0"))).unwrap());
        drop(write(mount.path(format!("{name}-moved")), &long));
        File::open(mount.root()).unwrap().sync_all().unwrap();
        writers.push(writer(mount.path(base)));
    }
    fs::remove_file(mount.path("old")).unwrap();
    assert!(writers.iter_mut().all(|child| told(child) == "open\n"));
    // Behind what is lost; published within a second, or not.
    writers.iter_mut().for_each(|child| child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap());
    assert!(writers.iter_mut().all(|child| told(child) == "done\n"));
    server.kill9();
    std::thread::scope(|scope| {
        // They wait for the server that comes back, one of each directory, and the others in the kernel for that one.
        let removals = older.map(|name| mount.path(name)).into_iter().chain(oldest.map(|name| late.path(name)));
        let removals: Vec<_> = removals.map(|path| scope.spawn(|| fs::remove_file(path))).collect();
        let cuts = [mount.path(cut[0]), late.path(cut[1])].map(|path| scope.spawn(|| fs::write(path, b"cut")));
        gateway.start();
        fs::remove_dir_all(volume.dir()).unwrap();
        recover_lost(&volume, &store).ok();
        for (_, mount) in mounts {
            wait_for("it to wait", LIMIT, || mount.log().contains("the server does not answer"));
        }
        server.start();
        removals.into_iter().chain(cuts).for_each(|change| is_eio(change.join().unwrap()));
    });
    for n in 0..40 {
        drop(write(other.path(format!("theirs-{n}")), b"theirs"));
    }
    for (name, mount) in mounts {
        wait_for("changes to be done again", LIMIT, || File::create(mount.path(format!("{name}-new"))).is_ok());
        drop(write(mount.path(format!("{name}-new")), b"new"));
        assert!(!mount.path(format!("{name}-moved")).exists(), "it was in no state that the store had");
    }
    for (by, mount) in mounts.into_iter().chain([("b", &other)]) {
        for name in names() {
            assert!(fs::read(mount.path(name)).unwrap() == long, "{name} in {by}");
        }
    }
    for child in &mut writers {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    // What another program closes of it tells that program, and leaves it to be told to this one.
    assert!(Command::new("true").status().unwrap().success());
    let writes = |file: &File| file.set_len(2).and_then(|()| file.write_all_at(b"OURS", 0));
    // The second descriptor of one cannot be written through.
    assert!(held.iter().all(|file| writes(file).is_err()), "written behind what is lost");
    held.iter().for_each(|file| is_eio(file.sync_all()));
    // Nobody has these open, and they can be written anew at once.
    for (path, (_, mount)) in cut.into_iter().zip(mounts) {
        fs::write(mount.path(path), b"cut").unwrap();
        assert_eq!(fs::read(other.path(path)).unwrap(), b"cut");
    }
    for file in &held {
        let mut bytes = [0; 4];
        if file.read_exact_at(&mut bytes, 0).is_ok() {
            assert_eq!(&bytes, b"ours", "it is another's file");
        }
        let _ = file.write_all_at(b"OURS", 0).and_then(|()| file.sync_all());
    }
    drop(held);
    for n in 0..40 {
        assert_eq!(fs::read(other.path(format!("theirs-{n}"))).unwrap(), b"theirs");
    }
    for (_, mount) in mounts {
        let log = mount.log();
        assert!(log.contains("goes on from an earlier state of the volume"), "{log}");
    }
    [mount, late, other].into_iter().for_each(|mount| mount.umount());
    server.stop();
    volume.fsck_is_clean();
    gateway.stop();
}

/// To be survived: a volume is recovered from its store while the process that has it still lives, and waits in a sync for bytes alone. What the recovery left
/// out is no success, although its bytes could be stored now.
#[test]
fn a_sync_that_a_recovery_has_cut_off_fails() {
    let scratch = Scratch::new();
    let path = scratch.path().join("store");
    let store = format!("file:{}", path.display());
    let volume = Volume::new().option("--store", &store).option("--durability", "object");
    let mount = volume.up();
    let sync = |name: &str| {
        let mut file = File::create(mount.path(name))?;
        file.write_all(&noise(1, 20_000))?;
        file.sync_all()
    };
    sync("kept").unwrap();
    let (objects, aside) = (path.join("objects"), path.join("aside"));
    fs::rename(&objects, &aside).unwrap();
    // No object has a place in this.
    fs::write(&objects, b"").unwrap();
    let pid = rustix::process::Pid::from_raw(mount.pid() as i32).unwrap();
    let second = Volume::new().option("--durability", "object");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| sync("cut"));
        wait_for("it to be written", LIMIT, || mount.path("cut").metadata().is_ok_and(|found| found.len() == 20_000));
        wait_shipped(&mount);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        fs::remove_file(&objects).unwrap();
        fs::rename(&aside, &objects).unwrap();
        let ran = recover_lost(&second, &store);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        assert!(ran.ok().stdout.contains("were left out"));
        let outcome = waits.join().unwrap().map_err(|error| error.raw_os_error());
        assert_eq!(outcome, Err(Some(rustix::io::Errno::IO.raw_os_error())));
    });
    let metadata = mount.status()["metadata"].clone();
    assert!(metadata["stopped"] == true, "{metadata}");
    // It ends all the same, and tells.
    mount.umount_tells(&["1 objects", "another one goes on with the volume", "umount one of the two"]);
    let mount = second.up();
    assert!(fs::read(mount.path("kept")).unwrap() == noise(1, 20_000));
    assert_eq!(fs::metadata(mount.path("cut")).map_or(0, |found| found.len()), 0, "its name may be there");
    mount.umount();
    second.fsck_is_clean();
}
