//! `sluice bench net`.
//!
//! A *host* (`net/host.rs`) is a process with the product's own node, whose cache is full of random objects, and a control port. For each
//! case (`net/case.rs`) it is told to open a data port with the techniques of that case; the client (`net/client.rs`), in a process of its own,
//! reads ranges of those objects, over lanes as a mount's reactors do or by way of a group as its tasks do, and counts. Processor time is that
//! of the whole processes, told by each. In the same run, right before and after a case, the raw limit is measured: a thread of the
//! host sends from a file by sendfile, a thread of the client reads (`net/raw.rs`).

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
