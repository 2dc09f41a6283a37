//! `sluice dump`.

use crate::{
    directory,
    fsck::spinner,
    mount::kept::Record,
    mounts,
    output::{explained, note},
    units::quoted,
    volume::{OpenOptions, Volume, journal_bytes_at_least},
};
use anyhow::{Context, anyhow, bail};
use sluice_base::limits::{OBJECT_BYTES, SEGMENT_BYTES, SPAN_BYTES};
use sluice_meta::{
    dump::{Counts, FORMAT, Header, dump},
    fsck,
    records::ObjectState,
};
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
/// The volume must not be mounted or served meanwhile. What is not stored yet is named: only its own directory has that.
///
/// Example: sluice dump ~/volume ~/volume.dump
///
/// Example: sluice dump ~/volume - | zstd > volume.dump.zst
#[derive(clap::Args)]
pub struct DumpArgs {
    /// The volume: local:DIR or DIR
    #[arg(value_name = "META")]
    pub meta: OsString,
    /// Where to; it must not be there yet. - is standard output
    #[arg(default_value = "-")]
    pub file: PathBuf,
}

/// Lines between two looks at the terminal.
const LINES_SHOWN: u64 = 4096;

pub fn run(args: &DumpArgs) -> anyhow::Result<ExitCode> {
    let dir = mounts::unmounted_dir(&args.meta, "dump")?;
    if Record::load(&dir).is_some() {
        bail!("{} has the journal of a mount of a served volume: dump the volume on its server's host", dir.display());
    }
    directory::load(&dir)?.ok_or_else(|| anyhow!("{} holds no volume", dir.display()))?;
    let counts = match args.file.as_os_str() == "-" {
        true => write(&dir, io::stdout().lock())?,
        false => to_file(&dir, &args.file)?,
    };
    let all: u64 = counts.values().sum();
    let of = |kind: &str| counts.get(kind).copied().unwrap_or(0);
    note!("dumped {all} records: {} inodes, {} names, {} objects", of("inode"), of("name"), of("object"));
    Ok(ExitCode::SUCCESS)
}

/// What is cut for want of room, or by a failure, does not stay.
fn to_file(dir: &Path, path: &Path) -> anyhow::Result<Counts> {
    let explain = |error: io::Error| explained(&format!("writing {}", path.display()), &error);
    let file = File::create_new(path).map_err(explain)?;
    let written = write(dir, &file).and_then(|counts| file.sync_all().map(|()| counts).map_err(explain));
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

fn write(dir: &Path, out: impl Write) -> anyhow::Result<Counts> {
    let journal_bytes = journal_bytes_at_least(dir);
    let options = OpenOptions { cache_bytes: 0, journal_bytes, metadata_only: true, ..OpenOptions::default() };
    let volume = Volume::open(dir, &options)?;
    warn_of_unstored(dir, &volume)?;
    let store = volume.namespace.store();
    let header = Header {
        format: FORMAT,
        volume: volume.config.id.clone(),
        store: volume.config.store.clone(),
        durability: volume.config.durability.to_string(),
        seq: store.visible().0,
        wall_secs: volume.clock.wall().secs,
        segment_bytes: SEGMENT_BYTES as u64,
        object_bytes: OBJECT_BYTES as u64,
        span_bytes: SPAN_BYTES,
    };
    let bar = spinner("dumping");
    let counts = dump(store, header, BufWriter::with_capacity(1 << 20, out), |records| {
        if records % LINES_SHOWN == 0 {
            bar.set_message(format!("dumping: {records} records"));
        }
    });
    bar.finish_and_clear();
    counts.with_context(|| format!("dumping {}", dir.display()))
}

fn warn_of_unstored(dir: &Path, volume: &Volume) -> anyhow::Result<()> {
    let mut unstored = 0_u64;
    fsck::objects(volume.namespace.store(), &mut |_, record| {
        let is_unstored = |state| matches!(state, ObjectState::Open | ObjectState::Sealed);
        unstored += u64::from(record.is_some_and(|record| is_unstored(record.state) && record.live_bytes > 0));
    })?;
    if unstored > 0 {
        note!(
            "warning: {unstored} objects are not in the store yet; what is made of this dump elsewhere has no bytes of theirs. `sluice up {} \
             MOUNTPOINT` and `sluice umount` store them first",
            quoted(dir)
        );
    }
    Ok(())
}
