//! The protocol that peers speak, without any I/O: frames and the state of one connection. docs/protocol.md has the bytes.
//!
//! A [`Connection`] is driven: bytes go in ([`Connection::handle_input`]), bytes come out ([`Connection::poll_transmit`]), what
//! happened is asked for ([`Connection::poll_event`]), and time is an argument, a monotonic time since some fixed start as
//! `sluice_base::Clock::monotonic` gives it. So sockets and the simulator drive the same code. Drivers on the fast path use
//! [`Connection::handle_visited`] and [`Connection::output`] instead, which copy nothing on the way and send from files.
//!
//! Once open, both sides are alike: either asks, any number of requests is under way, answers come in any order. Two things
//! are one-sided. The acceptor alone pushes. And the acceptor alone stops reading while it has too much to send
//! ([`Connection::wants_input`]); if both did, both could wait for the other.
//!
//! **Memory per peer is bounded** in both directions by numbers that the receiver states in the handshake and that the sender
//! keeps: requests without an answer, and bytes of their bodies. A peer that breaks them is cut off, nothing is dropped in
//! silence. A request stays counted until its answer is there, even if nobody waits for it any more: so an answer to an unknown
//! request is always an error. A body's length is compared with the most that its kind allows before any room is made for it.

#![forbid(unsafe_code)]

mod body;
mod connection;
mod error;
mod event;
mod handshake;
mod header;
mod inbox;
mod outbox;
mod records;
mod region;
mod visitor;

pub use body::{BadChecksum, Body, Payload, Piece};
pub use connection::{Connection, Options, PUSHES_MAX, Timers};
pub use error::{ConnectionError, Full};
pub use event::{Event, FAILED_CANCELLED, FAILED_CLOSING, FAILED_INTERNAL, Push, PushNumber, Request, RequestId};
pub use handshake::{
    Hello, LaneClass, Limits, PEER_NAME_BYTES_MAX, PeerKind, RefusalCode, Refused, Session, TEXT_BYTES_MAX,
    VERSION_MAX, VERSION_MIN, Versions, Welcome,
};
pub use header::{
    DATA_BYTES_MAX, DEADLINE_MAX, FORMAT, FrameError, HEADER_BYTES, Header, Kind, NOTE_BYTES_MAX, PUSH_BYTES_MAX,
};
pub use outbox::Output;
pub use records::{Clear, RecordError, Records};
pub use region::Region;
pub use visitor::{BodyRef, ReplyRef, RequestRef, Visitor};
