//! A store that is there and does not do what it should: refuses, answers late or never, lies.

use std::{
    fs::{self, File},
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sluice_tests::{Answer, Asked, Front, Gateway, Mount, Stopwatch, Volume, in_background, wait_for};

use crate::{needs_binary, noise};

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// A volume whose store is seen through a front.
fn volume_behind(gateway: &Gateway, front: &Front) -> Volume {
    gateway.bucket("bucket");
    let store = Gateway::url_by(front.port(), "bucket", "volume");
    gateway.credentials(Volume::new()).option("--store", store).option("--upload-delay", "100ms")
}

fn forget_cache(volume: &Volume) {
    fs::remove_dir_all(volume.dir().join("cache")).unwrap();
}

fn everything_is_stored(mount: &Mount) -> bool {
    mount.status()["numbers"]["dirty_bytes"] == 0
}

/// Files below a directory.
fn count_files(dir: &std::path::Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { count_files(&entry.path()) } else { 1 }).sum()
}

/// To be survived: a minute in which the store refuses everything. Writes and syncs go on; a read that needs the store waits, and gets its bytes;
/// the store is asked ever less often meanwhile.
#[test]
fn a_minute_of_slow_down() {
    needs_binary!();
    let gateway = Gateway::new();
    let front = Front::new(gateway.port());
    let volume = volume_behind(&gateway, &front);
    let mount = volume.up();
    fs::write(mount.path("cold"), noise(1, 3 * MIB)).unwrap();
    mount.umount();
    forget_cache(&volume);
    let mount = volume.up();
    let before = front.asked();
    front.set_mood(|_| Answer::Busy);
    let watch = Stopwatch::start();
    let reader = {
        let path = mount.path("cold");
        in_background(move || fs::read(path))
    };
    let mut slowest = Duration::ZERO;
    for n in 0..60u64 {
        let round = Stopwatch::start();
        let mut file = File::create_new(mount.path(format!("{n}"))).unwrap();
        file.write_all(&noise(100 + n, 150_000)).unwrap();
        file.sync_all().unwrap();
        slowest = slowest.max(round.elapsed());
        wait_for("the next second", LIMIT, || watch.elapsed() > Duration::from_secs(n));
    }
    let asked = front.asked() - before;
    front.set_mood(|_| Answer::Right);
    assert!(slowest < Duration::from_secs(10), "the store's refusals were felt: {slowest:?}");
    assert!(asked > 10 && asked < 1500, "{asked} requests in a minute");
    assert!(reader.join().unwrap().expect("a read that waited") == noise(1, 3 * MIB));
    wait_for("the uploads", LIMIT, || everything_is_stored(&mount));
    assert!(mount.status()["numbers"]["store"]["retries"].as_u64() > Some(0));
    mount.umount();
    forget_cache(&volume);
    let mount = volume.up();
    for n in 0..60u64 {
        assert!(fs::read(mount.path(format!("{n}"))).unwrap() == noise(100 + n, 150_000), "file {n}");
    }
    mount.umount();
    volume.fsck_is_clean();
}

/// Gives `answer` to the first `count` requests that are `meant`.
fn at_first(
    count: u64,
    meant: impl Fn(&Asked) -> bool + Send + Sync + 'static,
    answer: Answer,
) -> (Arc<AtomicU64>, impl Fn(&Asked) -> Answer + Send + Sync + 'static) {
    let given = Arc::new(AtomicU64::new(0));
    let counter = given.clone();
    let mood = move |asked: &Asked| {
        if meant(asked) && counter.fetch_add(1, Ordering::SeqCst) < count { answer } else { Answer::Right }
    };
    (given, mood)
}

fn is_upload(asked: &Asked) -> bool {
    asked.method == "PUT" && asked.is_of_object()
}

/// To be survived: the store takes objects and says nothing. They are not stored twice, and not taken for lost.
#[test]
fn puts_that_succeed_without_an_answer() {
    needs_binary!();
    let gateway = Gateway::new();
    let front = Front::new(gateway.port());
    let volume = volume_behind(&gateway, &front);
    let mount = volume.up();
    let (given, mood) = at_first(5, is_upload, Answer::Lost);
    front.set_mood(mood);
    for n in 0..3u64 {
        fs::write(mount.path(format!("{n}")), noise(n, 5 * MIB)).unwrap();
    }
    wait_for("the uploads", LIMIT, || everything_is_stored(&mount));
    assert!(given.load(Ordering::SeqCst) >= 5);
    mount.umount();
    volume.fsck_is_clean();
    forget_cache(&volume);
    let mount = volume.up();
    for n in 0..3u64 {
        assert!(fs::read(mount.path(format!("{n}"))).unwrap() == noise(n, 5 * MIB), "file {n}");
    }
    mount.umount();
    let found = volume.sluice(["gc".as_ref(), volume.dir().as_os_str(), "--json".as_ref()]).ok().json();
    assert_eq!(found["unknown"]["objects"], 0, "{found}");
}

/// To be survived: a kill -9 when the store has an object and the volume does not know it yet.
#[test]
fn a_kill_between_upload_and_commit() {
    needs_binary!();
    let gateway = Gateway::new();
    let front = Front::new(gateway.port());
    let volume = volume_behind(&gateway, &front);
    let mount = volume.up();
    let (given, mood) = at_first(u64::MAX, is_upload, Answer::Held);
    front.set_mood(mood);
    let bytes = noise(8, 9 * MIB);
    fs::write(mount.path("file"), &bytes).unwrap();
    let objects = gateway.buckets().join("bucket/volume/objects");
    wait_for("objects in the store", LIMIT, || given.load(Ordering::SeqCst) >= 2 && count_files(&objects) >= 2);
    assert!(mount.status()["numbers"]["dirty_objects"].as_u64() >= Some(2), "nobody knows that they are there");
    mount.kill9();
    front.set_mood(|_| Answer::Right);
    let mount = volume.up();
    assert!(fs::read(mount.path("file")).unwrap() == bytes);
    wait_for("the uploads", LIMIT, || everything_is_stored(&mount));
    mount.umount();
    volume.fsck_is_clean();
    forget_cache(&volume);
    let mount = volume.up();
    assert!(fs::read(mount.path("file")).unwrap() == bytes);
    mount.umount();
}

/// To be survived: answers that end early, under a length that is right or one that is not.
#[test]
fn a_store_that_lies_about_lengths() {
    needs_binary!();
    let gateway = Gateway::new();
    let front = Front::new(gateway.port());
    let volume = volume_behind(&gateway, &front);
    let mount = volume.up();
    let bytes = noise(9, 12 * MIB);
    fs::write(mount.path("file"), &bytes).unwrap();
    mount.umount();
    for answer in [Answer::CutOff, Answer::Short] {
        forget_cache(&volume);
        let mount = volume.up();
        let (given, mood) = at_first(6, |asked| asked.method == "GET" && asked.is_of_object(), answer);
        front.set_mood(mood);
        let read = fs::read(mount.path("file"));
        assert!(given.load(Ordering::SeqCst) >= 6, "it was asked");
        assert!(read.unwrap() == bytes, "{answer:?}");
        front.set_mood(|_| Answer::Right);
        mount.umount();
    }
}
