//! What people read: the output of the commands, messages, and the log on standard error.
//!
//! None of it may harm. The standard error of a mount is a file on a full disk, a pipe that nobody reads, a closed terminal:
//! a line that cannot be written, or not at once, is dropped.

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    fmt::{Arguments, Debug},
    io::{self, IsTerminal, Write},
};
use tracing::{Event, Subscriber, field, level_filters::LevelFilter};
use tracing_subscriber::{EnvFilter, Layer, fmt, layer::Context, prelude::*};

/// A line on standard output.
macro_rules! out {
    ($($words:tt)*) => { $crate::output::print_line(format_args!($($words)*)) };
}
/// A line on standard error.
macro_rules! note {
    ($($words:tt)*) => { $crate::output::note_line(format_args!($($words)*)) };
}
pub(crate) use {note, out};

static STDOUT_ERROR: Mutex<Option<io::Error>> = Mutex::new(None);
static STDERR: Mutex<()> = Mutex::new(());
static LAST_WARNING: Mutex<Option<String>> = Mutex::new(None);

/// What a pipe takes without a wait once poll(2) calls it writable (pipe(7): PIPE_BUF).
const CHUNK_BYTES: usize = 4096;

pub fn print_line(line: Arguments<'_>) {
    let mut failed = STDOUT_ERROR.lock();
    if failed.is_none() {
        let mut stdout = io::stdout().lock();
        *failed = stdout.write_fmt(line).and_then(|()| stdout.write_all(b"\n")).err();
    }
}

/// Whether everything printed has arrived. Who closed a pipe has seen what they wanted.
pub fn finish() -> io::Result<()> {
    let flushed = io::stdout().flush();
    match STDOUT_ERROR.lock().take().map_or(flushed, Err) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

pub fn note_line(line: Arguments<'_>) {
    write_stderr(format!("sluice: {line}\n").as_bytes());
}

fn write_stderr(bytes: &[u8]) {
    let _turn = STDERR.lock();
    let stderr = io::stderr();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    for chunk in bytes.chunks(CHUNK_BYTES) {
        let ready = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&at_once));
        if !ready.is_ok_and(|ready| ready > 0) || stderr.lock().write_all(chunk).is_err() {
            return;
        }
    }
}

struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_stderr(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is as grave as `usual` on stderr; `SLUICE_LOG=debug` shows more.
pub fn start_logging(usual: &str) {
    let filter = EnvFilter::try_from_env("SLUICE_LOG").unwrap_or_else(|_| usual.into());
    // The terminal that a detached mount starts on is not where its log goes.
    let colours = io::stderr().is_terminal() && !crate::detach::is_child();
    let log = fmt::layer().with_writer(|| Stderr).with_ansi(colours).with_target(false).log_internal_errors(false);
    let last = LastWarning.with_filter(LevelFilter::WARN);
    tracing_subscriber::registry().with(log.with_filter(filter)).with(last).init();
}

/// The latest warning or error, for those who cannot read the log.
pub fn last_warning() -> Option<String> {
    LAST_WARNING.lock().clone()
}

struct LastWarning;

impl<S: Subscriber> Layer<S> for LastWarning {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut words = Words::default();
        event.record(&mut words);
        let Words { message, error } = words;
        *LAST_WARNING.lock() = Some(if error.is_empty() { message } else { format!("{message}: {error}") });
    }
}

#[derive(Default)]
struct Words {
    message: String,
    error: String,
}

impl field::Visit for Words {
    fn record_debug(&mut self, field: &field::Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "error" => self.error = format!("{value:?}"),
            _ => {}
        }
    }
}

/// An error of the system on a volume's directory, with what to do about it.
pub fn explained(what: &str, error: &io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => "; run it as the owner of the directory or as root, or choose another one",
        io::ErrorKind::ReadOnlyFilesystem => "; its disk is read-only: make it writable, or choose another directory",
        io::ErrorKind::AlreadyExists => "; something else has that name: choose another one",
        io::ErrorKind::NotADirectory => "; a part of the path is a file",
        io::ErrorKind::StorageFull => "; its disk is full: make room there first",
        _ => "",
    };
    anyhow::anyhow!("{what}: {error}{advice}")
}
