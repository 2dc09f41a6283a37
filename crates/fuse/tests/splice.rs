//! Replies by reference and reads that a companion begins, behind a real mount. Needs root and /dev/fuse.

#[path = "../examples/toy/memory.rs"]
mod memory;
#[path = "../../../tests/src/uring.rs"]
mod uring;

use memory::{BIG_SIZE, Toy};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use sluice_fuse::{
    Answer, Asked, Companion, Config, Handler, Outgoing, ReplyBuffer, Request, RingOptions, Session, Taken, Transfer,
};
use sluice_vfs::direct::Region;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::{fs::FileExt, net::UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// What the file behind `f` has; `f` repeats it.
const BYTES: usize = 8 << 20;

/// The toy, whose file `f` is answered by companions.
struct Behind {
    toy: Toy,
    file: Arc<File>,
    bytes: Vec<u8>,
    /// Every other answer ends behind the end of the file.
    is_short: AtomicBool,
    /// Answers come over a socket, from somebody who takes his time.
    is_far: bool,
    begun: AtomicUsize,
}

impl Behind {
    fn new(is_far: bool) -> Self {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..BYTES as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        file.write_all(&bytes).unwrap();
        let is_short = AtomicBool::new(false);
        Self { toy: Toy::default(), file: Arc::new(file), bytes, is_short, is_far, begun: AtomicUsize::new(0) }
    }

    fn at(&self, offset: u64, len: usize) -> &[u8] {
        &self.bytes[offset as usize % BYTES..][..len]
    }
}

struct Shared(Arc<Behind>);

impl Handler for Shared {
    fn handle(&self, request: &Request<'_>, reply: &mut ReplyBuffer) -> Answer {
        self.0.toy.handle(request, reply)
    }

    fn companion(&self) -> Option<Box<dyn Companion>> {
        Some(match self.0.is_far {
            true => Box::new(Far::new(self.0.clone())),
            false => Box::new(Near { behind: self.0.clone(), reads: 0 }),
        })
    }

    fn forget(&self, nodeid: u64, lookups: u64) {
        self.0.toy.forget(nodeid, lookups);
    }

    fn destroyed(&self) {
        self.0.toy.destroyed();
    }
}

/// nodeid of `f`.
const BIG: u64 = 2;

/// Answers from the file, in two regions.
struct Near {
    behind: Arc<Behind>,
    reads: usize,
}

impl Companion for Near {
    fn read(&mut self, asked: Asked, out: &mut Outgoing<'_>) -> Taken {
        if asked.nodeid != BIG {
            return Taken::No;
        }
        self.reads += 1;
        let half = asked.size / 2;
        let at = asked.offset % BYTES as u64;
        let is_short = self.reads.is_multiple_of(2) && self.behind.is_short.load(SeqCst);
        let second = if is_short { BYTES as u64 - 1 } else { at + half as u64 };
        let region = |offset, len| Region { file: self.behind.file.as_fd(), offset, len };
        let regions = [region(at, half), region(second, asked.size - half)];
        if !out.send_regions(asked.unique, &regions) {
            out.memory(asked.size).copy_from_slice(self.behind.at(asked.offset, asked.size));
            out.send_memory(asked.unique, asked.size);
        }
        Taken::Answered
    }
}

/// Asks a thread over a socket, and answers when that does.
struct Far {
    behind: Arc<Behind>,
    socket: UnixStream,
    under_way: HashMap<u64, Asked>,
}

impl Far {
    fn new(behind: Arc<Behind>) -> Self {
        let (socket, mut other) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        // Answers what came at once in the opposite order.
        let answer = move || {
            let mut asked = [0; 1024];
            while let Ok(count @ 1..) = other.read(&mut asked) {
                let answers: Vec<u8> = asked[..count].chunks(8).rev().flatten().copied().collect();
                other.write_all(&answers).unwrap();
            }
        };
        std::thread::Builder::new().spawn(answer).unwrap();
        Self { behind, socket, under_way: HashMap::new() }
    }
}

impl Companion for Far {
    fn read(&mut self, asked: Asked, _: &mut Outgoing<'_>) -> Taken {
        if asked.nodeid != BIG {
            return Taken::No;
        }
        self.behind.begun.fetch_add(1, SeqCst);
        self.under_way.insert(asked.unique, asked);
        (&self.socket).write_all(&asked.unique.to_le_bytes()).unwrap();
        Taken::Begun
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn turn(&mut self, out: &mut Outgoing<'_>) {
        let mut unique = [0; 8];
        while (&self.socket).read_exact(&mut unique).is_ok() {
            let asked = self.under_way.remove(&u64::from_le_bytes(unique)).unwrap();
            out.send(asked.unique, self.behind.at(asked.offset, asked.size));
        }
    }
}

struct Setup {
    session: Session,
    behind: Arc<Behind>,
    _runtime: tokio::runtime::Runtime,
    directory: tempfile::TempDir,
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.directory.path(), UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}

impl Setup {
    fn new(is_far: bool, config: Config) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let (directory, behind) = (tempfile::tempdir().unwrap(), Arc::new(Behind::new(is_far)));
        let config = Config { reactors: Some(2), ..config };
        let handler = Arc::new(Shared(behind.clone()));
        let session = Session::start(&config, directory.path(), handler, runtime.handle().clone()).unwrap();
        Self { session, behind, _runtime: runtime, directory }
    }

    fn spliced(config: Config) -> Self {
        Self::new(false, Config { transfer: Transfer::Splice, ..config })
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("f")
    }

    fn open(&self) -> File {
        rustix::fs::open(self.path(), OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).unwrap().into()
    }

    /// Reads `count` blocks from all over the file and compares them.
    #[track_caller]
    fn read(&self, file: &File, block: usize, count: u64) {
        let mut found = vec![0; block];
        for index in 0..count {
            let offset = index * 7_000_003 % (BIG_SIZE - BYTES as u64) / block as u64 * block as u64;
            file.read_exact_at(&mut found, offset).unwrap();
            assert!(found == self.behind.at(offset, block), "{block} bytes at {offset}");
        }
    }
}

#[test]
fn the_kernel_takes_regions_of_a_file() {
    // Replies of 1 MiB need larger pipes than fs.pipe-max-size allows by default.
    let setup = Setup::spliced(Config { max_readahead: 512 << 10, ..Config::default() });
    let file = setup.open();
    for (block, count) in [(4096, 200), (128 << 10, 100), (512 << 10, 50)] {
        setup.read(&file, block, count);
    }
    let counts = setup.session.counts();
    assert_eq!((counts.reads_spliced, counts.reads_copied, counts.splice_failures), (350, 0, 0));
    // By way of the page cache, which must not take the pages away from the file behind.
    let mut buffered = vec![0; 4 << 20];
    let mut file = File::open(setup.path()).unwrap();
    // The kernel asks for no more than is read: for a megabyte a pipe may be too small (fs.pipe-max-size).
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    buffered.chunks_mut(128 << 10).for_each(|part| file.read_exact(part).unwrap());
    assert!(buffered == setup.behind.at(0, 4 << 20));
    assert!(setup.session.counts().reads_spliced > 350);
}

/// To be survived: the kernel grants smaller pipes than a reply needs (fs.pipe-max-size).
#[test]
fn pipes_refused_their_size() {
    let setup = Setup::spliced(Config { pipe_slots: 16, ..Config::default() });
    let file = setup.open();
    setup.read(&file, 128 << 10, 50);
    let counts = setup.session.counts();
    assert_eq!((counts.pipes_too_small, counts.reads_copied, counts.reads_spliced), (50, 50, 0));
    setup.read(&file, 32 << 10, 50);
    let counts = setup.session.counts();
    assert_eq!((counts.pipes_too_small, counts.reads_copied, counts.reads_spliced), (50, 50, 50));
}

/// To be survived: a reply fails when half of it is in the pipe. Not a byte of it may be in the next reply.
#[test]
fn residue_in_a_pipe_after_an_error() {
    let setup = Setup::spliced(Config::default());
    let file = setup.open();
    setup.read(&file, 64 << 10, 20);
    setup.behind.is_short.store(true, SeqCst);
    setup.read(&file, 64 << 10, 100);
    let counts = setup.session.counts();
    assert!(counts.splice_failures > 0, "{counts:?}");
    assert_eq!(counts.reads_copied, counts.splice_failures);
    assert_eq!(counts.reads_copied + counts.reads_spliced, 120);
    setup.behind.is_short.store(false, SeqCst);
    setup.read(&file, 64 << 10, 100);
    assert_eq!(setup.session.counts().reads_copied, counts.reads_copied, "one pipe was spoilt, not the way");
}

/// Answers come in another order than requests, and everything else goes on meanwhile.
#[test]
fn reads_that_are_begun_and_finished_later() {
    begun_and_finished_later(Config::default());
}

/// The same by entries of rings, fewer than reads.
#[test]
fn reads_that_are_begun_by_rings() {
    let consent = uring::UringConsent::set(true);
    begun_and_finished_later(Config { ring: Some(RingOptions { depth: 2, threads: Some(2) }), ..Config::default() });
    drop(consent);
}

fn begun_and_finished_later(config: Config) {
    let setup = Setup::new(true, config);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let read = || setup.read(&setup.open(), 64 << 10, 40);
            std::thread::Builder::new().spawn_scoped(scope, read).unwrap();
        }
    });
    assert_eq!(setup.behind.begun.load(SeqCst), 320);
    let counts = setup.session.counts();
    assert_eq!((counts.reads_copied, counts.replies_lost, counts.panics), (320, 0, 0));
}

/// To be survived: programs that are killed while their reads are answered by reference.
#[test]
fn readers_are_killed_while_they_read() {
    let setup = Setup::spliced(Config::default());
    for _ in 0..20 {
        let mut reader = Command::new("dd")
            .arg(format!("if={}", setup.path().display()))
            .args(["of=/dev/null", "bs=512k", "iflag=direct", "status=none"])
            .spawn()
            .unwrap();
        let before = setup.session.counts().reads_spliced;
        while setup.session.counts().reads_spliced < before + 5 {
            std::thread::yield_now();
        }
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    setup.read(&setup.open(), 512 << 10, 100);
    setup.session.unmount(false).unwrap();
    setup.session.wait();
}
