//! What was found, for people and for programs.

use super::find::{Found, State};
use crate::{
    describe,
    mount::kept,
    output::out,
    units::{counted, quoted, show_size},
};
use serde_json::{Value, json};
use sluice_vfs::remote::Left;
use std::path::Path;

/// The command that takes a journal over.
pub fn command(meta: &str, dir: &Path) -> String {
    format!("sluice recover {} --journal {}", quoted(meta), quoted(dir))
}

/// `3 changes of 2 files (5.0 MiB) not published, 2 objects (8.0 MiB) not stored`.
pub fn told(left: &Left, bytes: u64) -> String {
    let published = (left.changes > 0).then(|| {
        let (changes, files) = (counted(left.changes, "change"), counted(left.files, "file"));
        format!("{changes} of {files} ({}) not published", show_size(left.unpublished_bytes))
    });
    let objects = left.objects.len();
    let stored = (objects > 0).then(|| format!("{} ({}) not stored", counted(objects, "object"), show_size(bytes)));
    let parts: Vec<String> = published.into_iter().chain(stored).collect();
    if parts.is_empty() { "nothing but its session".into() } else { parts.join(", ") }
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
            State::Foreign { user, holder: Some(holder) } => {
                out!("  state    of user {user}, in use by {holder}; left alone: that process stores what it has");
            }
            State::Foreign { user, holder: None } => {
                out!("  state    of user {user}; not looked at");
                out!("  do       as {user}: {}", command(meta, dir));
            }
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
        State::Foreign { user, holder } => {
            (value["state"], value["user"]) = ("other user".into(), user.as_str().into());
            (value["held_by"], value["command"]) = (holder.as_deref().into(), command(meta, dir).into());
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_base::ObjectId;

    #[test]
    fn what_is_left_is_told_without_zeros() {
        let mut left = Left::default();
        assert_eq!(told(&left, 0), "nothing but its session");
        left.objects.insert(ObjectId([1; 16]));
        assert_eq!(told(&left, 2048), "1 object (2.00 KiB) not stored");
        (left.changes, left.files, left.unpublished_bytes) = (3, 2, 1024);
        assert_eq!(told(&left, 2048), "3 changes of 2 files (1.00 KiB) not published, 1 object (2.00 KiB) not stored");
    }
}
