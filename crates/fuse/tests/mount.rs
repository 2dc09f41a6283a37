//! A session behind a real mount. Needs root and /dev/fuse. With `SLUICE_TEST_FUSE_TRANSPORT=uring` most go by rings.

#[path = "../examples/toy/memory.rs"]
mod memory;
#[path = "../../../tests/src/uring.rs"]
mod uring;

use memory::Toy;
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use sluice_fuse::{Class, Config, MountError, RingOptions, Session, StartError};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::runtime::Runtime;

struct Setup {
    session: Session,
    toy: Arc<Toy>,
    runtime: Runtime,
    directory: tempfile::TempDir,
}

impl Drop for Setup {
    fn drop(&mut self) {
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(self.directory.path(), flags);
    }
}

impl Setup {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let toy = Arc::new(Toy::default());
        let config = Config { reactors: Some(2), interrupt_grace: Duration::from_millis(100), ..config };
        let is_ring = std::env::var_os("SLUICE_TEST_FUSE_TRANSPORT").is_some_and(|how| how == "uring");
        let config =
            Config { ring: is_ring.then(|| RingOptions { threads: Some(2), ..RingOptions::default() }), ..config };
        let consent = is_ring.then(|| uring::UringConsent::set(true));
        let session = Session::start(&config, directory.path(), toy.clone(), runtime.handle().clone()).unwrap();
        drop(consent);
        assert_eq!(session.ring_bytes() > 0, is_ring);
        Self { session, toy, runtime, directory }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until `condition` holds, at most 10 s.
    #[track_caller]
    fn until(&self, condition: impl Fn() -> bool) {
        let reached = self.runtime.block_on(async {
            for _ in 0..10_000 {
                if condition() {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            false
        });
        assert!(reached);
    }
}

/// A process that reads one block of `path` and then ends.
fn reader(path: &Path) -> Child {
    Command::new("dd").arg(format!("if={}", path.display())).args(["of=/dev/null", "bs=4k", "count=1"]).spawn().unwrap()
}

fn open_direct(path: &Path) -> fs::File {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).unwrap().into()
}

#[test]
fn files_and_directories() {
    let setup = Setup::new();
    fs::create_dir(setup.path("d")).unwrap();
    let bytes: Vec<u8> = (0..5u32 << 20).map(|i| (i / 7) as u8).collect();
    fs::write(setup.path("d/file"), &bytes).unwrap();
    assert_eq!(fs::metadata(setup.path("d/file")).unwrap().len(), 5 << 20);
    let file = open_direct(&setup.path("d/file"));
    let mut block = vec![0; 1 << 20];
    for index in 0..5 {
        file.read_exact_at(&mut block, index << 20).unwrap();
        assert!(block == bytes[(index as usize) << 20..][..1 << 20], "block {index}");
    }
    assert!(fs::read(setup.path("d/file")).unwrap() == bytes);
    for index in 0..3000 {
        fs::write(setup.path(&format!("d/{index:04}")), b"").unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(setup.path("d")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!((names.len(), names[2999].to_str()), (3001, Some("2999")));
    fs::remove_file(setup.path("d/file")).unwrap();
    assert_eq!(fs::metadata(setup.path("d/file")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(setup.session.negotiated().max_write, 1 << 20);
    let device = rustix::fs::stat(setup.directory.path()).unwrap().st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let read_ahead = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap();
    assert_eq!(read_ahead.trim(), "2048");
    let counts = setup.session.counts();
    assert!(counts.requests(Class::Namespace) >= 3002 && counts.requests(Class::Write) >= 5);
    assert_eq!((counts.replies_lost, counts.panics), (0, 0));
    drop(file);
    setup.until(|| setup.session.unmount(false).is_ok());
    setup.session.wait();
    assert_eq!(setup.toy.destroyed.load(SeqCst), 1);
    assert!(setup.session.is_over());
}

#[test]
fn answers_that_come_later() {
    let setup = Setup::with(Config { later_max: 4, ..Config::default() });
    // More at once than the limit of two for each reactor.
    std::thread::scope(|scope| {
        for reader in 0..8u64 {
            let path = setup.path("slow");
            std::thread::Builder::new()
                .spawn_scoped(scope, move || {
                    let file = open_direct(&path);
                    let mut block = vec![0; 128 << 10];
                    for round in 0..20 {
                        let offset = (reader * 20 + round) << 17;
                        file.read_exact_at(&mut block, offset).unwrap();
                        assert_eq!(block[..8], offset.to_le_bytes());
                    }
                })
                .unwrap();
        }
    });
    assert_eq!(setup.session.counts().later, 160);
}

#[test]
fn an_interrupted_reader_is_let_go() {
    let setup = Setup::new();
    let mut child = reader(&setup.path("stuck"));
    setup.until(|| setup.toy.stuck.load(SeqCst) == 1);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(setup.toy.stuck.load(SeqCst), 0);
    assert_eq!(setup.session.counts().interrupts, 1);
    fs::write(setup.path("alive"), b"x").unwrap();
}

/// The first one is waited for by a reactor, the others by threads of the pool.
#[test]
fn more_wait_than_there_are_reactors() {
    let setup = Setup::new();
    std::thread::scope(|scope| {
        for reader in 0..8u64 {
            let path = setup.path("away");
            let read = move || {
                let mut block = vec![0; 4096];
                fs::File::open(path).unwrap().read_exact_at(&mut block, reader << 12).unwrap();
                assert_eq!(block[..8], (reader << 12).to_le_bytes());
            };
            std::thread::Builder::new().spawn_scoped(scope, read).unwrap();
        }
        setup.until(|| setup.toy.away.load(SeqCst) == 8);
        fs::write(setup.path("alive"), b"x").unwrap();
        let mut block = vec![0; 4096];
        open_direct(&setup.path("slow")).read_exact_at(&mut block, 0).unwrap();
        setup.toy.open_gate();
    });
    assert_eq!((setup.session.counts().later, setup.session.counts().replies_lost), (9, 0));
}

#[test]
fn an_interrupted_caller_is_let_go_while_a_thread_waits() {
    let setup = Setup::new();
    for waiting in 1..3 {
        let mut child = reader(&setup.path("away"));
        setup.until(|| setup.toy.away.load(SeqCst) == waiting);
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
        assert!(!child.wait().unwrap().success());
        assert_eq!(setup.toy.away.load(SeqCst), waiting);
    }
    setup.toy.open_gate();
    setup.until(|| setup.toy.away.load(SeqCst) == 0);
    fs::read_dir(setup.path("")).unwrap().for_each(|entry| drop(entry.unwrap()));
    assert_eq!((setup.session.counts().interrupts, setup.session.counts().replies_lost), (2, 0));
}

#[test]
fn dropping_a_session_does_not_wait_for_threads_that_wait() {
    let other = Setup::new();
    let (directory, toy) = (tempfile::tempdir().unwrap(), Arc::new(Toy::default()));
    let config = Config { reactors: Some(2), ..Config::default() };
    let session = Session::start(&config, directory.path(), toy.clone(), other.runtime.handle().clone()).unwrap();
    let mut children = [1, 2].map(|waiting| {
        let child = reader(&directory.path().join("away"));
        other.until(|| toy.away.load(SeqCst) == waiting);
        child
    });
    drop(session);
    assert_eq!((toy.away.load(SeqCst), toy.destroyed.load(SeqCst)), (2, 1));
    children.iter_mut().for_each(|child| assert!(!child.wait().unwrap().success()));
    toy.open_gate();
    other.until(|| toy.away.load(SeqCst) == 0);
    assert_eq!(toy.destroyed.load(SeqCst), 1);
}

#[test]
fn a_panic_of_the_handler_is_an_error_of_the_request() {
    let setup = Setup::new();
    fs::write(setup.path(memory::PANIC), b"x").unwrap();
    let error = fs::read(setup.path(memory::PANIC)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    // Readahead and then the page on its own.
    assert!(setup.session.counts().panics >= 1);
    fs::write(setup.path("alive"), b"x").unwrap();
}

#[test]
fn unmounting_under_load() {
    let setup = Setup::new();
    let mut file = fs::File::open(setup.path("f")).unwrap();
    let mut block = vec![0; 1 << 20];
    file.read_exact(&mut block).unwrap();
    assert!(matches!(setup.session.unmount(false), Err(MountError::Busy(_))));
    setup.session.unmount(true).unwrap();
    // The name is gone, open files go on.
    assert!(!setup.path("f").exists());
    for _ in 0..100 {
        file.read_exact(&mut block).unwrap();
    }
    assert!(!setup.session.is_over());
    drop(file);
    setup.session.wait();
    assert_eq!(setup.toy.destroyed.load(SeqCst), 1);
}

#[test]
fn dropping_a_session_ends_waiting_readers() {
    let mut setup = Setup::new();
    let mut child = reader(&setup.path("stuck"));
    setup.until(|| setup.toy.stuck.load(SeqCst) == 1);
    let toy = setup.toy.clone();
    let other = Setup::new();
    drop(std::mem::replace(&mut setup, other));
    assert!(!child.wait().unwrap().success());
    assert_eq!(toy.destroyed.load(SeqCst), 1);
}

#[test]
fn two_sessions_at_once() {
    let (one, two) = (Setup::new(), Setup::new());
    fs::write(one.path("x"), b"one").unwrap();
    fs::write(two.path("x"), b"two").unwrap();
    assert_eq!(fs::read(one.path("x")).unwrap(), b"one");
    drop(one);
    assert_eq!(fs::read(two.path("x")).unwrap(), b"two");
}

#[test]
fn notifications_drop_what_the_kernel_caches() {
    let setup = Setup::new();
    fs::write(setup.path("x"), b"x").unwrap();
    let notifier = setup.session.notifier();
    let lookups = || setup.session.counts().requests(Class::Lookup);
    let before = lookups();
    fs::metadata(setup.path("x")).unwrap();
    assert_eq!(lookups(), before);
    notifier.inval_entry(1, b"x").unwrap();
    notifier.inval_inode(10, 0, 0).unwrap();
    setup.runtime.block_on(notifier.flush()).unwrap();
    fs::metadata(setup.path("x")).unwrap();
    assert_eq!(lookups(), before + 1);
    setup.session.unmount(true).unwrap();
    setup.session.wait();
    setup.until(|| notifier.inval_inode(1, 0, 0).is_err());
}

#[test]
fn mount_points_that_cannot_be() {
    let setup = Setup::new();
    let start = |path: &Path| {
        let runtime = setup.runtime.handle().clone();
        match Session::start(&Config::default(), path, setup.toy.clone(), runtime) {
            Err(StartError::Mount(error)) => error,
            other => panic!("{:?}", other.map(|session| session.path().to_owned())),
        }
    };
    assert!(matches!(start(setup.directory.path()), MountError::AlreadyMounted(_)));
    assert!(matches!(start(&setup.path("nothing")), MountError::Missing(_)));
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(start(file.path()), MountError::NotADirectory(_)));
    let plain = tempfile::tempdir().unwrap();
    assert!(matches!(sluice_fuse::unmount(plain.path(), false), Err(MountError::NotMounted(_))));
}
