//! Another process that takes locks when told to.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use rustix::io::Errno;

/// Each line in is a Python expression, each line out its result.
const PROGRAM: &str = "
import errno, fcntl, os, signal, struct, sys, threading
f = open(sys.argv[1], 'r+b', buffering=0)
SH, EX, UN = fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN
class Interrupted(Exception): pass
def on_alarm(*_): raise Interrupted()
signal.signal(signal.SIGALRM, on_alarm)
def attempt(call):
    try: return call() or 'ok'
    except OSError as e: return e.errno
    except Interrupted: return 'interrupted'
    finally: signal.alarm(0)
def flock(op): return attempt(lambda: fcntl.flock(f, op | fcntl.LOCK_NB))
def flock_wait(op): return attempt(lambda: fcntl.flock(f, op))
def record(op, start, length): return attempt(lambda: fcntl.lockf(f, op | (fcntl.LOCK_NB if op != UN else 0), length, start))
def wait(op, start, length): return attempt(lambda: fcntl.lockf(f, op, length, start))
def wait_a_second(op, start, length):
    signal.alarm(1)
    return wait(op, start, length)
def wait_or_give_way(op, start, length):
    result = wait(op, start, length)
    if result == errno.EDEADLK: record(UN, 0, 0)
    return result
def ofd(op, start, length):
    kind = {SH: fcntl.F_RDLCK, EX: fcntl.F_WRLCK, UN: fcntl.F_UNLCK}[op]
    return attempt(lambda: fcntl.fcntl(f, 37, struct.pack('hhqqi4x', kind, 0, start, length, 0)) and None)
def in_the_way(op, start, length):
    kind = fcntl.F_RDLCK if op == SH else fcntl.F_WRLCK
    found = struct.unpack('hhqqi4x', fcntl.fcntl(f, fcntl.F_GETLK, struct.pack('hhqqi4x', kind, 0, start, length, 0)))
    if found[0] == fcntl.F_UNLCK: return 'free'
    return '%s %d %d' % ('EX' if found[0] == fcntl.F_WRLCK else 'SH', found[2], found[3])
def read(n): return attempt(lambda: os.pread(f.fileno(), n, 0).decode())
def write(text): return attempt(lambda: str(os.pwrite(f.fileno(), text.encode(), 0)))
def reopen():
    global f
    closed = attempt(f.close)
    f = open(sys.argv[1], 'r+b', buffering=0)
    return closed
def many(count):
    # Threads that each take the lock once, through an open file of its own.
    global done
    done = []
    def one():
        with open(sys.argv[1], 'r+b') as mine:
            fcntl.flock(mine, EX)
            done.append(1)
    global threads
    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads: thread.start()
    return 'ok'
def joined():
    for thread in threads: thread.join()
    return len(done)
for line in sys.stdin: print(eval(line), flush=True)
";

/// A process that has one file open; it ends with this value.
#[derive(Debug)]
pub struct Locker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Locker {
    /// One that has `path` open, which must exist.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    pub fn new(path: impl AsRef<Path>) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(path.as_ref())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives it something to do.
    ///
    /// # Panics
    /// When it has ended.
    #[track_caller]
    pub fn tell(&mut self, expression: &str) {
        writeln!(self.input, "{expression}").expect("it runs");
    }

    /// What came of it.
    ///
    /// # Panics
    /// When it has ended.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it runs");
        line.trim().to_owned()
    }

    /// Both.
    #[track_caller]
    pub fn ask(&mut self, expression: &str) -> String {
        self.tell(expression);
        self.answer()
    }
}

/// As a [`Locker`] tells of a failure.
pub fn told(errno: Errno) -> String {
    errno.raw_os_error().to_string()
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
