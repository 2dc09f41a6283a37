//! Sessions and nodes of a served volume, as JSON.

use crate::{tier::Tier, units::sum};
use serde_json::{Value, json};
use sluice_join::{Overview, SessionOverview};
use sluice_meta::rpc::message::Liveness;
use sluice_node::message::MemberStatus;

/// Sessions that are listed one by one; an answer to a status request has room for them and for every node.
const SESSIONS_MAX: usize = 4096;

/// Adds them to the status of their server, which has `own_unstored_bytes` itself.
pub fn add(status: &mut Value, overview: &Overview, own_unstored_bytes: u64) {
    status["epoch"] = overview.epoch.into();
    status["connections"] = overview.connections.into();
    status["nodes"] = overview.nodes.iter().map(|(node, rate)| member(node, *rate)).collect();
    status["sessions"] = overview.sessions.iter().take(SESSIONS_MAX).map(session).collect();
    status["totals"] = totals(overview, own_unstored_bytes);
}

fn member(status: &MemberStatus, rate: u64) -> Value {
    let (member, numbers) = (&status.member, &status.numbers);
    json!({
        "name": member.name.as_str(),
        "address": member.address.to_string(),
        "state": format!("{:?}", member.state).to_lowercase(),
        "weight": member.weight,
        "silent_ms": status.silent_ms,
        "capacity_bytes": member.capacity_bytes,
        "used_bytes": numbers.used_bytes,
        "hits": numbers.hits,
        "misses": numbers.misses,
        "hit_rate": hit_rate(numbers.hits, numbers.misses),
        "failures": numbers.failures,
        "served_bytes": numbers.served_bytes,
        "served_bytes_per_s": rate,
        "filled_bytes": numbers.filled_bytes,
        "moved_bytes": numbers.moved_bytes,
        "corrupt_segments": numbers.corrupt_segments,
        "scrub_done": numbers.scrub_permille as f64 / 1000.0,
        "rotten_segments": numbers.rotten_segments,
    })
}

fn session(session: &SessionOverview) -> Value {
    let status = &session.status;
    let unstored = session.unstored.map(|(report, _)| report);
    json!({
        "session": status.session.0,
        "epoch": status.epoch,
        "name": String::from_utf8_lossy(&status.name).replace(char::is_control, "?"),
        "state": state_name(status.state),
        // Of a live session its lease; of the others the time until they change.
        "left_ms": status.left_ms,
        "inodes": status.inodes,
        "open": status.open,
        "pushes": status.pushes,
        "tier": unstored.map(|report| if report.waits_for_store { Tier::Object } else { Tier::Journal }),
        "unstored_objects": unstored.map(|report| report.objects),
        "unstored_bytes": unstored.map(|report| report.bytes),
        "reported_ms_ago": session.unstored.map(|(_, age)| age.as_millis() as u64),
    })
}

/// As people and metrics call it.
pub fn state_name(state: Liveness) -> &'static str {
    match state {
        Liveness::Live => "live",
        Liveness::Grace => "grace",
        Liveness::Expired => "expired",
    }
}

/// A share from 0 to 1; none without reads.
fn hit_rate(hits: u64, misses: u64) -> Option<f64> {
    let reads = hits.saturating_add(misses);
    (reads > 0).then(|| hits as f64 / reads as f64)
}

fn totals(overview: &Overview, own_unstored_bytes: u64) -> Value {
    let of_nodes = |of: fn(&MemberStatus) -> u64| sum(overview.nodes.iter().map(|(node, _)| of(node)));
    let (hits, misses) = (of_nodes(|node| node.numbers.hits), of_nodes(|node| node.numbers.misses));
    let in_state = |state| overview.sessions.iter().filter(|session| session.status.state == state).count();
    json!({
        "nodes": overview.nodes.len(),
        "capacity_bytes": of_nodes(|node| node.member.capacity_bytes),
        "used_bytes": of_nodes(|node| node.numbers.used_bytes),
        "hits": hits,
        "misses": misses,
        "hit_rate": hit_rate(hits, misses),
        "served_bytes": of_nodes(|node| node.numbers.served_bytes),
        "served_bytes_per_s": sum(overview.nodes.iter().map(|(_, rate)| *rate)),
        "filled_bytes": of_nodes(|node| node.numbers.filled_bytes),
        "sessions": {
            "live": in_state(Liveness::Live),
            "grace": in_state(Liveness::Grace),
            "expired": in_state(Liveness::Expired),
        },
        "open": sum(overview.sessions.iter().map(|session| session.status.open)),
        "lease_expiries": overview.lease_expiries,
        "unstored_bytes": own_unstored_bytes.saturating_add(overview.unstored_bytes()),
    })
}
