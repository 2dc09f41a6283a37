//! What a case came to.

use serde::Serialize;
use std::collections::BTreeMap;

/// One case at one block size: an object of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Name of the case.
    pub case: String,
    /// Bytes of a read.
    pub block_bytes: usize,
    /// Lanes to each host for large answers, at the end.
    pub connections: usize,
    /// Reads under way at once.
    pub in_flight: usize,
    /// Bytes read per second, in 1e9.
    pub gbps: f64,
    /// Reads per second.
    pub iops: f64,
    /// Processor time of the client, seconds by 2^30 bytes.
    pub client_cpu_s_per_gib: f64,
    /// Processor time of all hosts, seconds by 2^30 bytes.
    pub node_cpu_s_per_gib: f64,
    /// Returns of epoll_wait in client and hosts, per second. Of a group the hosts' alone: its client's are tokio's.
    pub wakeups_per_s: f64,
    /// Of these, the client's.
    pub client_wakeups_per_s: f64,
    /// System calls of lanes and waits in client and hosts, by reads.
    pub syscalls_per_request: f64,
    /// Half of the reads took no longer, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// One TCP connection, sendfile to read(2), in the same run: bytes per second, in 1e9.
    pub raw_limit_gbps: f64,
    /// Processor time of its sender, seconds by 2^30 bytes.
    pub raw_sender_cpu_s_per_gib: f64,
    /// What client and hosts counted, by 1,000 reads; `lanes` as they are.
    pub counts: BTreeMap<String, f64>,
}
