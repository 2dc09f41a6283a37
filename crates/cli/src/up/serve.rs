//! From the open volume to the end of its mount.

use super::UpArgs;
use crate::{
    control::{Server, Socket},
    detach::Detaching,
    directory, format,
    metrics::{Probe, VolumeSource},
    output::note,
    running::{Running, available, until_the_end},
    volume::{self, OpenOptions, Volume},
};
use anyhow::bail;
use sluice_fuse::ServeOptions;
use sluice_vfs::Settings;
use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};
use tokio::runtime::Runtime;

/// The mount is the volume's only one, so everything that changes passes through it.
const VALID: Duration = Duration::from_secs(3600);

/// Opens the volume, mounts it and serves it to its end.
pub fn serve(args: &UpArgs, dir: &Path, mountpoint: &Path, runtime: &Runtime) -> anyhow::Result<ExitCode> {
    let passthrough = args.passthrough(dir)?;
    let volume = open(args, dir, runtime)?;
    if volume.recovered.damaged_segments > 0 {
        note!(
            "warning: {} damaged segments were found; `sluice fsck` names the files",
            volume.recovered.damaged_segments
        );
    }
    // What can fail is done before the mount.
    let socket = Socket::bind(dir)?;
    let metrics = runtime.block_on(args.metrics.listen())?;
    let probe = Probe::new(&volume.config, dir, volume.clock.clone())?;
    let detaching = if args.detach { Some(Detaching::prepare()?) } else { None };
    let config = volume.config.clone();
    let settings = Settings { upload_delay: args.upload_delay, memory_bytes: args.memory, ..Settings::default() };
    let running = Running::of_volume(volume, settings, runtime.handle())?;
    args.scrub.start(running.vfs.cache());
    let options = ServeOptions {
        valid: Box::new(|| VALID),
        locks: None,
        passthrough,
        verify: args.reading.verify(),
        available_bytes: available(&config, dir)?,
    };
    let source = format!("local:{}", dir.display());
    let result = running.mount(source, options, &args.reading, mountpoint, runtime).and_then(|(mount, has_ended)| {
        let (vfs, watched) = (running.vfs.clone(), Some(mount.clone()));
        let source = VolumeSource { role: "up", vfs, probe, mount: watched, lease: None, service: None };
        let _monitor = runtime.block_on(async { metrics.serve(source) });
        let server = Server {
            vfs: running.vfs.clone(),
            mount: Some((mount.clone(), mountpoint.to_path_buf())),
            server: None,
            service: None,
            dir: dir.to_path_buf(),
            config,
            ending: Arc::default(),
        };
        let what = dir.display().to_string();
        let result = runtime.block_on(until_the_end(server, &what, &socket, detaching, has_ended));
        mount.wait();
        result
    });
    running.end()?;
    drop(socket);
    // Those who asked for the umount are told by the end of their connection, which comes with the end of the process.
    let _watchers = result?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the volume, making it first where there is none.
fn open(args: &UpArgs, dir: &Path, runtime: &Runtime) -> anyhow::Result<Volume> {
    let config = match directory::load(dir)? {
        Some(config) => config,
        None => {
            let made = runtime.block_on(format::make(dir, args.store.as_deref().unwrap_or("file:objects"), false));
            match made {
                Ok(config) => config,
                // Another process may have made it meanwhile; the lock tells which of the two mounts it.
                Err(error) => directory::load(dir)?.ok_or(error)?,
            }
        }
    };
    if let Some(store) = args.store.as_ref().filter(|store| **store != config.store) {
        bail!(
            "the volume in {} keeps its objects in {}, not in {store}; leave --store out",
            dir.display(),
            config.store
        );
    }
    runtime.block_on(volume::check_store(&config, dir))?;
    Volume::open(
        dir,
        &OpenOptions {
            cache_bytes: args.cache_size,
            journal_bytes: args.journal_size,
            memory_bytes: args.memory,
            ..OpenOptions::default()
        },
    )
}
