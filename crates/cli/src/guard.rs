//! `sluice guard`: ends the kernel's side of a mount whose process was killed.
//!
//! The kernel ends a FUSE connection by itself when the last descriptor of it goes. But a process that is killed keeps its descriptors
//! as long as one of its threads is inside the kernel, and the thread that tells the kernel of other mounts' changes may wait there for
//! a directory (or a page) that a program holds, who waits for an answer of the killed process. Then nothing would ever go on: not the programs, not
//! whoever wants the dead mount's journal. So each mount of a served volume has this process beside it, which does nothing but wait for
//! its end.

use anyhow::Context;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};
use sluice_fuse::mount::Connection;
use std::{
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
};
use tokio::signal::unix::{SignalKind, signal};

/// Watch over a mount's process
#[derive(clap::Args)]
pub struct GuardArgs {
    /// MAJOR:MINOR of the mount
    device: String,
    /// Where it is
    mountpoint: PathBuf,
    /// The process that serves it, which has started this one
    served_by: i32,
}

/// A guard at work. It is sent away when this is dropped, which must be as soon as the mount is gone: the next mount may get its number.
pub struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a guard for the mount at `mountpoint`, which this process serves. To be called by the thread that lives as long as the
/// process: it is that thread's end that the guard is told of.
pub fn start(mountpoint: &Path) -> anyhow::Result<Guard> {
    let connection = Connection::at(mountpoint).context("looking for this mount")?;
    let mut command = Command::new(env::current_exe().context("finding this program")?);
    command.arg0("sluice").arg("guard").arg(connection.device()).arg(mountpoint);
    command.arg(std::process::id().to_string());
    // It holds nothing of the mount's: no terminal, no pipe that somebody waits to be closed.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    Ok(Guard(command.spawn().context("starting the process that watches over the mount")?))
}

pub fn run(args: &GuardArgs) -> anyhow::Result<ExitCode> {
    let _ = setsid();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut over = signal(SignalKind::user_defined1())?;
        set_parent_process_death_signal(Some(Signal::USR1))?;
        // It may have ended before.
        if getppid() == Pid::from_raw(args.served_by) {
            over.recv().await;
        }
        Connection::new(args.device.clone(), &args.mountpoint).abort()?;
        Ok(ExitCode::SUCCESS)
    })
}
