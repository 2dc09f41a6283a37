//! `sluice warmup --check`.

use super::paths::Named;
use crate::{
    control::{Ask, Told},
    output::{note, out},
    units::show_size,
};
use serde_json::json;
use sluice_vfs::Held;
use std::process::ExitCode;

pub fn run(named: &Named, json: bool) -> anyhow::Result<ExitCode> {
    let mut failed = 0;
    named.ask_each(Ask::Held, |shown, told| match told {
        Told::Held { held } if json => {
            let mut line = json!(held);
            line["path"] = shown.into();
            out!("{line}");
        }
        Told::Held { held } => print(shown, &held),
        Told::Missed { error } => {
            failed += 1;
            note!("{shown}: {error}");
        }
        _ => {}
    })?;
    Ok(if failed + named.failed() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(shown: &str, held: &Held) {
    let share = |bytes: u64| format!("{} ({} %)", show_size(bytes), bytes * 100 / held.bytes.max(1));
    out!("{shown}: {} files, {}", held.files, show_size(held.bytes));
    out!("    here     {}", share(held.local_bytes));
    if held.unstored_bytes > 0 {
        out!("             {} of them not stored yet", show_size(held.unstored_bytes));
    }
    if !held.nodes.is_empty() {
        out!("    nodes    {}", share(held.group_bytes));
    }
    for (node, bytes) in &held.nodes {
        out!("             {node}: {}", share(*bytes));
    }
}
