//! `sluice load`.

use crate::{
    config::VolumeConfig,
    directory,
    fsck::{byte_bar, spinner},
    lock::VolumeLock,
    output::{note, out},
    recover::from_store::{Filled, Made, holder_here, make},
    units::show_size,
    volume::open_store,
};
use anyhow::{Context, bail};
use indicatif::ProgressBar;
use serde_json::json;
use sluice_base::{Clock, Seq, SystemClock, limits};
use sluice_meta::{
    dump::{Dump, Header},
    store::LsmTables,
};
use sluice_object::Store;
use sluice_ship::Line;
use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Make a volume's directory of a dump and of the store that has its objects
///
/// FILE is what `sluice dump` wrote; one that was cut or changed is refused, with the line. META must not hold a volume yet. STORE is where the volume's
/// objects are: where the dumped one had them, or a whole copy of that.
///
/// A store has the metadata of its volume too. What is loaded goes on from the dump, so what the store has of that, which may be newer, has to go:
/// that is for --force to say, and only when nobody has the volume mounted any more. `sluice recover --from-store` goes on from the store's.
///
/// Example: sluice load volume.dump ~/volume --store 's3://bucket/volume?endpoint=http://127.0.0.1:9000'
#[derive(clap::Args)]
pub struct LoadArgs {
    /// The dump; - is standard input
    pub file: PathBuf,
    /// The volume that is made: local:DIR or DIR
    #[arg(value_name = "META")]
    pub meta: OsString,
    /// Where its objects are: s3://BUCKET/PREFIX?endpoint=... or file:DIR
    #[arg(long)]
    pub store: String,
    /// Remove the metadata of the volume that the store has
    #[arg(long)]
    pub force: bool,
    /// Print what was made as JSON
    #[arg(long)]
    pub json: bool,
}

/// Lines between two looks at the terminal.
const LINES_SHOWN: u64 = 4096;

pub fn run(args: &LoadArgs) -> anyhow::Result<ExitCode> {
    let dir = directory::volume_dir(&args.meta)?;
    let name = args.file.display();
    let (input, bar): (Box<dyn Read>, _) = if args.file.as_os_str() == "-" {
        (Box::new(io::stdin()), spinner("loading"))
    } else {
        let file = File::open(&args.file).with_context(|| format!("opening {name}"))?;
        let bar = byte_bar(file.metadata().map_or(0, |meta| meta.len()), "loading");
        (Box::new(bar.wrap_read(file)), bar)
    };
    let dump = Dump::open(BufReader::with_capacity(1 << 20, input)).with_context(|| format!("{name}"))?;
    let header = dump.header().clone();
    let mut loaded = None;
    let made = make(&dir, &args.store, async |store, config, tables, line| {
        let seq = fill(args, dump, &bar, store, config, tables).await?;
        loaded = Some((line, seq));
        Ok(Filled { seq, is_shipped: false })
    })?;
    bar.finish_and_clear();
    if let (true, Some(loaded)) = (args.force, loaded) {
        forget_shipped(&dir, &made, loaded)?;
    }
    show(args, &header, &made)
}

async fn fill(
    args: &LoadArgs,
    dump: Dump<impl BufRead>,
    bar: &ProgressBar,
    store: &Store,
    config: &VolumeConfig,
    tables: &LsmTables,
) -> anyhow::Result<Seq> {
    let header = dump.header();
    if header.volume != config.id {
        bail!("{} holds volume {}, the dump is of {}: nothing was made", store.place(), config.id, header.volume);
    }
    let limits = (limits::SEGMENT_BYTES as u64, limits::OBJECT_BYTES as u64, limits::SPAN_BYTES);
    if (header.segment_bytes, header.object_bytes, header.span_bytes) != limits {
        bail!(
            "{} is of a sluice with other sizes of segments, objects or spans: load it with that one",
            args.file.display()
        );
    }
    let is_known = sluice_ship::has_any(store).await.with_context(|| format!("the store {}", store.place()))?;
    if is_known && !args.force {
        bail!(
            "{} has metadata of this volume itself, perhaps newer than the dump: `sluice recover --from-store` makes a volume of that; \
             --force removes it and goes on from the dump",
            store.place()
        );
    }
    let user = sluice_ship::in_use(store).await.with_context(|| format!("the store {}", store.place()))?;
    if let Some((found, holder)) = user.and_then(|found| holder_here(&found, config).map(|holder| (found, holder))) {
        bail!("the volume is in use here, in {}, by {holder}: unmount it first", found.place.dir);
    }
    let seq = Seq(header.seq);
    let (seq, _) = dump
        .load(tables, seq, |records| {
            if records % LINES_SHOWN == 0 && bar.length().is_none() {
                bar.set_message(format!("loading: {records} records"));
            }
        })
        .with_context(|| format!("{}", args.file.display()))?;
    Ok(seq)
}

/// Only now that there is a volume which needs the store's metadata no more.
/// And with a fence in its place, so that no other directory of it goes on there.
fn forget_shipped(dir: &Path, made: &Made, loaded: (Line, Seq)) -> anyhow::Result<()> {
    let _lock = VolumeLock::take(dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime
        .block_on(async {
            let store = open_store(&made.config, dir, true)?;
            if sluice_ship::has_any(&store).await? {
                let now = SystemClock::default().wall().secs as u64;
                sluice_ship::begin_anew(&store, loaded, now).await?;
                note!("removed the metadata that {} had; the next mount ships it anew", store.place());
            }
            anyhow::Ok(())
        })
        .with_context(|| format!("the volume in {} is loaded, but the store keeps other metadata of it", dir.display()))
}

fn show(args: &LoadArgs, header: &Header, made: &Made) -> anyhow::Result<ExitCode> {
    let dir = directory::volume_dir(&args.meta)?;
    let (config, usage) = (&made.config, made.namespace.usage()?);
    if args.json {
        out!(
            "{}",
            json!({
                "volume": config.id, "dir": dir.to_string_lossy(), "store": config.store, "seq": header.seq,
                "dumped_secs": header.wall_secs, "inodes": usage.inodes, "held_bytes": usage.bytes,
                "objects_found": made.settled.stored, "objects_lost": made.settled.lost.len(), "lost": made.lost()?,
            })
        );
        return Ok(ExitCode::SUCCESS);
    }
    let held = show_size(usage.bytes.max(0) as u64);
    out!("loaded volume {} in {}: {} inodes, {held}", config.id, dir.display(), usage.inodes);
    made.tell_rest(&dir)?;
    Ok(ExitCode::SUCCESS)
}
