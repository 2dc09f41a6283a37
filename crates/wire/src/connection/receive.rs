//! What frames do to a connection.

use super::{Connection, PUSHES_MAX, Phase, Role};
use crate::{
    Body, BodyRef, ConnectionError, Event, FAILED_CANCELLED, Header, Hello, Kind, Payload, Push, PushNumber,
    RefusalCode, Refused, ReplyRef, Request, RequestId, RequestRef, Visitor, Welcome,
    handshake::{HelloError, text, u32_at},
    header::HEADER_BYTES,
    inbox::READ_BYTES,
};
use bytes::{Buf, Bytes};
use sluice_base::crc::crc32c;
use std::{mem, time::Duration};

impl Connection {
    /// Handles every whole frame in the buffer.
    pub(super) fn receive(&mut self, now: Duration, visitor: Option<&mut dyn Visitor>) -> Result<(), ConnectionError> {
        if self.phase == Phase::Securing {
            self.secure()?;
        }
        // Handlers get the connection and the bytes at once.
        let mut buffer = mem::take(&mut self.input.buffer);
        let done = self.frames(now, &mut buffer, visitor);
        if let Ok(used) = &done {
            buffer.advance(*used);
        }
        if !self.is_closed() {
            self.input.buffer = buffer;
        }
        done.map(drop)
    }

    /// Handles every whole frame at the start of `bytes`; returns how many bytes they were. The header of a frame counts as soon as
    /// it is there.
    fn frames(
        &mut self,
        now: Duration,
        bytes: &mut [u8],
        mut visitor: Option<&mut dyn Visitor>,
    ) -> Result<usize, ConnectionError> {
        let (mut used, tag_bytes) = (0, self.records.tag_bytes());
        while !matches!(self.phase, Phase::Securing | Phase::Closed) {
            let header = match self.input.header {
                Some(header) => header,
                None => {
                    let Some((record, tag)) = record(&mut bytes[used..], HEADER_BYTES, tag_bytes) else { break };
                    self.records.open(record, tag)?;
                    let header = Header::parse((&*record).try_into().expect("its length"))?;
                    // Before there is room for its body.
                    self.admit(&header)?;
                    used += HEADER_BYTES + tag_bytes;
                    self.input.header = Some(header);
                    header
                }
            };
            let length = header.length as usize;
            let body: &[u8] = if length == 0 {
                &[]
            } else {
                let Some((record, tag)) = record(&mut bytes[used..], length, tag_bytes) else { break };
                self.records.open(record, tag)?;
                used += length + tag_bytes;
                record
            };
            self.input.header = None;
            let visitor: Option<&mut dyn Visitor> = match &mut visitor {
                Some(visitor) => Some(&mut **visitor),
                None => None,
            };
            self.frame(now, header, FrameBody::Lent(body), visitor)?;
        }
        Ok(used)
    }

    /// Takes bytes from the stream. Whole frames go to `visitor` from where they lie, the rest of the last one is kept.
    pub(super) fn visit(
        &mut self,
        now: Duration,
        mut bytes: &mut [u8],
        visitor: &mut dyn Visitor,
    ) -> Result<(), ConnectionError> {
        while !bytes.is_empty() && !self.is_closed() {
            if self.phase == Phase::Open && self.input.buffer.is_empty() {
                let used = self.frames(now, bytes, Some(visitor))?;
                self.input.buffer.extend_from_slice(&bytes[used..]);
                return Ok(());
            }
            // Up to the end of what is awaited, so that most of what follows need not be copied.
            let most =
                if self.phase == Phase::Open { self.input.missing(self.records.tag_bytes()) } else { READ_BYTES };
            let (first, rest) = bytes.split_at_mut(most.min(bytes.len()));
            self.input.buffer.extend_from_slice(first);
            self.receive(now, Some(visitor))?;
            bytes = rest;
        }
        Ok(())
    }

    /// Goes on with the record layer's handshake; after it an initiator greets.
    pub(super) fn secure(&mut self) -> Result<(), ConnectionError> {
        let mut reply = Vec::new();
        let done = self.records.handshake(&mut self.input.buffer, &mut reply);
        self.output.raw(&reply);
        if self.input.buffer.len() > READ_BYTES {
            return Err(ConnectionError::OverLimit("bytes of the record layer's handshake"));
        }
        if done? {
            self.phase = Phase::Greeting;
            if let Some(hello) = self.hello.take() {
                let body = hello.encode(self.options.versions, self.options.limits);
                self.send(Kind::Hello, 0, &body.into());
            }
        }
        Ok(())
    }

    /// Whether a frame of this kind may come now.
    fn admit(&self, header: &Header) -> Result<(), ConnectionError> {
        use Kind as K;
        let admitted = match (self.phase, self.role) {
            (Phase::Greeting, Role::Acceptor) => header.kind == K::Hello,
            (Phase::Greeting, Role::Initiator) => matches!(header.kind, K::Welcome | K::Refused),
            (Phase::Open, Role::Acceptor) => !matches!(header.kind, K::Hello | K::Welcome | K::Refused | K::Push),
            (Phase::Open, Role::Initiator) => !matches!(header.kind, K::Hello | K::Welcome | K::Refused | K::PushAck),
            _ => false,
        };
        if admitted { Ok(()) } else { Err(ConnectionError::OutOfPhase(header.kind)) }
    }

    /// One frame, which was admitted.
    pub(super) fn frame(
        &mut self,
        now: Duration,
        header: Header,
        body: FrameBody<'_>,
        visitor: Option<&mut dyn Visitor>,
    ) -> Result<(), ConnectionError> {
        let bytes = body.bytes();
        if !header.unchecked && header.length > 0 && crc32c(bytes) != header.body_crc {
            return Err(ConnectionError::BadBody(header.kind));
        }
        match header.kind {
            Kind::Hello => self.hello(bytes),
            Kind::Welcome => self.welcome(bytes),
            Kind::Refused => {
                let refused = Refused::decode(bytes).ok_or(ConnectionError::Malformed(header.kind))?;
                Err(ConnectionError::Refused(refused))
            }
            Kind::Request => self.taken_request(now, header, body, visitor),
            Kind::Reply | Kind::Failed => self.answer(header, body, visitor),
            Kind::Cancel => self.cancelled(header),
            Kind::Push => self.pushed(header, body.into_bytes()),
            Kind::PushAck => self.push_acked(header),
            Kind::Ping => {
                // Who does not take its answers gets no more of them.
                if self.has_room() {
                    self.send(Kind::Pong, 0, &Payload::default());
                }
                Ok(())
            }
            Kind::Pong => Ok(()),
            Kind::Bye => {
                let text = text(bytes).ok_or(ConnectionError::Malformed(header.kind))?;
                Err(ConnectionError::Bye(text))
            }
        }
    }

    fn hello(&mut self, body: &[u8]) -> Result<(), ConnectionError> {
        match Hello::decode(body, self.options.versions) {
            Ok((hello, version, limits)) => {
                self.phase = Phase::Deciding { version, limits };
                self.events.push_back(Event::Hello(hello));
                Ok(())
            }
            Err(HelloError::Versions(theirs)) => {
                let ours = self.options.versions;
                self.refuse(
                    RefusalCode::Version,
                    format!("this peer speaks protocol version {ours}, the other one {theirs}: update the older one"),
                );
                Ok(())
            }
            Err(HelloError::Malformed) => Err(ConnectionError::Malformed(Kind::Hello)),
        }
    }

    fn welcome(&mut self, body: &[u8]) -> Result<(), ConnectionError> {
        let (welcome, version, limits) = Welcome::decode(body).ok_or(ConnectionError::Malformed(Kind::Welcome))?;
        if !(self.options.versions.min..=self.options.versions.max).contains(&version) {
            return Err(ConnectionError::Version(version));
        }
        self.asked.limits = limits;
        self.phase = Phase::Open;
        self.events.push_back(Event::Established { version, welcome });
        Ok(())
    }

    fn taken_request(
        &mut self,
        now: Duration,
        header: Header,
        body: FrameBody<'_>,
        visitor: Option<&mut dyn Visitor>,
    ) -> Result<(), ConnectionError> {
        expect_next(header, self.taken.last)?;
        let counted = self.taken.begin(header.id, body.bytes().len(), self.options.limits);
        counted.map_err(ConnectionError::OverLimit)?;
        let (id, method, epoch) = (RequestId(header.id), header.method, header.epoch);
        let deadline = header.deadline_ms.map(|remaining| now + Duration::from_millis(remaining.into()));
        match visitor {
            Some(visitor) => {
                visitor.request(self, RequestRef { id, method, epoch, deadline, body: lent(header, &body) })
            }
            None => {
                let body = received(header, body.into_bytes());
                self.events.push_back(Event::Request(Request { id, method, epoch, deadline, body }));
            }
        }
        Ok(())
    }

    fn answer(
        &mut self,
        header: Header,
        body: FrameBody<'_>,
        visitor: Option<&mut dyn Visitor>,
    ) -> Result<(), ConnectionError> {
        let (id, epoch) = (RequestId(header.id), header.epoch);
        let unknown = ConnectionError::Unknown { kind: header.kind, id: header.id };
        if header.kind == Kind::Reply {
            match (self.asked.answered(header.id).ok_or(unknown)?, visitor) {
                (false, _) => {}
                (true, Some(visitor)) => visitor.reply(ReplyRef { id, epoch, body: lent(header, &body) }),
                (true, None) => {
                    self.events.push_back(Event::Reply { id, epoch, body: received(header, body.into_bytes()) });
                }
            }
            return Ok(());
        }
        let (bytes, malformed) = (body.bytes(), ConnectionError::Malformed(header.kind));
        if bytes.len() < 4 {
            return Err(malformed);
        }
        let event = Event::Failed { id, epoch, code: u32_at(bytes, 0), text: text(&bytes[4..]).ok_or(malformed)? };
        if self.asked.answered(header.id).ok_or(unknown)? {
            self.events.push_back(event);
        }
        Ok(())
    }

    fn cancelled(&mut self, header: Header) -> Result<(), ConnectionError> {
        if header.id > self.taken.last {
            return Err(ConnectionError::Unknown { kind: header.kind, id: header.id });
        }
        // Otherwise the answer and this have crossed.
        if self.taken.is_under_way(header.id) {
            self.fail(RequestId(header.id), FAILED_CANCELLED, "");
            self.events.push_back(Event::Cancelled { id: RequestId(header.id) });
        }
        Ok(())
    }

    fn pushed(&mut self, header: Header, body: Bytes) -> Result<(), ConnectionError> {
        expect_next(header, self.pushed.last)?;
        if self.pushed.under_way.len() >= PUSHES_MAX {
            return Err(ConnectionError::OverLimit("pushes"));
        }
        self.pushed.last = header.id;
        self.pushed.under_way.insert(header.id);
        self.events.push_back(Event::Push(Push { number: PushNumber(header.id), epoch: header.epoch, body }));
        Ok(())
    }

    fn push_acked(&mut self, header: Header) -> Result<(), ConnectionError> {
        if !self.pushed.under_way.remove(&header.id) {
            return Err(ConnectionError::Unknown { kind: header.kind, id: header.id });
        }
        self.events.push_back(Event::PushAcked { number: PushNumber(header.id) });
        Ok(())
    }
}

/// The body of a request or reply, whose check may be left to its user.
fn received(header: Header, bytes: Bytes) -> Body {
    if header.unchecked { Body::to_be_checked(bytes, header.body_crc) } else { Body::checked_already(bytes) }
}

fn lent<'a>(header: Header, body: &'a FrameBody<'_>) -> BodyRef<'a> {
    BodyRef { bytes: body.bytes(), crc: header.body_crc, unchecked: header.unchecked }
}

/// A record of `len` bytes at the start of `bytes`, and its tag.
fn record(bytes: &mut [u8], len: usize, tag_bytes: usize) -> Option<(&mut [u8], &[u8])> {
    if bytes.len() < len + tag_bytes {
        return None;
    }
    let (record, rest) = bytes.split_at_mut(len);
    Some((record, &rest[..tag_bytes]))
}

/// The body of a frame.
pub(super) enum FrameBody<'a> {
    /// It lies in a buffer that is used again.
    Lent(&'a [u8]),
    Owned(Bytes),
}

impl FrameBody<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Lent(bytes) => Bytes::copy_from_slice(bytes),
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Numbers leave no gaps, so that a lost or repeated frame is noticed.
fn expect_next(header: Header, last: u64) -> Result<(), ConnectionError> {
    let expected = last + 1;
    if header.id == expected {
        Ok(())
    } else {
        Err(ConnectionError::OutOfOrder { kind: header.kind, id: header.id, expected })
    }
}
