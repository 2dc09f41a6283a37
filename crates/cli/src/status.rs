//! `sluice status`.

mod node;
pub mod resting;
pub mod served;

use crate::{
    config::VolumeConfig,
    control::{Ask, Control, Told},
    describe, directory, mounts,
    output::out,
    reach::START_TIME,
    scrub, units,
};
use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// Time for the server of a mount: what the mount says of itself should not wait long for it.
const SERVER_TIME: Duration = Duration::from_secs(3);

/// Show a volume: what it holds, where reads are served from, what is not stored yet, who shares it
///
/// Of a served volume also its nodes and its sessions: each mount has one. `live` has a lease, which goes on with every request;
/// `grace` was not heard of since the server was restarted; `expired` has lost its lease and may come back. `not stored` are bytes
/// that a mount has acked and that only its own journal has: do not delete that before they are gone from here. When such a mount does not
/// come back, `sluice recover` on its host stores them.
///
/// A node's hit rate is the share of reads that its cache answered; `draining` places nothing more with it.
///
/// Example: sluice status ~/mnt
///
/// Example: sluice status sluice://10.0.0.5:7700 --json
#[derive(clap::Args)]
pub struct StatusArgs {
    /// The volume (local:DIR or DIR), where it is mounted, its server (sluice://HOST:PORT), or a node's cache directory
    #[arg(value_name = "META|MOUNTPOINT|CACHE")]
    pub target: OsString,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    if let Some(meta) = args.target.to_str().filter(|target| target.starts_with("sluice://")) {
        let status = served::ask(meta, START_TIME)?;
        if args.json {
            out!("{}", serde_json::to_string_pretty(&status).context("printing")?);
        } else {
            print(None, &status);
            served::print(&status, Some(meta));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(status) = node::ask(&args.target)? {
        match args.json {
            true => out!("{}", serde_json::to_string_pretty(&status).context("printing")?),
            false => node::print(&status),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (dir, config) = find(&args.target)?;
    let mut status = match told_by(&dir)? {
        Some(status) => status,
        None => resting::look(&dir, &config)?,
    };
    // A mount knows itself; of the others its server knows.
    if let (Some(server), true) = (status["server"].as_str(), status["mountpoint"].is_string()) {
        match served::ask(server, SERVER_TIME) {
            Ok(served) => status["served"] = served,
            Err(error) => status["server_trouble"] = describe(&error).into(),
        }
    }
    if args.json {
        out!("{}", serde_json::to_string_pretty(&status).context("printing")?);
        return Ok(ExitCode::SUCCESS);
    }
    print(Some(&dir), &status);
    if let Some(trouble) = status["server_trouble"].as_str() {
        out!("server     {trouble}");
    }
    let served = &status["served"];
    served::print(if served.is_object() { served } else { &status }, status["server"].as_str());
    Ok(ExitCode::SUCCESS)
}

/// What the process says that works on `dir`, if one does.
pub fn told_by(dir: &Path) -> anyhow::Result<Option<Value>> {
    let (mut status, control) = (None, Control::connect(dir)?);
    if let Some(mut control) = control {
        control.ask(Ask::Status, |told| {
            if let Told::Status { status: told } = told {
                status = Some(told);
            }
            Ok(false)
        })?;
    }
    Ok(status)
}

/// The volume that META or MOUNTPOINT names.
pub fn find(target: &OsStr) -> anyhow::Result<(PathBuf, VolumeConfig)> {
    let path = Path::new(target);
    let dir = match mounts::at(path) {
        Some(found) => found.dir,
        None => directory::volume_dir(target)?,
    };
    if let Some(config) = directory::load(&dir)? {
        return Ok((dir, config));
    }
    let none = || anyhow!("{} is neither a volume nor a mount of one", path.display());
    let (found, _) = mounts::draining_at(path).ok_or_else(none)?;
    let config = directory::load(&found.dir)?.ok_or_else(none)?;
    Ok((found.dir, config))
}

/// What a process says of itself; `dir` is the volume's directory, where that is on this host.
fn print(dir: Option<&Path>, status: &Value) {
    let text = |key: &str| status[key].as_str().unwrap_or("-").to_string();
    match (status["server"].as_str(), status["mountpoint"].as_str(), dir) {
        (Some(server), Some(_), Some(dir)) => {
            out!("volume     {} of {server}", text("volume"));
            out!("kept in    {}", dir.display());
        }
        (_, _, Some(dir)) => out!("volume     {} in {}", text("volume"), dir.display()),
        _ => out!("volume     {}", text("volume")),
    }
    out!("store      {}", text("store"));
    let numbers = &status["numbers"];
    if status["running"] != json!(true) {
        resting::print(status);
        return;
    }
    let at = status["mountpoint"].as_str().or(status["server"].as_str()).unwrap_or("-");
    out!(
        "state      {} at {at} by pid {}, tier {}",
        text("state"),
        status["pid"],
        numbers["tier"].as_str().unwrap_or("-")
    );
    let size = |value: &Value| units::show_size(value.as_u64().unwrap_or(0));
    match numbers["inodes"].as_u64() {
        Some(inodes) => out!("holds      {inodes} inodes, {}", size(&numbers["held_bytes"])),
        None => out!("holds      what the server knows"),
    }
    out!(
        "dirty      {} in {} objects: acked, in the journal, not yet in the store",
        size(&numbers["dirty_bytes"]),
        numbers["dirty_objects"]
    );
    if let Some(count) = numbers["waiting_writes"].as_u64().filter(|count| *count > 0) {
        let writes = units::counted(count as usize, "write");
        out!("waiting    {writes}: what is not in the store yet leaves no room for more");
    }
    out!(
        "reads      {} from the cache, {} from the store",
        size(&numbers["read_cached_bytes"]),
        size(&numbers["read_stored_bytes"])
    );
    let memory = &numbers["memory"];
    out!(
        "ahead      {} read ahead, {} of it in vain; {} of {} memory in use",
        size(&memory["ahead_bytes"]),
        size(&memory["ahead_useless_bytes"]),
        size(&memory["used_bytes"]),
        size(&memory["capacity_bytes"])
    );
    out!(
        "writes     {} written, {} uploaded, {} uploads failed",
        size(&numbers["written_bytes"]),
        size(&numbers["uploaded_bytes"]),
        numbers["upload_errors"]
    );
    if let Some(behind) = status["metadata"]["behind_records"].as_u64() {
        let metadata = &status["metadata"];
        match (metadata["shipped_seq"].as_u64(), behind) {
            _ if metadata["stopped"] == true => {
                out!("metadata   cut off from the store, which takes no more from here")
            }
            (None, _) => out!("metadata   the store has not answered yet"),
            (_, 0) => out!("metadata   in the store"),
            _ => {
                let seconds = metadata["behind_ms"].as_u64().unwrap_or(0) as f64 / 1000.0;
                out!("metadata   {behind} changes are not in the store yet, the oldest for {seconds:.1} s");
            }
        }
        if let Some(trouble) = metadata["trouble"].as_str() {
            out!("           {trouble}");
        }
    }
    let gc = &numbers["gc"];
    if gc["dead_bytes"].as_u64().is_some_and(|bytes| bytes > 0)
        || gc["tombstones"].as_u64().is_some_and(|count| count > 0)
    {
        out!(
            "garbage    {} of {} in the store are of no file, {} objects wait for their deletion",
            size(&gc["dead_bytes"]),
            size(&gc["stored_bytes"]),
            gc["tombstones"]
        );
    }
    if let Some(trouble) = gc["trouble"].as_str() {
        out!("           {trouble}");
    }
    let (journal, cache, store) = (&numbers["journal"], &numbers["cache"], &numbers["store"]);
    out!("journal    {} of {}", size(&journal["used_bytes"]), size(&journal["capacity_bytes"]));
    if cache.is_object() {
        let held = cache["clean_bytes"].as_u64().unwrap_or(0) + cache["dirty_bytes"].as_u64().unwrap_or(0);
        out!(
            "cache      {} of {}, {}",
            units::show_size(held),
            size(&cache["capacity_bytes"]),
            cache["state"].as_str().unwrap_or("-")
        );
        if let Some(line) = scrub::line(&cache["scrub"]) {
            out!("scrub      {line}");
        }
    } else {
        out!("cache      none");
    }
    out!(
        "requests   {} PUT, {} GET, {} DELETE, {} other; {} retries",
        store["puts"],
        store["gets"],
        store["deletes"],
        store["other"],
        store["retries"]
    );
    for warmup in status["warmups"].as_array().into_iter().flatten() {
        out!("warming    {}", crate::warmup::line(warmup));
    }
    if let Some(trouble) = numbers["trouble"].as_str() {
        out!("trouble    {trouble}");
    }
    if let Some(warning) = status["last_warning"].as_str() {
        out!("warned     {warning}");
    }
}
