//! What checking every byte costs: `Pin::read_at` against plain pread of the same slab, all in the page cache.
//!
//!     cargo run --release -p sluice-store --example readbench [DIR [THREADS]]

use sluice_base::{
    Clock, ObjectId, SystemClock, VolumeId,
    crc::segment_crc,
    disk::RealDisk,
    limits::{OBJECT_BYTES, SEGMENT_BYTES},
};
use sluice_store::{Cache, CacheOptions, SLOT_BYTES};
use std::{fs::File, os::unix::fs::FileExt, path::PathBuf, sync::Arc, time::Duration};

const OBJECTS: u32 = 64;
const RUN: Duration = Duration::from_millis(1000);

fn id(number: u32) -> ObjectId {
    let mut bytes = [0x11; 16];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[15] = number as u8;
    ObjectId(bytes)
}

/// Nanoseconds that this thread has run (proc_pid_schedstat(5)).
fn ran_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Calls per second of `read(buffer, random number)` over all threads: of wall time, and of CPU time as if each thread had a
/// core, which a busy machine does not disturb.
fn rate(clock: &SystemClock, threads: u32, bytes: usize, read: impl Fn(&mut [u8], u32) + Sync) -> (f64, f64) {
    let start = clock.monotonic();
    let counts: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let one = |seed: u32| {
            let (read, mut buf, mut random, mut count) = (&read, vec![0; bytes], seed, 0);
            scope.spawn(move || {
                let from = ran_ns();
                while clock.monotonic() - start < RUN {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    read(&mut buf, random >> 8);
                    count += 1;
                }
                (count, ran_ns() - from)
            })
        };
        let running: Vec<_> = (0..threads).map(|thread| one(thread * 7 + 1)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (calls, ran_ns) = counts.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let wall = calls as f64 / (clock.monotonic() - start).as_secs_f64();
    (wall, calls as f64 / (ran_ns.max(1) as f64 / 1e9) * f64::from(threads))
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map_or_else(|| tempfile::tempdir().unwrap().keep(), PathBuf::from);
    let threads = args.next().map_or(2, |threads| threads.parse().expect("a number of threads"));
    let options = CacheOptions { dir: dir.clone(), capacity_bytes: 256 * SLOT_BYTES, volume: VolumeId([1; 16]) };
    let cache = Cache::open(Arc::new(RealDisk), options, Arc::new(SystemClock::default())).unwrap();
    let bytes: Vec<u8> = (0..OBJECT_BYTES as u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    for object in (0..OBJECTS).map(id) {
        for (index, segment) in (0..).zip(bytes.chunks(SEGMENT_BYTES)) {
            cache.fill(object, index, segment, segment_crc(object, index, segment)).unwrap();
        }
    }
    let slab = File::open(dir.join("slab-00000")).unwrap();
    let clock = SystemClock::default();
    println!("{threads} threads, {OBJECTS} objects of 4 MiB in {}", dir.display());
    for bytes in [1 << 20, 128 << 10, 4 << 10] {
        let places = (OBJECT_BYTES / bytes) as u32;
        for round in 0..3 {
            let plain = rate(&clock, threads, bytes, |buf, random| {
                let offset =
                    u64::from(random % OBJECTS) * SLOT_BYTES + u64::from(random / OBJECTS % places) * bytes as u64;
                slab.read_exact_at(buf, offset).unwrap();
            });
            let checked = rate(&clock, threads, bytes, |buf, random| {
                let pin = cache.pin(id(random % OBJECTS)).unwrap();
                pin.read_at(random / OBJECTS % places * bytes as u32, buf).unwrap();
            });
            for (what, plain, checked) in [("wall", plain.0, checked.0), ("CPU", plain.1, checked.1)] {
                let gb = |rate: f64| rate * bytes as f64 / 1e9;
                println!(
                    "{:>5} KiB round {round} {what:>4}: pread {:6.2} GB/s {plain:8.0}/s  pin+read_at {:6.2} GB/s {checked:8.0}/s  ratio {:.2}",
                    bytes >> 10,
                    gb(plain),
                    gb(checked),
                    checked / plain
                );
            }
        }
    }
    drop(cache);
    std::fs::remove_dir_all(dir).unwrap();
}
