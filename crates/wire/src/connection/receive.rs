//! What frames do to a connection.

use super::{Connection, PUSHES_MAX, Phase, Role};
use crate::{
    Body, ConnectionError, Event, FAILED_CANCELLED, Header, Hello, Kind, Payload, Push, PushNumber, RefusalCode,
    Refused, Request, RequestId, Welcome,
    handshake::{HelloError, text, u32_at},
    inbox::READ_BYTES,
};
use bytes::Bytes;
use sluice_base::crc::crc32c;
use std::time::Duration;

impl Connection {
    /// Handles every whole frame that has come.
    pub(super) fn receive(&mut self, now: Duration) -> Result<(), ConnectionError> {
        if self.phase == Phase::Securing {
            self.secure()?;
        }
        loop {
            if matches!(self.phase, Phase::Securing | Phase::Closed) {
                return Ok(());
            }
            if let Some(header) = self.input.next_header(self.records.as_mut())? {
                // Before there is room for its body.
                self.admit(&header)?;
            }
            let Some((header, body)) = self.input.next_frame(self.records.as_mut())? else { return Ok(()) };
            self.frame(now, header, body)?;
        }
    }

    /// Goes on with the record layer's handshake; after it an initiator greets.
    pub(super) fn secure(&mut self) -> Result<(), ConnectionError> {
        let mut reply = Vec::new();
        let done = self.records.handshake(&mut self.input.buffer, &mut reply);
        self.output.raw(reply);
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
    pub(super) fn frame(&mut self, now: Duration, header: Header, bytes: Bytes) -> Result<(), ConnectionError> {
        if !header.unchecked && header.length > 0 && crc32c(&bytes) != header.body_crc {
            return Err(ConnectionError::BadBody(header.kind));
        }
        match header.kind {
            Kind::Hello => self.hello(&bytes),
            Kind::Welcome => self.welcome(&bytes),
            Kind::Refused => {
                let refused = Refused::decode(&bytes).ok_or(ConnectionError::Malformed(header.kind))?;
                Err(ConnectionError::Refused(refused))
            }
            Kind::Request => self.taken_request(now, header, bytes),
            Kind::Reply | Kind::Failed => self.answer(header, bytes),
            Kind::Cancel => self.cancelled(header),
            Kind::Push => self.pushed(header, bytes),
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
                let text = text(&bytes).ok_or(ConnectionError::Malformed(header.kind))?;
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

    fn taken_request(&mut self, now: Duration, header: Header, bytes: Bytes) -> Result<(), ConnectionError> {
        expect_next(header, self.taken.last)?;
        self.taken.begin(header.id, bytes.len(), self.options.limits).map_err(ConnectionError::OverLimit)?;
        self.events.push_back(Event::Request(Request {
            id: RequestId(header.id),
            method: header.method,
            epoch: header.epoch,
            deadline: header.deadline_ms.map(|remaining| now + Duration::from_millis(remaining.into())),
            body: received(header, bytes),
        }));
        Ok(())
    }

    fn answer(&mut self, header: Header, bytes: Bytes) -> Result<(), ConnectionError> {
        let (id, epoch) = (RequestId(header.id), header.epoch);
        let unknown = ConnectionError::Unknown { kind: header.kind, id: header.id };
        let event = if header.kind == Kind::Reply {
            Event::Reply { id, epoch, body: received(header, bytes) }
        } else {
            let malformed = ConnectionError::Malformed(header.kind);
            if bytes.len() < 4 {
                return Err(malformed);
            }
            Event::Failed { id, epoch, code: u32_at(&bytes, 0), text: text(&bytes[4..]).ok_or(malformed)? }
        };
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

/// Numbers leave no gaps, so that a lost or repeated frame is noticed.
fn expect_next(header: Header, last: u64) -> Result<(), ConnectionError> {
    let expected = last + 1;
    if header.id == expected {
        Ok(())
    } else {
        Err(ConnectionError::OutOfOrder { kind: header.kind, id: header.id, expected })
    }
}
