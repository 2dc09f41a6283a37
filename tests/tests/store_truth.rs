//! The store has the metadata too: a volume whose directory is gone is rebuilt from there.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink},
    path::Path,
    process::Command,
    time::Duration,
};

use sluice_tests::{
    Gateway, Mount, Ran, Scratch, Server, TreeOptions, Volume, noise, read_tree, run, sluice_binary, wait_for,
};

const LIMIT: Duration = Duration::from_secs(60);

fn recover(volume: &Volume, store: &str) -> Ran {
    let mut command = volume.command(["recover", "--from-store", store]);
    command.arg(volume.dir());
    run(&mut command, LIMIT)
}

/// The store has all of the metadata that is there now.
fn wait_shipped(mount: &Mount) {
    wait_for("the metadata in the store", LIMIT, || {
        let metadata = &mount.status()["metadata"];
        metadata["behind_records"] == 0 && metadata["checkpoint_bytes"].as_u64() > Some(0)
    });
}

fn fill(root: &Path) {
    let dir = root.join("a directory/deep");
    fs::create_dir_all(&dir).unwrap();
    for (number, len) in [0, 1, 4000, 4097, 70_000, 200_000, 9 << 20].into_iter().enumerate() {
        fs::write(dir.join(format!("file-{number}")), noise(number as u64, len)).unwrap();
    }
    fs::set_permissions(dir.join("file-3"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(dir.join("file-4"), root.join("another name")).unwrap();
    symlink("deep/file-1", root.join("a directory/link")).unwrap();
    rustix::fs::setxattr(dir.join("file-2"), "user.colour", b"blue", rustix::fs::XattrFlags::empty()).unwrap();
    fs::write(dir.join("gone"), noise(99, 10_000)).unwrap();
    fs::remove_file(dir.join("gone")).unwrap();
    fs::rename(dir.join("file-0"), root.join("moved")).unwrap();
}

fn tree(root: &Path) -> sluice_tests::Tree {
    read_tree(root, TreeOptions { times: true, xattrs: true }).unwrap()
}

/// All files below a directory.
fn names_below(path: &Path) -> Vec<String> {
    let found = run(Command::new("find").arg(path).args(["-type", "f"]), LIMIT).ok().stdout;
    let mut names: Vec<_> = found.lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn a_volume_comes_back_from_its_store_alone() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let first = gateway.credentials(Volume::new()).option("--store", &store);
    let mount = first.up();
    fill(mount.root());
    let before = tree(mount.root());
    mount.umount();
    fs::remove_dir_all(first.dir()).unwrap();

    let second = gateway.credentials(Volume::new());
    let ran = recover(&second, &store).ok();
    assert!(ran.stdout.contains("recovered volume") && !ran.stderr.contains("EIO"), "{ran:?}");
    let mount = second.up();
    assert_eq!(tree(mount.root()), before);
    // It goes on from there, also when its host is lost in turn, this time without an umount.
    fs::write(mount.path("later"), noise(5, 300_000)).unwrap();
    fs::remove_file(mount.path("another name")).unwrap();
    let before = tree(mount.root());
    wait_for("everything stored", LIMIT, || mount.status()["numbers"]["dirty_objects"] == 0);
    wait_shipped(&mount);
    mount.kill9();
    fs::remove_dir_all(second.dir()).unwrap();

    let third = gateway.credentials(Volume::new());
    recover(&third, &store).ok();
    let mount = third.up();
    assert_eq!(tree(mount.root()), before);
    mount.umount();
    third.fsck_is_clean();
    gateway.stop();
}

/// What comes back is what there was at some moment: no name without its bytes, and what was there before rather than half of what came then.
#[test]
fn names_do_not_arrive_before_their_bytes() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let first = gateway.credentials(Volume::new()).option("--store", &store);
    let mount = first.up();
    fs::write(mount.path("file"), noise(1, 300_000)).unwrap();
    fs::write(mount.path("inline"), noise(2, 3000)).unwrap();
    mount.umount();
    let late = first.clone().option("--upload-delay", "1h");
    let mount = late.up();
    fs::write(mount.path("before"), b"text").unwrap();
    wait_shipped(&mount);
    let shipped = mount.status()["metadata"]["shipped_seq"].as_u64();
    let mut file = File::options().write(true).open(mount.path("file")).unwrap();
    file.write_all(&noise(3, 300_000)).unwrap();
    drop(file);
    fs::rename(mount.path("inline"), mount.path("renamed")).unwrap();
    // Two looks of the shipper, at the least.
    let watch = sluice_tests::Stopwatch::start();
    wait_for("some looks", LIMIT, || watch.elapsed() > Duration::from_secs(7));
    assert_eq!(mount.status()["metadata"]["shipped_seq"].as_u64(), shipped);
    mount.kill9();
    fs::remove_dir_all(first.dir()).unwrap();
    let second = gateway.credentials(Volume::new());
    // One that was interrupted before.
    fs::create_dir_all(second.dir().join("meta")).unwrap();
    fs::write(second.dir().join("meta/recovering"), b"").unwrap();
    second.try_up().map(Mount::umount).expect_err("refused").refused_with(&["is under way or was interrupted"]);
    let ran = recover(&second, &store).ok();
    assert!(ran.stderr.contains("begins anew") && !ran.stderr.contains("had not arrived"), "{ran:?}");
    let mount = second.up();
    assert!(fs::read(mount.path("file")).unwrap() == noise(1, 300_000));
    assert!(fs::read(mount.path("inline")).unwrap() == noise(2, 3000));
    assert_eq!(fs::read(mount.path("before")).unwrap(), b"text");
    mount.umount();
    second.fsck_is_clean();
    gateway.stop();
}

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
    let ran = recover(&second, &store).ok();
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
    recover(&second, &store).ok();
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

#[test]
fn the_store_is_seconds_behind() {
    let scratch = Scratch::new();
    let volume = Volume::new().option("--store", format!("file:{}", scratch.path().join("store").display()));
    let mount = volume.up();
    wait_shipped(&mount);
    let written = sluice_tests::Stopwatch::start();
    let mut file = File::create(mount.path("file")).unwrap();
    file.write_all(b"small").unwrap();
    assert!(mount.status()["metadata"]["behind_records"].as_u64() > Some(0), "{}", mount.status());
    wait_shipped(&mount);
    // 3 s between two looks, one until the journal is synced by itself; the rest is for a busy machine.
    assert!(written.elapsed() < Duration::from_secs(15), "{:?}", written.elapsed());
    let text = volume.sluice(["status", volume.dir().to_str().unwrap()]).ok().stdout;
    assert!(text.contains("metadata   in the store"), "{text}");
    drop(file);
    mount.umount();
}

#[test]
fn two_directories_of_one_volume_are_noticed() {
    let scratch = Scratch::new();
    let store = format!("file:{}", scratch.path().join("store").display());
    let first = Volume::new().option("--store", &store);
    let mount = first.up();
    fs::write(mount.path("file"), b"one").unwrap();
    mount.umount();
    let mount = first.up();
    fs::write(mount.path("file"), b"two").unwrap();
    wait_shipped(&mount);
    // The host is believed to be lost, and is not.
    let second = Volume::new();
    recover(&second, &store).ok();
    fs::write(mount.path("file"), b"three").unwrap();
    wait_for("the first one to notice", LIMIT, || mount.status()["metadata"]["stopped"] == true);
    let trouble = mount.status()["metadata"]["trouble"].to_string();
    assert!(trouble.contains("another process ships the metadata"), "{trouble}");
    mount.kill9();
    let mount = second.up();
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"two");
    wait_shipped(&mount);
    mount.umount();
}

/// A host that was given up comes back with its directory, which has as many changes as the store, or more.
#[test]
fn a_directory_whose_volume_goes_on_elsewhere_leaves_the_store_alone() {
    let scratch = Scratch::new();
    let path = scratch.path().join("store");
    let store = format!("file:{}", path.display());
    let first = Volume::new().option("--store", &store);
    let mount = first.up();
    fs::write(mount.path("file"), noise(1, 10_000)).unwrap();
    fs::write(mount.path("gone"), noise(2, 10_000)).unwrap();
    mount.umount();
    let second = Volume::new();
    recover(&second, &store).ok();
    let shipped = names_below(&path.join("meta"));
    let mount = first.up();
    fs::write(mount.path("another"), noise(3, 10_000)).unwrap();
    wait_for("it to notice", LIMIT, || mount.status()["metadata"]["stopped"] == true);
    let trouble = mount.status()["metadata"]["trouble"].to_string();
    assert!(
        trouble.contains("another line of changes") && trouble.contains("sluice recover --from-store"),
        "{trouble}"
    );
    assert!(!trouble.contains("  "), "{trouble}");
    // What it has is still read there, and a sync that waits for the store is told.
    assert!(fs::read(mount.path("file")).unwrap() == noise(1, 10_000));
    mount.umount();
    let mount = first.clone().option("--durability", "object").up();
    let mut file = File::create(mount.path("synced")).unwrap();
    file.write_all(b"text").unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    drop(file);
    mount.umount();
    assert_eq!(names_below(&path.join("meta")), shipped, "it has shipped");
    // To the old directory the other's objects are unknown.
    let mount = second.up();
    fs::write(mount.path("other"), noise(4, 10_000)).unwrap();
    mount.umount();
    let gc = |volume: &Volume, more: &[&str]| {
        volume.sluice(["gc", volume.dir().to_str().unwrap(), "--min-age", "0s"].iter().chain(more))
    };
    gc(&first, &["--delete"]).refused_with(&["another line of changes", "nothing was deleted"]);
    let ran = gc(&first, &[]).ok();
    assert!(ran.stderr.contains("another line of changes"), "{ran:?}");
    gc(&second, &["--delete"]).ok();
    let mount = second.up();
    assert!(fs::read(mount.path("other")).unwrap() == noise(4, 10_000));
    mount.umount();
    second.fsck_is_clean();
}

#[test]
fn an_older_copy_is_noticed() {
    let scratch = Scratch::new();
    let store = format!("file:{}", scratch.path().join("store").display());
    let first = Volume::new().option("--store", &store);
    first.up().umount();
    let copy = Volume::new();
    run(Command::new("cp").args(["-a"]).arg(first.dir()).arg(copy.dir()), LIMIT).ok();
    let mount = first.up();
    fs::write(mount.path("file"), b"two").unwrap();
    mount.umount();
    let mount = copy.up();
    wait_for("the copy to notice", LIMIT, || mount.status()["metadata"]["stopped"] == true);
    let trouble = mount.status()["metadata"]["trouble"].to_string();
    assert!(trouble.contains("it is an older copy"), "{trouble}");
    mount.kill9();
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
    let ran = recover(&second, &store).ok();
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
    recover(&second, &store).ok();
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

#[test]
fn mistakes_are_told_with_what_to_do() {
    let scratch = Scratch::new();
    let empty = scratch.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let volume = Volume::new();
    let none = format!("file:{}", scratch.path().join("none").display());
    recover(&volume, &none).refused_with(&["is no directory, so no store"]);
    recover(&volume, &format!("file:{}", empty.display())).refused_with(&["holds no volume", "wrong bucket or prefix"]);
    assert!(!volume.dir().exists(), "nothing is left behind");
    // A volume that nobody ever mounted.
    let made = Volume::new();
    let store = format!("file:{}", scratch.path().join("made").display());
    made.sluice(["format", made.dir().to_str().unwrap(), "--store", &store]).ok();
    recover(&volume, &store).refused_with(&["holds no metadata"]);
    assert!(!volume.dir().exists(), "nothing is left behind");
    recover(&made, &store).refused_with(&["holds volume"]);
    let up =
        ["up", made.dir().to_str().unwrap(), made.mountpoint().to_str().unwrap(), "--durability"].map(String::from);
    for (tier, words) in [("replicated", "is not built yet"), ("none", "there is no tier `none`")] {
        let ran = made.sluice(up.iter().cloned().chain([tier.to_owned()]));
        assert!(ran.code == Some(2) && ran.stderr.contains(words), "{ran:?}");
    }
    // A volume that was made anew is the new one.
    let mount = made.up();
    fs::write(mount.path("file"), b"text").unwrap();
    mount.umount();
    made.sluice(["format", made.dir().to_str().unwrap(), "--store", &store, "--force"]).ok();
    recover(&volume, &store).refused_with(&["holds no metadata"]);
    // Whose metadata is lost is not made anew by the way.
    let lost = Volume::new();
    let mount = lost.up();
    fs::write(mount.path("file"), b"text").unwrap();
    mount.umount();
    ["meta", "journal", "cache"].iter().for_each(|part| fs::remove_dir_all(lost.dir().join(part)).unwrap());
    let ran = lost.try_up().map(Mount::umount).expect_err("refused");
    ran.refused_with(&["holds a volume already", "sluice recover --from-store"]);
    recover(&lost, "file:objects").ok();
    let mount = lost.up();
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"text");
    mount.umount();
    // Damage is found, and names the blob.
    made.up().umount();
    let log = scratch.path().join("made/meta/checkpoint");
    let part = names_below(&log).into_iter().find(|name| !name.ends_with("/head")).expect("a part");
    let mut bytes = fs::read(&part).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&part, bytes).unwrap();
    recover(&volume, &store).refused_with(&["checkpoint", "checksum does not match"]);
    assert!(!volume.dir().exists(), "nothing is left behind");
    assert!(sluice_binary().exists());
}
