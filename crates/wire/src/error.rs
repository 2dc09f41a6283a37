//! Why a connection ends, and why a request has to wait.

use crate::{FrameError, Kind, RecordError, Refused};

/// Why a connection is closed. After any of these it takes and gives nothing but what was queued before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// What came is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The record layer refuses.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// A body was damaged on its way.
    #[error("the checksum of a {0:?} frame's body does not match")]
    BadBody(Kind),
    /// A body is not what its kind asks for.
    #[error("the body of a {0:?} frame is malformed")]
    Malformed(Kind),
    /// A frame that this side does not take, or not now.
    #[error("a {0:?} frame came at a time or from a side that does not send it")]
    OutOfPhase(Kind),
    /// Numbers of requests and pushes are consecutive.
    #[error("a {kind:?} frame has number {id}, expected was {expected}")]
    OutOfOrder {
        /// Of this kind.
        kind: Kind,
        /// Its number.
        id: u64,
        /// What it should be.
        expected: u64,
    },
    /// An answer, cancellation or ack for something that was never sent, or is answered.
    #[error("a {kind:?} frame is about number {id}, which is not under way")]
    Unknown {
        /// Of this kind.
        kind: Kind,
        /// Its number.
        id: u64,
    },
    /// The peer has more under way than this side takes.
    #[error("the peer sent more {0} than it was allowed")]
    OverLimit(&'static str),
    /// The acceptor chose a version that was not offered.
    #[error("the peer chose protocol version {0}, which was not offered")]
    Version(u16),
    /// The acceptor said no.
    #[error(transparent)]
    Refused(Refused),
    /// This side said no.
    #[error("turned away: {0}")]
    TurnedAway(Refused),
    /// The handshake took too long.
    #[error("the handshake took too long")]
    HandshakeTimeout,
    /// Nothing was heard of the peer, nor could anything be sent, for too long.
    #[error("nothing was heard of the peer for too long")]
    Silent,
    /// The peer ended the connection.
    #[error("closed by the peer: {0}")]
    Bye(String),
    /// The stream ended or failed.
    #[error("connection lost: {0}")]
    Lost(String),
    /// This side ended the connection.
    #[error("closed: {0}")]
    Ended(String),
}

impl ConnectionError {
    /// Whether the peer broke the protocol or the bytes were damaged, so that the peer should be told.
    pub fn is_violation(&self) -> bool {
        use ConnectionError as E;
        match self {
            E::Frame(_) | E::Records(_) | E::BadBody(_) | E::Malformed(_) | E::OutOfPhase(_) | E::OutOfOrder { .. } => {
                true
            }
            E::Unknown { .. } | E::OverLimit(_) | E::Version(_) => true,
            E::Refused(_)
            | E::TurnedAway(_)
            | E::HandshakeTimeout
            | E::Silent
            | E::Bye(_)
            | E::Lost(_)
            | E::Ended(_) => false,
        }
    }
}

/// Why something cannot be sent. Nothing of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// As many requests or pushes are under way as the peer takes: try again after an answer.
    #[error("as many requests are under way as the peer takes")]
    InFlight,
    /// The bodies of what is under way are as large as the peer takes: try again after an answer.
    #[error("the requests under way are as large as the peer takes")]
    BytesInFlight,
    /// Too much waits to be sent: try again after [`crate::Connection::poll_transmit`].
    #[error("too much waits to be sent")]
    Output,
    /// Larger than any frame: it will never be taken.
    #[error("larger than any frame")]
    TooLong,
    /// The peer takes no requests at all.
    #[error("the peer takes no requests")]
    NotTaken,
    /// The connection is not open yet, or no longer.
    #[error("the connection is not open")]
    NotOpen,
}

impl Full {
    /// Whether waiting helps.
    pub fn is_temporary(self) -> bool {
        matches!(self, Full::InFlight | Full::BytesInFlight | Full::Output)
    }
}
