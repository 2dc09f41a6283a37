//! Nodes, their readers and a server's registry, over loopback sockets, memory disks and a store that fails as told.

#![allow(missing_docs)]

mod hostile;
mod hot;
mod nodes;
mod ranges;
mod readers;
mod rig;
mod threads;
mod trouble;
