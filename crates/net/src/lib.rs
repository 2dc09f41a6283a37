//! Sockets under the protocol of `sluice-wire`: lanes, a client that keeps them, a server that takes them.
//!
//! A lane is one TCP connection, its [`sluice_wire::Connection`] behind a lock, and one task. Whoever has something to say does
//! so under the lock and writes what the socket takes at once, on its own thread; the task writes the rest, reads, keeps time
//! and runs the handlers of what the peer asks. So a call costs no hand-over on its way out, and one on its way back.
//!
//! Handlers of one lane run on its task, at once but not in parallel: what would keep a core for long must move elsewhere. They
//! are not polled while too much waits to be sent, so a peer that does not read holds back its own answers and nobody else's.
//!
//! Nothing here has a queue without an end: requests by the limits of the handshake, pushes by [`sluice_wire::PUSHES_MAX`],
//! connections by [`ServerOptions::connections_max`].

#![deny(unsafe_code)]

mod client;
mod driver;
mod error;
mod intake;
mod lane;
pub mod port;
mod server;

pub use client::{Callbacks, Client, ClientOptions, LaneState, NoCallbacks};
pub use error::{CallError, Failure};
pub use lane::Reply;
pub use server::{Peer, Refusal, Server, ServerOptions, Service};
