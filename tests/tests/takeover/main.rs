//! A mount passes from one process to the next (`up --takeover`, `mount --takeover`), and programs notice nothing.

mod killed;
mod load;
mod map;
mod refusals;
mod served;

use load::{Load, Written};
use map::Map;
use rustix::{
    fs::{CWD, Mode, OFlags, RawDir, openat},
    io::Errno,
};
use sluice_tests::{Locker, Mount, Stopwatch, Volume, needs_binary, noise, told, wait_for};
use std::{
    collections::HashSet,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

const TIMES: u64 = 3;
const NAMES: usize = 3000;
const LIMIT: Duration = Duration::from_secs(60);

/// A directory that is read piece by piece.
struct Listing {
    dir: OwnedFd,
    seen: Vec<String>,
}

impl Listing {
    fn new(path: &Path) -> Self {
        let dir = openat(CWD, path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        Self { dir, seen: Vec::new() }
    }

    /// One getdents64; false at the end.
    fn go_on(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(&self.dir, &mut buffer);
        let before = self.seen.len();
        while let Some(entry) = entries.next() {
            self.seen.push(entry.unwrap().file_name().to_str().unwrap().to_owned());
            if entries.is_buffer_empty() {
                break;
            }
        }
        self.seen.len() > before
    }
}

/// A shell that stands in a directory and repeats a file of it.
struct Inside(Child);

impl Inside {
    fn new(dir: &Path) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "while read name; do cat $name; done"]).current_dir(dir);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn read(&mut self, name: &str) -> String {
        writeln!(self.0.stdin.as_mut().unwrap(), "{name}").unwrap();
        let mut line = String::new();
        // The file has one line, so nothing is left in this reader.
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An open file that has no name any more.
fn unlinked(mount: &Mount) -> File {
    let path = mount.path("unlinked");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&noise(7, 300_000), 0).unwrap();
    fs::remove_file(&path).unwrap();
    file
}

#[test]
fn what_programs_do_goes_on_over_three_of_them() {
    needs_binary!();
    let volume = Volume::new();
    let left = goes_on(volume.up());
    let mount = volume.up();
    left.check(&mount);
    mount.umount();
    volume.fsck_is_clean();
}

/// What programs have left in a mount that was handed over.
struct Left(Written);

impl Left {
    /// It is all there.
    fn check(&self, mount: &Mount) {
        self.0.check(mount);
        let bytes = fs::read(mount.path("mapped")).unwrap();
        assert!((1..=TIMES).all(|round| bytes[round as usize * 5000] == round as u8));
    }
}

/// What programs do in a mount goes on over some hand-overs, until it is unmounted.
fn goes_on(mut mount: Mount) -> Left {
    fs::create_dir(mount.path("names")).unwrap();
    let wanted: HashSet<String> = (0..NAMES).map(|i| format!("a-name-of-some-length-{i}")).collect();
    wanted.iter().for_each(|name| drop(File::create(mount.path("names").join(name)).unwrap()));
    fs::create_dir(mount.path("inside")).unwrap();
    fs::write(mount.path("inside/here"), "still here\n").unwrap();
    for name in ["flock", "record", "mapped"] {
        fs::write(mount.path(name), vec![0; Map::LEN]).unwrap();
    }

    let mut listing = Listing::new(&mount.path("names"));
    assert!(listing.go_on());
    let mut inside = Inside::new(&mount.path("inside"));
    let nameless = unlinked(&mount);
    fs::create_dir(mount.path("gone")).unwrap();
    let gone = File::open(mount.path("gone")).unwrap();
    fs::remove_dir(mount.path("gone")).unwrap();
    let [mut holds, mut waits, mut tries] = [(); 3].map(|()| Locker::new(mount.path("flock")));
    assert_eq!(holds.ask("flock(EX)"), "ok");
    waits.tell("flock_wait(EX)");
    let [mut holds_record, mut waits_record, mut tries_record] = [(); 3].map(|()| Locker::new(mount.path("record")));
    assert_eq!(holds_record.ask("record(EX, 10, 5)"), "ok");
    waits_record.tell("wait(EX, 12, 1)");
    let mapped = Map::new(&File::options().read(true).write(true).open(mount.path("mapped")).unwrap());
    let load = Load::start(&mount);

    for round in 1..=TIMES {
        load.wait_for_more();
        mapped.set(round as usize * 5000, round as u8);
        nameless.write_all_at(&noise(round, 50_000), round * 100_000).unwrap();
        let (former, watch) = (mount.pid(), Stopwatch::start());
        mount.take_over();
        eprintln!("takeover {round}: {:?}", watch.elapsed());
        assert!(mount.pid() != former && mount.status()["pid"] == mount.pid(), "{}", mount.log());
        load.wait_for_more();

        let listed = listing.seen.len();
        assert!(listing.go_on() && listing.seen.len() > listed);
        assert_eq!(inside.read("here"), "still here\n");
        assert_eq!((nameless.metadata().unwrap().nlink(), gone.metadata().unwrap().nlink()), (0, 0));
        let mut bytes = vec![0; 50_000];
        nameless.read_exact_at(&mut bytes, round * 100_000).unwrap();
        assert!(bytes == noise(round, 50_000));
        nameless.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == noise(7, 300_000)[..50_000]);
        assert_eq!(tries.ask("flock(EX)"), told(Errno::AGAIN));
        assert_eq!(tries_record.ask("in_the_way(EX, 0, 0)"), "EX 10 5");
        for earlier in 1..=round {
            assert_eq!(mapped.get(earlier as usize * 5000), earlier as u8);
        }
    }

    assert_eq!((holds.ask("flock(UN)"), waits.answer()), ("ok".into(), "ok".into()));
    assert_eq!((holds_record.ask("record(UN, 0, 0)"), waits_record.answer()), ("ok".into(), "ok".into()));
    while listing.go_on() {}
    let listed: Vec<_> = listing.seen.iter().filter(|name| *name != "." && *name != "..").cloned().collect();
    assert_eq!(listed.len(), NAMES, "a name was listed twice or not at all");
    assert_eq!(listed.into_iter().collect::<HashSet<_>>(), wanted);
    mapped.sync();
    let written = load.stop();
    drop((nameless, gone, mapped, listing, inside, holds, waits, tries, holds_record, waits_record, tries_record));
    // What has no name goes with its last user, also of a process that never saw its name.
    let wanted = inodes_with_names(&mount);
    wait_for("the nameless to go", LIMIT, || rustix::fs::statvfs(mount.root()).unwrap().f_files == wanted);

    // A program that another test is about to start has what this one has open, until it runs.
    wait_for("the mount to be free", LIMIT, || mount.try_umount().code == Some(0));
    let (code, log) = mount.wait_for_the_end();
    assert_eq!(code, Some(0), "{log}");
    Left(written)
}

/// Inodes that statfs shows when nothing is without a name.
fn inodes_with_names(mount: &Mount) -> u64 {
    const FREE: u64 = 1 << 32;
    fn below(dir: &Path) -> u64 {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| if entry.file_type().unwrap().is_dir() { 1 + below(&entry.path()) } else { 1 }).sum()
    }
    FREE + 1 + below(mount.root())
}
