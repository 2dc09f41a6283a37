//! Mounts and the server, killed at any moment under load.

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use sluice_tests::{Mount, Server, number_from_env, seed, skipped_in_local_mode, wait_for};

use crate::noise;

/// A loaded machine, a restart, and a lease in between.
const SOON: Duration = Duration::from_secs(120);

/// What the writer of `round` puts into its file `i`.
fn content(round: u64, who: &str, i: usize) -> Vec<u8> {
    noise(round << 32 | u64::from(who.as_bytes()[0]) << 16 | i as u64, 37 * i * i % 60_000 + 1)
}

fn name(round: u64, who: &str, i: usize) -> String {
    format!("{who}-{round}-{i}")
}

/// Writes a file and gives it its name in one step.
fn put(dir: &Path, round: u64, who: &str, i: usize) -> io::Result<()> {
    let (part, whole) = (dir.join(format!("part-{who}")), dir.join(name(round, who, i)));
    crate::put(&part, &content(round, who, i))?;
    fs::rename(part, whole)
}

/// Puts files into the directory `root` until it is told to stop or its mount is gone; `acked` counts those whose names are acked.
fn write(root: &File, round: u64, who: &str, stop: &AtomicBool, acked: &AtomicUsize) {
    // Not by its path, where another directory is once the mount is gone.
    let dir = PathBuf::from(format!("/proc/{}/fd/{}", process::id(), root.as_raw_fd()));
    while !stop.load(SeqCst) && put(&dir, round, who, acked.load(SeqCst)).is_ok() {
        acked.fetch_add(1, SeqCst);
    }
}

fn check(mount: &Mount, round: u64, who: &str, count: usize) {
    for i in 0..count {
        let found = fs::read(mount.path(name(round, who, i)));
        assert!(found.as_ref().is_ok_and(|found| *found == content(round, who, i)), "{who}, round {round}, file {i}");
    }
}

/// Tells the writers to stop, also when the test fails.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// To be survived: kill -9 of the server, of a mount, or of both, at random moments while two mounts write. What was acked is there for
/// both afterwards, and the volume is sound.
#[test]
fn at_random_moments_under_load() {
    if skipped_in_local_mode("at_random_moments_under_load") {
        return;
    }
    let mut random = StdRng::seed_from_u64(seed("at_random_moments_under_load"));
    let rounds = number_from_env("SLUICE_KILL_ROUNDS", 4);
    let mut server = Server::with(&["--lease", "3s"]);
    let (mut a, b) = (server.mount("a"), server.mount("b"));
    for round in 0..rounds {
        let (stop, acked) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
        let (kills_server, kills_mount) = [(true, false), (false, true), (true, true)][random.random_range(0..3)];
        let again = a.again();
        let (at_a, at_b) = (File::open(a.root()).unwrap(), File::open(b.root()).unwrap());
        let mut first = Some(a);
        thread::scope(|scope| {
            let stopping = Stopping(&stop);
            let writers = [
                scope.spawn(|| write(&at_a, round, "a", &stop, &acked[0])),
                scope.spawn(|| write(&at_b, round, "b", &stop, &acked[1])),
            ];
            let after = random.random_range(1..60);
            wait_for("some files to be written", SOON, || acked.iter().all(|acked| acked.load(SeqCst) >= after));
            if kills_server {
                server.kill9();
            }
            if kills_mount {
                first.take().expect("it runs").kill9();
            }
            if kills_server {
                server.start();
            }
            let before = acked[1].load(SeqCst);
            wait_for("the other mount to go on", SOON, || acked[1].load(SeqCst) > before + 3);
            drop(stopping);
            wait_for("the writers to end", SOON, || writers.iter().all(|writer| writer.is_finished()));
        });
        a = first.unwrap_or_else(again);
        for mount in [&a, &b] {
            check(mount, round, "a", acked[0].load(SeqCst));
            check(mount, round, "b", acked[1].load(SeqCst));
        }
    }
    a.umount();
    b.umount();
    server.stop();
    server.volume().fsck_is_clean();
}
