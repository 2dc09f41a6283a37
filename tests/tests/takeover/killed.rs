//! Either process is killed on the way. Nobody waits for ever: programs go on, or are told at once (ENOTCONN) and find everything that was acked
//! after the next mount.

use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    mount::UnmountFlags,
    process::{Pid, Signal, kill_process},
};
use sluice_tests::{
    Mount, Stopwatch, Volume, eventually, in_background, needs_binary, noise, number_from_env, seed, wait_for,
};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::Duration,
};

/// An answer or an error; nobody may wait for ever.
const LIMIT: Duration = Duration::from_secs(60);

/// A program that appends synced records of 8 bytes until it is told that the mount is gone.
struct Writer {
    acked: Arc<AtomicU64>,
    program: JoinHandle<io::Error>,
}

impl Writer {
    fn start(mount: &Mount) -> Self {
        let file = File::create(mount.path("records")).unwrap();
        let acked = Arc::new(AtomicU64::new(0));
        let count = acked.clone();
        let program = in_background(move || {
            loop {
                let next = count.load(SeqCst);
                let written = file.write_all_at(&next.to_le_bytes(), next * 8).and_then(|()| file.sync_data());
                if let Err(error) = written {
                    return error;
                }
                count.store(next + 1, SeqCst);
            }
        });
        Self { acked, program }
    }

    #[track_caller]
    fn gets_on(&self) {
        let before = self.acked.load(SeqCst);
        wait_for("the writer to get on", LIMIT, || self.acked.load(SeqCst) > before + 5);
    }

    /// Whether it gets on; it was told that the mount is gone if not.
    #[track_caller]
    fn gets_on_or_was_told(&self) -> bool {
        let before = self.acked.load(SeqCst);
        let more = || self.acked.load(SeqCst) > before + 5;
        wait_for("the writer to get on or to be told", LIMIT, || self.program.is_finished() || more());
        !self.program.is_finished()
    }

    /// It was told at once; what it had acked.
    #[track_caller]
    fn was_told(self) -> u64 {
        assert!(eventually(LIMIT, || self.program.is_finished()), "the writer hangs");
        let error = self.program.join().unwrap();
        // A request that was under way ends with the one, later ones with the other.
        let kind = Errno::from_io_error(&error);
        assert!(matches!(kind, Some(Errno::NOTCONN | Errno::CONNABORTED)), "{error}");
        self.acked.load(SeqCst)
    }
}

/// Mounts the volume of a dead mount again.
#[track_caller]
fn mount_again(mount: &Mount) -> Mount {
    rustix::mount::unmount(mount.root(), UnmountFlags::DETACH).expect("detach the dead mount");
    mount.again()()
}

#[track_caller]
fn check(mount: &Mount, acked: u64) {
    let bytes = fs::read(mount.path("records")).unwrap();
    let found: Vec<u64> = bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect();
    assert!(found.len() as u64 >= acked, "{} of {acked}", found.len());
    assert!(found.into_iter().eq(0..bytes.len() as u64 / 8));
}

/// The last process of a mount that has passed from one to another is killed.
#[test]
fn the_new_process_just_after() {
    needs_binary!();
    let volume = Volume::new();
    kill_the_new_one(volume.up()).umount();
    volume.fsck_is_clean();
}

/// Hands the mount over and kills the new process; the mount that there is then.
pub fn kill_the_new_one(mut mount: Mount) -> Mount {
    fs::write(mount.path("f"), noise(1, 3 << 20)).unwrap();
    let open = File::open(mount.path("f")).unwrap();
    let writer = Writer::start(&mount);
    writer.gets_on();
    mount.take_over();
    mount.kill9_in_place();
    let acked = writer.was_told();
    assert_eq!(Errno::from_io_error(&open.metadata().unwrap_err()), Some(Errno::NOTCONN));
    let mount = mount_again(&mount);
    check(&mount, acked);
    assert!(fs::read(mount.path("f")).unwrap() == noise(1, 3 << 20));
    drop(open);
    mount
}

/// It answers nothing and is then killed: the new one says that there is nothing to be taken over any more.
#[test]
fn the_old_process_before_it_answers() {
    needs_binary!();
    let volume = Volume::new();
    let mut mount = volume.up();
    let writer = Writer::start(&mount);
    writer.gets_on();
    kill_process(Pid::from_raw(mount.pid() as i32).unwrap(), Signal::STOP).unwrap();
    let next = mount.successor(&[]);
    // The question waits in the socket of the stopped process: a descriptor of that one is all that can be seen of it.
    let descriptors = format!("/proc/{}/fd", next.pid());
    let watches = |to: std::path::PathBuf| to.to_string_lossy().contains("pidfd");
    let links = || fs::read_dir(&descriptors).into_iter().flatten().flatten().flat_map(|fd| fs::read_link(fd.path()));
    wait_for("the successor to ask", LIMIT, || links().any(watches));
    mount.kill9_in_place();
    let acked = writer.was_told();
    let (code, log) = next.ended();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("without --takeover"), "{log}");
    let mount = mount_again(&mount);
    check(&mount, acked);
}

/// Somebody else takes the volume's lock in the moment between the two: the new process says what to do, and programs are told.
#[test]
fn a_new_process_that_cannot_open_the_volume() {
    needs_binary!();
    let volume = Volume::new();
    let mut mount = volume.up();
    let writer = Writer::start(&mount);
    writer.gets_on();
    let lock = File::open(volume.dir().join("lock")).unwrap();
    let ino = lock.metadata().unwrap().ino();
    let locked = in_background(move || flock(&lock, FlockOperation::LockExclusive).map(|()| lock));
    // proc_locks(5): `1: -> FLOCK  ADVISORY  WRITE 12 fe:00:34 0 EOF` waits.
    let waits = |line: &str| line.contains("-> FLOCK") && line.contains(&format!(":{ino} "));
    let table = || fs::read_to_string("/proc/locks").unwrap();
    wait_for("the other to wait for the lock", LIMIT, || table().lines().any(waits));
    let (code, log) = mount.successor(&[]).ended();
    assert_eq!(code, Some(1), "{log}");
    let said = ["in use", "ENOTCONN", "nothing acked is lost", "sluice up"];
    assert!(said.iter().all(|words| log.contains(words)), "{log}");
    let acked = writer.was_told();
    drop(locked.join().unwrap().unwrap());
    mount.kill9_in_place();
    let mount = mount_again(&mount);
    check(&mount, acked);
}

/// One of the two at a random moment. Whoever is left serves the mount, or nobody does and programs are told.
#[test]
fn either_at_any_moment() {
    needs_binary!();
    let volume = Volume::new();
    kill_either(volume.up(), "either_at_any_moment").umount();
    volume.fsck_is_clean();
}

/// Kills one of two processes of a mount, again and again; the mount that there is in the end.
pub fn kill_either(mut mount: Mount, test: &str) -> Mount {
    let seed = seed(test);
    let mut random = StdRng::seed_from_u64(seed);
    let mut lived = 0;
    for round in 0..number_from_env("SLUICE_KILL_ROUNDS", 12) {
        let writer = Writer::start(&mount);
        writer.gets_on();
        // Most of what can go wrong is in the first moments; the old one takes longer to end.
        let longest_ms = if random.random() { 40 } else { 400 };
        let (kills_old, after) = (random.random(), Duration::from_millis(random.random_range(0..longest_ms)));
        let (next, watch) = (mount.successor(&[]), Stopwatch::start());
        eventually(after, || watch.elapsed() >= after);
        let is_served = match kills_old {
            true => {
                mount.kill9_in_place();
                mount.is_succeeded_by(next)
            }
            false => {
                next.kill9();
                writer.gets_on_or_was_told()
            }
        };
        let context = format!("round {round}, kills_old {kills_old}, after {after:?}, SLUICE_SEED={seed}");
        eprintln!("{context}: served {is_served}");
        if is_served {
            lived += 1;
            writer.gets_on();
        }
        if is_served || !kills_old {
            mount.kill9_in_place();
        }
        let acked = writer.was_told();
        mount = mount_again(&mount);
        check(&mount, acked);
    }
    eprintln!("{lived} rounds went on");
    mount
}
