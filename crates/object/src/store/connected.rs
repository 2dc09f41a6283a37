//! Connections that are open before they are needed.
//!
//! A request on a new connection takes a round trip more, with TLS two or three; a client opens one when all that it has are in use,
//! and servers close those that nobody used for some seconds. So who reads keeps a few open by small requests at the same time.

use super::{Store, blobs::VOLUME_MARKER};
use crate::backend::RequestKind;
use futures::future::join_all;
use sluice_run::time::{sleep, timeout};
use std::time::Duration;

/// So many are open: data and table of a first read, and what is read ahead of it.
const CONNECTIONS: usize = 8;
/// How often they are used: S3 closes those that were not for 20 s, others for 5 s.
const EVERY: Duration = Duration::from_secs(4);
/// This long after the last read the store is left alone.
const IDLE_AFTER: Duration = Duration::from_secs(60);

impl Store {
    /// Opens a few connections to the store, and keeps them open whenever something was read from it in the last minute. Ends when it is
    /// dropped. What fails is left to the requests that would have used them.
    pub async fn keep_connected(&self) {
        if !self.0.backend.has_connections() {
            return;
        }
        let (mut read, mut idle) = (0, Duration::ZERO);
        loop {
            if idle < IDLE_AFTER {
                self.connect().await;
            }
            sleep(EVERY).await;
            let now = self.stats().of(RequestKind::Get).requests;
            idle = if now == read { idle + EVERY } else { Duration::ZERO };
            read = now;
        }
    }

    async fn connect(&self) {
        let one = || async {
            let in_flight = self.0.counters.begin(RequestKind::Head, false);
            let asked = timeout(self.0.options.connect_timeout, self.0.backend.head(VOLUME_MARKER)).await;
            asked.iter().for_each(|answer| in_flight.note(answer));
        };
        join_all((0..CONNECTIONS).map(|_| one())).await;
    }
}
