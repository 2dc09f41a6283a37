//! `sluice status`.

use crate::{
    config::{VolumeConfig, volume_dir},
    control::{Ask, Control, Told},
    lock::VolumeLock,
    mounts, units,
};
use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use std::{path::Path, process::ExitCode};

/// Show a volume: what it holds, where reads are served from, what is not stored yet
///
/// Example: sluice status ~/mnt
#[derive(clap::Args)]
pub struct StatusArgs {
    /// The volume (local:DIR or DIR) or where it is mounted
    #[arg(value_name = "META|MOUNTPOINT")]
    pub target: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let dir = match mounts::volume_at(Path::new(&args.target)) {
        Some(dir) => dir,
        None => volume_dir(&args.target)?,
    };
    let config = VolumeConfig::load(&dir)?;
    let config = config.ok_or_else(|| anyhow!("{} is neither a volume nor a mount of one", args.target))?;
    let mut status = None;
    if let Some(mut control) = Control::connect(&dir)? {
        control.ask(Ask::Status, |told| {
            if let Told::Status { status: told } = told {
                status = Some(told);
            }
            Ok(false)
        })?;
    }
    let status = status.unwrap_or_else(
        || json!({ "volume": config.id, "store": config.store, "running": false, "held_by": VolumeLock::holder(&dir) }),
    );
    if args.json {
        println!("{}", serde_json::to_string_pretty(&status).context("printing")?);
    } else {
        print(&dir, &status);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(dir: &Path, status: &Value) {
    let text = |key: &str| status[key].as_str().unwrap_or("-").to_string();
    println!("volume     {} in {}", text("volume"), dir.display());
    println!("store      {}", text("store"));
    let numbers = &status["numbers"];
    if status["running"] != json!(true) {
        match status["held_by"].as_str() {
            Some(holder) => println!("state      in use by {holder}"),
            None => println!("state      not mounted"),
        }
        return;
    }
    println!(
        "state      mounted at {} by pid {}, tier {}",
        text("mountpoint"),
        status["pid"],
        numbers["tier"].as_str().unwrap_or("-")
    );
    let size = |value: &Value| units::show_size(value.as_u64().unwrap_or(0));
    println!("holds      {} inodes, {}", numbers["inodes"], size(&numbers["held_bytes"]));
    println!(
        "dirty      {} in {} objects: acked, in the journal, not yet in the store",
        size(&numbers["dirty_bytes"]),
        numbers["dirty_objects"]
    );
    println!(
        "reads      {} from the cache, {} from the store",
        size(&numbers["read_cached_bytes"]),
        size(&numbers["read_stored_bytes"])
    );
    println!(
        "writes     {} written, {} uploaded, {} uploads failed",
        size(&numbers["written_bytes"]),
        size(&numbers["uploaded_bytes"]),
        numbers["upload_errors"]
    );
    let (journal, cache, store) = (&numbers["journal"], &numbers["cache"], &numbers["store"]);
    println!("journal    {} of {}", size(&journal["used_bytes"]), size(&journal["capacity_bytes"]));
    if cache.is_object() {
        let held = cache["clean_bytes"].as_u64().unwrap_or(0) + cache["dirty_bytes"].as_u64().unwrap_or(0);
        println!(
            "cache      {} of {}, {}",
            units::show_size(held),
            size(&cache["capacity_bytes"]),
            cache["state"].as_str().unwrap_or("-")
        );
    } else {
        println!("cache      none");
    }
    println!(
        "requests   {} PUT, {} GET, {} DELETE, {} other; {} retries",
        store["puts"], store["gets"], store["deletes"], store["other"], store["retries"]
    );
    if let Some(trouble) = numbers["trouble"].as_str() {
        println!("trouble    {trouble}");
    }
}
