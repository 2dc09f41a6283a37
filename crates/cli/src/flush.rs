//! `sluice flush`.

use crate::{
    control::{Ask, Control, Told},
    mounts,
    output::{note, out},
    progress::Progress,
    status,
    units::{self, quoted, show_size, show_time},
};
use anyhow::{anyhow, bail};
use clap::builder::ValueParser;
use serde_json::json;
use sluice_base::{Clock, SystemClock};
use std::{ffi::OsString, path::Path, process::ExitCode, time::Duration};

/// Store everything written so far, and go on
///
/// Returns when what was written before it is in the object store, bytes and metadata, so that it survives the loss of this host. The mount goes
/// on meanwhile, and as before. Of a mount of a served volume that is what was written through it: it is published too, and the server has shipped
/// its names. Of a volume that is served from this host, it is what the server has; what mounts have not stored is told, and is theirs to flush.
/// What programs have changed in shared memory maps and not synced is not known here yet.
///
/// When the store or the server is down it waits and says so; ending this command (Ctrl-C) changes nothing.
///
/// Example: sluice flush ~/mnt --timeout 5m
#[derive(clap::Args)]
pub struct FlushArgs {
    /// Where the volume is mounted, or, on its host, the volume (local:DIR or DIR)
    #[arg(value_name = "MOUNTPOINT|META")]
    pub target: OsString,
    /// Give up after this time, with exit status 1; what is left is stored as ever. Default: wait for as long as it takes
    #[arg(long, value_name = "TIME", value_parser = ValueParser::new(units::parse_time))]
    pub timeout: Option<Duration>,
    /// Print what came of it as JSON
    #[arg(long)]
    pub json: bool,
}

/// How it stands.
#[derive(Default)]
struct State {
    /// Objects and bytes at first, and yet.
    first: Option<(usize, u64)>,
    left: (usize, u64),
    trouble: Option<String>,
    is_late: bool,
    flushed: bool,
    elsewhere_bytes: Option<u64>,
}

pub fn run(args: &FlushArgs) -> anyhow::Result<ExitCode> {
    let (dir, _) = status::find(&args.target)?;
    let (clock, mut state) = (SystemClock::default(), State::default());
    let started = clock.monotonic();
    let mut control = Control::connect(&dir)?.ok_or_else(|| not_at_work(&args.target, &dir))?;
    if let Some(timeout) = args.timeout {
        control.be_patient_for(timeout.max(Duration::from_millis(1)))?;
    }
    let mut progress = Progress::new();
    control.ask(Ask::Flush, |told| {
        match told {
            Told::Draining { objects, bytes, trouble } => {
                let text = match objects {
                    0 => "storing the metadata".into(),
                    _ => format!("storing {} in {objects} objects", show_size(bytes)),
                };
                progress.show(&text, trouble.clone());
                state.first.get_or_insert((objects, bytes));
                (state.left, state.trouble) = ((objects, bytes), trouble);
            }
            Told::Flushed { elsewhere_bytes } => (state.flushed, state.elsewhere_bytes) = (true, elsewhere_bytes),
            _ => {}
        }
        state.is_late = args.timeout.is_some_and(|timeout| clock.monotonic() - started >= timeout);
        Ok(!state.flushed && !state.is_late)
    })?;
    progress.finish();
    state.is_late |= args.timeout.is_some_and(|timeout| clock.monotonic() - started >= timeout);
    show(args, &state, clock.monotonic() - started)
}

fn show(args: &FlushArgs, state: &State, took: Duration) -> anyhow::Result<ExitCode> {
    let (objects, bytes) = state.first.unwrap_or_default();
    if args.json {
        out!(
            "{}",
            json!({
                "flushed": state.flushed, "objects": objects, "bytes": bytes, "ms": took.as_millis() as u64,
                "left_objects": if state.flushed { 0 } else { state.left.0 },
                "left_bytes": if state.flushed { 0 } else { state.left.1 },
                "trouble": state.trouble, "unstored_elsewhere_bytes": state.elsewhere_bytes,
            })
        );
    }
    if state.flushed {
        if !args.json {
            out!("stored     all that was written before: {} in {objects} objects, and the metadata", show_size(bytes));
        }
        if let Some(bytes) = state.elsewhere_bytes.filter(|bytes| *bytes > 0) {
            note!("mounts on other hosts have {} that they have not stored: `sluice flush` there", show_size(bytes));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !state.is_late {
        bail!(
            "the process ended before all was stored: what it had acked is in its journal, and the next start stores it"
        );
    }
    let why = state.trouble.as_ref().map(|trouble| format!("; {trouble}")).unwrap_or_default();
    let what = match state.left {
        (0, _) => "the metadata".into(),
        (objects, bytes) => format!("{} in {objects} objects", show_size(bytes)),
    };
    bail!("not everything is stored after {}: {what} is left{why}", show_time(args.timeout.unwrap_or_default()))
}

fn not_at_work(target: &OsString, dir: &Path) -> anyhow::Error {
    if let Some(found) = mounts::at(Path::new(target)) {
        return anyhow!(
            "the process of {} is gone; what it had acked is in {}: `sluice umount {}` says what stores it",
            found.at.display(),
            dir.display(),
            quoted(&found.at)
        );
    }
    anyhow!(
        "{} is not mounted: what is not stored yet is in its journal, and is stored once it is mounted again. `sluice status {}` shows how much that is",
        dir.display(),
        quoted(dir)
    )
}
