//! What was measured.

use serde::{Deserialize, Serialize};

/// One workload in one variant at one place: an object of the report. Of several rounds the medians; errors are counted together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// Name of the workload.
    pub workload: String,
    /// `seed` or `corrected`.
    pub variant: String,
    /// `aligned` or `unaligned`, of blocks at random.
    pub offsets: Option<String>,
    /// The directory.
    pub dir: String,
    /// What fsync promises there: `journal` in a mount of SluiceFS, `local` on a disk of this host, else the type of the file system.
    pub tier: String,
    /// Bytes that were acked and not in the store when a round was over, the most of all rounds; of a mount of SluiceFS.
    #[serde(default)]
    pub unstored_bytes: Option<u64>,
    /// Type of the file system.
    pub fs: String,
    /// Threads that were at work.
    pub threads: usize,
    /// Times it was measured.
    pub rounds: usize,
    /// Operations of a round.
    pub ops: u64,
    /// Seconds of a round.
    pub seconds: f64,
    /// Bytes read or written per second, in 1e6.
    pub mb_per_s: f64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Half of the operations took no longer, in microseconds.
    pub p50_us: f64,
    /// 95 of 100 took no longer.
    pub p95_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// The longest of all rounds.
    pub max_us: f64,
    /// Operations that failed, or read other bytes than were written, in all rounds.
    pub errors: u64,
    /// What the first error was.
    pub first_error: Option<String>,
    /// Of reads: how much of the files was written and no hole, 0 to 1.
    pub written_part: Option<f64>,
    /// `mb_per_s` of each round.
    pub mb_per_s_of_rounds: Vec<f64>,
    /// `ops_per_s` of each round.
    pub ops_per_s_of_rounds: Vec<f64>,
}
