//! `toy MOUNTPOINT [REACTORS]`: serves the toy file system until it is unmounted. With fioread (on the
//! file `f`) and mdops it shows what the session itself costs.

use sluice_fuse::{Config, MountOptions, Session};
use std::sync::Arc;

mod memory;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mountpoint = args.next().ok_or("usage: toy MOUNTPOINT [REACTORS]")?;
    let reactors = args.next().map(|count| count.parse()).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    let mount = MountOptions { source: "toy".into(), default_permissions: false, ..MountOptions::default() };
    let config = Config { mount, reactors, ..Config::default() };
    let toy = Arc::new(memory::Toy::default());
    let session = Session::start(&config, mountpoint.as_ref(), toy, runtime.handle().clone())?;
    session.wait();
    eprintln!("{:?}", session.counts());
    Ok(())
}
