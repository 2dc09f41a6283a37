//! The group: nodes that lend their cache disks to a volume, and the way of a mount to them.
//!
//! - [`Members`]: the list with its epoch, and which of them has which object. [`View`]: the list of now and the one before.
//! - [`Registry`]: the server's side of it, without I/O. [`Membership`]: a node's; [`follow`]: everybody's.
//! - [`Node`] answers reads from its disk, and from the store once for all who wait; [`NodeService`] puts it on the network.
//! - [`Group`] is what a mount asks: an object's owner, then the next.
//! - [`message`]: what all of them say to each other.
//!
//! What a node keeps and sends is the stored form of segments, each with the CRC that binds it to object and index: a node
//! that errs costs a reader another request, never a wrong byte.
//!
//! This crate knows nothing of files, extents, metadata or FUSE.

#![forbid(unsafe_code)]

mod group;
mod members;
mod membership;
pub mod message;
mod node;
mod registry;
mod service;
mod view;

pub use group::{Group, GroupError, GroupOptions, GroupStats};
pub use members::{BadList, MEMBERS_MAX, Member, Members, NAME_BYTES_MAX, NodeName, State};
pub use membership::{JoinError, Membership, follow, refresh};
pub use node::{Elsewhere, Node, NodeError, NodeParts};
pub use registry::{EXPIRY, HEARTBEAT_INTERVAL, Registry, RegistryError};
pub use service::{NodeService, NodeServiceOptions};
pub use view::{PREVIOUS_TIME, View};
