//! A volume, or what a mount has of a served one, on which no process works.

use crate::{
    config::VolumeConfig,
    control::is_socket_left,
    describe,
    lock::VolumeLock,
    mount::kept::Record,
    output::out,
    units::{quoted, show_size},
    volume::{self, Unstored},
};
use serde_json::{Value, json};
use std::path::Path;

/// What is in `dir`, as far as nobody is at work on it.
pub fn look(dir: &Path, config: &VolumeConfig) -> anyhow::Result<Value> {
    let mut status = json!({ "dir": dir.to_string_lossy(), "volume": config.id, "store": config.store, "tier": config.durability, "running": false });
    // Held while it is looked at: a start meanwhile waits.
    let _lock = match VolumeLock::look(dir)? {
        Ok(lock) => lock,
        Err(holder) => {
            (status["state"], status["held_by"]) = ("in use".into(), holder.into());
            return Ok(status);
        }
    };
    status["held_by"] = Value::Null;
    status["state"] = if is_socket_left(dir) { "killed".into() } else { "not mounted".into() };
    let mount = Record::load(dir);
    status["next"] = match &mount {
        Some(record) => format!("sluice mount {} {}", quoted(&record.server), quoted(&record.mountpoint)),
        None => format!("sluice up {} MOUNTPOINT", quoted(dir)),
    }
    .into();
    let looked = config.id().and_then(|id| match &mount {
        Some(_) => volume::look(dir, id).map(|(left, bytes)| {
            status["unpublished_changes"] = left.changes.into();
            let objects = left.objects.len() as u64;
            Unstored { objects, bytes, elsewhere_bytes: 0 }
        }),
        None => volume::look_unstored(dir, id),
    });
    match looked {
        Ok(Unstored { objects, bytes, elsewhere_bytes }) => {
            (status["unstored_objects"], status["unstored_bytes"]) = (objects.into(), bytes.into());
            status["unstored_elsewhere_bytes"] = elsewhere_bytes.into();
        }
        Err(error) => status["trouble"] = describe(&error).into(),
    }
    Ok(status)
}

pub fn print(status: &Value) {
    let text = |key: &str| status[key].as_str().unwrap_or("-");
    if let Some(holder) = status["held_by"].as_str() {
        out!("state      in use by {holder}");
        return;
    }
    let is_killed = status["state"] == "killed";
    match is_killed {
        true => out!("state      killed, tier {}: its process is gone and did not end it", text("tier")),
        false => out!("state      not mounted, tier {}", text("tier")),
    }
    let (objects, bytes) = (status["unstored_objects"].as_u64(), status["unstored_bytes"].as_u64().unwrap_or(0));
    match objects {
        Some(0) if is_killed => {
            out!("dirty      no bytes of files above 4 KiB; perhaps the latest changes of the metadata")
        }
        Some(0) | None => {}
        Some(objects) => {
            out!("dirty      {} in {objects} objects: acked, here, not yet in the store", show_size(bytes));
        }
    }
    let elsewhere = status["unstored_elsewhere_bytes"].as_u64().unwrap_or(0);
    if elsewhere > 0 {
        out!("elsewhere  {} in journals of mounts, not yet in the store", show_size(elsewhere));
        out!(
            "next       `sluice serve {} --listen HOST:PORT`, to which they store it; what of them is gone: `sluice recover {0}` there",
            quoted(Path::new(text("dir")))
        );
    } else if is_killed || objects.is_some_and(|objects| objects > 0) {
        out!("next       `{}` goes on with what is here, and stores it", text("next"));
    }
    if let Some(trouble) = status["trouble"].as_str() {
        out!("trouble    {trouble}");
    }
}
