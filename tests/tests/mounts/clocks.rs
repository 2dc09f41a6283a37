//! Hosts whose wall clocks are wrong.

use std::{
    fs::{self, File, FileTimes},
    os::unix::fs::MetadataExt,
    time::{Duration, UNIX_EPOCH},
};

use sluice_tests::{Locker, Mount, Server, Stopwatch, WrongClock, skipped_in_local_mode, sluice, wait_for};

use crate::{noise, read};

const LEASE: Duration = Duration::from_secs(3);
const HOUR: i64 = 3600;
/// Far less than an hour, and more than the test takes.
const NEAR: i64 = 600;
/// A loaded machine and a restart.
const SOON: Duration = Duration::from_secs(120);

/// To be survived: the clocks of two mounts are an hour before and an hour behind their server's, and the server is started again with
/// yet another one. Leases, locks and close-to-open go by what has passed, and a file's times are the same for both.
#[test]
fn an_hour_apart() {
    if skipped_in_local_mode("an_hour_apart") {
        return;
    }
    let (clock, mut server) = (WrongClock::new(), Server::with(&["--lease", "3s"]));
    let [ahead, behind] = [("ahead", HOUR), ("behind", -HOUR)].map(|(name, by)| {
        server.set_env(clock.by(by));
        server.mount(name)
    });
    let now = tempfile::NamedTempFile::new().unwrap().as_file().metadata().unwrap().mtime();
    fs::write(behind.path("lock"), b"-").unwrap();
    let (mut first, mut second) = (Locker::new(ahead.path("lock")), Locker::new(behind.path("lock")));
    assert_eq!((first.ask("flock(EX)"), first.ask("record(EX, 0, 1)")), ("ok".into(), "ok".into()));
    let refused = sluice_tests::told(rustix::io::Errno::AGAIN);

    // For some leases; of one length, so that only its times could tell what is new.
    let (watch, mut round) = (Stopwatch::start(), 0);
    while round < 10 || watch.elapsed() < 3 * LEASE {
        let (from, to, by) = if round % 2 == 0 { (&ahead, &behind, HOUR) } else { (&behind, &ahead, -HOUR) };
        let bytes = noise(round, 50_000);
        fs::write(from.path("f"), &bytes).unwrap();
        assert!(read(to.path("f")).unwrap() == bytes, "round {round}");
        let time = |mount: &Mount| fs::metadata(mount.path("f")).unwrap().mtime();
        assert!((time(from) - now - by).abs() < NEAR, "its writer's clock: {} at {now}", time(from));
        wait_for("the other mount to tell the same time", SOON, || time(from) == time(to));
        round += 1;
    }
    let given = UNIX_EPOCH + Duration::from_secs(12_345);
    File::open(ahead.path("f")).unwrap().set_times(FileTimes::new().set_modified(given)).unwrap();
    wait_for("the time to be seen", SOON, || fs::metadata(behind.path("f")).unwrap().mtime() == 12_345);

    // What is held is held, and nobody's lease has ended.
    assert_eq!((second.ask("flock(EX)"), second.ask("record(SH, 0, 1)")), (refused.clone(), refused));
    assert!(!server.log().contains("the lease of a session ended"), "{}", server.log());
    let status = sluice(["status", &server.meta(), "--json"]).ok().json();
    assert_eq!(status["totals"]["sessions"]["live"], 2, "{status}");

    server.set_env(clock.by(-2 * HOUR));
    server.kill9();
    server.start();
    fs::write(behind.path("f"), b"to a server of yesterday").unwrap();
    assert_eq!(read(ahead.path("f")).unwrap(), b"to a server of yesterday");
    assert_ne!(second.ask("flock(EX)"), "ok", "locks outlive a server");

    // A lease ends when it has passed, whatever the clock says.
    second.tell("[flock_wait(EX), wait(EX, 0, 1)]");
    ahead.kill9();
    drop(first);
    wait_for("the lease to end", SOON, || server.log().contains("the lease of a session ended"));
    assert_eq!(second.answer(), "['ok', 'ok']");
    drop(second);
    behind.umount();
}
