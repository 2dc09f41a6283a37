//! kill -9 at random moments under load.
//!
//! What must be survived: everything for which a call had returned success is there, exactly; the one call of each
//! writer that was under way may have happened, not happened or (a write) have reached part of its range; no byte is
//! there that nobody wrote; fsck finds nothing. `SLUICE_KILL_ROUNDS` sets the number of kills, `SLUICE_SEED` repeats
//! their order (not their moments, which the scheduler decides).

mod writer;

use std::{sync::atomic::AtomicBool, sync::atomic::Ordering, time::Duration};

use rand::{Rng, SeedableRng, rngs::StdRng};
use sluice_tests::{Stopwatch, Volume, eventually, number_from_env, seed, skipped_in_local_mode};
use writer::Writer;

const WRITERS: u64 = 4;
/// The process is killed after a time between these two: some kills hit the start of the load, some a full journal.
const LOAD_MS_MIN: u64 = 20;
const LOAD_MS_MAX: u64 = 1500;

#[test]
fn kill_9_under_load_loses_nothing_acknowledged() {
    if skipped_in_local_mode("crash") {
        return;
    }
    let seed = seed("crash");
    let mut rng = StdRng::seed_from_u64(seed);
    let rounds = number_from_env("SLUICE_KILL_ROUNDS", 10);
    let volume = Volume::new();
    let mut mount = volume.up();
    let mut writers: Vec<_> = (0..WRITERS).map(|i| Writer::new(mount.root(), i, seed)).collect();
    for round in 0..rounds {
        let load = Duration::from_millis(rng.random_range(LOAD_MS_MIN..LOAD_MS_MAX));
        let killed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in &mut writers {
                scope.spawn(|| writer.work(&killed));
            }
            let watch = Stopwatch::start();
            eventually(load, || watch.elapsed() >= load);
            // Told before the kill, so that a writer does not take the errors that follow for failures.
            killed.store(true, Ordering::SeqCst);
            mount.kill9();
        });
        mount = volume.up();
        for writer in &mut writers {
            writer.verify().unwrap_or_else(|e| panic!("round {round}, load {load:?}, SLUICE_SEED={seed}: {e}"));
        }
        if round % 3 == 2 || round == rounds - 1 {
            mount.umount();
            volume.fsck_is_clean();
            mount = volume.up();
            for writer in &mut writers {
                writer.verify().unwrap_or_else(|e| panic!("round {round}, after umount, SLUICE_SEED={seed}: {e}"));
            }
        }
    }
    let calls: u64 = writers.iter().map(|w| w.acknowledged).sum();
    eprintln!("crash: {rounds} kills, {calls} calls acknowledged and verified");
    assert!(calls > rounds * WRITERS, "hardly anything was written between the kills");
}

/// The load and the checks themselves, on a plain directory: no kill, so nothing may be missing at all.
#[test]
fn the_writers_agree_with_a_directory_that_never_crashes() {
    let seed = seed("crash");
    let scratch = sluice_tests::Scratch::new();
    let mut writer = Writer::new(scratch.path(), 0, seed);
    for _ in 0..5 {
        writer.steps(200);
        writer.verify().unwrap_or_else(|e| panic!("SLUICE_SEED={seed}: {e}"));
    }
    writer.spoil();
    writer.verify().expect_err("a changed byte must be found");
}

#[test]
fn up_again_over_the_dead_mount_point() {
    if skipped_in_local_mode("dead mount point") {
        return;
    }
    let volume = Volume::new();
    let mount = volume.up();
    std::fs::write(mount.path("f"), b"written before the crash").unwrap();
    mount.kill9_and_leave_the_mount_point();
    let (dir, mountpoint) = (volume.dir(), volume.mountpoint());
    // Detached, because only the command knows when the new mount has replaced the dead one.
    volume.sluice(["up".as_ref(), dir.as_os_str(), mountpoint.as_os_str(), "-d".as_ref()]).ok();
    assert_eq!(std::fs::read(mountpoint.join("f")).unwrap(), b"written before the crash");
    volume.sluice(["umount".as_ref(), mountpoint.as_os_str()]).ok();
    volume.fsck_is_clean();
}
