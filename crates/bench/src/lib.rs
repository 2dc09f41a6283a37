//! Measurements that the binary itself makes, for people who want to know what their hosts and networks give.
//!
//! [`fs`]: what a directory of any file system gives, by six published workloads, as published and corrected.
//!
//! [`net`]: how fast a node's bytes reach a client, with everything that makes them fast, without each of it, and without all of it,
//! beside what one TCP connection gives at most.

#![forbid(unsafe_code)]

pub mod fs;
pub mod net;
