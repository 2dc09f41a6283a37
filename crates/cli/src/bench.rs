//! `sluice bench`: what hosts and networks give.

mod net;

use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Measure this host, its network, or other hosts
#[derive(Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Net(net::NetArgs),
}

pub fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Net(args) => net::run(args),
    }
}
