//! `sluice`: the one binary. Settings are read here and nowhere else.

#![forbid(unsafe_code)]

mod bench;
mod config;
mod control;
mod descriptors;
mod detach;
mod directory;
mod drain;
mod dump;
mod evict;
mod flush;
mod format;
mod fsck;
mod gc;
mod guard;
mod load;
mod lock;
mod metrics;
mod mount;
mod mounts;
mod output;
mod progress;
mod reach;
mod reading;
mod recover;
mod running;
mod scrub;
mod serve;
mod status;
mod takeover;
mod tier;
mod umount;
mod units;
mod up;
mod volume;
mod warmup;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// So that status and metrics can tell what the threads that answer reads ask for.
#[global_allocator]
static ALLOCATOR: sluice_base::allocations::Counting = sluice_base::allocations::Counting;

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
    Serve(serve::ServeArgs),
    Mount(mount::MountArgs),
    Umount(umount::UmountArgs),
    Flush(flush::FlushArgs),
    Status(status::StatusArgs),
    Recover(recover::RecoverArgs),
    Drain(drain::DrainArgs),
    Format(format::FormatArgs),
    Fsck(fsck::FsckArgs),
    Gc(gc::GcArgs),
    Dump(dump::DumpArgs),
    Load(load::LoadArgs),
    Bench(bench::BenchArgs),
    Scrub(scrub::ScrubArgs),
    Warmup(warmup::WarmupArgs),
    Evict(evict::EvictArgs),
    // Started by mounts alone.
    #[command(hide = true)]
    Guard(guard::GuardArgs),
}

fn main() -> ExitCode {
    sluice_base::allocations::bound_idle();
    let cli = Cli::parse();
    // A volume's directories hold the bytes of files that the mode bits of the mount keep from others.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    descriptors::raise();
    // fsck tells by its findings what is wrong; what the parts log of it stands between them.
    output::start_logging(if matches!(cli.command, Command::Fsck(_)) { "off" } else { "warn" });
    let result = match cli.command {
        Command::Up(args) => up::run(args),
        Command::Serve(args) => serve::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Flush(args) => flush::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Format(args) => format::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::Gc(args) => gc::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Warmup(args) => warmup::run(&args),
        Command::Evict(args) => evict::run(&args),
        Command::Guard(args) => guard::run(&args),
    };
    let status = result.unwrap_or_else(|error| {
        output::note!("{}", describe(&error));
        ExitCode::FAILURE
    });
    match output::finish() {
        Ok(()) => status,
        Err(error) => {
            output::note!("writing the output: {error}");
            ExitCode::FAILURE
        }
    }
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
