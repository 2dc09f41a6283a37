//! `sluice recover`: what a mount of a served volume that does not come back has acked.

mod find;
pub mod from_store;
mod list;
mod take;

use crate::{
    config::VolumeConfig,
    directory, drain,
    mount::open::Runtimes,
    output::{note, out},
    reach::START_TIME,
    status::served,
    units::{counted, parse_time, quoted},
};
use anyhow::{Context, anyhow};
use clap::builder::ValueParser;
use find::{Found, State};
pub use list::command;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use take::{Taking, end_early, without_size};

/// Store what mounts that are gone have left on this host, or make a volume from its store alone
///
/// A mount of a served volume keeps what it has acked in a journal of its own until the server knows it and the store has it. When the mount
/// is killed, or its host is restarted, that stays there until somebody comes for it: `sluice mount` with the same --journal, or this command.
/// Until then other mounts get EIO for bytes that are not stored, and do not see changes that are not published.
///
/// With META alone it lists the journals of that volume which mounts of this user have left on this host, by whatever address they knew
/// the server, with what is in them and what to do. A journal in use by a live mount is left alone. Those of other users are named where their homes
/// may be read, as root, and are for them to recover. Nothing is changed.
///
/// With --journal or --all it goes on with the mount's session without mounting: it publishes what is not published, stores what is not stored,
/// shows how far it is, and ends the session. What was published before is not published again. While the store or the server is away it waits;
/// Ctrl-C, --timeout and kill -9 lose nothing, and a second run goes on.
///
/// With --from-store it makes the directory of a volume whose host is gone from the store alone: with all that was there at the last umount, or else a
/// few seconds before the end; in tier `object` all that fsync returned for. META is a new directory, from which a relative file:DIR counts; what is left of
/// an old one is no help and is left alone. Bytes that had not arrived read as EIO, and their files are named. Whoever still has the volume is cut off from the store by that. So when it was not unmounted, this says where it was last in use and since when, changes
/// nothing, and wants --force.
///
/// It needs the store's credentials, as `sluice mount` does. The journal of a volume of this host (`up`, `serve`) is not meant: those
/// replay it by themselves when they start.
///
/// Example: sluice recover sluice://10.0.0.5:7700
///
/// Example: sluice recover sluice://10.0.0.5:7700 --journal /ssd/journal
///
/// Example: sluice recover --from-store 's3://bucket/volume?endpoint=http://127.0.0.1:9000' --force ~/volume
#[derive(clap::Args)]
pub struct RecoverArgs {
    /// The volume: its server, sluice://HOST:PORT; on its host also local:DIR or DIR
    #[arg(value_name = "META")]
    pub meta: OsString,
    /// Take over the journal in this directory
    #[arg(long, value_name = "DIR", conflicts_with = "all")]
    pub journal: Option<PathBuf>,
    /// Take over all that were found
    #[arg(long)]
    pub all: bool,
    /// Where that journal's mount had its cache; default: where it noted that, else beside the journal
    #[arg(long, value_name = "DIR", requires = "journal")]
    pub cache: Option<PathBuf>,
    /// Give up after this time; the rest stays in the journal. Default: wait for as long as it takes
    #[arg(long, value_name = "TIME", value_parser = ValueParser::new(parse_time))]
    pub timeout: Option<Duration>,
    /// Store the rest also when some of the bytes are damaged or lost that only this host had, as after a loss of power: reads of those fail
    /// with EIO from then on. Without this nothing is stored then
    #[arg(long)]
    pub accept_loss: bool,
    /// Make the volume's directory, META, from what this store has: s3://BUCKET/PREFIX?endpoint=... or file:DIR
    #[arg(long, value_name = "STORE", conflicts_with_all = ["journal", "all", "cache", "timeout", "accept_loss"])]
    pub from_store: Option<String>,
    /// Also when the volume was not unmounted and may be in use elsewhere: its host is lost
    #[arg(long, requires = "from_store")]
    pub force: bool,
    /// Print the list, or what was made, as JSON
    #[arg(long, conflicts_with_all = ["journal", "all"])]
    pub json: bool,
}

pub fn run(args: &RecoverArgs) -> anyhow::Result<ExitCode> {
    if let Some(store) = &args.from_store {
        return from_store::run(&args.meta, store, args.force, args.json);
    }
    let meta = args.meta.to_string_lossy().into_owned();
    let (volume, local) = match meta.starts_with("sluice://") {
        true => (served_volume(&meta)?, None),
        false => {
            let dir = directory::volume_dir(&args.meta)?;
            let config = directory::load(&dir)?;
            (config.ok_or_else(|| anyhow!("{} holds no volume", dir.display()))?.id, Some(dir))
        }
    };
    let server = || match &local {
        Some(dir) => drain::of_directory(dir)?.ok_or_else(|| {
            anyhow!(
                "{0} is not served: start `sluice serve {0}`, or name its server, sluice://HOST:PORT. \
                 Its own journal needs neither: `sluice up` and `sluice serve` replay it",
                quoted(dir)
            )
        }),
        None => Ok(meta.clone()),
    };
    if let Some(journal) = &args.journal {
        return take_all(args, &server()?, &volume, &[without_size(journal)]);
    }
    let mut found = find::all(&volume, None);
    if args.all {
        let dirs: Vec<_> = found.into_iter().filter(Found::is_pending).map(|found| found.dir).collect();
        if dirs.is_empty() {
            out!("nothing to recover");
            tell_of_own(local.as_deref());
            return Ok(ExitCode::SUCCESS);
        }
        return take_all(args, &server()?, &volume, &dirs);
    }
    let others = find::of_others(&volume, &found);
    found.extend(others);
    if args.json {
        let list = list::json(&meta, server().ok().as_deref(), &volume, &found);
        out!("{}", serde_json::to_string_pretty(&list).context("printing")?);
        return Ok(ExitCode::SUCCESS);
    }
    list::print(&meta, &volume, &found);
    tell_of_own(local.as_deref().filter(|_| !found.iter().any(Found::is_pending)));
    Ok(ExitCode::SUCCESS)
}

/// What this is not for.
fn tell_of_own(dir: Option<&Path>) {
    if let Some(dir) = dir {
        out!(
            "the volume's own journal needs no command: `sluice up` and `sluice serve` of {0} replay it, `sluice status {0}` tells what it has",
            quoted(dir)
        );
    }
}

/// The id of the volume at `meta`.
fn served_volume(meta: &str) -> anyhow::Result<String> {
    let status = served::ask(meta, START_TIME)?;
    status["volume"].as_str().map(String::from).with_context(|| format!("{meta} does not say which volume it serves"))
}

/// One after the other; what keeps one of them back is said, and the others follow.
fn take_all(args: &RecoverArgs, meta: &str, volume: &str, dirs: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let cache = args.cache.as_deref().map(without_size);
    let taking = Taking { meta, volume, cache, takes_damaged: args.accept_loss };
    let runtimes = Runtimes::start()?;
    runtimes.io.spawn(end_early(args.timeout));
    let mut status = ExitCode::SUCCESS;
    for dir in dirs {
        if let Err(error) = taking.take(dir, &runtimes) {
            note!("{}", crate::describe(&error));
            status = ExitCode::FAILURE;
        }
    }
    runtimes.shut_down();
    Ok(status)
}

/// Tells who mounts with the journal `own` of others of the volume that wait for somebody.
pub fn warn_of_others(meta: &str, config: &VolumeConfig, own: &Path) {
    let found = find::all(&config.id, Some(own));
    let left = found.iter().filter(|found| found.is_pending() && !matches!(found.state, State::Missing));
    let left: Vec<_> = left.collect();
    match *left.as_slice() {
        [] => {}
        [Found { dir, state: State::Left(left, bytes), .. }] => {
            let (told, command) = (list::told(left, *bytes), list::command(meta, dir));
            note!(
                "warning: the journal of another mount of this volume, {}, holds {told}: `{command}` stores it",
                dir.display()
            );
        }
        ref several => note!(
            "warning: {} of other mounts of this volume may hold what is not stored: `sluice recover {}` shows more",
            counted(several.len(), "journal"),
            quoted(meta)
        ),
    }
}
