//! `sluice umount`.

use crate::{
    control::{Ask, Control, Told},
    mounts, units,
};
use anyhow::{Context, bail};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

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
    let at = args.mountpoint.display();
    let Some(dir) = mounts::volume_at(&args.mountpoint) else { bail!("{at} is no mount of sluice") };
    let Some(mut control) = Control::connect(&dir)? else {
        sluice_fuse::unmount(&args.mountpoint, true).with_context(|| format!("unmounting {at}"))?;
        eprintln!(
            "sluice: the process of {at} was gone; what it had acked is in {}, the next `sluice up` stores it",
            dir.display()
        );
        return Ok(ExitCode::SUCCESS);
    };
    // Taken before the question, so that the process cannot be another one by the time of the wait.
    let process = Pid::from_raw(control.pid() as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let terminal = std::io::stderr().is_terminal();
    let bar = if terminal { indicatif::ProgressBar::new_spinner() } else { indicatif::ProgressBar::hidden() };
    control.ask(Ask::Umount { lazy: args.lazy }, |told| {
        if let Told::Draining { objects, bytes, trouble } = told {
            let trouble = trouble.map_or_else(String::new, |trouble| format!(" ({trouble})"));
            bar.set_message(format!("storing {} in {objects} objects{trouble}", units::show_size(bytes)));
            bar.tick();
        }
        Ok(true)
    })?;
    bar.finish_and_clear();
    if let Some(Ok(process)) = process {
        poll(&mut [PollFd::new(&process, PollFlags::IN)], None).context("waiting for the mount's process")?;
    }
    Ok(ExitCode::SUCCESS)
}
