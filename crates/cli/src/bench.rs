//! `sluice bench`: what file systems, hosts and networks give.

mod fs;
mod net;

use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Measure a file system, this host, its network, or other hosts
#[derive(Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Fs(fs::FsArgs),
    Net(net::NetArgs),
}

pub fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Fs(args) => fs::run(args),
        What::Net(args) => net::run(args),
    }
}
