//! Nodes, killed at any moment under load.

use crate::{noise, number, reader};
use rand::{Rng, SeedableRng, rngs::StdRng};
use sluice_tests::{Server, group::Node, number_from_env, seed, skipped_in_local_mode, wait_for};
use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::Duration,
};

/// A loaded machine, and a name that is free again.
const SOON: Duration = Duration::from_secs(120);
const FILES_MAX: usize = 300;
const NAMES: [&str; 3] = ["one", "two", "three"];

fn content(i: usize) -> Vec<u8> {
    noise(i as u64, 200_000 + 37 * i * i % 600_000)
}

/// Writes files until it is told to stop, or there are enough; `acked` counts those that are closed.
fn write(dir: &Path, stop: &AtomicBool, acked: &AtomicUsize) {
    while !stop.load(SeqCst) && acked.load(SeqCst) < FILES_MAX {
        let i = acked.load(SeqCst);
        fs::write(dir.join(i.to_string()), content(i)).unwrap_or_else(|error| panic!("file {i}: {error}"));
        acked.fetch_add(1, SeqCst);
    }
}

/// The file's bytes, as its mount gets them: not from the kernel's memory.
fn direct(path: &Path) -> io::Result<Vec<u8>> {
    let (mut bytes, flag) = (Vec::new(), libc::O_DIRECT);
    File::options().read(true).custom_flags(flag).open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads files at random until it is told to stop; `reads` counts them.
fn read(dir: &Path, seed: u64, stop: &AtomicBool, acked: &AtomicUsize, reads: &AtomicUsize) {
    let mut random = StdRng::seed_from_u64(seed);
    while !stop.load(SeqCst) {
        let i = random.random_range(0..acked.load(SeqCst));
        let found = direct(&dir.join(i.to_string())).unwrap_or_else(|error| panic!("file {i}: {error}"));
        assert!(found == content(i), "file {i}");
        reads.fetch_add(1, SeqCst);
    }
}

/// Tells the others to stop, also when the test fails.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// To be survived: kill -9 of one node, some or all at random moments, and their start on the same caches, while one mount writes and
/// another reads through them. No read fails, none gets other bytes.
#[test]
fn nodes_at_random_moments_under_load() {
    if skipped_in_local_mode("nodes_at_random_moments_under_load") {
        return;
    }
    let seed = seed("nodes_at_random_moments_under_load");
    let mut random = StdRng::seed_from_u64(seed);
    let rounds = number_from_env("SLUICE_KILL_ROUNDS", 3);
    let server = Server::new();
    let mut nodes = NAMES.map(|name| Node::start(&server, name));
    let writer = server.try_mount("writer", &["--upload-delay", "100ms"]).unwrap_or_else(|ran| panic!("{ran:#?}"));
    let reader = reader(&server, "reader", NAMES.len());
    let (stop, acked, reads) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let stopping = Stopping(&stop);
        let mut workers = vec![scope.spawn(|| write(writer.root(), &stop, &acked))];
        wait_for("a file", SOON, || acked.load(SeqCst) > 0);
        let (from, stop, acked, reads) = (reader.root(), &stop, &acked, &reads);
        workers.extend((0..2).map(|n| scope.spawn(move || read(from, seed + n, stop, acked, reads))));
        let goes_on = |count: usize| {
            let before = reads.load(SeqCst);
            wait_for("reads to go on", SOON, || {
                assert!(!workers[1..].iter().any(|worker| worker.is_finished()), "a read failed");
                reads.load(SeqCst) >= before + count
            });
        };
        for _ in 0..rounds {
            goes_on(random.random_range(1..60));
            let killed = random.random_range(1..1 << NAMES.len());
            let killed: Vec<usize> = (0..NAMES.len()).filter(|n| killed >> n & 1 != 0).collect();
            killed.iter().for_each(|n| nodes[*n].kill9());
            goes_on(random.random_range(1..60));
            killed.iter().for_each(|n| nodes[*n] = Node::start(&server, NAMES[*n]));
        }
        goes_on(60);
        drop(stopping);
        wait_for("the workers to end", SOON, || workers.iter().all(|worker| worker.is_finished()));
    });
    assert!(number(&reader, "group_fetches") > 0, "no node was asked");
    // What lies on their disks now is sound, too.
    writer.umount();
    reader.umount();
    let last = server.try_mount("last", &["--cache", "none"]).unwrap_or_else(|ran| panic!("{ran:#?}"));
    for i in 0..acked.load(SeqCst) {
        assert!(fs::read(last.path(i.to_string())).unwrap() == content(i), "file {i}");
    }
    assert!(number(&last, "group_fetches") > 0);
}
