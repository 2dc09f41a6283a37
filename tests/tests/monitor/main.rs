//! What those who watch a volume are told: `sluice status` of a served one, `/metrics`, `/healthz`.

mod http;
mod members;
mod metrics;
mod prometheus;
mod status;

use std::time::Duration;

/// For conditions that come true within seconds on a machine that has nothing else to do.
const LIMIT: Duration = Duration::from_secs(60);

fn noise(seed: u64, len: usize) -> Vec<u8> {
    use rand::{Rng, SeedableRng, rngs::StdRng};
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}
