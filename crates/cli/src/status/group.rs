//! `sluice status sluice://...`: the group of a volume, as its server knows it.

use crate::{
    mount::{START_TIME, addresses, printable},
    output::out,
    units::show_size,
};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use sluice_base::{OsEntropy, SystemClock};
use sluice_net::{Client, ClientOptions, NoCallbacks};
use sluice_node::message::{GROUP, MemberStatus, decode_group};
use sluice_wire::{Hello, LaneClass, PeerKind};
use std::{process::ExitCode, sync::Arc};

pub fn run(meta: &str, as_json: bool) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let group = runtime.block_on(ask(meta))?;
    if as_json {
        let members: Vec<_> = group.iter().map(member).collect();
        out!("{}", serde_json::to_string_pretty(&json!({ "server": meta, "nodes": members })).context("printing")?);
    } else {
        print(meta, &group);
    }
    Ok(ExitCode::SUCCESS)
}

async fn ask(meta: &str) -> anyhow::Result<Vec<MemberStatus>> {
    let name = printable(&format!("status:{}", std::process::id()));
    let hello = Hello { peer: PeerKind::Admin, lane: LaneClass::Small, volume: None, session: None, name };
    let (callbacks, options) = (Arc::new(NoCallbacks), ClientOptions::default());
    let (clock, entropy) = (Arc::new(SystemClock::default()), Arc::new(OsEntropy));
    let client = Client::new(addresses(meta).await?, hello, callbacks, options, clock, entropy);
    let reply = client.call(GROUP, Vec::<u8>::new(), START_TIME).await;
    let body = reply.with_context(|| format!("asking {meta} for its nodes"))?.body.checked()?;
    client.close().await;
    match decode_group(&body) {
        Some(group) => Ok(group),
        None => bail!("the answer of {meta} does not parse: is it of another version?"),
    }
}

fn member(status: &MemberStatus) -> Value {
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
        "failures": numbers.failures,
        "served_bytes": numbers.served_bytes,
        "filled_bytes": numbers.filled_bytes,
        "moved_bytes": numbers.moved_bytes,
        "corrupt_segments": numbers.corrupt_segments,
    })
}

fn print(meta: &str, group: &[MemberStatus]) {
    out!("server     {meta}, {} nodes", group.len());
    for MemberStatus { member, silent_ms, numbers } in group {
        let reads = numbers.hits + numbers.misses;
        let percent = (numbers.hits * 100).checked_div(reads).map_or("-".into(), |percent| format!("{percent} %"));
        out!(
            "node       {} at {}, {:?}, weight {}, heard {silent_ms} ms ago: holds {} of {}, sent {}, {percent} of {reads} \
             reads from its cache, fetched {}",
            member.name,
            member.address,
            member.state,
            member.weight,
            show_size(numbers.used_bytes),
            show_size(member.capacity_bytes),
            show_size(numbers.served_bytes),
            show_size(numbers.filled_bytes),
        );
    }
}
