//! Loss of power, over the whole binary and the kernel's own ext4.
//!
//! The volume lies on an ext4 file system on a loop device, whose disk is in memory and records each write and each flush in order
//! ([`disk`], [`drive`]). A seeded program changes the volume ([`workload`]) and notes where the recording stood when each call
//! began and returned ([`model`]). Then, for points of the recording, the disk is rebuilt as a loss of power may have left it: what
//! was written before the last flush is there, what was written since may be there, in any part. ext4 replays its own log, the
//! volume is started on it, and has to hold a state that the promises of docs/semantics.md allow ([`check`]).
//!
//! What must be survived: everything that had returned before the last sync that had returned is there, exactly; what came later is
//! there up to some change, in order, and nothing of what came behind it; bytes of a write of 128 KiB and more that was not synced may
//! be EIO, never anything else; where nothing is, fsck finds nothing; opening the same disk twice gives the same, and so does a further loss of
//! power at any point of the start, or of what follows it.
//!
//! | variable | meaning |
//! |---|---|
//! | `SLUICE_POWER_CHANGES` | changes of the workload |
//! | `SLUICE_POWER_CUTS` | points to cut at, spread by chance; 0: every one |
//! | `SLUICE_POWER_FIRST`, `SLUICE_POWER_LAST` | with 0 cuts: the points to begin and to end at, for a long run in parts |
//! | `SLUICE_POWER_KINDS` | kinds of damage (what survives) at each point, by turns; by default 2 where there are few points, else all 5. Where it is named one disk in 8 is looked at from all sides, the others are started and compared once: with 0 cuts 40 minutes for all 5, ten for 1 |
//! | `SLUICE_SEED` | of the workload, of the points and of what survives; fixed by default. When the volume syncs and stores by itself is the scheduler's |

mod check;
mod disk;
mod drive;
mod findings;
mod host;
mod model;
mod workload;

use std::{
    collections::BTreeSet,
    fs::{self, File},
};

use disk::{Recording, Survivors};
use host::Host;
use rand::{Rng, SeedableRng, rngs::StdRng};
use sluice_tests::{Scratch, Stopwatch, needs_binary, number_from_env};

const SEED: u64 = 20;
const CHANGES: u64 = 500;
/// As many as fit into a minute or so.
const CUTS: u64 = 20;
/// With kinds of damage left out, one in so many disks is looked at from all sides.
const WHOLE_SHARE: usize = 8;

#[test]
fn a_loss_of_power_takes_nothing_that_was_synced() {
    needs_binary!();
    let seed = number_from_env("SLUICE_SEED", SEED);
    let host = Host::new();
    let watch = Stopwatch::start();
    let (recording, history) = workload::record(&host, seed, number_from_env("SLUICE_POWER_CHANGES", CHANGES));
    eprintln!(
        "power: SLUICE_SEED={seed}: {} writes of {} MiB and {} flushes recorded in {:?}",
        recording.len() - recording.flushes(),
        recording.bytes() >> 20,
        recording.flushes(),
        watch.elapsed(),
    );
    let mut rng = StdRng::seed_from_u64(seed);
    let cuts = choose(&recording, history.made, &mut rng);
    let (mut count, mut lost_bytes) = (0, 0);
    let mut cutter = recording.cutter();
    for &cut in &cuts {
        for survivors in survivors(&recording, cut, cuts.len(), count) {
            let mut rng = StdRng::seed_from_u64(seed ^ cut as u64);
            let image = cutter.cut(cut, survivors, &mut rng);
            let context = format!("cut {cut} of {}, {survivors:?}, SLUICE_SEED={seed}", recording.len());
            let told = OnPanic(&context);
            let again = is_whole(cuts.len(), count).then_some(&mut rng);
            let seen = check::check(&host, &image, &history, cut, again).unwrap_or_else(|e| panic!("{context}: {e}"));
            std::mem::forget(told);
            (count, lost_bytes) = (count + 1, lost_bytes + seen.lost_bytes);
        }
        if cuts.len() as u64 > CUTS {
            eprintln!("power: point {cut}, {count} disks checked in {:?}", watch.elapsed());
        }
    }
    eprintln!("power: {count} disks at {} points checked in {:?}, {lost_bytes} bytes EIO", cuts.len(), watch.elapsed());
}

#[test]
fn a_loss_of_power_while_a_volume_is_made() {
    needs_binary!();
    let host = Host::new();
    let (recording, history) = workload::record(&host, SEED, 0);
    let all: Vec<_> = (0..=history.made).flat_map(|cut| Survivors::EVERY.map(|survivors| (cut, survivors))).collect();
    // Those where something is in doubt, and of these so many that the test stays short.
    let doubtful: Vec<_> = all.into_iter().filter(|(cut, _)| recording.in_doubt(*cut) > 0).collect();
    let every = number_from_env("SLUICE_POWER_CUTS", CUTS) == 0;
    let step = if every { 1 } else { doubtful.len().div_ceil(CUTS as usize) };
    for &(cut, survivors) in doubtful.iter().step_by(step) {
        let context = format!("cut {cut} of {} while the volume was made, {survivors:?}", history.made);
        let image = recording.cut(cut, survivors, &mut StdRng::seed_from_u64(cut as u64));
        let told = OnPanic(&context);
        check::check_new(&host, image).unwrap_or_else(|e| panic!("{context}: {e}"));
        std::mem::forget(told);
    }
}

/// The disk itself: a test on one that loses nothing, or syncs by itself, would prove nothing.
#[test]
fn the_disk_keeps_what_was_synced_and_may_forget_the_rest() {
    let (host, place) = (Host::new(), Scratch::new());
    let path = place.path().join("disk");
    let mounted = host.mount(host.format(), &path);
    fs::write(path.join("synced"), b"synced").unwrap();
    File::open(path.join("synced")).unwrap().sync_all().unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let synced = mounted.disk.position();
    // Past the page cache: the drive has it, and was not told to keep it.
    fs::write(path.join("not"), [1; 4096]).unwrap();
    rustix::fs::syncfs(File::open(&path).unwrap()).unwrap();
    let recording = mounted.disk.recording();
    drop(mounted);
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut names = |cut, survivors| {
        let mounted = host.mount(recording.cut(cut, survivors, &mut rng), &path);
        let names = [path.join("synced").exists(), path.join("not").exists()];
        drop(mounted);
        names
    };
    let end = recording.len();
    assert_eq!(names(synced, Survivors::All), [true, false]);
    assert_eq!(names(end, Survivors::All), [true, true]);
    assert!(Survivors::EVERY.iter().all(|survivors| names(synced, *survivors)[0]));
    // The record that commits the second file: written, and not flushed yet.
    let forgets = |cut: usize| !names(cut, Survivors::None)[1] && names(cut, Survivors::All)[1];
    assert!((synced..end).any(forgets), "every write was flushed at once");
}

/// Says which disk it was when a check panics.
struct OnPanic<'a>(&'a str);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        eprintln!("{}", self.0);
    }
}

/// The points to cut at, in order. Half of them are where a flush was about to come, with the most in doubt.
fn choose(recording: &Recording, made: usize, rng: &mut StdRng) -> BTreeSet<usize> {
    let (count, end) = (number_from_env("SLUICE_POWER_CUTS", CUTS) as usize, recording.len());
    if count == 0 {
        let point = |name, default: usize| number_from_env(name, default as u64) as usize;
        return (point("SLUICE_POWER_FIRST", made)..=point("SLUICE_POWER_LAST", end).min(end)).collect();
    }
    let before_flush: Vec<_> =
        (made..end).filter(|cut| recording.in_doubt(*cut) > recording.in_doubt(*cut + 1)).collect();
    let mut cuts = BTreeSet::new();
    while cuts.len() < count.min(end - made) {
        let cut = if cuts.len() % 2 == 0 {
            rng.random_range(made..=end)
        } else {
            before_flush[rng.random_range(0..before_flush.len())]
        };
        cuts.insert(cut);
    }
    cuts
}

/// Kinds of damage at each point, where that was told.
fn kinds() -> Option<usize> {
    Some(number_from_env("SLUICE_POWER_KINDS", 0) as usize).filter(|kinds| *kinds > 0)
}

/// What survives at a point: every kind when there is time, else one after the other.
fn survivors(recording: &Recording, cut: usize, points: usize, count: usize) -> Vec<Survivors> {
    let number = Survivors::EVERY.len();
    let kinds = kinds().unwrap_or(if points as u64 > CUTS { number } else { 2 }).min(number);
    match recording.in_doubt(cut) {
        0 => vec![Survivors::All],
        // Neighbours of a kind are alike.
        _ => (0..kinds).map(|turn| Survivors::EVERY[(count + 2 * turn) % number]).collect(),
    }
}

/// Whether a disk is looked at from all sides.
fn is_whole(points: usize, count: usize) -> bool {
    kinds().is_none() || points as u64 <= CUTS || count.is_multiple_of(WHOLE_SHARE)
}
