//! `sluice up`: a volume in one process: metadata, cache, journal and mount.

pub mod place;
mod serve;
mod takeover;

use crate::{
    detach, directory, gc::GcOptions, metrics::MetricsArgs, reading::ReadingArgs, scrub::ScrubRate, tier::Tier, units,
};
use anyhow::bail;
use clap::builder::ValueParser;
use sluice_fuse::PassthroughOptions;
use sluice_vfs::direct::Verify;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// Mount a volume of this host, all in one process
///
/// DIR holds the volume: meta/, journal/, cache/ and, unless --store says otherwise, objects/. It is made on first use.
/// The command stays in the foreground until the volume is unmounted; -d returns once the mount is ready.
///
/// What a call returned success for survives the end of this process. What fsync returned for survives power loss; a timer
/// syncs the rest every second.
///
/// Example: sluice up ~/volume ~/mnt -d
#[derive(clap::Args)]
pub struct UpArgs {
    /// The volume's directory
    pub dir: OsString,
    /// An empty directory to mount at
    pub mountpoint: PathBuf,
    /// Return once the volume is mounted
    #[arg(short = 'd', long)]
    pub detach: bool,
    /// Take the mount at MOUNTPOINT over from the process that serves it, which ends: for a newer version of this binary. Programs notice a
    /// short pause; what they have open, mapped and locked stays. Run it as the user who mounted. Options are those of the new process.
    /// A mount with --passthrough or --fuse-transport uring cannot be taken over
    #[arg(long)]
    pub takeover: bool,
    /// Where a new volume keeps its objects: file:DIR, a relative one within the volume's directory, or
    /// s3://BUCKET/PREFIX?endpoint=...
    #[arg(long)]
    pub store: Option<String>,
    /// Room for cached objects, as in 512M or 100G, at least 4M; 0 goes without a cache disk
    #[arg(long, default_value = "10G", value_name = "SIZE", value_parser = ValueParser::new(units::parse_size))]
    pub cache_size: u64,
    /// Room for the journal, at least 16M; when it is full, writes wait for the store
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = ValueParser::new(units::parse_size))]
    pub journal_size: u64,
    /// When fsync returns: `journal`, when this host's disks have what it is for; `object`, when the store has it too, bytes and names, so that
    /// it survives the loss of this host. The store is then waited for, however long it is away. Default: the volume's tier. Of this mount alone,
    /// but a volume that it makes has it too; else that has `journal`. sync(1) and syncfs(2) do not reach a FUSE file system: sync files
    #[arg(long, value_name = "TIER")]
    pub durability: Option<Tier>,
    /// How long an object waits for more data before it is uploaded. What the store has of the metadata is as old: no name gets there before its bytes
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = ValueParser::new(units::parse_time))]
    pub upload_delay: Duration,
    /// Memory for bytes on their way: answers, what is read ahead of programs that read in order, warm-ups, uploads, and what no cache disk
    /// holds. The process itself takes up to 64M more, beyond that only for the names of very many files. One reader of a store at 300 MB/s and 30 ms needs 32M to keep it busy, each further one as
    /// much, if they are to run at the same time at that rate
    #[arg(long, default_value = "256M", value_name = "SIZE", value_parser = ValueParser::new(units::parse_memory))]
    pub memory: u64,
    /// Let the kernel read files by itself: a file whose bytes are all here is copied when it is opened for reading, at most so much
    /// at once, and its reads then ask nobody, until the last program closes it; who opens it for writing meanwhile gets ETXTBSY. For
    /// data that is read again and again. Needs Linux 6.9, root, and --verify sampled or off: corrupt bytes can reach a program
    #[arg(long, value_name = "SIZE", value_parser = ValueParser::new(units::parse_size))]
    pub passthrough: Option<u64>,
    #[command(flatten)]
    pub reading: ReadingArgs,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    #[command(flatten)]
    pub scrub: ScrubRate,
    #[command(flatten)]
    pub gc: GcOptions,
}

impl UpArgs {
    /// Where the kernel's copies are, if there are to be any, of a volume in `dir`.
    pub fn passthrough(&self, dir: &Path) -> anyhow::Result<Option<PassthroughOptions>> {
        let Some(bytes_max) = self.passthrough else { return Ok(None) };
        if self.reading.verify() == Verify::Full {
            bail!("--passthrough: the kernel does not check what it reads; say --verify sampled or --verify off too");
        }
        Ok(Some(PassthroughOptions { dir: dir.to_owned(), bytes_max }))
    }
}

/// Smallest cache: one object.
const CACHE_BYTES_MIN: u64 = 4 << 20;

/// That a cache and a journal of these sizes can be; before anything is made.
pub fn check_sizes(cache_bytes: u64, journal_bytes: u64) -> anyhow::Result<()> {
    if journal_bytes < JOURNAL_BYTES_MIN {
        bail!("--journal-size is at least {}", units::show_size(JOURNAL_BYTES_MIN));
    }
    if (1..CACHE_BYTES_MIN).contains(&cache_bytes) {
        bail!("--cache-size is 0, for none, or at least {}", units::show_size(CACHE_BYTES_MIN));
    }
    Ok(())
}

/// Smallest journal: eight segments, so that most of it can be freed while the last one is written.
pub const JOURNAL_BYTES_MIN: u64 = 16 << 20;

pub fn run(args: UpArgs) -> anyhow::Result<ExitCode> {
    let dir = directory::volume_dir(&args.dir)?;
    if args.detach && !detach::is_child() {
        return detach::run_detached(&dir.join("log"));
    }
    check_sizes(args.cache_size, args.journal_size)?;
    let (dir, mountpoint) = if args.takeover {
        let found = takeover::find(&args, &dir)?;
        (found.dir, found.at)
    } else {
        let mountpoint = place::check(&args.mountpoint)?;
        place::check_apart(&dir, args.store.as_deref(), &mountpoint)?;
        (dir, mountpoint)
    };
    place::check_device()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("sluice-io").enable_all().build()?;
    let result = serve::serve(&args, &dir, &mountpoint, &runtime);
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}
