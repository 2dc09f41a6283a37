//! `/healthz` of processes whose disks fail them.

use super::{LIMIT, METRICS, MIB, health, http, noise, scrape};
use sluice_tests::{
    Gateway, Server, SmallDisk, Volume,
    group::{Node, members},
    in_background, skipped_in_local_mode, wait_for,
};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// To be survived: the journal's disk is full while the store is away. Whoever watches is told so, and when there is room again.
#[test]
fn a_full_journal_disk_is_told() {
    if skipped_in_local_mode("a_full_journal_disk_is_told") {
        return;
    }
    let mut gateway = Gateway::new();
    gateway.bucket("bucket");
    let volume = gateway.credentials(Volume::new()).option("--store", gateway.url("bucket", "p"));
    let volume = volume.option("--journal-size", "256M").option(METRICS[0], METRICS[1]);
    volume.up().umount();
    let disk = SmallDisk::new(volume.dir().join("journal"), 48);
    let mount = volume.up();
    let at = http::address(|| mount.log());
    assert_eq!(health(&at), (200, "healthy\n".into()));
    gateway.stop();
    let stop = Arc::new(AtomicBool::new(false));
    let (root, stopped) = (mount.root().to_path_buf(), stop.clone());
    // Until there is no room, and then for a while.
    let writing = in_background(move || {
        let mut names = (0u64..).map(|i| (i, root.join(i.to_string())));
        names.find(|(i, path)| stopped.load(SeqCst) || fs::write(path, noise(*i, 100_000)).is_err())
    });
    let is_told = || health(&at).1.contains("the journal's disk is full");
    wait_for("the full disk to be told", LIMIT, is_told);
    assert_eq!(health(&at).0, 503);
    disk.grow(400);
    wait_for("the room to be told", LIMIT, || !is_told());
    gateway.start();
    stop.store(true, SeqCst);
    wait_for("the writer to end", LIMIT, || writing.is_finished());
    writing.join().unwrap();
    wait_for("health", LIMIT, || health(&at).0 == 200);
    mount.umount();
}

/// To be survived: a node's cache disk fails. Whoever watches is told so; readers get their bytes all the same.
#[test]
fn a_failed_cache_disk_is_told() {
    if skipped_in_local_mode("a_failed_cache_disk_is_told") {
        return;
    }
    let server = Server::new();
    let node = Node::start_with(&server, "one", &METRICS);
    let at = http::address(|| node.log());
    assert_eq!(health(&at), (200, "healthy\n".into()));
    let bytes = noise(1, 64 * MIB);
    let writer = server.mount("writer");
    fs::write(writer.path("file"), &bytes).unwrap();
    writer.umount();
    // No slab is as small.
    node.limit_files(MIB as u64);
    for name in ["first", "second"] {
        let reader = server.try_mount(name, &["--cache", "none"]).unwrap_or_else(|ran| panic!("{ran:#?}"));
        assert!(fs::read(reader.path("file")).unwrap() == bytes, "{name}");
        wait_for("the failed disk to be told", LIMIT, || health(&at) == (503, "the cache disk has failed\n".into()));
    }
    assert_eq!(scrape(&at).value("sluice_cache_usable"), 0.0);
}

/// To be survived: a node's cache disk gives other bytes than were written. Once it is scrubbed, whoever watches is told.
#[test]
fn a_rotting_cache_disk_is_told() {
    if skipped_in_local_mode("a_rotting_cache_disk_is_told") {
        return;
    }
    let server = Server::new();
    let node = Node::start_with(&server, "one", &METRICS);
    let at = http::address(|| node.log());
    let bytes = noise(1, 16 * MIB);
    let writer = server.mount("writer");
    fs::write(writer.path("file"), &bytes).unwrap();
    writer.umount();
    let reader = server.try_mount("reader", &["--cache", "none"]).unwrap_or_else(|ran| panic!("{ran:#?}"));
    let warmed = ["warmup".as_ref(), reader.root().as_os_str(), "--to".as_ref(), "group".as_ref(), "--wait".as_ref()];
    server.volume().sluice(warmed).ok();
    let scrub = || server.volume().sluice(["scrub".as_ref(), node.dir.as_os_str()]);
    scrub().ok();
    assert_eq!(health(&at), (200, "healthy\n".into()));
    // Ten segments of the first slot.
    let slab = File::options().write(true).open(node.dir.join("slab-00000")).unwrap();
    (0..10).for_each(|index| slab.write_all_at(b"rotten", index * (32 << 10) + 99).unwrap());
    assert_eq!(scrub().code, Some(2));
    let (status, why) = health(&at);
    assert!(status == 503 && why.contains("the cache disk is rotting: 10 bad segments"), "{status} {why}");
    assert_eq!(scrape(&at).value("sluice_scrub_bad_segments"), 10.0);
    wait_for("the server to hear of it", LIMIT, || members(&server)[0]["rotten_segments"] == 10);
    assert_eq!(members(&server)[0]["scrub_done"], 1.0);
    assert!(fs::read(reader.path("file")).unwrap() == bytes);
}
