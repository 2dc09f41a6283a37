//! `--metrics ADDR`: what a process tells Prometheus, and whether it is healthy. docs/monitoring.md has every name.

mod common;
mod node;
mod probe;
mod volume;

pub use node::NodeSource;
pub use probe::Probe;
pub use volume::{Lease, VolumeSource};

use crate::{output::note, units};
use anyhow::Context;
use clap::builder::ValueParser;
use sluice_monitor::{Listener, Monitor, Source};
use std::{net::SocketAddr, sync::Arc};

/// `--metrics` of every command that runs on.
#[derive(clap::Args)]
pub struct MetricsArgs {
    /// Serve http://ADDR/metrics for Prometheus and /healthz, to whoever can connect; port 0 takes a free one, which is told on
    /// standard error
    #[arg(long = "metrics", value_name = "ADDR", value_parser = ValueParser::new(units::parse_listen))]
    address: Option<SocketAddr>,
}

/// What was asked for, listening.
#[derive(Default)]
pub struct Metrics(Option<Listener>);

impl MetricsArgs {
    /// Listens before anything is begun that would have to be ended when that fails.
    pub async fn listen(&self) -> anyhow::Result<Metrics> {
        let Some(address) = self.address else { return Ok(Metrics(None)) };
        let listener =
            Listener::bind(address).await.with_context(|| format!("listening at {address} for --metrics"))?;
        Ok(Metrics(Some(listener)))
    }
}

impl Metrics {
    /// Answers from now on, until what this returns is dropped.
    pub fn serve(self, source: impl Source) -> Option<Monitor> {
        let listener = self.0?;
        note!("metrics at http://{}/metrics", listener.address());
        Some(listener.serve(Arc::new(source)))
    }
}
