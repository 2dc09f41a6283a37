//! Programs at work while a mount passes from one process to the next: one writes, one reads, one appends, one makes and removes names.

use sluice_tests::{Mount, in_background, noise, wait_for};
use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(60);
const READ_LEN: usize = 9 << 20;
/// Not a multiple of a page: small writes go by way of the journal, the large one straight into a slot.
const BLOCKS: [usize; 3] = [3_000, 70_000, 300_000];
/// The writer goes round in so many blocks of the largest size.
const PLACES: u64 = 40;

/// The programs. Each counts what it has done.
pub struct Load {
    stop: Arc<AtomicBool>,
    done: [Arc<AtomicU64>; 4],
    programs: Vec<JoinHandle<()>>,
}

/// A program: its place, when to stop, and what it counts.
type Program = fn(PathBuf, &AtomicBool, &AtomicU64);

/// What they have left.
pub struct Written {
    blocks: u64,
    lines: u64,
}

fn block(number: u64) -> Vec<u8> {
    noise(number << 8 | 1, BLOCKS[number as usize % BLOCKS.len()])
}

fn place(number: u64) -> u64 {
    number % PLACES * BLOCKS[2] as u64
}

fn line(number: u64) -> String {
    format!("line {number}\n")
}

impl Load {
    pub fn start(mount: &Mount) -> Self {
        fs::write(mount.path("read"), noise(3, READ_LEN)).unwrap();
        let works: [(&str, Program); 4] = [("written", write), ("read", read), ("appended", append), ("churn", churn)];
        let stop = Arc::new(AtomicBool::new(false));
        let done: [Arc<AtomicU64>; 4] = Default::default();
        let begin = |(done, (name, work)): (&Arc<AtomicU64>, (&str, Program))| {
            let (stop, done, path) = (stop.clone(), done.clone(), mount.path(name));
            in_background(move || work(path, &stop, &done))
        };
        let programs = done.iter().zip(works).map(begin).collect();
        Self { stop, done, programs }
    }

    /// Returns when each of them has got on.
    #[track_caller]
    pub fn wait_for_more(&self) {
        let before: Vec<_> = self.done.iter().map(|done| done.load(SeqCst)).collect();
        wait_for("all programs to get on", LIMIT, || {
            let failed = self.programs.iter().any(JoinHandle::is_finished);
            assert!(!failed, "a program failed");
            self.done.iter().zip(&before).all(|(done, before)| done.load(SeqCst) > before + 1)
        });
    }

    /// Ends them.
    pub fn stop(self) -> Written {
        self.stop.store(true, SeqCst);
        self.programs.into_iter().for_each(|program| program.join().expect("a program failed"));
        let [blocks, _, lines, _] = self.done.map(|done| done.load(SeqCst));
        Written { blocks, lines }
    }
}

impl Written {
    /// Each block and each line is there once.
    pub fn check(&self, mount: &Mount) {
        let file = File::open(mount.path("written")).unwrap();
        for number in self.blocks.saturating_sub(PLACES)..self.blocks {
            let wanted = block(number);
            let mut found = vec![0; wanted.len()];
            file.read_exact_at(&mut found, place(number)).unwrap();
            assert!(found == wanted, "block {number}");
        }
        let wanted: String = (0..self.lines).map(line).collect();
        assert_eq!(fs::read_to_string(mount.path("appended")).unwrap(), wanted);
        assert!(fs::read(mount.path("read")).unwrap() == noise(3, READ_LEN));
    }
}

fn write(path: PathBuf, stop: &AtomicBool, done: &AtomicU64) {
    let file = File::create(path).unwrap();
    while !stop.load(SeqCst) {
        let number = done.load(SeqCst);
        file.write_all_at(&block(number), place(number)).unwrap();
        if number.is_multiple_of(5) {
            file.sync_data().unwrap();
        }
        done.store(number + 1, SeqCst);
    }
}

fn read(path: PathBuf, stop: &AtomicBool, done: &AtomicU64) {
    let wanted = noise(3, READ_LEN);
    let kept = File::open(&path).unwrap();
    while !stop.load(SeqCst) {
        let number = done.load(SeqCst);
        let opened = if number.is_multiple_of(2) { &kept } else { &open_direct(&path) };
        for at in (0..READ_LEN).step_by(1 << 20) {
            let mut found = vec![0; (1 << 20).min(READ_LEN - at)];
            opened.read_exact_at(&mut found, at as u64).unwrap();
            assert!(found == wanted[at..][..found.len()], "at {at}");
        }
        rustix::fs::fadvise(&kept, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        done.store(number + 1, SeqCst);
    }
}

fn open_direct(path: &Path) -> File {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).unwrap().into()
}

fn append(path: PathBuf, stop: &AtomicBool, done: &AtomicU64) {
    let mut file = File::options().append(true).create_new(true).open(path).unwrap();
    while !stop.load(SeqCst) {
        let number = done.load(SeqCst);
        file.write_all(line(number).as_bytes()).unwrap();
        done.store(number + 1, SeqCst);
    }
}

fn churn(dir: PathBuf, stop: &AtomicBool, done: &AtomicU64) {
    fs::create_dir(&dir).unwrap();
    while !stop.load(SeqCst) {
        let number = done.load(SeqCst);
        let (one, two) = (dir.join(format!("{number}")), dir.join("other"));
        fs::write(&one, line(number)).unwrap();
        fs::rename(&one, &two).unwrap();
        assert_eq!(fs::read_to_string(&two).unwrap(), line(number));
        fs::remove_file(&two).unwrap();
        assert!(!one.exists() && !two.exists());
        done.store(number + 1, SeqCst);
    }
}
