//! The state of one connection. What it is driven by is here; `connection/` has the calls, the frames and the clock.

use crate::{
    ConnectionError, Event, Header, Hello, Kind, Limits, Output, Payload, Records, RefusalCode, Refused, RequestId,
    Versions, Visitor, Welcome,
    handshake::cut,
    inbox::{Inbox, READ_BYTES},
    outbox::Outbox,
};
use bytes::{Bytes, BytesMut};
use sluice_base::crc::crc32c;
use std::{collections::VecDeque, io::IoSlice, time::Duration};

mod calls;
mod receive;
mod time;

use calls::{Asked, Pushed, Taken};
use receive::FrameBody;
pub use time::Timers;

/// Most pushes without an ack.
pub const PUSHES_MAX: usize = 64;
/// Settings of one side.
#[derive(Clone, Debug)]
pub struct Options {
    /// Versions to offer or accept.
    pub versions: Versions,
    /// What to take from the peer.
    pub limits: Limits,
    /// With more than this waiting to be sent, in bytes, requests and pushes are [`crate::Full`], and an acceptor stops reading.
    pub output_bytes_max: usize,
    /// How long to wait for the peer.
    pub timers: Timers,
    /// The peer is told what nobody waits for any more; without it it answers that too, and the answer is thrown away.
    pub cancel: bool,
    /// The peer is told how long its answer is waited for.
    pub deadlines: bool,
}

impl Default for Options {
    /// 8 MiB of output: two objects, one being written and one behind it.
    fn default() -> Self {
        Self {
            versions: Versions::default(),
            limits: Limits::default(),
            output_bytes_max: 8 << 20,
            timers: Timers::default(),
            cancel: true,
            deadlines: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Initiator,
    Acceptor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The record layer's handshake.
    Securing,
    /// Hello or its answer is awaited.
    Greeting,
    /// The driver of this acceptor decides; version and the initiator's limits are known.
    Deciding {
        version: u16,
        limits: Limits,
    },
    Open,
    Closed,
}

/// One side of one connection.
pub struct Connection {
    role: Role,
    phase: Phase,
    options: Options,
    /// What an initiator says once records flow.
    hello: Option<Hello>,
    records: Box<dyn Records>,
    input: Inbox,
    output: Outbox,
    events: VecDeque<Event>,
    /// Requests of this side.
    asked: Asked,
    /// Requests of the peer.
    taken: Taken,
    pushed: Pushed,
    /// What this side's frames say.
    epoch: u32,
    clock: time::Times,
}

impl Connection {
    /// The side that connected. Its `hello.name` must not be empty.
    pub fn initiator(now: Duration, hello: Hello, options: Options, records: Box<dyn Records>) -> Self {
        Self::new(now, Role::Initiator, Some(hello), options, records)
    }

    /// The side that was connected to.
    pub fn acceptor(now: Duration, options: Options, records: Box<dyn Records>) -> Self {
        Self::new(now, Role::Acceptor, None, options, records)
    }

    fn new(now: Duration, role: Role, hello: Option<Hello>, options: Options, records: Box<dyn Records>) -> Self {
        let mut connection = Self {
            role,
            phase: Phase::Securing,
            hello,
            records,
            input: Inbox::default(),
            output: Outbox::default(),
            events: VecDeque::new(),
            asked: Asked::default(),
            taken: Taken::default(),
            pushed: Pushed::default(),
            epoch: 0,
            clock: time::Times::new(now),
            options,
        };
        // Nothing was received yet, so there is nothing to be wrong; a record layer that fails here has no keys.
        if let Err(error) = connection.secure() {
            connection.close_for(error);
        }
        connection
    }

    /// Takes bytes from the stream, as they come. After an error the connection is closed; events from before it, and what was
    /// queued to be sent, are still there.
    pub fn handle_input(&mut self, now: Duration, bytes: &[u8]) -> Result<(), ConnectionError> {
        // In pieces, so that no more than one frame and one piece are ever kept.
        for piece in bytes.chunks(READ_BYTES) {
            self.input.buffer.extend_from_slice(piece);
            self.handle_received(now)?;
        }
        Ok(())
    }

    /// As [`Self::handle_input`], but requests and answers go to `visitor` from where they lie in `bytes`, which are changed if the
    /// record layer does so.
    pub fn handle_visited(
        &mut self,
        now: Duration,
        bytes: &mut [u8],
        visitor: &mut dyn Visitor,
    ) -> Result<(), ConnectionError> {
        if self.is_closed() {
            return Ok(());
        }
        self.clock.heard(now);
        let done = self.visit(now, bytes, visitor);
        done.inspect_err(|error| self.close_for(error.clone()))
    }

    /// The buffer to receive into, with room for what is awaited: append to it, then call [`Self::handle_received`]. Saves the
    /// copy of [`Self::handle_input`].
    pub fn input(&mut self) -> &mut BytesMut {
        self.input.room(self.records.tag_bytes())
    }

    /// Something was appended to [`Self::input`].
    pub fn handle_received(&mut self, now: Duration) -> Result<(), ConnectionError> {
        if self.is_closed() {
            self.input.clear();
            return Ok(());
        }
        self.clock.heard(now);
        let done = self.receive(now, None);
        done.inspect_err(|error| self.close_for(error.clone()))
    }

    /// For a driver that puts payloads where they belong: if this is `Some`, no byte of the body has been received, and exactly
    /// so many bytes follow. They may be read elsewhere and given to [`Self::handle_body`].
    pub fn expects_body(&self) -> Option<Header> {
        if self.records.tag_bytes() > 0 || self.phase != Phase::Open {
            return None;
        }
        self.input.awaited().filter(|header| header.length > 0)
    }

    /// Bytes to the end of the header that is awaited, for a driver that must not read into the body; 0 while a body is.
    pub fn header_bytes_missing(&self) -> usize {
        if self.input.awaits_body() {
            return 0;
        }
        (crate::HEADER_BYTES + self.records.tag_bytes()).saturating_sub(self.input.buffer.len())
    }

    /// Bytes to the end of the body that is awaited, for a driver that must not read behind it; 0 while a header is.
    pub fn body_bytes_missing(&self) -> usize {
        if self.input.awaits_body() { self.input.missing(self.records.tag_bytes()) } else { 0 }
    }

    /// Part of the body that [`Self::expects_body`] announced has come.
    pub fn handle_heard(&mut self, now: Duration) {
        self.clock.heard(now);
    }

    /// Takes the whole body that [`Self::expects_body`] announced; `Bytes::from_owner` makes any buffer one.
    ///
    /// # Panics
    /// If none is awaited, or it has another length.
    pub fn handle_body(&mut self, now: Duration, body: Bytes) -> Result<(), ConnectionError> {
        assert_eq!(
            self.expects_body().map(|header| header.length as usize),
            Some(body.len()),
            "the body that is awaited"
        );
        let header = self.input.take_awaited().expect("compared above");
        self.clock.heard(now);
        let done = self.frame(now, header, FrameBody::Owned(body), None);
        done.inspect_err(|error| self.close_for(error.clone()))
    }

    /// The whole body that [`Self::expects_body`] announced, of an answer, has been received where it belongs, and whoever waits for it
    /// compares it with the header's CRC. The request, if it is still waited for.
    ///
    /// # Panics
    /// If none is awaited, or not of an answer.
    pub fn handle_body_elsewhere(&mut self, now: Duration) -> Result<Option<RequestId>, ConnectionError> {
        let header = self.input.take_awaited().filter(|header| header.kind == Kind::Reply);
        let Header { kind, id, .. } = header.expect("the body of an answer is awaited");
        self.clock.heard(now);
        let unknown = ConnectionError::Unknown { kind, id };
        let done = self.asked.answered(id).map(|is_awaited| is_awaited.then_some(RequestId(id))).ok_or(unknown);
        done.inspect_err(|error| self.close_for(error.clone()))
    }

    /// Whether more should be read from the stream. An acceptor whose peer does not take what it asked for stops listening to it.
    pub fn wants_input(&self) -> bool {
        match self.phase {
            Phase::Closed => false,
            _ => self.role == Role::Initiator || self.has_room(),
        }
    }

    /// Whether little enough waits to be sent that more may be produced.
    pub fn has_room(&self) -> bool {
        self.output.len() < self.options.output_bytes_max
    }

    /// What happened, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Moves what is to be sent to `out`, several frames together, at most `bytes_max` bytes; returns how many. What was moved
    /// must be written to the stream in this order. To be called again once it has been: a driver that calls earlier takes more
    /// into memory.
    pub fn poll_transmit(&mut self, now: Duration, out: &mut Vec<Bytes>, bytes_max: usize) -> usize {
        let listening = self.wants_input();
        let (before, pieces) = (self.output.len(), out.len());
        if let Err(error) = self.output.take(out, bytes_max) {
            self.handle_lost(format!("reading what is to be sent failed: {error}"));
            return out[pieces..].iter().map(Bytes::len).sum();
        }
        let taken = before - self.output.len();
        self.noted_sent(now, taken, listening);
        taken
    }

    /// What is to be sent first, where it lies; `slices` are filled with it. For drivers that send from files. Then
    /// [`Self::handle_sent`].
    pub fn output<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> Output<'a> {
        self.output.front(slices)
    }

    /// The stream has taken `bytes` of [`Self::output`].
    pub fn handle_sent(&mut self, now: Duration, bytes: usize) {
        let listening = self.wants_input();
        self.output.sent(bytes);
        self.noted_sent(now, bytes, listening);
    }

    fn noted_sent(&mut self, now: Duration, bytes: usize, listening: bool) {
        if bytes > 0 && !listening {
            // The only sign of life that there can be.
            self.clock.heard(now);
        }
    }

    /// Bytes that wait for [`Self::poll_transmit`].
    pub fn output_bytes(&self) -> usize {
        self.output.len()
    }

    /// Whether requests may flow.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether this connection is over, but for what waits to be sent.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// The epoch that frames carry from now on.
    pub fn set_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// Lets the initiator in, after [`Event::Hello`]. Does nothing if the connection has ended since.
    pub fn accept(&mut self, welcome: Welcome) {
        let Phase::Deciding { version, limits } = self.phase else { return };
        self.asked.limits = limits;
        self.send(Kind::Welcome, 0, &welcome.encode(version, self.options.limits).into());
        self.phase = Phase::Open;
        self.events.push_back(Event::Established { version, welcome });
    }

    /// Turns the initiator away, after [`Event::Hello`] or before.
    pub fn refuse(&mut self, code: RefusalCode, text: impl Into<String>) {
        let greeting = matches!(self.phase, Phase::Greeting | Phase::Deciding { .. });
        if self.role == Role::Acceptor && greeting {
            let refused = Refused { code, versions: self.options.versions, text: text.into() };
            self.send(Kind::Refused, 0, &refused.encode().into());
            self.finish(ConnectionError::TurnedAway(refused));
        }
    }

    /// Ends the connection: tells the peer why and forgets what is under way.
    pub fn close(&mut self, text: &str) {
        if self.phase == Phase::Open {
            self.bye(text);
        }
        self.finish(ConnectionError::Ended(text.to_owned()));
    }

    /// The stream has ended or failed. Nothing can be sent any more.
    pub fn handle_lost(&mut self, detail: impl Into<String>) {
        self.finish(ConnectionError::Lost(detail.into()));
        self.output.clear();
    }

    /// Ends the connection for a reason that this side found, and tells the peer if it is one.
    fn close_for(&mut self, why: ConnectionError) {
        if self.phase == Phase::Open && why.is_violation() {
            self.bye(&why.to_string());
        }
        self.finish(why);
    }

    fn bye(&mut self, text: &str) {
        let text = cut(text, crate::TEXT_BYTES_MAX).as_bytes().to_vec();
        self.send(Kind::Bye, 0, &text.into());
    }

    fn finish(&mut self, why: ConnectionError) {
        if self.phase != Phase::Closed {
            self.phase = Phase::Closed;
            self.input.clear();
            self.asked.clear();
            self.taken.clear();
            self.pushed.clear();
            self.events.push_back(Event::Closed { why });
        }
    }

    /// Queues a frame that has nothing but a body.
    fn send(&mut self, kind: Kind, id: u64, payload: &Payload) {
        self.send_frame(Header::new(kind, id), payload);
    }

    /// Queues a frame; fills in what the body and this side's epoch say.
    fn send_frame(&mut self, header: Header, payload: &Payload) {
        let header = Header {
            length: payload.len() as u32,
            body_crc: payload.crc(),
            unchecked: payload.is_unchecked() && !payload.is_empty(),
            epoch: self.epoch,
            ..header
        };
        if let Err(error) = self.output.frame(self.records.as_mut(), &header, payload) {
            self.handle_lost(format!("reading what is to be sent failed: {error}"));
        }
    }

    /// As [`Self::send_frame`], with a body that is copied.
    fn send_bytes(&mut self, header: Header, body: &[u8]) {
        let (length, body_crc) = (body.len() as u32, if body.is_empty() { 0 } else { crc32c(body) });
        let header = Header { length, body_crc, epoch: self.epoch, ..header };
        self.output.frame_of(self.records.as_mut(), &header, body);
    }
}
