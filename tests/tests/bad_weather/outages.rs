//! An object store over the network, and its absence.

use std::{
    fs::{self, File},
    io::Write,
    time::Duration,
};

use sluice_tests::{Gateway, Stopwatch, Volume, sluice, wait_for};

use crate::{needs_binary, noise};

const MIB: usize = 1 << 20;

fn volume_on(gateway: &Gateway) -> Volume {
    gateway.bucket("bucket");
    gateway.credentials(Volume::new()).option("--store", gateway.url("bucket", "volume"))
}

fn forget_cache(volume: &Volume) {
    fs::remove_dir_all(volume.dir().join("cache")).unwrap();
}

#[test]
fn a_volume_lives_in_a_bucket() {
    needs_binary!();
    let gateway = Gateway::new();
    let volume = volume_on(&gateway);
    let mount = volume.up();
    let sizes = [10, 5000, 100_000, 3 * MIB, 20 * MIB + 1];
    for (seed, len) in sizes.into_iter().enumerate() {
        fs::write(mount.path(format!("{seed}")), noise(seed as u64, len)).unwrap();
    }
    mount.umount();
    // Unmounted means stored: neither cache nor journal is needed from here on.
    forget_cache(&volume);
    let mount = volume.up();
    for (seed, len) in sizes.into_iter().enumerate() {
        assert!(fs::read(mount.path(format!("{seed}"))).unwrap() == noise(seed as u64, len), "file {seed} differs");
    }
    mount.umount();
    volume.fsck_is_clean();
    assert!(fs::read_dir(gateway.buckets().join("bucket")).unwrap().count() > 0);
}

/// To be survived: the store goes away for a while under a running mount. Cached reads and journalled writes go on as
/// if nothing had happened, and everything reaches the store once it is back, without anybody's help.
#[test]
fn the_store_goes_away_and_comes_back() {
    needs_binary!();
    let mut gateway = Gateway::new();
    let volume = volume_on(&gateway);
    let mount = volume.up();
    fs::write(mount.path("before"), noise(1, 8 * MIB)).unwrap();
    File::open(mount.path("before")).unwrap().sync_all().unwrap();
    gateway.stop();
    let watch = Stopwatch::start();
    assert!(fs::read(mount.path("before")).unwrap() == noise(1, 8 * MIB), "a cached read while the store is down");
    for i in 0..50 {
        let mut file = File::create_new(mount.path(format!("small-{i}"))).unwrap();
        file.write_all(&noise(100 + i, 20_000)).unwrap();
        file.sync_all().unwrap();
    }
    fs::write(mount.path("large"), noise(2, 16 * MIB)).unwrap();
    fs::rename(mount.path("before"), mount.path("renamed")).unwrap();
    let took = watch.elapsed();
    assert!(took < Duration::from_secs(20), "the outage was felt: {took:?}");
    gateway.start();
    mount.umount();
    forget_cache(&volume);
    let mount = volume.up();
    for i in 0..50 {
        assert!(fs::read(mount.path(format!("small-{i}"))).unwrap() == noise(100 + i, 20_000));
    }
    assert!(fs::read(mount.path("large")).unwrap() == noise(2, 16 * MIB));
    assert!(fs::read(mount.path("renamed")).unwrap() == noise(1, 8 * MIB));
    mount.umount();
    volume.fsck_is_clean();
}

/// To be survived: the same, and the mount is killed while the store is away.
#[test]
fn a_crash_during_an_outage() {
    needs_binary!();
    let mut gateway = Gateway::new();
    let volume = volume_on(&gateway);
    let mount = volume.up();
    gateway.stop();
    fs::write(mount.path("f"), noise(3, 6 * MIB)).unwrap();
    mount.kill9();
    gateway.start();
    let mount = volume.up();
    assert!(fs::read(mount.path("f")).unwrap() == noise(3, 6 * MIB));
    mount.umount();
    volume.fsck_is_clean();
}

#[test]
fn a_read_that_needs_the_store_waits_out_a_short_outage() {
    needs_binary!();
    let mut gateway = Gateway::new();
    let volume = volume_on(&gateway);
    let mount = volume.up();
    fs::write(mount.path("f"), noise(4, 2 * MIB)).unwrap();
    mount.umount();
    forget_cache(&volume);
    let mount = volume.up();
    gateway.stop();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(mount.path("f")));
        let watch = Stopwatch::start();
        wait_for("a second to pass", Duration::from_secs(5), || watch.elapsed() > Duration::from_secs(1));
        gateway.start();
        assert!(reader.join().unwrap().expect("a read across the outage") == noise(4, 2 * MIB));
    });
}

/// To be survived: the journal is full in the middle of a write, as the store is away. The writer waits, and nothing else does: what needs no
/// bytes goes on. Once the store is back the write ends as if nothing had happened.
#[test]
fn the_journal_is_full_in_the_middle_of_a_write() {
    needs_binary!();
    let mut gateway = Gateway::new();
    let volume = volume_on(&gateway).option("--journal-size", "128M").option("--cache-size", "64M");
    let mount = volume.up();
    gateway.stop();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut file = File::create_new(mount.path("file")).unwrap();
            let bytes = noise(11, 90_000);
            (0..2500).for_each(|_| file.write_all(&bytes).unwrap());
            file.sync_all().unwrap();
        });
        let used = || mount.status()["numbers"]["written_bytes"].as_u64().unwrap();
        let mut last = 0;
        wait_for("the writer to wait", Duration::from_secs(60), || {
            let now = used();
            let watch = Stopwatch::start();
            wait_for("a second to pass", Duration::from_secs(5), || watch.elapsed() > Duration::from_secs(1));
            let stands = now == last && used() == now && now > 0;
            last = now;
            stands
        });
        assert!(last < 2500 * 90_000 && !writer.is_finished());
        let watch = Stopwatch::start();
        for n in 0..200 {
            fs::create_dir(mount.path(format!("dir-{n}"))).unwrap();
            fs::rename(mount.path(format!("dir-{n}")), mount.path(format!("renamed-{n}"))).unwrap();
        }
        assert!(watch.elapsed() < Duration::from_secs(20), "names waited for bytes: {:?}", watch.elapsed());
        gateway.start();
        writer.join().unwrap();
    });
    mount.umount();
    forget_cache(&volume);
    let mount = volume.up();
    let bytes = fs::read(mount.path("file")).unwrap();
    assert_eq!(bytes.len(), 2500 * 90_000);
    assert!(bytes.chunks(90_000).all(|chunk| chunk == noise(11, 90_000)));
    assert_eq!(fs::read_dir(mount.path("")).unwrap().count(), 201);
    mount.umount();
    volume.fsck_is_clean();
}

/// To be survived: the store is away, and what it lacks fills a small cache. Who writes waits, and `status` says why; it ends with the outage.
#[test]
fn writes_that_wait_for_room_in_the_cache_are_told() {
    needs_binary!();
    let mut gateway = Gateway::new();
    let volume = volume_on(&gateway).option("--cache-size", "8M");
    let mount = volume.up();
    gateway.stop();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fs::write(mount.path("file"), noise(12, 24 * MIB)).unwrap());
        wait_for("a write to wait", Duration::from_secs(60), || mount.status()["numbers"]["waiting_writes"] == 1);
        let line = |text: String| text.lines().find(|line| line.starts_with("waiting ")).map(String::from);
        wait_for("status to say so", Duration::from_secs(60), || {
            let text = sluice(["status".as_ref(), mount.path("").as_os_str()]).ok().stdout;
            line(text).is_some_and(|line| line.contains("1 write: what is not in the store yet"))
        });
        assert!(!writer.is_finished());
        gateway.start();
        writer.join().unwrap();
    });
    assert!(fs::read(mount.path("file")).unwrap() == noise(12, 24 * MIB));
    wait_for("nothing to wait", Duration::from_secs(60), || mount.status()["numbers"]["waiting_writes"] == 0);
    mount.umount();
    volume.fsck_is_clean();
}
