//! Lines for people.

use crate::{
    output::{note, out},
    units::show_size,
};
use sluice_bench::fs::Line;

/// A table that grows.
#[derive(Default)]
pub struct Table {
    has_head: bool,
}

impl Table {
    /// A run of before.
    pub fn saved(&mut self, name: &str, lines: &[Line]) {
        for line in lines {
            self.row(line, name, "");
        }
    }

    /// A line of this run; beside `other`, if that is the same at another directory.
    pub fn line(&mut self, line: &Line, other: Option<&Line>) {
        let of = |line: &Line| (line.workload.clone(), line.variant.clone(), line.offsets.clone());
        let times = match other.filter(|other| of(other) == of(line) && other.ops_per_s > 0.0) {
            Some(other) => format!("{:.2} times {}", line.ops_per_s / other.ops_per_s, other.dir),
            None => String::new(),
        };
        self.row(line, &line.dir, &times);
    }

    fn row(&mut self, line: &Line, run: &str, beside: &str) {
        if !std::mem::replace(&mut self.has_head, true) {
            out!(
                "{:<11} {:<9} {:<9} {:<8} {:>10} {:>7} {:>9} {:>10} {:>9} {:>9} {:>9} {:>10} {:>7} {:>6}  run",
                "workload",
                "variant",
                "offsets",
                "tier",
                "not stored",
                "threads",
                "MB/s",
                "ops/s",
                "p50 us",
                "p95 us",
                "p99 us",
                "max us",
                "written",
                "errors"
            );
        }
        let written = line.written_part.map_or("-".into(), |part| format!("{part:.2}"));
        let row = format!(
            "{:<11} {:<9} {:<9} {:<8} {:>10} {:>7} {:>9.1} {:>10.0} {:>9.1} {:>9.1} {:>9.1} {:>10.0} {written:>7} {:>6}  {run}  {beside}",
            line.workload,
            line.variant,
            line.offsets.as_deref().unwrap_or("-"),
            line.tier,
            line.unstored_bytes.map_or("-".into(), show_size),
            line.threads,
            line.mb_per_s,
            line.ops_per_s,
            line.p50_us,
            line.p95_us,
            line.p99_us,
            line.max_us,
            line.errors
        );
        out!("{}", row.trim_end());
    }
}

/// Tells of errors; true when there were any.
pub fn errors(lines: &[Line]) -> bool {
    for line in lines.iter().filter(|line| line.errors > 0) {
        let why = line.first_error.as_deref().unwrap_or("-");
        note!("{} {} in {}: {} errors, the first: {why}", line.variant, line.workload, line.dir, line.errors);
    }
    lines.iter().any(|line| line.errors > 0)
}
