//! `sluice umount`.

use crate::{
    control::{Ask, Control, Told},
    mounts::{self, Found},
    output::note,
    progress::Progress,
    units::{self, quoted},
};
use anyhow::{Context, bail};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{path::PathBuf, process::ExitCode};

/// Store everything and unmount
///
/// Returns when every byte is in the object store and the mount's process has ended. When the store is down it waits;
/// ending this command (Ctrl-C) leaves the mount's process at work.
///
/// Example: sluice umount ~/mnt
#[derive(clap::Args)]
pub struct UmountArgs {
    /// Where the volume is mounted
    pub mountpoint: PathBuf,
    /// Detach at once although files are open; their data is stored too
    #[arg(short, long)]
    pub lazy: bool,
}

pub fn run(args: &UmountArgs) -> anyhow::Result<ExitCode> {
    let Some(found) = mounts::at(&args.mountpoint) else {
        let Some((found, pid)) = mounts::draining_at(&args.mountpoint) else {
            bail!("{} is no mount of sluice", args.mountpoint.display());
        };
        note!("the volume {} is draining, pid {pid}: waiting until everything is stored", found.dir.display());
        if let Some(control) = Control::connect(&found.dir)? {
            ask(control, args.lazy)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    match Control::connect(&found.dir)? {
        Some(control) => ask(control, args.lazy)?,
        None => take_away(&found)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The mount of a process that was killed.
fn take_away(Found { at, dir, server }: &Found) -> anyhow::Result<()> {
    sluice_fuse::unmount(at, true).with_context(|| format!("unmounting {}", at.display()))?;
    let next = match server {
        Some(server) => format!(
            "`sluice mount {server} {}` with that journal, or `sluice recover {} --journal {}`,",
            quoted(at),
            quoted(server),
            quoted(dir)
        ),
        None => "`sluice up`".into(),
    };
    note!(
        "the process of {} was gone; what it had acked is in {}, the next {next} stores it",
        at.display(),
        dir.display()
    );
    Ok(())
}

fn ask(mut control: Control, lazy: bool) -> anyhow::Result<()> {
    // Taken before the question, so that the process cannot be another one by the time of the wait.
    let process = Pid::from_raw(control.pid() as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let mut progress = Progress::new();
    control.ask(Ask::Umount { lazy }, |told| {
        if let Told::Draining { objects, bytes, trouble } = told {
            progress.show(&format!("storing {} in {objects} objects", units::show_size(bytes)), trouble);
        }
        Ok(true)
    })?;
    progress.finish();
    if let Some(Ok(process)) = process {
        poll(&mut [PollFd::new(&process, PollFlags::IN)], None).context("waiting for the mount's process")?;
    }
    Ok(())
}
