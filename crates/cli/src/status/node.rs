//! A node, asked on its own host.

use super::told_by;
use crate::{directory, mounts, output::out, scrub, units::show_size};
use serde_json::Value;
use std::{ffi::OsStr, path::Path};

/// What the node says whose cache directory `target` is; `None` where it is something else.
pub fn ask(target: &OsStr) -> anyhow::Result<Option<Value>> {
    if mounts::at(Path::new(target)).is_some() {
        return Ok(None);
    }
    let dir = directory::volume_dir(target)?;
    if !dir.join("slots").is_file() || directory::load(&dir)?.is_some() {
        return Ok(None);
    }
    told_by(&dir)
}

pub fn print(status: &Value) {
    let text = |key: &str| status[key].as_str().unwrap_or("-");
    let numbers = &status["numbers"];
    let (cache, size) = (&numbers["cache"], |value: &Value| show_size(value.as_u64().unwrap_or(0)));
    out!("node       {} of {}", text("node"), text("server"));
    out!("state      {} at {} by pid {}", text("state"), text("address"), status["pid"]);
    out!(
        "cache      {} of {}, {}",
        size(&cache["clean_bytes"]),
        size(&cache["capacity_bytes"]),
        cache["state"].as_str().unwrap_or("-")
    );
    out!(
        "reads      {} from the cache, {} fetched for, {} failed",
        numbers["hits"],
        numbers["misses"],
        numbers["failures"]
    );
    out!(
        "sent       {}; fetched {} from the store, {} from nodes",
        size(&numbers["served_bytes"]),
        size(&numbers["filled_bytes"]),
        size(&numbers["moved_bytes"])
    );
    if let Some(line) = scrub::line(&cache["scrub"]) {
        out!("scrub      {line}");
    }
    if let Some(warning) = status["last_warning"].as_str() {
        out!("warned     {warning}");
    }
}
