//! How a call can end.

use sluice_wire::{ConnectionError, FAILED_CLOSING, FAILED_INTERNAL, Full};

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing was sent: to try again is safe.
    #[error("not sent: {0}")]
    NotSent(String),
    /// It was sent, or part of it; the connection ended before an answer. It may have been done: try again only what may be done
    /// twice, or what carries a number by which the server knows it again.
    #[error("the connection ended before the answer: {0}")]
    Unknown(ConnectionError),
    /// The peer answered with an error.
    #[error("{text} (code {code})")]
    Failed {
        /// For programs; those of the protocol are `sluice_wire::FAILED_*`.
        code: u32,
        /// For people.
        text: String,
    },
    /// The deadline passed. If it was sent it may have been done.
    #[error("no answer in time")]
    TimedOut,
    /// The peer will never take this: see the reason.
    #[error(transparent)]
    Refused(Full),
    /// This client or server has been shut down.
    #[error("closed")]
    Closed,
}

/// A handler's answer when it is not a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For programs; from `0xFFFF_0000` on the protocol's own.
    pub code: u32,
    /// For people; at most [`sluice_wire::TEXT_BYTES_MAX`] bytes of it arrive.
    pub text: String,
}

impl Failure {
    /// A failure with a code of the user's own.
    pub fn new(code: u32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn internal(text: &str) -> Self {
        Self::new(FAILED_INTERNAL, text)
    }

    pub(crate) fn closing() -> Self {
        Self::new(FAILED_CLOSING, "this peer is about to end")
    }
}
