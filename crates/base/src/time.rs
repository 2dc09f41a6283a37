//! File times.

/// Nanoseconds since 1970-01-01 UTC as POSIX keeps them: signed seconds and 0..1e9 nanoseconds, so that times before 1970
/// and past 2106 are exact.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Timestamp {
    /// Whole seconds, rounded towards the past.
    pub secs: i64,
    /// 0..1_000_000_000.
    pub nanos: u32,
}

impl Timestamp {
    /// A time from its parts; `None` when `nanos` is not below 1e9.
    pub fn new(secs: i64, nanos: u32) -> Option<Self> {
        (nanos < 1_000_000_000).then_some(Self { secs, nanos })
    }

    /// Seconds from `earlier` to `self`, rounded down; negative when `earlier` is later.
    pub fn seconds_since(self, earlier: Timestamp) -> i64 {
        let whole = self.secs.saturating_sub(earlier.secs);
        if self.nanos < earlier.nanos { whole.saturating_sub(1) } else { whole }
    }
}
