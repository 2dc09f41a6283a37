//! What joins the crates into a server, a mount and a node: the parts between the command line and the volume's own code. The binary
//! and the simulation run the same.
//!
//! Here: replaying what a writer keeps, the work on it, the server's dispatcher, the mount's link, a node's work, and the methods between them that
//! are not the metadata's. Not here: settings, directories, locks of directories, sockets for people, output.

#![forbid(unsafe_code)]

pub mod group;
mod lanes;
mod link;
pub mod methods;
pub mod node;
mod nodes;
mod overview;
mod replayed;
mod report;
mod service;
mod work;

pub use lanes::NodesByThread;
pub use link::{Callbacks, Deaf, KEEP_INTERVAL, Kernel, NetLink, NoKernel, Peers, keep};
pub use overview::{Overview, SessionOverview};
pub use replayed::{Kept, Replayed, look, view};
pub use report::Reporter;
pub use service::MetaService;
pub use work::Work;
