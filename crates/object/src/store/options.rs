//! Settings of a store: plain data.

use crate::AwsSettings;
use sluice_base::Pages;
use std::{sync::Arc, time::Duration};

/// How to use a store. The defaults are for S3 at 20 to 100 ms and a 10 to 100 Gbit/s card.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Most reads at once. S3 gives 50 to 100 MB/s a connection, so 64 of them fill 25 to 50 Gbit/s. Beside its answer each has the receive
    /// buffer of its connection, which grows to some 400 KiB.
    pub gets_max: usize,
    /// Most writes and removals at once; each holds up to 4 MiB.
    pub puts_max: usize,
    /// Most tries of one request, at least 1.
    pub attempts_max: u32,
    /// A call gives up after this, plus the time that its bytes take at [`Self::slowest_bytes_per_s`].
    pub deadline: Duration,
    /// One try may take this, plus the time that its bytes take at [`Self::slowest_bytes_per_s`].
    pub attempt_timeout: Duration,
    /// A connection slower than this counts as dead.
    pub slowest_bytes_per_s: u64,
    /// Time for TCP and TLS.
    pub connect_timeout: Duration,
    /// The wait before try n + 1 is random between 0 and `backoff_base` x 2^n...
    pub backoff_base: Duration,
    /// ... but at most this.
    pub backoff_max: Duration,
    /// Larger reads are split into requests of about this size that run at once.
    pub part_bytes: u64,
    /// Where the buffers of answers come from.
    pub pages: Arc<Pages>,
    /// Credentials for S3.
    pub aws: AwsSettings,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            gets_max: 64,
            puts_max: 16,
            attempts_max: 5,
            deadline: Duration::from_secs(60),
            attempt_timeout: Duration::from_secs(15),
            slowest_bytes_per_s: 128 << 10,
            connect_timeout: Duration::from_secs(5),
            backoff_base: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
            part_bytes: 1 << 20,
            // A few of the largest.
            pages: Pages::new(4 << 20),
            aws: AwsSettings::default(),
        }
    }
}

impl StoreOptions {
    /// Time that `bytes` may take on the slowest connection that is not given up.
    pub(super) fn transfer_time(&self, bytes: u64) -> Duration {
        Duration::from_millis(bytes.saturating_mul(1000) / self.slowest_bytes_per_s.max(1))
    }

    /// Upper bound of the wait after `tries` failed tries.
    pub(super) fn backoff(&self, tries: u32) -> Duration {
        let doubled = self.backoff_base.saturating_mul(1 << tries.saturating_sub(1).min(20));
        doubled.min(self.backoff_max)
    }
}
