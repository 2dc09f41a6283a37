//! `sluice bench fs`.

mod chart;
mod interrupt;
mod saved;
mod show;
mod tier;

use crate::{
    output::{explained, out},
    units::{self, quoted, show_size},
};
use anyhow::{Context, bail};
use chart::Chart;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use sluice_base::SystemClock;
use sluice_bench::fs::{Line, Offsets, Place, Plan, Variant, Watch, Workload, measure};
use std::{
    fs,
    io::{self, IsTerminal},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

/// Measure a directory of any file system by six published workloads, and by what they should be
///
/// The workloads are those of DittoFS (its page "Benchmarks"; github.com/marmos91/dittofs, pkg/bench),
/// with its parameters as defaults. Variant `seed` does what its program does, `corrected` what its
/// page makes one expect:
///
///   seq-write    --threads files of --size, in writes of 1 MiB
///     seed       one thread, a file after the other, always the same bytes; fsync of each file
///     corrected  a thread for each file, random bytes; fsync is in the time of the last write
///   seq-read     the same files, in reads of 1 MiB
///     seed       one thread, a file after the other, from the page cache if they fit
///     corrected  a thread for each file; none of it is in the page cache
///   rand-write   --block bytes at random offsets, for --seconds
///     seed       one thread, at any byte, into files that are one hole each; no fsync
///     corrected  a thread for each file, over what was written; fdatasync in each write's time
///   rand-read    --block bytes at random offsets, for --seconds
///     seed       one thread, from the files of rand-write: holes, else the page cache
///     corrected  a thread for each file, without holes; none of it is in the page cache
///   metadata     --files files of 33 bytes in one directory: create, stat, delete all
///     seed       one thread; no fsync
///     corrected  --threads; each file is synced when created, the directory after that and at the end
///   small-files  --small-files files of 1 to 32 KiB, 100 in a directory: create, read, stat,
///                delete all
///     seed       --threads, sizes that rise, no fsync, reads from the page cache
///     corrected  --threads, sizes at random, synced as in metadata, none of it in the page cache
///
/// corrected rand-write and rand-read are measured twice: aligned, at multiples of --block, and
/// unaligned, at bytes where no sector begins. What corrected reads bring is compared with what was
/// written: other bytes are errors. A thread has one operation under way: --threads is the depth.
///
///   sluice bench fs ~/mnt                          everything, as published: 4 GiB, many minutes
///
///   sluice bench fs ~/mnt --size 64M --seconds 5 --small-files 1000
///
///   sluice bench fs ~/mnt /srv/local               two directories in turns, A B A B: medians
///
///   sluice bench fs ~/mnt --variant corrected --json > a.json
///
///   sluice bench fs --compare a.json,b.json --chart ab.svg      runs of before, side by side
///
/// Columns: tier; bytes acked and not in the store at the end of a round, the most of all rounds; threads; MB/s, of 1,000,000 bytes; operations per second, of metadata and
/// small-files all kinds together; the time that 50, 95 and 99 of 100 operations took at most, and the
/// longest; which part of the files that were read is no hole, by the file system's own word; errors.
///
/// The tier is what fsync promises: of a mount of SluiceFS `journal`, in the journal of its host, or
/// `object`, in the store; `local` on a disk of this host, else the type of the file system.
///
/// What is not as published:
/// - DittoFS was measured over a network, with a cache of 4 GB at a server. DIR is what it is.
/// - Its MB/s are 1,048,576 bytes.
/// - Its reads fail without the files of its writes. Here they are made first, outside of the time.
/// - Its threads take the files of small-files one by one. Here each has every Nth.
/// - The page cache is given up by posix_fadvise(2), which some file systems ignore (tmpfs). Caches
///   below it stay as they are: of a mount of SluiceFS its memory and its cache disk, with the pages
///   that the kernel has of that. Reads of a mount may be of memory where those of a disk are not.
///
/// What a file system does later, in the background, falls into what is measured next.
///
/// Everything is made in a new directory in DIR, which is removed at the end, also after an error or
/// Ctrl-C. The exit status is 1 when an operation failed.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct FsArgs {
    /// The directory to measure
    #[arg(value_name = "DIR", required_unless_present = "compare")]
    dir: Option<PathBuf>,
    /// Another one, measured in turns with it
    #[arg(value_name = "DIR2")]
    second: Option<PathBuf>,
    /// Workloads: seq-write, seq-read, rand-write, rand-read, metadata, small-files; several by comma
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = workload, requires = "dir")]
    workload: Vec<Workload>,
    /// seed or corrected
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = variant, requires = "dir", default_value = "seed,corrected")]
    variant: Vec<Variant>,
    /// aligned or unaligned, of corrected rand-write and rand-read
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = offsets, requires = "dir", default_value = "aligned,unaligned")]
    offsets: Vec<Offsets>,
    /// Threads, and large files
    #[arg(long, requires = "dir", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Bytes of a large file, 64K to 1T
    #[arg(long, requires = "dir", value_name = "SIZE", value_parser = units::parse_size, default_value = "1G")]
    size: u64,
    /// Bytes of a read or write at random, 512 to 16M and at most half of --size
    #[arg(long, requires = "dir", value_name = "SIZE", value_parser = units::parse_size, default_value = "4K")]
    block: u64,
    /// Seconds of each rand-write and rand-read, 0.1 to 3600, without a unit
    #[arg(long, requires = "dir", value_name = "N", default_value_t = 60.0)]
    seconds: f64,
    /// Files of metadata
    #[arg(long, requires = "dir", value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Files of small-files
    #[arg(long, requires = "dir", value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    small_files: u32,
    /// Times that each is measured: 2 with DIR2, else 1
    #[arg(long, requires = "dir", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// A picture of this run and those of --compare, as SVG
    #[arg(long, value_name = "FILE.svg", value_parser = picture)]
    chart: Option<PathBuf>,
    /// Runs that were saved with --json: in the table and the chart before this one, or without DIR alone; several by comma
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    compare: Vec<PathBuf>,
    /// One JSON object a line, of what is measured
    #[arg(long, requires = "dir")]
    json: bool,
}

fn workload(name: &str) -> Result<Workload, String> {
    find("workload", name, &Workload::EVERY, Workload::name)
}

fn variant(name: &str) -> Result<Variant, String> {
    find("variant", name, &Variant::EVERY, Variant::name)
}

fn offsets(name: &str) -> Result<Offsets, String> {
    find("kind of offsets", name, &Offsets::EVERY, Offsets::name)
}

fn picture(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match path.extension() {
        Some(extension) if !extension.eq_ignore_ascii_case("svg") => Err("a chart is SVG: name the file .svg".into()),
        _ => Ok(path),
    }
}

fn find<T: Copy>(what: &str, name: &str, every: &[T], name_of: fn(T) -> &'static str) -> Result<T, String> {
    every.iter().copied().find(|one| name_of(*one) == name).ok_or_else(|| {
        let names: Vec<_> = every.iter().map(|one| name_of(*one)).collect();
        format!("there is no {what} `{name}`: choose from {}", names.join(", "))
    })
}

pub fn run(args: &FsArgs) -> anyhow::Result<ExitCode> {
    let dirs: Vec<_> = args.dir.iter().chain(&args.second).collect();
    let plan = plan(args)?;
    let mut runs = saved::read(&args.compare)?;
    let mut table = show::Table::default();
    if !args.json {
        runs.iter().for_each(|(name, lines)| table.saved(name, lines));
    }
    let mut lines: Vec<Line> = Vec::new();
    check_different(&dirs)?;
    // A run of hours is not to end with a picture that cannot be written.
    let chart = args.chart.as_deref().map(Chart::try_out).transpose()?;
    if !dirs.is_empty() {
        let mut places = dirs.into_iter().map(|dir| place(dir)).collect::<anyhow::Result<Vec<_>>>()?;
        check_room(&plan, &places)?;
        let bar = bar();
        let mut each = |line: &Line| {
            match args.json {
                true => out!("{}", serde_json::to_string(line)?),
                false => bar.suspend(|| table.line(line, lines.last())),
            }
            lines.push(line.clone());
            Ok(())
        };
        let measured = measure(&plan, &mut places, &watch(&bar)?, &mut each);
        bar.finish_and_clear();
        let closed = places.into_iter().map(close).fold(Ok(()), anyhow::Result::and);
        measured.and(closed)?;
    }
    let failed = show::errors(&lines);
    runs.extend(saved::by_dir(None, lines));
    if let Some(chart) = chart {
        chart.draw(&runs)?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn plan(args: &FsArgs) -> anyhow::Result<Plan> {
    if !(0.1..=3600.0).contains(&args.seconds) {
        bail!("--seconds {} is not between 0.1 and 3600", args.seconds);
    }
    if !(64 << 10..=1 << 40).contains(&args.size) {
        bail!("--size is 64K to 1T");
    }
    if !(512..=16 << 20).contains(&args.block) || args.block > args.size / 2 {
        bail!("--block is 512 to 16M, and at most half of --size");
    }
    let rounds = args.rounds.unwrap_or(if args.second.is_some() { 2 } else { 1 });
    let mut variants = args.variant.clone();
    variants.dedup();
    Ok(Plan {
        workloads: if args.workload.is_empty() { Workload::EVERY.to_vec() } else { args.workload.clone() },
        variants,
        offsets: args.offsets.clone(),
        threads: args.threads.into(),
        file_bytes: args.size,
        block_bytes: args.block,
        time: Duration::from_secs_f64(args.seconds),
        metadata_files: args.files as usize,
        small_files: args.small_files as usize,
        rounds: rounds.into(),
    })
}

/// Of one directory twice the lines could not be told apart.
fn check_different(dirs: &[&PathBuf]) -> anyhow::Result<()> {
    let [one, two] = dirs else { return Ok(()) };
    let is_same = |one: &fs::Metadata, two: &fs::Metadata| (one.dev(), one.ino()) == (two.dev(), two.ino());
    match (fs::metadata(one), fs::metadata(two)) {
        (Ok(first), Ok(second)) if is_same(&first, &second) => bail!(
            "{} and {} are the same directory: name another one, or leave it out and say --rounds 2",
            one.display(),
            two.display()
        ),
        _ => Ok(()),
    }
}

fn place(dir: &Path) -> anyhow::Result<Place> {
    match fs::metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("{} does not exist: name a directory to measure", dir.display())
        }
        Err(error) => return Err(error).with_context(|| dir.display().to_string()),
        Ok(found) if !found.is_dir() => bail!("{} is not a directory: name one to measure", dir.display()),
        Ok(_) => {}
    }
    let told = tier::of(dir)?;
    let made = Place::new(dir, told.tier, told.fs).map(|mut place| {
        place.unstored = told.unstored;
        place
    });
    made.map_err(|error| explained(&format!("making a directory in {}", dir.display()), &error))
}

/// Before anything is written. Two directories may share a disk.
fn check_room(plan: &Plan, places: &[Place]) -> anyhow::Result<()> {
    let devices = places.iter().map(Place::device).collect::<io::Result<Vec<_>>>()?;
    for (place, device) in places.iter().zip(&devices) {
        let sharing = devices.iter().filter(|other| *other == device).count() as u64;
        let (needed, free) = (plan.room().saturating_mul(sharing), place.free()?);
        if free < needed {
            let (needed, free) = (show_size(needed), show_size(free));
            let dir = quoted(&place.dir);
            bail!(
                "{needed} are needed in {dir}, which has {free}: take a smaller --size, or fewer --threads, or files"
            );
        }
    }
    Ok(())
}

fn close(place: Place) -> anyhow::Result<()> {
    let dir = place.dir.clone();
    place.close().with_context(|| format!("removing what was made in {}", dir.display()))
}

fn watch(bar: &ProgressBar) -> anyhow::Result<Watch> {
    const PARTS: f64 = 1000.0;
    bar.set_length(PARTS as u64);
    let (named, moved) = (bar.clone(), bar.clone());
    Ok(Watch {
        clock: Arc::new(SystemClock::default()),
        stop: interrupt::listen()?,
        begins: Box::new(move |what| {
            named.set_position(0);
            named.set_message(what);
        }),
        part: Box::new(move |part| moved.set_position((part * PARTS) as u64)),
    })
}

fn bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {wide_msg}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
