//! What was found, for people and for programs.

use super::find::{Found, State};
use crate::{
    describe,
    mount::kept,
    output::out,
    units::{quoted, show_size},
};
use serde_json::{Value, json};
use sluice_vfs::remote::Left;
use std::path::Path;

/// The command that takes a journal over.
pub fn command(meta: &str, dir: &Path) -> String {
    format!("sluice recover {} --journal {}", quoted(meta), quoted(dir))
}

/// `1 journal`, `2 journals`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// `3 changes of 2 files (5.0 MiB) not published, 2 objects (8.0 MiB) not stored`.
pub fn told(left: &Left, bytes: u64) -> String {
    format!(
        "{} of {} ({}) not published, {} ({}) not stored",
        counted(left.changes, "change"),
        counted(left.files, "file"),
        show_size(left.unpublished_bytes),
        counted(left.objects.len(), "object"),
        show_size(bytes)
    )
}

pub fn print(meta: &str, volume: &str, found: &[Found]) {
    out!("volume     {volume}");
    for Found { dir, record, state } in found {
        out!("journal    {}", dir.display());
        if let Some(record) = record {
            out!("  mounted  {} at {}", record.server, record.mountpoint.display());
        }
        match state {
            State::Missing => {
                out!("  state    not there: its disk is not mounted, or it was removed");
                if let Some(note) = kept::link(volume, dir) {
                    out!("  do       mount its disk and run this again; if it is gone for good: rm {}", quoted(&note));
                }
            }
            State::Held(holder) => out!("  state    in use by {holder}; left alone: that process stores what it has"),
            State::Damaged(error) => {
                out!("  state    cannot be read: {}", describe(error));
                out!("  do       keep a copy of it; nothing was touched");
            }
            State::Left(left, bytes) => {
                if let Some((session, _)) = left.session {
                    out!("  session  {session}");
                }
                out!("  holds    {}", told(left, *bytes));
                out!("  do       {}", command(meta, dir));
            }
        }
    }
    if !found.iter().any(Found::is_pending) {
        out!(
            "nothing to recover: no mount of this user on this host has left anything that is not published and stored"
        );
    }
}

pub fn json(meta: &str, server: Option<&str>, volume: &str, found: &[Found]) -> Value {
    let journals: Vec<Value> = found.iter().map(|found| journal(meta, found)).collect();
    json!({ "volume": volume, "server": server, "journals": journals })
}

fn journal(meta: &str, found: &Found) -> Value {
    let Found { dir, record, state } = found;
    let mut value = json!({
        "dir": dir,
        "server": record.as_ref().map(|record| &record.server),
        "mountpoint": record.as_ref().map(|record| &record.mountpoint),
        "pending": found.is_pending(),
    });
    match state {
        State::Missing => value["state"] = "missing".into(),
        State::Held(holder) => (value["state"], value["held_by"]) = ("in use".into(), holder.as_str().into()),
        State::Damaged(error) => (value["state"], value["error"]) = ("damaged".into(), describe(error).into()),
        State::Left(left, bytes) => {
            value["state"] = "left".into();
            value["session"] = left.session.map(|(session, _)| session.0).into();
            value["files"] = left.files.into();
            value["changes"] = left.changes.into();
            value["unpublished_bytes"] = left.unpublished_bytes.into();
            value["objects"] = left.objects.len().into();
            value["unstored_bytes"] = (*bytes).into();
            value["command"] = command(meta, dir).into();
        }
    }
    value
}
