//! `sluice bench fs`.
//!
//! Six workloads, as the DittoFS project publishes them and as its program runs them (variant `seed`), and each with what that program
//! leaves out (variant `corrected`). A *place* (`fs/place.rs`) is a directory that is measured, with the files of the moment. *Hands*
//! (`fs/hand.rs`) are the threads that do the operations and count; what must be ready before is made outside their time. `fs/large.rs`
//! has the four workloads on large files, `fs/small.rs` the two on many small ones. Written bytes know where they belong
//! (`fs/content.rs`), so that reads can tell them from holes.
//!
//! The order is variant, workload, round, place: two places are measured in turns, A B A B, and what one workload wrote the next one
//! reads.

mod chart;
mod content;
mod hand;
mod large;
mod place;
mod plan;
mod report;
mod run;
mod small;
mod times;

pub use chart::draw;
pub use hand::Watch;
pub use place::Place;
pub use plan::{Offsets, Plan, Variant, Workload};
pub use report::Line;
pub use run::measure;
