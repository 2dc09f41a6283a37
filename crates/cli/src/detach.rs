//! `-d`: the same command line once more as a process of its own, which the first one watches until it is ready.
//!
//! The child's standard output is a pipe: one line on it means ready, its end without that line means that the start failed.
//! Until then the child's standard error is the parent's, so that people see why; afterwards it is the volume's log file.

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

/// The child is ready: it tells the parent and lets go of the terminal.
pub fn ready() -> anyhow::Result<()> {
    let log = PathBuf::from(env::var_os(CHILD).unwrap_or_else(|| "/dev/null".into()));
    let file = OpenOptions::new().create(true).append(true).open(&log);
    let file = file.with_context(|| format!("opening the log {}", log.display()))?;
    let null = File::open("/dev/null").context("opening /dev/null")?;
    let _ = rustix::process::setsid();
    let mut output = std::io::stdout();
    writeln!(output, "{READY}").and_then(|()| output.flush()).context("telling the parent")?;
    rustix::stdio::dup2_stderr(&file)?;
    rustix::stdio::dup2_stdout(&file)?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(())
}
