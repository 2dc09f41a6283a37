//! The store has the metadata too: a volume whose directory is gone is rebuilt from there.

mod damage;
mod line;
mod tier;

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
    time::Duration,
};

use sluice_tests::{Gateway, Mount, Ran, Scratch, TreeOptions, Volume, noise, read_tree, run, sluice_binary, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

/// Of a volume that was unmounted.
fn recover(volume: &Volume, store: &str) -> Ran {
    let mut command = volume.command(["recover", "--from-store", store]);
    command.arg(volume.dir());
    run(&mut command, LIMIT)
}

/// Of one that was not: it is refused without `--force`.
fn recover_lost(volume: &Volume, store: &str) -> Ran {
    recover(volume, store).refused_with(&["in use", "takes the store away", "--force"]);
    assert!(!volume.dir().join("meta/volume.json").exists(), "something is left");
    recover_by_force(volume, store)
}

fn recover_by_force(volume: &Volume, store: &str) -> Ran {
    let mut command = volume.command(["recover", "--from-store", store, "--force"]);
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
    recover_lost(&third, &store).ok();
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
    let ran = recover_by_force(&second, &store).ok();
    assert!(ran.stderr.contains("begins anew") && !ran.stderr.contains("had not arrived"), "{ran:?}");
    let mount = second.up();
    assert!(fs::read(mount.path("file")).unwrap() == noise(1, 300_000));
    assert!(fs::read(mount.path("inline")).unwrap() == noise(2, 3000));
    assert_eq!(fs::read(mount.path("before")).unwrap(), b"text");
    mount.umount();
    second.fsck_is_clean();
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
    let ran = recover(&made, &store);
    assert!(!ran.stderr.contains("--force"), "it has none: {ran:?}");
    ran.refused_with(&["holds volume", "choose another directory"]);
    let up =
        ["up", made.dir().to_str().unwrap(), made.mountpoint().to_str().unwrap(), "--durability"].map(String::from);
    for (tier, words) in [("replicated", "is not built yet"), ("none", "there is no tier `none`")] {
        let ran = made.sluice(up.iter().cloned().chain([tier.to_owned()]));
        assert!(ran.code == Some(2) && ran.stderr.contains(words), "{ran:?}");
    }
    // Whose store is not where it was makes none there.
    let (path, away) = (scratch.path().join("made"), scratch.path().join("away"));
    fs::rename(&path, &away).unwrap();
    let ran = made.try_up().map(Mount::umount).expect_err("refused");
    ran.refused_with(&["holds no volume", path.to_str().unwrap(), "not mounted?"]);
    assert!(!path.exists(), "it was made");
    fs::rename(&away, &path).unwrap();
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
