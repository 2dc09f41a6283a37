//! `sluice scrub`, and `--scrub-rate` of the processes that have a cache.

use crate::{
    control::{Ask, Control, Told},
    directory, mounts,
    output::{note, out},
    units::{parse_size, quoted, show_size},
};
use anyhow::{Context, bail};
use clap::builder::ValueParser;
use indicatif::{ProgressBar, ProgressStyle};
use sluice_store::{Cache, ScrubOptions};
use sluice_vfs::ScrubNumbers;
use std::{ffi::OsString, io::IsTerminal, path::Path, process::ExitCode};

/// Rot was found.
const FOUND: u8 = 2;

/// `--scrub-rate` of `up`, `mount` and `serve`.
#[derive(clap::Args)]
pub struct ScrubRate {
    /// How fast the cache disk is read again to find what has rotted, in bytes a second; once a day, with the lowest priority. 0 reads
    /// it only when `sluice scrub` asks
    #[arg(long = "scrub-rate", default_value = "16M", value_name = "SIZE", value_parser = ValueParser::new(parse_size))]
    rate: u64,
}

impl ScrubRate {
    /// Starts the scrubber of a process's cache. Without one, or when it cannot be started, the work goes on.
    pub fn start(&self, cache: Option<&Cache>) {
        let options = ScrubOptions { rate: self.rate, ..ScrubOptions::default() };
        if let Some(Err(error)) = cache.map(|cache| cache.start_scrub(options)) {
            note!("warning: the cache is not scrubbed: {error}");
        }
    }
}

/// Read a cache disk again and check every byte of it
///
/// TARGET is a mount point, the directory of a volume that is mounted or served on this host, or a node's cache directory. The process
/// that has the cache does the work, at the lowest priority; it goes on when this command is ended (Ctrl-C), and a restart of the
/// process does not begin it again.
///
/// What is bad is given up and fetched from the store again when somebody reads it: no reader is ever given wrong bytes. What is
/// acked and not stored yet is checked when it is uploaded, not here.
///
/// The exit status is 0 when all is sound, 2 when bad segments (32 KiB each) were found, 1 when it could not be done. One bad segment is
/// an accident; when there are more every time, replace the disk.
///
/// Example: sluice scrub ~/mnt
///
/// Example: sluice scrub /ssd/node --rate 100M --json
#[derive(clap::Args)]
pub struct ScrubArgs {
    /// A mount point, a volume's directory, or a node's cache directory
    pub target: OsString,
    /// Read at most so many bytes a second; default: what the disk gives
    #[arg(long, default_value = "0", hide_default_value = true, value_name = "SIZE", value_parser = ValueParser::new(parse_size))]
    pub rate: u64,
    /// Print what was found as JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &ScrubArgs) -> anyhow::Result<ExitCode> {
    let path = Path::new(&args.target);
    let dir = mounts::dir_of_process(&args.target)?;
    let Some(mut control) = Control::connect(&dir)? else {
        if directory::load(&dir)?.is_none() {
            bail!(
                "{} is no mount point of a volume, no volume and no cache of a node that runs: name one of these",
                path.display()
            );
        }
        bail!(
            "nothing works on {}: a cache is scrubbed by the process that has it. Mount the volume (`sluice up {} MOUNTPOINT`), or \
             start the node, then scrub it",
            path.display(),
            quoted(path)
        );
    };
    let (bar, mut found) = (bar(args.json), None);
    control.ask(Ask::Scrub { rate: args.rate }, |told| {
        let Told::Scrub { scrub, held_bytes, over } = told else { return Ok(true) };
        bar.set_length(held_bytes.max(scrub.pass.bytes));
        bar.set_position(scrub.pass.bytes);
        if over {
            found = Some(scrub);
        }
        Ok(!over)
    })?;
    bar.finish_and_clear();
    let found =
        found.context("the process ended before its cache was read to the end; started again, it goes on by itself")?;
    if args.json {
        out!("{}", serde_json::to_string_pretty(&found).context("printing")?);
    } else {
        tell(path, &found);
    }
    let rotten = found.last.bad_segments + found.last.unreadable_segments > 0;
    Ok(if rotten { ExitCode::from(FOUND) } else { ExitCode::SUCCESS })
}

fn bar(quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn tell(path: &Path, found: &ScrubNumbers) {
    let pass = &found.last;
    out!("{}: {} read, {} segments", path.display(), show_size(pass.bytes), pass.segments);
    if pass.stale_slots > 0 {
        out!("{} slots had been given to others before a crash: given up, no sign of rot", pass.stale_slots);
    }
    match (pass.bad_segments, pass.unreadable_segments) {
        (0, 0) => out!("all sound"),
        (bad, 0) => out!("{bad} segments were not what had been written: given up, the store has them"),
        (bad, unreadable) => {
            out!(
                "{bad} segments were not what had been written, {unreadable} could not be read: given up, the store has them"
            );
        }
    }
    if found.rotting {
        out!("the disk is rotting: replace it");
    }
}

/// A line of `sluice status`.
pub fn line(scrub: &serde_json::Value) -> Option<String> {
    let scrub: ScrubNumbers = serde_json::from_value(scrub.clone()).ok()?;
    let shown = if scrub.running { &scrub.pass } else { &scrub.last };
    let rotten = shown.bad_segments + shown.unreadable_segments;
    let found = match (rotten, scrub.rotting) {
        (0, _) => "nothing bad".to_string(),
        (bad, false) => format!("{bad} bad segments given up"),
        (bad, true) => format!("{bad} bad segments given up: the disk is rotting, replace it"),
    };
    let rate = match scrub.rate_bytes_per_s {
        0 => "as fast as it can".to_string(),
        rate => format!("at {}/s", show_size(rate)),
    };
    let done = u64::from(scrub.slots_done) * 100 / u64::from(scrub.slots).max(1);
    Some(match (scrub.running, scrub.passes) {
        (true, _) => format!("{done} % done {rate}, {} read, {found}", show_size(shown.bytes)),
        (false, 0) => "never".into(),
        (false, _) => format!("{} read in the last pass, {found}", show_size(shown.bytes)),
    })
}
