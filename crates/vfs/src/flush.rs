//! Everything written so far in the store, while the mount goes on.

use crate::{Ship, Vfs, away::on_thread};
use sluice_base::Seq;
use std::sync::Arc;

impl Vfs {
    /// The last record of the journal.
    pub fn written(&self) -> Seq {
        self.parts.journal.written()
    }

    /// Of what was written up to `seq`: objects and bytes that the store does not have.
    pub fn unstored_up_to(&self, seq: Seq) -> (usize, u64) {
        self.dirty.totals_up_to(seq)
    }

    /// Resolves when everything written up to `seq` is published and stored, with its metadata, of which `ship` knows; or with the reason why it
    /// will not be. Waits however long server and store are away. What was lost is left for the next sync of a program to tell.
    pub async fn flush(self: Arc<Self>, ship: Arc<Ship>, seq: Seq) -> Result<(), String> {
        // One thread waits for a server that is away, however many ask.
        let turn = self.flushing.clone().acquire_owned().await.map_err(|error| error.to_string())?;
        let vfs = self.clone();
        let published = on_thread(move || {
            let _turn = turn;
            vfs.namespace().publish_all()
        });
        published.await.ok_or("publishing failed")?.map_err(|error| error.to_string())?;
        self.parts.committer.wait_synced(seq).await.map_err(|error| error.to_string())?;
        self.comes_back(ship, seq).await
    }
}
