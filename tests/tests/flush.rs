//! `sluice flush`: what was written before is in the store, and the mount goes on as before; `sluice umount`: so is everything, or it says what is not.

use std::{
    fs::{self, File},
    io::{Read, Write},
    process::{Child, Stdio},
    time::Duration,
};

use sluice_tests::{Gateway, Mount, Ran, Server, Stopwatch, Volume, noise, run, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

fn flush(volume: &Volume, target: &str, options: &[&str]) -> Ran {
    volume.sluice([&["flush", target], options].concat())
}

fn at(mount: &Mount) -> &str {
    mount.root().to_str().unwrap()
}

fn dirty(mount: &Mount) -> u64 {
    mount.status()["numbers"]["dirty_objects"].as_u64().unwrap()
}

fn recovered(gateway: &Gateway, store: &str, options: &[&str]) -> Volume {
    let second = gateway.credentials(Volume::new());
    let mut command = second.command([&["recover", "--from-store", store], options].concat());
    let ran = run(command.arg(second.dir()), LIMIT).ok();
    assert!(!ran.stderr.contains("had not arrived"), "{ran:?}");
    second
}

#[test]
fn what_was_written_before_is_stored_and_the_mount_goes_on() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let volume = gateway.credentials(Volume::new()).option("--store", &store).option("--upload-delay", "1h");
    let mount = volume.up();
    fs::write(mount.path("small"), b"text").unwrap();
    fs::write(mount.path("packed"), noise(1, 20_000)).unwrap();
    let mut open = File::create(mount.path("open")).unwrap();
    open.write_all(&noise(2, 5 << 20)).unwrap();
    assert!(dirty(&mount) > 0);
    let told = flush(&volume, at(&mount), &["--json"]).ok().json();
    assert_eq!((&told["flushed"], &told["left_bytes"]), (&true.into(), &0.into()));
    assert!(told["bytes"].as_u64() > Some(5 << 20), "{told}");
    assert_eq!((dirty(&mount), &mount.status()["metadata"]["trouble"]), (0, &serde_json::Value::Null));
    // With nothing to do, by the volume's name.
    let told = flush(&volume, volume.dir().to_str().unwrap(), &[]).ok();
    assert!(told.stdout.starts_with("stored "), "{told:?}");
    // What comes later waits for its time, as before.
    open.write_all(&noise(3, 300_000)).unwrap();
    let watch = Stopwatch::start();
    wait_for("some looks of the uploader", LIMIT, || watch.elapsed() > Duration::from_secs(2));
    assert!(dirty(&mount) > 0, "the mount drains since the flush");
    drop(open);
    mount.kill9();
    fs::remove_dir_all(volume.dir()).unwrap();

    let second = recovered(&gateway, &store, &["--force"]);
    let mount = second.up();
    assert_eq!(fs::read(mount.path("small")).unwrap(), b"text");
    assert!(fs::read(mount.path("packed")).unwrap() == noise(1, 20_000));
    assert!(fs::read(mount.path("open")).unwrap()[..5 << 20] == noise(2, 5 << 20));
    mount.umount();
    second.fsck_is_clean();
    gateway.stop();
}

#[test]
fn a_mount_of_a_served_volume_is_published_and_the_server_has_shipped() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let volume = gateway.credentials(Volume::new());
    let mut server = Server::over(volume.clone(), &store, &[]);
    let mount = server.try_mount("a", &["--upload-delay", "1h"]).unwrap();
    let other = server.try_mount("b", &["--upload-delay", "1h"]).unwrap();
    fs::write(mount.path("closed"), noise(1, 20_000)).unwrap();
    let mut open = File::create(mount.path("open")).unwrap();
    open.write_all(&noise(2, 300_000)).unwrap();
    fs::write(other.path("of the other"), noise(3, 300_000)).unwrap();
    wait_for("the other's report", LIMIT, || {
        let told = flush(&volume, volume.dir().to_str().unwrap(), &["--json"]).ok().json();
        told["unstored_elsewhere_bytes"].as_u64() >= Some(600_000)
    });
    let told = flush(&volume, volume.dir().to_str().unwrap(), &[]).ok();
    assert!(told.stderr.contains("mounts on other hosts have"), "{told:?}");
    assert!(dirty(&mount) > 0, "it is not the server's to store");
    flush(&volume, at(&mount), &[]).ok();
    assert_eq!(dirty(&mount), 0);
    assert!(dirty(&other) > 0, "nor this mount's");
    assert_eq!(fs::read(other.path("open")).unwrap().len(), 300_000, "it is published");
    drop(open);
    mount.kill9();
    server.kill9();
    other.kill9();
    fs::remove_dir_all(volume.dir()).unwrap();

    let second = gateway.credentials(Volume::new());
    let mut command = second.command(["recover", "--from-store", &store, "--force"]);
    run(command.arg(second.dir()), LIMIT).ok();
    let mount = second.up();
    assert!(fs::read(mount.path("closed")).unwrap() == noise(1, 20_000));
    assert!(fs::read(mount.path("open")).unwrap() == noise(2, 300_000));
    mount.umount();
    gateway.stop();
}

/// Ends a command. Ctrl-C does the same, but for what was started in the background of a shell, which ignores it.
fn end(mut child: Child) {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    child.wait().unwrap();
}

#[test]
fn it_waits_for_a_store_that_is_away_and_may_be_given_up() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let volume = gateway.credentials(Volume::new()).option("--store", gateway.url("bucket", "volume"));
    let mount = volume.up();
    fs::write(mount.path("file"), noise(1, 300_000)).unwrap();
    flush(&volume, at(&mount), &[]).ok();
    gateway.stop();
    fs::write(mount.path("file"), noise(2, 300_000)).unwrap();
    flush(&volume, at(&mount), &["--timeout", "1s"])
        .refused_with(&["not everything is stored after 1", "KiB in 1 objects is left"]);
    let ran = flush(&volume, at(&mount), &["--timeout", "5s", "--json"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("nothing was stored for"), "{ran:?}");
    let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&told["flushed"], &told["left_objects"]), (&false.into(), &1.into()));
    // One that says so, and is ended.
    let mut command = volume.command(["flush", at(&mount)]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 70];
    child.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert!(
        String::from_utf8_lossy(&said).contains("KiB in 1 objects; nothing was stored for"),
        "{}",
        String::from_utf8_lossy(&said)
    );
    end(child);
    fs::write(mount.path("another"), b"text").unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| flush(&volume, at(&mount), &[]));
        gateway.start();
        waits.join().unwrap().ok();
    });
    assert_eq!(dirty(&mount), 0);
    mount.umount();
    gateway.stop();
}

#[test]
fn what_cannot_be_flushed_is_told() {
    let volume = Volume::new();
    let mount = volume.up();
    let (root, dir) = (at(&mount).to_owned(), volume.dir());
    let dir = dir.to_str().unwrap();
    fs::write(mount.path("file"), b"text").unwrap();
    mount.kill9_and_leave_the_mount_point();
    flush(&volume, &root, &[]).refused_with(&["is gone", dir, "sluice umount"]);
    // A text that small is in the metadata, and nobody can tell how much of that had left.
    volume.sluice(["umount", &root]).refused_with(&["perhaps the latest changes", dir, "sluice up"]);
    flush(&volume, dir, &[]).refused_with(&["is not mounted", "once it is mounted again"]);
    flush(&volume, &root, &[]).refused_with(&["is neither a volume nor a mount of one"]);
    flush(&volume, "sluice://127.0.0.1:1", &[]).refused_with(&["on the host of the volume"]);
}

/// To be survived: the store goes away once it has all bytes, and with the mount go the latest names. It is told, and the next mount brings them.
#[test]
fn an_umount_tells_that_the_store_lacks_the_latest_names() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let store = gateway.url("bucket", "volume");
    let volume = gateway.credentials(Volume::new()).option("--store", &store);
    let mount = volume.up();
    fs::write(mount.path("before"), noise(1, 300_000)).unwrap();
    flush(&volume, at(&mount), &[]).ok();
    gateway.stop();
    fs::create_dir(mount.path("directory")).unwrap();
    fs::write(mount.path("directory/small"), b"text").unwrap();
    let dir = volume.dir();
    mount.umount_tells(&["changes of the metadata", dir.to_str().unwrap(), "keep that", "sluice up", "sluice flush"]);
    gateway.start();
    volume.up().umount();
    fs::remove_dir_all(&dir).unwrap();
    let second = recovered(&gateway, &store, &[]);
    let mount = second.up();
    assert_eq!(fs::read(mount.path("directory/small")).unwrap(), b"text");
    mount.umount();
    gateway.stop();
}

/// To be survived: the process is killed while it stores what is left. Who waits for that is told how much it was.
#[test]
fn an_umount_whose_process_is_killed_tells_what_was_left() {
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let volume = gateway.credentials(Volume::new()).option("--store", gateway.url("bucket", "volume"));
    let mount = volume.up();
    gateway.stop();
    fs::write(mount.path("file"), noise(1, 300_000)).unwrap();
    let dir = volume.dir();
    let target = dir.to_str().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| mount.try_umount());
        wait_for("the drain", LIMIT, || volume.sluice(["status", target, "--json"]).ok().json()["state"] == "draining");
        let pid = rustix::process::Pid::from_raw(mount.pid() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let words = ["is unmounted, but the store lacks about 2", "KiB in 1 objects", "was ended before", "sluice up"];
        waits.join().unwrap().refused_with(&words);
    });
    mount.wait_for_the_end();
    gateway.start();
    let mount = volume.up();
    assert!(fs::read(mount.path("file")).unwrap() == noise(1, 300_000));
    mount.umount();
    volume.fsck_is_clean();
    gateway.stop();
}
