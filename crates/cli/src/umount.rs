//! `sluice umount`.

use crate::{
    control::{Ask, Control, Lacks, Told},
    directory,
    mounts::{self, Found},
    output::note,
    progress::Progress,
    status,
    units::{quoted, show_size},
};
use anyhow::{Context, anyhow, bail};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{path::PathBuf, process::ExitCode};

/// Store everything and unmount
///
/// Returns when every byte is in the object store and the mount's process has ended. When the store is down it waits;
/// ending this command (Ctrl-C) leaves the mount's process at work. The latest changes of names and attributes are not waited for so long.
///
/// Exit status: 0 the store has everything; 1 it was not unmounted, or it was and the store lacks something: what, and what brings it
/// there, is told.
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
            ask(&found, control, args.lazy)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    match Control::connect(&found.dir)? {
        Some(control) => ask(&found, control, args.lazy)?,
        None => take_away(&found)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The mount of a process that was killed.
fn take_away(found: &Found) -> anyhow::Result<()> {
    let Found { at, dir, .. } = found;
    sluice_fuse::unmount(at, true).with_context(|| format!("unmounting {}", at.display()))?;
    let looked = directory::load(dir)?.map(|config| status::resting::look(dir, &config)).transpose()?;
    let number = |key: &str| looked.as_ref().and_then(|found| found[key].as_u64()).unwrap_or(0);
    let (objects, bytes) = (number("unstored_objects"), show_size(number("unstored_bytes")));
    let stored = match objects {
        0 => String::new(),
        _ => format!("{bytes} in {objects} objects, and "),
    };
    // Of a served volume the server ships what it was told.
    let is_nothing = found.server.is_some() && objects == 0 && number("unpublished_changes") == 0;
    if !is_nothing {
        let what = format!("{stored}perhaps the latest changes: its process was gone");
        return Err(not_stored(found, &Lacks { what, comes_later: true }));
    }
    note!(
        "the process of {} was gone; what it had acked is in {}, the next {} stores it",
        at.display(),
        dir.display(),
        next(found)
    );
    Ok(())
}

/// What stores what is left of a mount.
fn next(Found { at, dir, server }: &Found) -> String {
    match server {
        Some(server) => format!(
            "`sluice mount {server} {}` with that journal, or `sluice recover {} --journal {}`,",
            quoted(at),
            quoted(server),
            quoted(dir)
        ),
        None => format!("`sluice up {} {}`", quoted(dir), quoted(at)),
    }
}

/// What the process said last.
#[derive(Default)]
struct Last {
    objects: usize,
    bytes: u64,
    /// What the store lacks; `None` until the process has said it.
    lacks: Option<Option<Lacks>>,
}

fn ask(found: &Found, mut control: Control, lazy: bool) -> anyhow::Result<()> {
    // Taken before the question, so that the process cannot be another one by the time of the wait.
    let process = Pid::from_raw(control.pid() as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let (mut progress, mut last) = (Progress::new(), Last::default());
    control.ask(Ask::Umount { lazy }, |told| {
        match told {
            Told::Draining { objects, bytes, trouble } => {
                progress.show(&format!("storing {} in {objects} objects", show_size(bytes)), trouble);
                (last.objects, last.bytes) = (objects, bytes);
            }
            Told::Unmounted { lacks } => last.lacks = Some(lacks),
            _ => {}
        }
        Ok(true)
    })?;
    progress.finish();
    if let Some(Ok(process)) = process {
        poll(&mut [PollFd::new(&process, PollFlags::IN)], None).context("waiting for the mount's process")?;
    }
    let lacks = match last.lacks {
        Some(None) => return Ok(()),
        Some(Some(lacks)) => lacks,
        None => {
            let (left, objects) = (show_size(last.bytes), last.objects);
            let left = match objects {
                0 => "perhaps the latest changes".into(),
                _ => format!("about {left} in {objects} objects, and the latest changes"),
            };
            let what = format!("{left}: its process was ended before it had stored everything");
            Lacks { what, comes_later: true }
        }
    };
    Err(not_stored(found, &lacks))
}

fn not_stored(found: &Found, lacks: &Lacks) -> anyhow::Error {
    let told = format!("{} is unmounted, but the store lacks {}", found.at.display(), lacks.what);
    if !lacks.comes_later {
        return anyhow!(told);
    }
    anyhow!(
        "{told}. It is in {}, keep that: mount again with {}, which stores it once the store takes \
         it, and `sluice flush {}` then tells when that is done",
        found.dir.display(),
        next(found).trim_end_matches(','),
        quoted(&found.at),
    )
}
