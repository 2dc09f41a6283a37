//! Access times are written together, some seconds after the reads.

use crate::{Vfs, away::on_thread};
use std::{sync::Weak, time::Duration};

/// How long they wait. What is removed within it costs no write.
const WRITE_DELAY: Duration = Duration::from_secs(5);

impl Vfs {
    /// Writes those that wait.
    pub(crate) fn write_accesses(&self) {
        if let Err(error) = self.namespace().write_accesses() {
            tracing::warn!(%error, "access times were not written");
        }
    }
}

pub(crate) async fn run(vfs: Weak<Vfs>) {
    loop {
        sluice_run::time::sleep(WRITE_DELAY).await;
        let Some(alive) = vfs.upgrade() else { return };
        on_thread(move || alive.write_accesses()).await;
    }
}
