//! `sluice dump`.

use crate::{
    config::VolumeConfig,
    control::Control,
    fsck::spinner,
    mount::kept::Record,
    output::{explained, note},
    status,
    units::show_size,
    volume::{OpenOptions, Volume, journal_bytes_at_least},
};
use anyhow::{Context, bail};
use sluice_base::{
    Timestamp,
    limits::{OBJECT_BYTES, SEGMENT_BYTES, SPAN_BYTES},
};
use sluice_meta::dump::{Dumped, FORMAT, Header, dump};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Write all metadata of a volume to a file
///
/// Names, attributes and where the bytes of files are, of one moment, one JSON record a line, each with a checksum (docs/disk-format.md); the bytes
/// themselves stay in the store, but those of files up to 4 KiB, which are in here. `sluice load` makes a volume's directory of it again.
///
/// It is as good as the objects that it names: what the volume needs no more is deleted from the store an hour later, and then a dump from before is
/// no backup of it.
///
/// The volume may be in use: its process writes the dump then, and programs go on. What is not stored yet is counted: `sluice flush` before it
/// stores that.
///
/// Example: sluice dump ~/volume ~/volume.dump
///
/// Example: sluice dump ~/volume - | zstd > volume.dump.zst
#[derive(clap::Args)]
pub struct DumpArgs {
    /// Where the volume is mounted, or the volume (local:DIR or DIR), on the host that has it
    #[arg(value_name = "MOUNTPOINT|META")]
    pub meta: OsString,
    /// Where to; it must not be there yet. - is standard output
    #[arg(default_value = "-")]
    pub file: PathBuf,
}

/// Lines between two looks at the terminal.
const LINES_SHOWN: u64 = 4096;

pub fn run(args: &DumpArgs) -> anyhow::Result<ExitCode> {
    let (dir, config) = status::find(&args.meta)?;
    let bar = spinner("dumping");
    let mut lines = 0;
    let source = Source {
        dir: &dir,
        config: &config,
        line: &mut || {
            lines += 1;
            if lines % LINES_SHOWN == 0 {
                bar.set_message(format!("dumping: {lines} records"));
            }
        },
    };
    let dumped = match args.file.as_os_str() == "-" {
        true => source.write(io::stdout().lock()),
        false => source.write_file(&args.file),
    };
    bar.finish_and_clear();
    let (Dumped { counts, unstored }, elsewhere_bytes) = dumped?;
    let all: u64 = counts.values().sum();
    let of = |kind: &str| counts.get(kind).copied().unwrap_or(0);
    note!("dumped {all} records: {} inodes, {} names, {} objects", of("inode"), of("name"), of("object"));
    if unstored > 0 {
        note!(
            "warning: {unstored} objects were not in the store yet; what is made of this dump elsewhere has no bytes of theirs unless they arrive there. \
             `sluice flush` of a mount stores them"
        );
    }
    if let Some(bytes) = elsewhere_bytes.filter(|bytes| *bytes > 0) {
        note!("warning: mounts elsewhere have {} that are not in the store yet", show_size(bytes));
    }
    Ok(ExitCode::SUCCESS)
}

/// The first line of a dump, but for the change that it is of.
pub fn header(config: &VolumeConfig, now: Timestamp) -> Header {
    Header {
        format: FORMAT,
        volume: config.id.clone(),
        store: config.store.clone(),
        durability: config.durability.to_string(),
        seq: 0,
        wall_secs: now.secs,
        segment_bytes: SEGMENT_BYTES as u64,
        object_bytes: OBJECT_BYTES as u64,
        span_bytes: SPAN_BYTES,
    }
}

/// What is dumped, and who hears of each line.
struct Source<'a> {
    dir: &'a Path,
    config: &'a VolumeConfig,
    line: &'a mut dyn FnMut(),
}

impl Source<'_> {
    /// What is cut for want of room, or by a failure, does not stay.
    fn write_file(self, path: &Path) -> anyhow::Result<(Dumped, Option<u64>)> {
        let explain = |error: io::Error| explained(&format!("writing {}", path.display()), &error);
        let file = File::create_new(path).map_err(explain)?;
        let written = self.write(&file).and_then(|dumped| file.sync_all().map(|()| dumped).map_err(explain));
        if written.is_err() {
            let _ = fs::remove_file(path);
        }
        written
    }

    /// By the process that has the volume, or from its directory.
    fn write(self, out: impl Write) -> anyhow::Result<(Dumped, Option<u64>)> {
        let Self { dir, config, line } = self;
        let out = BufWriter::with_capacity(1 << 20, out);
        let what = || format!("dumping {}", dir.display());
        if let Some(mut process) = Control::connect(dir)? {
            return process.dump(out, line).with_context(what);
        }
        if Record::load(dir).is_some() {
            bail!(
                "{} has the journal of a mount of a served volume: dump the volume on its server's host",
                dir.display()
            );
        }
        let journal_bytes = journal_bytes_at_least(dir);
        let options = OpenOptions { cache_bytes: 0, journal_bytes, metadata_only: true, ..OpenOptions::default() };
        let volume = Volume::open(dir, &options)?;
        let header = header(config, volume.clock.wall());
        let dumped = dump(volume.namespace.store(), header, out, |_| line()).with_context(what)?;
        Ok((dumped, None))
    }
}
