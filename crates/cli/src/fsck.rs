//! `sluice fsck`: metadata against itself, against the journal and against the object store.

mod data;
mod identity;
mod offline;
pub mod report;
mod shipped;
mod stored;

pub use offline::open_for_repair;
pub use stored::list;

use crate::{
    lock::VolumeLock,
    mounts, units,
    volume::{Volume, ask_store},
};
use indicatif::{ProgressBar, ProgressStyle};
use report::{Item, Outcome};
use sluice_base::ObjectId;
use sluice_meta::{
    fsck::{self, Checked, Problem, RepairOptions, Report, StoredCopy},
    records::ObjectState,
};
use sluice_run::collections::HashMap;
use std::{ffi::OsString, path::Path, process::ExitCode, time::Duration};
use stored::Listing;

/// Check a volume, and mend it
///
/// Looks at every record of the metadata and at the list of objects in the store, and prints one line for each thing that is
/// wrong: how bad it is, the inode and its path, and what --repair does about it. The volume must not be mounted. A store that does not
/// answer is a finding; the metadata is checked without it.
///
/// Without --repair nothing is changed but what every start does: the journal is replayed.
///
/// --repair sets wrong counts right, completes or removes directory entries, gives inodes without a name one in /lost+found,
/// rebuilds lost inode records around their content, and takes bytes that exist nowhere out of their files: they then read as
/// zeros, and each such file and range is named. Objects that the store lost are not mended: reads of them go on failing, so
/// that the files can be told and restored.
///
/// Exit status: 0 nothing is wrong, or all of it was mended; 1 something is wrong or was left, or the check could not run.
///
/// Examples:
///
///   sluice fsck ~/volume              quick: metadata, and that every object and the metadata's copy in the store is there
///
///   sluice fsck ~/volume --data       also reads all of them and verifies their checksums
///
///   sluice fsck ~/volume --repair     mends what it can
#[derive(clap::Args)]
pub struct FsckArgs {
    /// The volume: local:DIR or DIR
    pub meta: OsString,
    /// Mend what is found
    #[arg(long)]
    pub repair: bool,
    /// Read every object and the metadata's copy in the store, and verify their checksums
    #[arg(long)]
    pub data: bool,
    /// Where the objects are, when meta/volume.json is damaged and does not tell
    #[arg(long)]
    pub store: Option<String>,
    /// Print one JSON object: findings, what was checked, how many were mended
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: &FsckArgs) -> anyhow::Result<ExitCode> {
    let dir = mounts::unmounted_dir(&args.meta, "fsck")?;
    // Before the store is asked, which may take its time.
    VolumeLock::check_free(&dir)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("sluice-io").enable_all().build()?;
    let mut outcome = Outcome::default();
    let silent = runtime.block_on(identity::check(&dir, args.store.as_deref(), args.repair, &mut outcome.items))?;
    let silent = silent.map(|error| Item::unreachable(&error));
    // Without knowing for sure who the volume is, nothing else can be told.
    if outcome.left() == 0
        && let Some(volume) = open_for_repair(&dir, args.repair, &mut outcome.items)?
    {
        let checked = check(args, &dir, volume, &runtime, silent, &mut outcome);
        if let Err(error) = checked {
            let damaged = offline::damaged_tables(&dir)?;
            if damaged.is_empty() {
                return Err(error);
            }
            outcome.items.extend(damaged);
        }
    }
    outcome.print(args.json, args.repair)?;
    Ok(if outcome.left() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(
    args: &FsckArgs,
    dir: &Path,
    volume: Volume,
    runtime: &tokio::runtime::Runtime,
    silent: Option<Item>,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let silent = match silent {
        None => runtime.block_on(ask_store(&volume.config, dir))?.map(|error| Item::unreachable(&error)),
        silent => silent,
    };
    let spinner = spinner("checking the metadata");
    let report = check_metadata(&volume, &spinner)?;
    outcome.checked = report.checked;
    spinner.set_message("listing the objects in the store");
    let listing = match silent {
        // A store that does not answer one question is not asked many.
        Some(silent) => Err(silent),
        None => runtime.block_on(list(&volume.store)).map_err(|error| Item::unreachable(&error)),
    };
    let listing = listing.map_err(|silent| outcome.items.push(silent)).ok();
    let copies = match &listing {
        Some(listing) => runtime.block_on(stored::copies(&volume, listing, &wanted_copies(&report, &volume, listing)?)),
        None => HashMap::default(),
    };
    if args.repair {
        repair(&volume, &copies, &report, outcome, &spinner)?;
    } else {
        outcome.items.extend(report.findings.iter().map(|finding| Item::of(finding, false)));
        outcome.more = report.more;
    }
    spinner.finish_and_clear();
    if let Some(listing) = &listing {
        outcome.items.extend(runtime.block_on(shipped::check(&volume, args.data)));
        outcome.items.extend(stored::compare(&volume, listing)?);
        if args.data {
            outcome.items.extend(runtime.block_on(data::verify(&volume, listing, &mut outcome.data))?);
        }
    }
    // Data that is not stored yet is found by what the journal says, which needs object records that parse.
    let parses = outcome.items.iter().all(|item| item.mended || item.code != "bad-object");
    if parses && has_unstored(&volume)? {
        drop(volume);
        outcome.items.extend(offline::unstored(dir)?);
    }
    Ok(())
}

fn check_metadata(volume: &Volume, spinner: &ProgressBar) -> anyhow::Result<Report> {
    let show = &mut |progress: fsck::Progress| {
        spinner.set_message(format!("checking {}: {} records so far", progress.table, progress.records));
    };
    Ok(fsck::check(volume.namespace.store(), show)?)
}

/// Objects whose record is gone or does not fit: what the store has of them decides whether bytes are lost.
fn wanted_copies(report: &Report, volume: &Volume, listing: &Listing) -> anyhow::Result<Vec<ObjectId>> {
    let in_doubt = report.findings.iter().filter_map(|finding| match finding.problem {
        Problem::BadObject { object } | Problem::LostData { object, .. } => Some(object),
        _ => None,
    });
    let mut wanted: Vec<ObjectId> = in_doubt.collect();
    wanted.extend(stored::of_other_length(volume, listing)?);
    wanted.sort_unstable();
    wanted.dedup();
    Ok(wanted)
}

fn repair(
    volume: &Volume,
    copies: &HashMap<ObjectId, StoredCopy>,
    report: &Report,
    outcome: &mut Outcome,
    spinner: &ProgressBar,
) -> anyhow::Result<()> {
    if !report.is_clean() {
        spinner.set_message("mending");
        let copy_of = |id: ObjectId| copies.get(&id).copied();
        let options = RepairOptions { now: volume.clock.wall(), copy_of: &copy_of };
        let show =
            &mut |progress: fsck::Progress| spinner.set_message(format!("mending: looking at {}", progress.table));
        let repaired = fsck::repair(volume.namespace.store(), &options, show)?;
        outcome.items.extend(repaired.mended.iter().map(|finding| Item::of(finding, true)));
        outcome.items.extend(repaired.after.findings.iter().map(|finding| Item::of(finding, false)));
        outcome.more = repaired.after.more;
    }
    outcome.items.extend(stored::mend_lengths(volume, copies)?);
    // Nothing of a repair waits for the next start.
    volume.namespace.store().checkpoint()?;
    Ok(())
}

fn has_unstored(volume: &Volume) -> anyhow::Result<bool> {
    let mut found = false;
    fsck::objects(volume.namespace.store(), &mut |_, record| {
        found |= record.is_some_and(|r| matches!(r.state, ObjectState::Open | ObjectState::Sealed) && r.live_bytes > 0);
    })?;
    Ok(found)
}

/// Something that moves on a terminal while long work goes on.
pub fn spinner(message: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message);
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}

/// A bar over bytes.
pub fn byte_bar(bytes: u64, message: &'static str) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}");
    ProgressBar::new(bytes).with_message(message).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// What a check looked at, in one line.
fn counted(checked: &Checked) -> String {
    format!(
        "{} inodes ({} directories), {} names, {} extents, {} objects, {} in files",
        checked.inodes,
        checked.directories,
        checked.entries,
        checked.extents,
        checked.objects,
        units::show_size(checked.bytes)
    )
}
