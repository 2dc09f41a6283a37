//! Of the directories of a volume one goes on with what the store has.

use crate::{LIMIT, names_below, recover, recover_by_force, recover_lost, wait_shipped};
use sluice_tests::{Gateway, Scratch, Server, Volume, noise, run, wait_for};
use std::{
    fs::{self, File},
    io::Write,
    process::Command,
};

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
    // The host is believed to be lost, and is not. Asking changes nothing.
    let second = Volume::new();
    recover(&second, &store).refused_with(&[first.dir().to_str().unwrap(), "is in use here", "by pid", "--force"]);
    fs::write(mount.path("more"), b"two").unwrap();
    wait_shipped(&mount);
    recover_lost(&second, &store).ok();
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
    mount.umount_tells(&["another line of changes", "Copy what only this directory has"]);
    let mount = first.clone().option("--durability", "object").up();
    let mut file = File::create(mount.path("synced")).unwrap();
    file.write_all(b"text").unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    drop(file);
    mount.umount_tells(&["another line of changes"]);
    // Who starts it detached hears of it before it is.
    let (dir, at) = (first.dir(), first.mountpoint());
    let ran = first.sluice(["up".as_ref(), dir.as_os_str(), at.as_os_str(), "-d".as_ref()]).ok();
    assert!(ran.stderr.contains("another line of changes"), "{ran:?}");
    let text = first.sluice(["status".as_ref(), at.as_os_str()]).ok().stdout;
    assert!(text.contains("cut off from the store") && !text.contains("not answered"), "{text}");
    first.sluice(["umount".as_ref(), at.as_os_str()]).refused_with(&["another line of changes"]);
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

/// A volume that was made of a dump is the one that goes on, also before it was mounted.
#[test]
fn an_old_directory_does_not_take_the_store_of_a_loaded_volume() {
    let scratch = Scratch::new();
    let path = scratch.path().join("store");
    let store = format!("file:{}", path.display());
    let first = Volume::new().option("--store", &store);
    let mount = first.up();
    fs::write(mount.path("file"), noise(1, 10_000)).unwrap();
    mount.umount();
    let dump = scratch.path().join("dump");
    first.sluice(["dump".as_ref(), first.dir().as_os_str(), dump.as_os_str()]).ok();
    let second = Volume::new();
    let dir = second.dir();
    let load = ["load", dump.to_str().unwrap(), dir.to_str().unwrap(), "--store", &store, "--force"];
    second.sluice(load).ok();
    second.fsck_is_clean();
    let shipped = names_below(&path.join("meta"));
    let mount = first.up();
    wait_for("it to notice", LIMIT, || mount.status()["metadata"]["stopped"] == true);
    let trouble = mount.status()["metadata"]["trouble"].to_string();
    assert!(trouble.contains("another line of changes"), "{trouble}");
    mount.umount_tells(&["another line of changes"]);
    assert_eq!(names_below(&path.join("meta")), shipped, "it has shipped");
    let mount = second.up();
    fs::write(mount.path("later"), b"text").unwrap();
    mount.umount();
    second.fsck_is_clean();
    let third = Volume::new();
    recover(&third, &store).ok();
    let mount = third.up();
    assert!(fs::read(mount.path("file")).unwrap() == noise(1, 10_000));
    assert_eq!(fs::read(mount.path("later")).unwrap(), b"text");
    mount.umount();
}

/// Nothing was written, so a recovery has nobody to ask about.
#[test]
fn a_start_that_fails_leaves_the_volume_at_rest() {
    let scratch = Scratch::new();
    let store = format!("file:{}", scratch.path().join("store").display());
    let first = Volume::new().option("--store", &store);
    first.up().umount();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    first.sluice(["serve", first.dir().to_str().unwrap(), "--listen", &address]).refused_with(&[&address]);
    recover(&Volume::new(), &store).ok();
}

/// To be survived: the volume is recovered and served at the old address, and then, by mistake, the old directory is again, which has been served as
/// often. A live mount goes on with each.
#[test]
fn a_mount_goes_on_when_its_server_changes_between_lines() {
    let gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let volume = gateway.credentials(Volume::new());
    let mut server = Server::over(volume.clone(), &store, &[]);
    let mount = server.try_mount("a", &["--durability", "object"]).unwrap();
    let write = |name: &str| {
        let mut file = File::create(mount.path(name)).unwrap();
        file.write_all(name.as_bytes()).unwrap();
        file
    };
    write("one").sync_all().unwrap();
    server.kill9();
    let (dir, old, new) = (volume.dir(), volume.dir().with_extension("old"), volume.dir().with_extension("new"));
    fs::rename(&dir, &old).unwrap();
    recover_by_force(&volume, &store).ok();
    server.start();
    drop(write("two"));
    server.kill9();
    fs::rename(&dir, &new).unwrap();
    fs::rename(&old, &dir).unwrap();
    server.start();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // What waits over the change fails, where the server had synced `two` and it is gone.
            wait_for("the mount to go on", LIMIT, || File::create(mount.path("three")).is_ok());
            drop(write("three"));
            let _ = sender.send(fs::read(mount.path("one")).unwrap());
        });
        let read = receiver.recv_timeout(LIMIT);
        if read.is_err() {
            // So that the thread ends.
            let pid = rustix::process::Pid::from_raw(mount.pid() as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            panic!("the mount hangs");
        }
        assert_eq!(read.unwrap(), b"one");
    });
}
