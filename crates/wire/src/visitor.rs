//! For drivers that want no queue and no copy between the stream and whoever acts on a frame.

use crate::{Body, Connection, Request, RequestId};
use bytes::Bytes;
use std::time::Duration;

/// Takes requests and answers while their bodies lie in the driver's own buffer; everything else is an event as ever.
pub trait Visitor {
    /// The peer asks. It may be answered at once.
    fn request(&mut self, connection: &mut Connection, request: RequestRef<'_>);

    /// An answer that somebody waits for.
    fn reply(&mut self, reply: ReplyRef<'_>);
}

/// As [`Request`].
#[derive(Clone, Copy, Debug)]
pub struct RequestRef<'a> {
    /// For the answer.
    pub id: RequestId,
    /// What is asked for.
    pub method: u16,
    /// Epoch of the member list that the asker knows.
    pub epoch: u32,
    /// When the asker stops waiting, on this side's clock.
    pub deadline: Option<Duration>,
    /// Arguments.
    pub body: BodyRef<'a>,
}

/// As [`crate::Event::Reply`].
#[derive(Clone, Copy, Debug)]
pub struct ReplyRef<'a> {
    /// To this request.
    pub id: RequestId,
    /// Epoch of the member list that the answerer knows.
    pub epoch: u32,
    /// The answer.
    pub body: BodyRef<'a>,
}

/// As [`Body`].
#[derive(Clone, Copy, Debug)]
pub struct BodyRef<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The CRC-32C that they must have.
    pub crc: u32,
    /// Nobody has compared yet: the sender left the check to their user.
    pub unchecked: bool,
}

impl BodyRef<'_> {
    /// One of its own.
    pub fn to_body(self) -> Body {
        let bytes = Bytes::copy_from_slice(self.bytes);
        if self.unchecked { Body::to_be_checked(bytes, self.crc) } else { Body::checked_already(bytes) }
    }
}

impl RequestRef<'_> {
    /// One of its own.
    pub fn to_request(self) -> Request {
        let Self { id, method, epoch, deadline, body } = self;
        Request { id, method, epoch, deadline, body: body.to_body() }
    }
}
