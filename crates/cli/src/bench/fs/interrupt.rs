//! Ctrl-C and its relatives.

use crate::output::note;
use anyhow::Context;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tokio::signal::unix::{SignalKind, signal};

/// Becomes true at the first signal to end. A second one ends the process at once.
pub fn listen() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [mut int, mut term, mut hangup] = [signal(kinds[0])?, signal(kinds[1])?, signal(kinds[2])?];
    drop(entered);
    let wait = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = int.recv() => {}
                    _ = term.recv() => {}
                    _ = hangup.recv() => {}
                }
                if stopped.swap(true, Ordering::Relaxed) {
                    note!("ended at once; directories sluice-bench-fs.* are left");
                    std::process::exit(1);
                }
                note!("removing what was made; again to end at once");
            }
        });
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).context("starting a thread")?;
    Ok(stop)
}
