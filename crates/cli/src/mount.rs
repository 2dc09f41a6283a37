//! `sluice mount`: a volume that another host serves.

mod alone;
pub mod kept;
mod kernel;
pub mod open;
mod serve;
mod takeover;

use crate::{detach, metrics::MetricsArgs, reading::ReadingArgs, scrub::ScrubRate, tier::Tier, units, up};
use anyhow::{Context, anyhow, bail};
use clap::builder::ValueParser;
use open::Runtimes;
use sluice_base::crc::crc32c;
use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// Mount a volume that `sluice serve` offers
///
/// What a call returned success for is in this host's journal; what was closed or synced is seen by every other mount. The
/// journal and the cache are directories of this host, each for one mount; after `sluice umount` nothing in them is needed.
///
/// Locks (flock, fcntl) hold between mounts. Not yet: O_APPEND by several at once without a lock; of two that write a file at the same
/// time, the last to close wins. Bytes that a mount has acked and not stored are gone with it until it is mounted again, or `sluice recover` stores them: others get EIO.
///
/// Objects are read from and written to the volume's store by this host itself: it needs the same credentials as the server.
///
/// Example: sluice mount sluice://10.0.0.5:7700 ~/mnt -d
#[derive(clap::Args)]
pub struct MountArgs {
    /// The volume's server: sluice://HOST:PORT
    #[arg(value_name = "META")]
    pub meta: String,
    /// An empty directory to mount at
    pub mountpoint: PathBuf,
    /// Return once the volume is mounted
    #[arg(short = 'd', long)]
    pub detach: bool,
    /// Take the mount at MOUNTPOINT over from the process that serves it, which ends: for a newer version of this binary. Programs notice a
    /// short pause; what they have open, mapped and locked stays, and who waits for a lock goes on waiting. Run it as the user who mounted,
    /// with the same META, --journal and --cache; other options are those of the new process. A mount with --fuse-transport uring cannot
    /// be taken over
    #[arg(long)]
    pub takeover: bool,
    /// Where objects are cached and how much, as in /ssd/cache:100G, or none; default: beside the journal, 10G
    #[arg(long, value_name = "DIR:SIZE|none")]
    pub cache: Option<String>,
    /// Where this mount's journal is and how large it is, as in /ssd/journal:4G; default: in the user's cache directory, 1G
    #[arg(long, value_name = "DIR:SIZE")]
    pub journal: Option<String>,
    /// When fsync returns: `journal`, when the disks of this host and of the server have what it is for; `object`, when the store has it too, bytes
    /// and names, so that it survives the loss of both. The store is then waited for, however long it is away. Default: the volume's
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
    #[command(flatten)]
    pub reading: ReadingArgs,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    #[command(flatten)]
    pub scrub: ScrubRate,
}

/// Where a mount keeps what is its own.
struct Place {
    state: PathBuf,
    journal_bytes: u64,
    cache: Option<PathBuf>,
    cache_bytes: u64,
}

pub fn run(args: &MountArgs) -> anyhow::Result<ExitCode> {
    let (mountpoint, place) = if args.takeover {
        let found = takeover::find(args)?;
        let place = place(args, &found.at)?;
        takeover::check_place(&found, &place)?;
        // By the path that the mount is known by, whatever leads there.
        (found.at, Place { state: found.dir, ..place })
    } else {
        let mountpoint = up::place::check(&args.mountpoint)?;
        let place = place(args, &mountpoint)?;
        (mountpoint, place)
    };
    if args.detach && !detach::is_child() {
        return detach::run_detached(&place.state.join("log"));
    }
    up::place::check_device()?;
    let runtimes = Runtimes::start()?;
    let result = serve::serve(args, &place, &mountpoint, &runtimes);
    runtimes.shut_down();
    result
}

/// `DIR:SIZE`.
pub fn sized(text: &str, option: &str) -> anyhow::Result<(PathBuf, u64)> {
    let parsed = text.rsplit_once(':').filter(|(dir, _)| !dir.is_empty());
    let (dir, size) = parsed.ok_or_else(|| anyhow!("{option} is DIR:SIZE, as in /ssd/sluice:10G, not `{text}`"))?;
    let size = units::parse_size(size).map_err(|error| anyhow!("{option} {text}: {error}"))?;
    Ok((std::path::absolute(dir).with_context(|| format!("the path `{dir}`"))?, size))
}

fn place(args: &MountArgs, mountpoint: &Path) -> anyhow::Result<Place> {
    let (state, journal_bytes) = match &args.journal {
        Some(text) => sized(text, "--journal")?,
        None => (default_state(&args.meta, mountpoint)?, 1 << 30),
    };
    if journal_bytes < up::JOURNAL_BYTES_MIN {
        bail!("--journal is at least {}", units::show_size(up::JOURNAL_BYTES_MIN));
    }
    let (cache, cache_bytes) = match args.cache.as_deref() {
        None => (None, 10 << 30),
        Some("none") => (None, 0),
        Some(text) => sized(text, "--cache").map(|(dir, bytes)| (Some(dir), bytes))?,
    };
    Ok(Place { state, journal_bytes, cache, cache_bytes })
}

/// A directory of this server and mount point alone.
fn default_state(meta: &str, mountpoint: &Path) -> anyhow::Result<PathBuf> {
    let base =
        default_base().ok_or_else(|| anyhow!("neither XDG_CACHE_HOME nor HOME is set: say --journal DIR:SIZE"))?;
    let name = format!("{meta} {}", mountpoint.display());
    let last = mountpoint.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(base.join(format!("{last}-{:08x}", crc32c(name.as_bytes()))))
}

/// Where this user's mounts keep what is their own, unless they are told otherwise.
pub fn default_base() -> Option<PathBuf> {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    Some(env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?.join("sluice"))
}

/// As a peer's name may be.
pub fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(60).collect()
}

pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
