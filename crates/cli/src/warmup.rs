//! `sluice warmup`.

mod check;
pub mod paths;
mod program;

use crate::{
    control::{Ask, Told},
    output::{note, out},
    units::show_size,
};
use anyhow::{Context, bail};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use paths::{Named, PathArgs};
use serde_json::Value;
use sluice_vfs::{WarmNumbers, WarmTo};
use std::{ffi::OsString, io::IsTerminal, path::PathBuf, process::ExitCode};

/// Bring files near before they are read
///
/// The mount's process fetches the files below each PATH, in the order given, several objects at once, and behind whoever reads at the same
/// time. What is there already is skipped: a warm-up that was cut off is gone on with by saying it again.
///
/// Without --wait it returns as soon as the mount knows the paths, and the work goes on there: `sluice status` shows it. With --wait
/// it shows the progress and returns when everything is there; Ctrl-C stops the work.
///
/// With a COMMAND behind -- it starts that program once the mount is at work: the files are fetched while the program starts up, in the order
/// in which it will read them. --learn FILE runs the program once and writes down in which order it opens the files below the PATHs;
/// `--from FILE -- COMMAND` is then ahead of it at every later start. A file that the program has opened already is left for the end.
///
/// The exit status is 0 when everything that was asked for is there (or, without --wait, begun), 1 when something is not; with a COMMAND its own.
///
/// Example: sluice warmup ~/mnt/models/llama --wait
///
/// Example: sluice warmup --from order.txt -- python3 serve.py
///
/// Example: sluice warmup ~/mnt/models --check
#[derive(clap::Args)]
pub struct WarmupArgs {
    #[command(flatten)]
    pub paths: PathArgs,
    /// Where to: local, this host's own cache, or group, the caches of the nodes that own the objects. These fetch from the store
    /// themselves: nothing passes through this host
    #[arg(long, value_name = "WHERE", default_value = "local")]
    pub to: Where,
    /// Load names, attributes and extents only, no bytes of files
    #[arg(long)]
    pub metadata: bool,
    /// Return when everything is there
    #[arg(long)]
    pub wait: bool,
    /// Fetch nothing: show how much of each PATH is cached here and on which nodes
    #[arg(long, conflicts_with_all = ["wait", "metadata", "to", "learn", "command"])]
    pub check: bool,
    /// Write to FILE in which order COMMAND opens the files below the PATHs
    #[arg(long, value_name = "FILE", requires = "command", conflicts_with_all = ["wait", "metadata", "to", "from"])]
    pub learn: Option<PathBuf>,
    /// Print JSON: with --wait what was done, with --check an object for each PATH
    #[arg(long)]
    pub json: bool,
    /// A program to be started meanwhile
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "wait")]
    pub command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Where {
    Local,
    Group,
}

pub fn run(args: &WarmupArgs) -> anyhow::Result<ExitCode> {
    let named = Named::find(&args.paths)?;
    if args.check {
        return check::run(&named, args.json);
    }
    if let Some(file) = &args.learn {
        return program::learn(&named, file, &args.command);
    }
    let to = match (args.metadata, args.to) {
        (true, _) => WarmTo::Metadata,
        (false, Where::Local) => WarmTo::Local,
        (false, Where::Group) => WarmTo::Group,
    };
    let numbers = warm(&named, to, args.wait, !args.json)?;
    if !args.command.is_empty() {
        return program::become_it(&args.command);
    }
    if args.json {
        out!("{}", serde_json::to_string(&numbers).context("printing")?);
    } else if args.wait {
        tell(&numbers);
    }
    Ok(if numbers.files_failed + named.failed() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn warm(named: &Named, to: WarmTo, wait: bool, shows: bool) -> anyhow::Result<WarmNumbers> {
    let (bar, mut last) = (bar(wait && shows), None);
    named.control()?.ask_about(Ask::Warmup { to, wait }, named.within(|_| {}), |told| {
        if let Told::Warming { numbers } = told {
            bar.set_length(numbers.bytes);
            bar.set_position(numbers.present_bytes + numbers.brought_bytes);
            bar.set_message(format!("{} of {} files", numbers.files_done, numbers.files));
            last = Some(numbers);
        }
        Ok(true)
    })?;
    bar.finish_and_clear();
    match last {
        Some(numbers) if numbers.over || !wait => Ok(numbers),
        _ => bail!(
            "the mount ended before everything was warm; mounted again, say it once more: what is there is skipped"
        ),
    }
}

fn bar(shown: bool) -> ProgressBar {
    if !shown || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {msg}";
    ProgressBar::new(0)
        .with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn tell(numbers: &WarmNumbers) {
    let WarmNumbers { files_done, files_failed, present_bytes, brought_bytes, unstored_bytes, trouble, .. } = numbers;
    out!("{files_done} files warm: {} were there, {} brought", show_size(*present_bytes), show_size(*brought_bytes));
    if *unstored_bytes > 0 {
        out!("{} are not stored yet by the mount that wrote them, and cached nowhere else", show_size(*unstored_bytes));
    }
    if *files_failed > 0 {
        note!("{files_failed} paths or files failed; the last: {}", trouble.as_deref().unwrap_or("-"));
    }
}

/// A line of `sluice status`.
pub fn line(warmup: &Value) -> String {
    let to = warmup["to"].as_str().unwrap_or("-");
    let Ok(numbers) = serde_json::from_value::<WarmNumbers>(warmup["numbers"].clone()) else { return to.into() };
    let done = numbers.present_bytes + numbers.brought_bytes;
    let (done, all) = (show_size(done), show_size(numbers.bytes));
    format!("to {to}: {} of {} files, {done} of {all} found so far", numbers.files_done, numbers.files)
}
