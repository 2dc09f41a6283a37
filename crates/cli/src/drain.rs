//! `sluice drain`.

use crate::{
    control::{Ask, Control, Told},
    directory,
    output::note,
    reach::START_TIME,
    status::served::call,
};
use anyhow::anyhow;
use sluice_node::{NodeName, message};
use std::{ffi::OsString, path::Path, process::ExitCode};

/// Place nothing more with a node, or do so again
///
/// The other nodes take over its share of the objects at once. What it holds is still read from it for ten minutes, so that the store
/// is not asked for all of it; then it can be stopped. The server keeps this: a drained node that was stopped is still drained when
/// it is started again, until --undo.
///
/// Example: sluice drain sluice://10.0.0.5:7700 ssd-3
#[derive(clap::Args)]
pub struct DrainArgs {
    /// The volume's server, sluice://HOST:PORT; on its host also local:DIR or DIR
    #[arg(value_name = "META")]
    pub meta: OsString,
    /// The node's name, as `sluice status` shows it
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Place objects with it again
    #[arg(long)]
    pub undo: bool,
}

pub fn run(args: &DrainArgs) -> anyhow::Result<ExitCode> {
    let name = NodeName::new(&args.node);
    let name = name.ok_or_else(|| anyhow!("a node's name is 1 to 64 bytes without control characters"))?;
    let server = match args.meta.to_str().filter(|meta| meta.starts_with("sluice://")) {
        Some(server) => server.to_string(),
        None => {
            let dir = directory::volume_dir(&args.meta)?;
            let none = || anyhow!("{} is not served: only a served volume has nodes", dir.display());
            of_directory(&dir)?.ok_or_else(none)?
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(call(&server, message::DRAIN, message::encode_drain(&name, !args.undo), START_TIME))?;
    match args.undo {
        true => note!("node `{name}` takes objects again"),
        false => note!("node `{name}` takes no more objects; what it holds is read from it for ten more minutes"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the volume of a directory of this host is served, if it is.
pub fn of_directory(dir: &Path) -> anyhow::Result<Option<String>> {
    let mut server = None;
    if let Some(mut control) = Control::connect(dir)? {
        control.ask(Ask::Status, |told| {
            if let Told::Status { status } = told {
                server = status["server"].as_str().map(String::from);
            }
            Ok(false)
        })?;
    }
    Ok(server)
}
