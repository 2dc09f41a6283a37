//! The metadata of a volume for mounts on other hosts: whole operations, one round trip each. docs/metadata-rpc.md has the
//! bytes and the rules of both sides.
//!
//! Nothing here knows sockets or the time: bodies are bytes, and time is an argument.
//!
//! - [`message`]: one request and one reply type for each operation; [`client`] makes and reads them for a session.
//! - [`Sessions`]: leases, grace after a restart, epochs. [`Interest`]: who may have cached what. [`Outbox`]: pushes.
//! - [`Server`] joins them over a [`crate::Namespace`]. Each numbered change is done once: its result is in its own
//!   transaction (`namespace/once.rs`), and so is what it touches, told by the keys that it writes.

pub mod client;
pub(crate) mod codec;
mod fault;
mod holds;
mod interest;
mod locks;
pub mod message;
mod outbox;
mod server;
mod sessions;
mod values;

pub use codec::{Reader, Wire};
pub use fault::Fault;
pub use holds::Token;
pub use interest::{Grant, Interest, Noted};
pub use locks::{AssertedLock, HeldLock, LockKind, LockMode, LockRange, RangeLocks};
pub use outbox::Outbox;
pub use server::{Event, Outcome, Reply, Server, Settings, refusal};
pub use sessions::{GIVE_UP_LEASES, LEASE, Lapse, Peer, Session, Sessions};
pub use values::{Body, Extents, Name};
