//! `sluice guard`: ends the kernel's side of a mount whose process was killed.
//!
//! The kernel ends a FUSE connection by itself when the last descriptor of it goes. But a process that is killed keeps its descriptors
//! as long as one of its threads is inside the kernel, and the thread that tells the kernel of other mounts' changes may wait there for
//! a directory (or a page) that a program holds, who waits for an answer of the killed process. Then nothing would ever go on: not the programs, not
//! whoever wants the dead mount's journal. So each mount of a served volume has this process beside it, which does nothing but wait for
//! its end.

use crate::output::note;
use anyhow::Context;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};
use sluice_fuse::mount::Connection;
use std::{
    convert::Infallible,
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

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
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a mount is to have a guard.
pub struct Guards {
    wanted: watch::Sender<bool>,
    has_one: watch::Receiver<bool>,
}

/// The one who sees to it.
pub struct GuardKeeper {
    wanted: watch::Receiver<bool>,
    has_one: watch::Sender<bool>,
}

/// A mount that is to have a guard, and who sees to that.
pub fn guards() -> (Guards, GuardKeeper) {
    let ((wanted, is_wanted), (has, has_one)) = (watch::channel(true), watch::channel(false));
    (Guards { wanted, has_one }, GuardKeeper { wanted: is_wanted, has_one: has })
}

impl Guards {
    /// On return there is none, until it is called back.
    pub async fn send_away(&self) {
        self.wanted.send_replace(false);
        let _ = self.has_one.clone().wait_for(|has_one| !has_one).await;
    }

    pub fn call_back(&self) {
        self.wanted.send_replace(true);
    }
}

impl GuardKeeper {
    /// Sees to it, for as long as it is polled, that the mount at `mountpoint` has a guard until it `has_ended`. To be polled by the thread that
    /// lives as long as the process.
    pub async fn keep(mut self, mountpoint: &Path, mut has_ended: watch::Receiver<bool>) -> Infallible {
        let mut guard = None;
        loop {
            let is_wanted = *self.wanted.borrow_and_update() && !*has_ended.borrow_and_update();
            if !is_wanted {
                guard = None;
            } else if guard.is_none() {
                guard = start(mountpoint).inspect_err(|error| {
                    note!("warning: if this process is killed, programs that use the mount may hang until it is unmounted by force: {error:#}");
                }).ok();
            }
            self.has_one.send_replace(guard.is_some());
            let changed = tokio::select! {
                changed = self.wanted.changed() => changed,
                changed = has_ended.changed() => changed,
            };
            if changed.is_err() {
                drop(guard);
                return std::future::pending().await;
            }
        }
    }
}

/// Starts a guard for the mount at `mountpoint`, which this process serves. To be called by the thread that lives as long as the
/// process: it is that thread's end that the guard is told of.
fn start(mountpoint: &Path) -> anyhow::Result<Guard> {
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
