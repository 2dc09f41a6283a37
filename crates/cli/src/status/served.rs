//! A served volume: what its server says, and its group and sessions for people.

use crate::{
    mount::printable,
    output::out,
    reach::{addresses, reach},
    units::{quoted, show_size, show_time},
};
use anyhow::Context;
use serde_json::Value;
use sluice_base::{OsEntropy, SystemClock};
use sluice_join::methods::STATUS;
use sluice_net::{Client, ClientOptions, NoCallbacks};
use sluice_wire::{Hello, LaneClass, PeerKind};
use std::{sync::Arc, time::Duration};

/// What the server at `meta` says of its volume.
pub fn ask(meta: &str, within: Duration) -> anyhow::Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let body = runtime.block_on(call(meta, STATUS, Vec::new(), within))?;
    serde_json::from_slice(&body).with_context(|| format!("the answer of {meta}: is it of another version?"))
}

/// One request to a volume's server.
pub async fn call(meta: &str, method: u16, body: Vec<u8>, within: Duration) -> anyhow::Result<Vec<u8>> {
    let name = printable(&format!("admin:{}", std::process::id()));
    let hello = Hello { peer: PeerKind::Admin, lane: LaneClass::Small, volume: None, session: None, name };
    let (callbacks, options) = (Arc::new(NoCallbacks), ClientOptions::default());
    let (clock, entropy) = (Arc::new(SystemClock::default()), Arc::new(OsEntropy));
    let client = Client::new(addresses(meta).await?, hello, callbacks, options, clock, entropy);
    reach(&client, meta, within).await?;
    let reply = client.call(method, body, within).await;
    let body = reply.with_context(|| format!("asking {meta}"))?.body.checked()?.to_vec();
    client.close().await;
    Ok(body)
}

/// Group and sessions, where `status` is that of the server `meta`.
pub fn print(status: &Value, meta: Option<&str>) {
    if !status["sessions"].is_array() {
        return;
    }
    let (totals, number) = (&status["totals"], |value: &Value| value.as_u64().unwrap_or(0));
    let size = |value: &Value| show_size(value.as_u64().unwrap_or(0));
    out!(
        "group      {} nodes, list {}: {} of {} held, {} of {} reads from their caches, sending {}/s",
        totals["nodes"],
        status["epoch"],
        size(&totals["used_bytes"]),
        size(&totals["capacity_bytes"]),
        percent(&totals["hit_rate"]),
        number(&totals["hits"]) + number(&totals["misses"]),
        size(&totals["served_bytes_per_s"]),
    );
    let node = |node: &Value| {
        [
            text(&node["name"]),
            text(&node["address"]),
            text(&node["state"]),
            node["weight"].to_string(),
            format!("{} of {}", size(&node["used_bytes"]), size(&node["capacity_bytes"])),
            percent(&node["hit_rate"]),
            size(&node["served_bytes"]),
            format!("{}/s", size(&node["served_bytes_per_s"])),
            size(&node["filled_bytes"]),
            format!("{} ago", show_time(Duration::from_millis(number(&node["silent_ms"])))),
            scrubbed(node),
        ]
    };
    let heads =
        ["node", "address", "state", "weight", "held", "hit rate", "sent", "now", "fetched", "heard", "scrubbed"];
    table(heads, rows(&status["nodes"], node));
    let states = &totals["sessions"];
    out!(
        "sessions   {} live, {} in grace, {} expired; {} open inodes; {} acked but not stored",
        states["live"],
        states["grace"],
        states["expired"],
        totals["open"],
        size(&totals["unstored_bytes"]),
    );
    let session = |session: &Value| {
        let unstored = session["unstored_bytes"].as_u64().map_or("not told".into(), show_size);
        [
            session["session"].to_string(),
            text(&session["state"]),
            show_time(Duration::from_millis(number(&session["left_ms"]))),
            session["open"].to_string(),
            text(&session["tier"]),
            unstored,
            text(&session["name"]),
        ]
    };
    table(["session", "state", "left", "open", "tier", "not stored", "mount"], rows(&status["sessions"], session));
    let is_left = |session: &Value| session["state"] == "expired" && number(&session["unstored_bytes"]) > 0;
    if status["sessions"].as_array().into_iter().flatten().any(is_left) {
        let meta = quoted(meta.unwrap_or("META"));
        out!(
            "           of an expired session: `sluice recover {meta}` on the host of its mount stores what is not stored"
        );
    }
}

fn rows<const N: usize>(list: &Value, row: impl Fn(&Value) -> [String; N]) -> Vec<[String; N]> {
    list.as_array().into_iter().flatten().map(row).collect()
}

/// How far a node's scrub is, and what it found.
fn scrubbed(node: &Value) -> String {
    match node["rotten_segments"].as_u64() {
        None | Some(0) => percent(&node["scrub_done"]),
        Some(bad) => format!("{}, {bad} bad", percent(&node["scrub_done"])),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").into()
}

fn percent(rate: &Value) -> String {
    rate.as_f64().map_or("-".into(), |rate| format!("{:.0} %", rate * 100.0))
}

/// Columns as wide as their widest cell, indented; nothing without rows.
fn table<const N: usize>(heads: [&str; N], rows: Vec<[String; N]>) {
    if rows.is_empty() {
        return;
    }
    let rows: Vec<_> = std::iter::once(heads.map(String::from)).chain(rows).collect();
    let widths: [usize; N] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        out!("           {}", cells.join("  ").trim_end());
    }
}
