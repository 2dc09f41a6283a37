//! Nodes, their readers and a server's registry, over loopback sockets, memory disks and a store that fails as told.

#![allow(missing_docs)]

mod hostile;
mod nodes;
mod readers;
mod rig;
mod trouble;
