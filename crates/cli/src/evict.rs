//! `sluice evict`.

use crate::{
    control::{Ask, Told},
    output::{note, out},
    units::show_size,
    warmup::paths::{Named, PathArgs},
};
use std::process::ExitCode;

/// Give up what this host has cached of files
///
/// Drops the files below each PATH from the mount's own cache, and from the kernel's. The bytes are in the store, and are fetched again when
/// somebody reads them. What is acked and not stored yet stays. Small files share objects with their neighbours: these go too.
///
/// The nodes of the volume keep what they have: that cache is everybody's, and makes room by itself, so there is no option for it.
/// `sluice drain` takes a node out of use.
///
/// Example: sluice evict ~/mnt/models/old
#[derive(clap::Args)]
pub struct EvictArgs {
    #[command(flatten)]
    pub paths: PathArgs,
    /// Print a JSON object for each PATH
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &EvictArgs) -> anyhow::Result<ExitCode> {
    let named = Named::find(&args.paths)?;
    let (mut total, mut failed) = (0, 0);
    named.ask_each(Ask::Evict, |shown, told| match told {
        Told::Evicted { bytes } => {
            total += bytes;
            if args.json {
                out!("{}", serde_json::json!({ "path": shown, "evicted_bytes": bytes }));
            }
        }
        Told::Missed { error } => {
            failed += 1;
            note!("{shown}: {error}");
        }
        _ => {}
    })?;
    if !args.json {
        out!("{} given up", show_size(total));
    }
    Ok(if failed + named.failed() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
