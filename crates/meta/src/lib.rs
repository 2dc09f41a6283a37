//! Metadata: ordered keys with serializable transactions, and every POSIX rule above them.
//!
//! This crate knows nothing of sockets, of the kernel or of the object store.

#![forbid(unsafe_code)]

pub mod store;
