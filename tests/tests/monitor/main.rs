//! What those who watch a volume are told: `sluice status` of a served one, `/metrics`, `/healthz`.

mod disks;
mod http;
mod members;
mod metrics;
mod prometheus;
mod status;

use sluice_tests::noise;
use std::time::Duration;

/// For conditions that come true within seconds on a machine that has nothing else to do.
const LIMIT: Duration = Duration::from_secs(60);

const MIB: usize = 1 << 20;
const METRICS: [&str; 2] = ["--metrics", "127.0.0.1:0"];

fn scrape(address: &str) -> prometheus::Scrape {
    prometheus::Scrape::parse(&http::get(address, "/metrics"))
}

/// Status and words of `/healthz`.
fn health(address: &str) -> (u16, String) {
    let (status, _, words) = http::ask(address, "GET", "/healthz");
    (status, words)
}
