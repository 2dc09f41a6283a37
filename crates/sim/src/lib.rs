//! A server, mounts and a store in one process, in virtual time, by a seed: the shipped code of all of them over disks, connections
//! and a store that fail as the seed says, and programs on the mounts whose every answer is judged. docs/simulation.md tells more.

#![forbid(unsafe_code)]

mod chaos;
mod client;
mod disk;
mod hosts;
mod oracle;
mod program;
mod seed;

pub use seed::{Told, run};
