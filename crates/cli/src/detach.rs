//! `-d`: the same command line once more as a process of its own, which the first one watches until it is ready.
//!
//! The child's standard output is a pipe: one line on it means ready, its end without that line means that the start failed.
//! Until then the child's standard error is the parent's, so that people see why; afterwards it is the volume's log file.

use crate::output::note;
use anyhow::Context;
use std::{
    env,
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

/// Tells the child that it is one, and where its log goes.
const CHILD: &str = "SLUICE_DETACHED_LOG";
const READY: &str = "ready";

/// Whether this process is the detached one.
pub fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Starts the child and waits until it is ready or gone.
pub fn run_detached(log: &Path) -> anyhow::Result<ExitCode> {
    let program = env::current_exe().context("finding this program")?;
    let mut arguments = env::args_os();
    let mut command = Command::new(program);
    command.arg0(arguments.next().unwrap_or_else(|| "sluice".into())).args(arguments);
    command.env(CHILD, log).stdin(Stdio::null()).stdout(Stdio::piped());
    // What a shell has open is not the mount's: a file of a mount would keep that one busy for as long as this one lives.
    sluice_base::descriptors::keep_from_children().context("keeping open files from the mount process")?;
    let mut child = command.spawn().context("starting the mount process")?;
    let output = child.stdout.take().expect("it is piped");
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).context("waiting for the mount process")?;
    if line.trim() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().context("waiting for the mount process")?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code != 0)
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

/// What the child turns to when it lets go of the terminal.
pub struct Detaching {
    log: File,
    null: File,
}

impl Detaching {
    /// Opens it. A log that cannot be written to is no reason not to mount.
    pub fn prepare() -> anyhow::Result<Self> {
        let path = PathBuf::from(env::var_os(CHILD).unwrap_or_else(|| "/dev/null".into()));
        let null = OpenOptions::new().read(true).write(true).open("/dev/null").context("opening /dev/null")?;
        let log = match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(log) => log,
            Err(error) => {
                note!("warning: no log is kept: opening {}: {error}", path.display());
                null.try_clone().context("opening /dev/null")?
            }
        };
        Ok(Self { log, null })
    }

    /// The child is ready: it tells the parent and lets go of the terminal.
    pub fn ready(self) -> anyhow::Result<()> {
        let _ = rustix::process::setsid();
        let mut output = std::io::stdout();
        writeln!(output, "{READY}").and_then(|()| output.flush()).context("telling the parent")?;
        rustix::stdio::dup2_stderr(&self.log)?;
        rustix::stdio::dup2_stdout(&self.log)?;
        rustix::stdio::dup2_stdin(&self.null)?;
        Ok(())
    }
}
