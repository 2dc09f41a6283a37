//! A mount's reports to the server: how much of what it has acked the store does not have.

use crate::methods::{self, Report};
use sluice_base::SessionId;
use sluice_net::Client;
use sluice_vfs::{Vfs, remote::Remote};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// How often a mount looks whether there is news.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A report is repeated after so many looks without news: a server that was restarted has forgotten it.
const REPEAT_LOOKS: u32 = 5;
/// Time for the server to take one.
const REPORT_TIME: Duration = Duration::from_secs(2);

/// Tells the server, and counts what a mount alone can see.
#[derive(Debug, Default)]
pub struct Reporter {
    lease_expiries: AtomicU64,
}

impl Reporter {
    /// How often the lease was found to be over, looked at every second.
    pub fn lease_expiries(&self) -> u64 {
        self.lease_expiries.load(Relaxed)
    }

    /// Reports for as long as it is polled.
    pub async fn run(&self, client: &Client, session: SessionId, metadata: &Arc<Remote>, vfs: &Arc<Vfs>) {
        let (mut told, mut looks, mut leased) = (None, 0, false);
        loop {
            let is_leased = !metadata.valid().is_zero();
            self.lease_expiries.fetch_add(u64::from(leased && !is_leased), Relaxed);
            leased = is_leased;
            let (objects, bytes) = vfs.dirty_totals();
            let waits_for_store = vfs.waits_for_store();
            let report = Report { session, objects: objects as u64, bytes, waits_for_store };
            looks += 1;
            if told != Some(report) || looks >= REPEAT_LOOKS {
                let sent = client.call(methods::REPORT, report.encode(), REPORT_TIME).await;
                // Nobody waits for it: the next look sends it again.
                told = sent.is_ok().then_some(report);
                looks = 0;
            }
            sluice_run::time::sleep(LOOK_INTERVAL).await;
        }
    }
}
