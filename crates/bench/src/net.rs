//! `sluice bench net`.
//!
//! A *host* (`net/host.rs`) is a process with a cache of random objects and a control port. For each case it is told to open a data
//! port with the techniques of that case; the client (`net/client.rs`), in a process of its own, reads ranges of those objects as a mount does, checks
//! every byte, and counts. Processor time is that of the whole processes, told by each. In the same run, right before and after a case,
//! the raw limit is measured: a thread of the host sends from a file by sendfile, a thread of the client reads (`net/raw.rs`).

mod case;
mod chart;
mod client;
mod control;
mod host;
mod raw;
mod report;

pub use case::Case;
pub use chart::draw;
pub use client::{Plan, run};
pub use host::Host;
pub use report::Line;
