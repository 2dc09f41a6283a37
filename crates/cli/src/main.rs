//! `sluice`: the one binary. Settings are read here and nowhere else.

#![forbid(unsafe_code)]

mod config;
mod control;
mod detach;
mod format;
mod fsck;
mod gc;
mod lock;
mod mounts;
mod status;
mod umount;
mod units;
mod up;
mod volume;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A POSIX file system whose truth is an object store and whose hot data is on local disks.
///
/// The first two commands:
///
///   sluice up ~/volume ~/mnt -d     make a volume (once) and mount it
///
///   sluice umount ~/mnt             store everything and unmount
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(up::UpArgs),
    Umount(umount::UmountArgs),
    Status(status::StatusArgs),
    Format(format::FormatArgs),
    Fsck(fsck::FsckArgs),
    Gc(gc::GcArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging();
    let result = match cli.command {
        Command::Up(args) => up::run(args),
        Command::Umount(args) => umount::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Format(args) => format::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::Gc(args) => gc::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("sluice: {}", describe(&error));
        ExitCode::FAILURE
    })
}

/// An error and its causes in one line, each said once.
fn describe(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        if !parts.iter().any(|part| part.contains(&cause)) {
            parts.push(cause);
        }
    }
    parts.join(": ")
}

/// Warnings and errors on stderr; `SLUICE_LOG=debug` shows more.
fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SLUICE_LOG").unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}
