//! What a connection tells its driver.

use crate::{Body, ConnectionError, Hello, Welcome};
use bytes::Bytes;
use std::time::Duration;

/// Code of [`Event::Failed`]: the asker cancelled it. Codes from here on belong to the protocol, those below to its users.
pub const FAILED_CANCELLED: u32 = 0xFFFF_0000;
/// Code of [`Event::Failed`]: the answerer takes no more requests.
pub const FAILED_CLOSING: u32 = 0xFFFF_0001;
/// Code of [`Event::Failed`]: the answerer has a fault.
pub const FAILED_INTERNAL: u32 = 0xFFFF_0002;

/// Number of a request: 1, 2, 3... in each direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Number of a push: 1, 2, 3... on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PushNumber(pub u64);

/// A request of the peer. It must be answered once: [`crate::Connection::reply`] or [`crate::Connection::fail`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// For the answer.
    pub id: RequestId,
    /// What is asked for.
    pub method: u16,
    /// Epoch of the member list that the asker knows.
    pub epoch: u32,
    /// When the asker stops waiting, on this side's clock.
    pub deadline: Option<Duration>,
    /// Arguments.
    pub body: Body,
}

/// Something said unasked. It must be acked once: [`crate::Connection::ack_push`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// For the ack.
    pub number: PushNumber,
    /// Epoch of the member list that the acceptor knows.
    pub epoch: u32,
    /// What it says.
    pub body: Bytes,
}

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// To an acceptor, once: answer with [`crate::Connection::accept`] or [`crate::Connection::refuse`].
    Hello(Hello),
    /// Requests may flow.
    Established {
        /// The version that both speak.
        version: u16,
        /// What the acceptor said.
        welcome: Welcome,
    },
    /// The peer asks.
    Request(Request),
    /// An answer.
    Reply {
        /// To this request.
        id: RequestId,
        /// Epoch of the member list that the answerer knows.
        epoch: u32,
        /// The answer.
        body: Body,
    },
    /// The other answer.
    Failed {
        /// To this request.
        id: RequestId,
        /// Epoch of the member list that the answerer knows.
        epoch: u32,
        /// For programs.
        code: u32,
        /// For people.
        text: String,
    },
    /// The peer no longer wants an answer; it has been told that there is none. A later answer goes nowhere.
    Cancelled {
        /// To this request.
        id: RequestId,
    },
    /// The acceptor says something.
    Push(Push),
    /// The initiator has acted on a push.
    PushAcked {
        /// This one.
        number: PushNumber,
    },
    /// A request's deadline has passed; the peer is told.
    TimedOut {
        /// This one.
        id: RequestId,
    },
    /// The last event. Of what was under way nobody knows whether it was done.
    Closed {
        /// Why.
        why: ConnectionError,
    },
}
