//! `sluice format`.

use crate::{config::volume_dir, volume};
use std::process::ExitCode;

/// Make a volume
///
/// META is local:DIR, the directory on this host that will hold the volume's metadata, journal and cache; it is made when
/// it is missing. STORE is where the files' bytes go: file:DIR, or s3://BUCKET/PREFIX with credentials from the usual AWS
/// variables and files.
///
/// Example: sluice format local:/srv/vol --store 's3://bucket/vol?endpoint=http://127.0.0.1:9000'
#[derive(clap::Args)]
pub struct FormatArgs {
    /// The volume: local:DIR
    pub meta: String,
    /// The object store: file:DIR or s3://BUCKET/PREFIX?endpoint=...&region=...
    #[arg(long)]
    pub store: String,
    /// Make a new volume where there is one already, and forget every file of the old one
    #[arg(long)]
    pub force: bool,
    /// Print the volume's configuration as JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &FormatArgs) -> anyhow::Result<ExitCode> {
    let dir = volume_dir(&args.meta)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let config = runtime.block_on(volume::format(&dir, &args.store, args.force))?;
    if args.json {
        print!("{}", config.to_json());
    } else {
        println!("made volume {} in {}, objects in {}", config.id, dir.display(), config.store);
        println!("mount it with: sluice up {} MOUNTPOINT", dir.display());
    }
    Ok(ExitCode::SUCCESS)
}
