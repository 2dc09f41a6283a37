//! flock and fcntl locks, within a process and between processes.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use sluice_tests::{LockKind, Place, set_range_lock, would_block_on};

use crate::errno;

/// Another process that takes locks when told to: each line in is a Python expression, each line out its result.
struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const OTHER: &str = "
import fcntl, sys
f = open(sys.argv[1], 'r+b')
def flock(op): return attempt(lambda: fcntl.flock(f, op | fcntl.LOCK_NB))
def record(op, start, length): return attempt(lambda: fcntl.lockf(f, op | fcntl.LOCK_NB, length, start))
def wait(op, start, length): return attempt(lambda: fcntl.lockf(f, op, length, start))
def attempt(call):
    try: call(); return 'ok'
    except OSError as e: return e.errno
SH, EX, UN = fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN
for line in sys.stdin: print(eval(line), flush=True)
";

impl Other {
    fn new(path: &Path) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", OTHER])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    fn tell(&mut self, expression: &str) {
        writeln!(self.input, "{expression}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&mut self, expression: &str) -> String {
        self.tell(expression);
        self.answer()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refused() -> String {
    Errno::AGAIN.raw_os_error().to_string()
}

fn read_write(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn flock_between_processes() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"").unwrap();
    let mut other = Other::new(&path);
    let mine = read_write(&path);
    flock(&mine, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(other.ask("flock(SH)"), refused());
    flock(&mine, FlockOperation::NonBlockingLockShared).unwrap();
    assert_eq!(other.ask("flock(SH)"), "ok");
    // A conversion that fails loses the lock it started from, flock(2) says: mine is gone after this, theirs stays.
    assert_eq!(flock(&mine, FlockOperation::NonBlockingLockExclusive).unwrap_err(), Errno::AGAIN);
    assert_eq!(other.ask("flock(EX)"), "ok");
    drop(other);
    sluice_tests::wait_for("the lock of the ended process", std::time::Duration::from_secs(5), || {
        flock(&mine, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
}

#[test]
fn flock_belongs_to_the_open_file() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"").unwrap();
    let (a, b) = (read_write(&path), read_write(&path));
    let same_as_a = a.try_clone().unwrap();
    flock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
    flock(&same_as_a, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(flock(&b, FlockOperation::NonBlockingLockShared).unwrap_err(), Errno::AGAIN);
    drop(a);
    assert_eq!(flock(&b, FlockOperation::NonBlockingLockShared).unwrap_err(), Errno::AGAIN);
    drop(same_as_a);
    flock(&b, FlockOperation::NonBlockingLockShared).unwrap();
}

#[test]
fn record_locks_between_processes() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, vec![0; 1000]).unwrap();
    let mut other = Other::new(&path);
    let mine = read_write(&path);
    set_range_lock(&mine, LockKind::Write, 100, 100).unwrap();
    assert_eq!(other.ask("record(EX, 150, 10)"), refused());
    assert_eq!(other.ask("record(SH, 0, 101)"), refused());
    assert_eq!(other.ask("record(EX, 200, 50)"), "ok");
    assert_eq!(other.ask("record(SH, 0, 100)"), "ok");
    let holder = would_block_on(&mine, LockKind::Write, 0, 300).unwrap();
    assert_eq!(holder, Some(other.child.id() as i32), "F_GETLK names the process in the way");
    assert_eq!(would_block_on(&mine, LockKind::Read, 0, 200).unwrap(), None);
    // Cutting a piece out of the middle leaves the two ends locked.
    set_range_lock(&mine, LockKind::Unlock, 140, 20).unwrap();
    assert_eq!(other.ask("record(EX, 140, 20)"), "ok");
    assert_eq!(other.ask("record(EX, 139, 1)"), refused());
    assert_eq!(other.ask("record(EX, 160, 1)"), refused());
    assert_eq!(errno(set_range_lock(&mine, LockKind::Write, 145, 1)), Errno::AGAIN);
}

#[test]
fn a_waiting_lock_is_granted() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, vec![0; 10]).unwrap();
    let mut other = Other::new(&path);
    let mine = read_write(&path);
    set_range_lock(&mine, LockKind::Write, 0, 10).unwrap();
    other.tell("wait(EX, 0, 10)");
    set_range_lock(&mine, LockKind::Unlock, 0, 10).unwrap();
    assert_eq!(other.answer(), "ok");
    assert_eq!(errno(set_range_lock(&mine, LockKind::Write, 0, 10)), Errno::AGAIN);
}

#[test]
fn closing_any_descriptor_drops_the_record_locks_of_the_process() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, vec![0; 10]).unwrap();
    let mut other = Other::new(&path);
    let mine = read_write(&path);
    set_range_lock(&mine, LockKind::Write, 0, 10).unwrap();
    assert_eq!(other.ask("record(EX, 0, 10)"), refused());
    drop(read_write(&path));
    assert_eq!(other.ask("record(EX, 0, 10)"), "ok", "POSIX: any close by the process drops its locks on the file");
}
