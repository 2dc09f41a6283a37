//! The way to a volume's server.

use crate::config::VolumeConfig;
use anyhow::{Context, anyhow, bail};
use sluice_join::methods;
use sluice_net::{Client, LaneState};
use std::{net::SocketAddr, time::Duration};

/// Time for the server to answer before a command gives up.
pub const START_TIME: Duration = Duration::from_secs(10);

pub async fn addresses(meta: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let host = meta.strip_prefix("sluice://").filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| anyhow!("`{meta}` names no server: write sluice://HOST:PORT"))?;
    let found = tokio::net::lookup_host(host).await;
    let found: Vec<_> = found.with_context(|| format!("looking up `{host}`; write sluice://HOST:PORT"))?.collect();
    if found.is_empty() {
        bail!("`{host}` has no address");
    }
    Ok(found)
}

/// Waits until the server at `meta` has let `client` in.
pub async fn reach(client: &Client, meta: &str, within: Duration) -> anyhow::Result<()> {
    if client.connected(within).await.is_ok() {
        return Ok(());
    }
    match client.states().borrow().first() {
        Some(LaneState::Refused(refused)) => bail!("{meta} does not let this process in: {refused}"),
        Some(LaneState::Disconnected(why)) => {
            bail!("{meta} does not answer ({why}): does `sluice serve` run there, and listen at this address?")
        }
        _ => bail!("{meta} does not answer: does `sluice serve` run there, and listen at this address?"),
    }
}

pub async fn told_config(client: &Client, meta: &str) -> anyhow::Result<VolumeConfig> {
    let reply = client.call(methods::VOLUME, Vec::<u8>::new(), START_TIME).await;
    let body = reply.with_context(|| format!("asking {meta} for its volume"))?.body.checked()?;
    VolumeConfig::parse(&String::from_utf8_lossy(&body)).with_context(|| format!("the volume of {meta}"))
}
