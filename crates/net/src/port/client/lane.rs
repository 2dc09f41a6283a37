//! One lane: what is under way on it, and where answers go.

use super::{Arrived, Ask, AskError, Done};
use crate::port::{
    sink::{Place, Sink},
    stats::add,
    stream::Stream,
};
use rustix::io::Errno;
use sluice_wire::{Connection, Event, HEADER_BYTES, Header, Kind, LaneClass, ReplyRef, RequestId, RequestRef, Visitor};
use std::{collections::HashMap, time::Duration};

/// Reads of one turn.
const READS_MAX: usize = 16;

pub(super) struct Lane<S> {
    pub(super) stream: Stream,
    /// Number of its peer.
    pub(super) peer: u64,
    /// Its own.
    pub(super) number: u64,
    class: LaneClass,
    asked: HashMap<RequestId, Asked<S>>,
    /// A large answer that is coming.
    coming: Option<Coming>,
    /// Bytes of answers that are awaited.
    pub(super) under_way_bytes: usize,
    /// Bytes of answers that came since it was looked at.
    pub(super) came_bytes: u64,
    pub(super) touched: bool,
    pub(super) was_open: bool,
    /// Nothing more is asked; it ends when everything is answered.
    retires: bool,
}

struct Asked<S> {
    token: u64,
    sink: S,
    bytes: usize,
}

/// The body of the answer with this header: so much of it is there.
#[derive(Clone, Copy)]
struct Coming {
    header: Header,
    filled: usize,
    /// Nobody waits for it: it is read and forgotten.
    is_waste: bool,
}

impl<S: Sink> Lane<S> {
    pub(super) fn new(stream: Stream, peer: u64, number: u64, class: LaneClass) -> Self {
        Self {
            stream,
            peer,
            number,
            class,
            asked: HashMap::new(),
            coming: None,
            under_way_bytes: 0,
            came_bytes: 0,
            touched: false,
            was_open: false,
            retires: false,
        }
    }

    /// Whether requests may be sent.
    pub(super) fn is_open(&self) -> bool {
        self.stream.connection.is_open() && !self.retires
    }

    pub(super) fn requests(&self) -> usize {
        self.asked.len()
    }

    /// Ends it when everything is answered.
    pub(super) fn retire(&mut self) {
        self.retires = true;
        if self.asked.is_empty() {
            self.stream.connection.close("this lane is not needed any more");
        }
    }

    pub(super) fn ask(&mut self, now: Duration, ask: Ask<'_, S>) -> Result<RequestId, S> {
        let sent = self.stream.connection.request_copied(now, ask.method, ask.body, Some(ask.deadline));
        let Ok(id) = sent else { return Err(ask.into) };
        self.under_way_bytes += ask.answer_bytes;
        self.asked.insert(id, Asked { token: ask.token, sink: ask.into, bytes: ask.answer_bytes });
        Ok(id)
    }

    /// Forgets a request, unless its answer is coming.
    pub(super) fn cancel(&mut self, id: RequestId) -> Option<S> {
        if self.coming.is_some_and(|coming| coming.header.id == id.0) {
            return None;
        }
        let asked = self.asked.remove(&id)?;
        self.under_way_bytes -= asked.bytes;
        self.stream.connection.cancel(id);
        Some(asked.sink)
    }

    /// Reads what has come.
    pub(super) fn read(&mut self, now: Duration, scratch: &mut [u8], done: &mut Vec<Done<S>>) {
        if self.class == LaneClass::Small || !self.stream.connection.is_open() {
            let before = self.stream.connection.is_open();
            self.read_small(now, scratch, done);
            self.was_open |= self.stream.connection.is_open();
            if before || self.class == LaneClass::Small {
                return;
            }
        }
        for _ in 0..READS_MAX {
            let goes_on = match self.coming {
                Some(coming) => self.read_body(now, coming, scratch, done),
                None => self.read_header(now, scratch, done),
            };
            if !goes_on || self.stream.connection.is_closed() {
                return;
            }
        }
    }

    fn read_small(&mut self, now: Duration, scratch: &mut [u8], done: &mut Vec<Done<S>>) {
        let mut arrive = Arrive { asked: &mut self.asked, done, came: 0, answered: 0 };
        self.stream.read(now, scratch, &mut arrive);
        let (came, answered) = (arrive.came, arrive.answered);
        self.note(came, answered);
    }

    fn note(&mut self, came: usize, answered: usize) {
        self.came_bytes += came as u64;
        self.under_way_bytes -= answered;
        if self.retires && self.asked.is_empty() {
            self.stream.connection.close("this lane is not needed any more");
        }
    }

    /// Reads a header and nothing behind it; `false` when there was nothing.
    fn read_header(&mut self, now: Duration, scratch: &mut [u8], done: &mut Vec<Done<S>>) -> bool {
        let missing = self.stream.connection.header_bytes_missing();
        if missing > 0 {
            let buffer = &mut scratch[..missing];
            let Some(came) = self.stream.took(|socket| socket.read(buffer)) else { return false };
            self.visit(now, &mut scratch[..came], done);
            if came < missing {
                return false;
            }
        }
        self.begin_body(now, scratch, done)
    }

    /// A header is there: the body of an answer that somebody waits for goes to its place, others are handled here.
    fn begin_body(&mut self, now: Duration, scratch: &mut [u8], done: &mut Vec<Done<S>>) -> bool {
        let connection = &self.stream.connection;
        let Some(header) = connection.expects_body() else {
            // It had no body, or the rest of one that is handled here is awaited.
            return connection.header_bytes_missing() > 0 || self.read_rest(now, scratch, done);
        };
        if header.kind != Kind::Reply {
            return self.read_rest(now, scratch, done);
        }
        let id = RequestId(header.id);
        let len = header.length as usize;
        let is_placed = match self.asked.get_mut(&id) {
            Some(asked) => asked.sink.place(len).is_some(),
            None => false,
        };
        if !is_placed && let Some(Asked { token, sink, bytes }) = self.asked.remove(&id) {
            self.note(0, bytes);
            self.stream.connection.cancel(id);
            done.push(Done { token, sink, outcome: Err(AskError::BadLength(len)) });
        }
        self.coming = Some(Coming { header, filled: 0, is_waste: !is_placed });
        true
    }

    /// Reads what is not the body of an answer.
    fn read_rest(&mut self, now: Duration, scratch: &mut [u8], done: &mut Vec<Done<S>>) -> bool {
        let most = self.stream.connection.body_bytes_missing().clamp(1, scratch.len());
        let buffer = &mut scratch[..most];
        let Some(came) = self.stream.took(|socket| socket.read(buffer)) else { return false };
        self.visit(now, &mut scratch[..came], done);
        true
    }

    fn visit(&mut self, now: Duration, bytes: &mut [u8], done: &mut Vec<Done<S>>) {
        let mut arrive = Arrive { asked: &mut self.asked, done, came: 0, answered: 0 };
        // An error is an event too.
        let _ = self.stream.connection.handle_visited(now, bytes, &mut arrive);
        let (came, answered) = (arrive.came, arrive.answered);
        self.note(came, answered);
    }

    /// Reads the rest of a body, and the header behind it if it has come; `false` when there was not all of it.
    fn read_body(&mut self, now: Duration, coming: Coming, scratch: &mut [u8], done: &mut Vec<Done<S>>) -> bool {
        let Coming { header, filled, is_waste } = coming;
        let (id, len) = (RequestId(header.id), header.length as usize);
        let left = len - filled;
        let (mut behind, mut reads_behind) = ([0; HEADER_BYTES], false);
        let place = if is_waste { None } else { self.asked.get_mut(&id).and_then(|asked| asked.sink.place(len)) };
        let came = match place {
            Some(Place::Memory(memory)) => {
                let rest = &mut memory[filled..];
                reads_behind = true;
                self.stream.took(|socket| socket.read_both(rest, &mut behind))
            }
            Some(Place::Pipe(pipe)) => {
                let mut is_full = false;
                let came = self.stream.took(|socket| match socket.splice_to(pipe, left) {
                    // Either of the two has nothing to do: the socket nothing to give, or the pipe no room.
                    Err(Errno::AGAIN) if socket.waiting() > 0 => {
                        is_full = true;
                        Err(Errno::AGAIN)
                    }
                    other => other,
                });
                add(&self.stream.stats().splices, 1);
                if is_full {
                    return self.pipe_is_full(id, filled);
                }
                came
            }
            None => {
                let buffer = &mut scratch[..left.min(SCRAP_BYTES)];
                self.stream.took(|socket| socket.read(buffer))
            }
        };
        let Some(came) = came else {
            self.stream.awaits(left);
            return false;
        };
        let of_body = came.min(left);
        self.came_bytes += of_body as u64;
        if reads_behind && let Some(asked) = self.asked.get_mut(&id) {
            asked.sink.filled(filled + of_body);
        }
        if of_body < left {
            self.coming = Some(Coming { filled: filled + of_body, ..coming });
            self.stream.connection.handle_heard(now);
            self.stream.awaits(left - of_body);
            // What comes next raises the socket again.
            return false;
        }
        self.finish_body(now, header, done);
        self.stream.awaits(0);
        if came > left {
            self.visit(now, &mut behind[..came - left], done);
        }
        // A short read has emptied the socket.
        came == left + HEADER_BYTES || !reads_behind
    }

    fn pipe_is_full(&mut self, id: RequestId, filled: usize) -> bool {
        add(&self.stream.stats().pipes_full, 1);
        let goes_on = self.asked.get_mut(&id).is_some_and(|asked| asked.sink.pipe_is_full(filled));
        if !goes_on && let Some(coming) = &mut self.coming {
            coming.is_waste = true;
        }
        true
    }

    fn finish_body(&mut self, now: Duration, header: Header, done: &mut Vec<Done<S>>) {
        self.coming = None;
        let (id, len) = (RequestId(header.id), header.length as usize);
        // An error is an event too.
        let _ = self.stream.connection.handle_body_elsewhere(now);
        if let Some(Asked { token, sink, bytes }) = self.asked.remove(&id) {
            let arrived = Arrived { len, crc: header.body_crc, epoch: header.epoch };
            done.push(Done { token, sink, outcome: Ok(arrived) });
            self.note(0, bytes);
        }
    }

    /// Hands out what the connection says.
    pub(super) fn events(&mut self, done: &mut Vec<Done<S>>) {
        while let Some(event) = self.stream.connection.poll_event() {
            match event {
                Event::Failed { id, epoch, code, text } => self.fail(id, AskError::Failed { code, text, epoch }, done),
                Event::TimedOut { id } => self.fail(id, AskError::TimedOut, done),
                Event::Closed { why } => {
                    let why = why.to_string();
                    for (_, Asked { token, sink, .. }) in self.asked.drain() {
                        done.push(Done { token, sink, outcome: Err(AskError::Lost(why.clone())) });
                    }
                    self.under_way_bytes = 0;
                }
                // A node asks nothing of who reads from it, and pushes nothing.
                Event::Request(request) => {
                    self.stream.connection.fail(request.id, sluice_wire::FAILED_INTERNAL, "this peer answers nothing");
                }
                Event::Push(push) => self.stream.connection.ack_push(push.number),
                _ => {}
            }
        }
    }

    fn fail(&mut self, id: RequestId, error: AskError, done: &mut Vec<Done<S>>) {
        if let Some(Asked { token, sink, bytes }) = self.asked.remove(&id) {
            if let Some(coming) = self.coming.as_mut().filter(|coming| coming.header.id == id.0) {
                coming.is_waste = true;
            }
            done.push(Done { token, sink, outcome: Err(error) });
            self.note(0, bytes);
        }
    }
}

/// Bytes that nobody wants are read so many at once.
const SCRAP_BYTES: usize = 64 << 10;

/// Puts answers that lie in the receive buffer into their sinks.
struct Arrive<'a, S> {
    asked: &'a mut HashMap<RequestId, Asked<S>>,
    done: &'a mut Vec<Done<S>>,
    came: usize,
    answered: usize,
}

impl<S: Sink> Visitor for Arrive<'_, S> {
    fn request(&mut self, connection: &mut Connection, request: RequestRef<'_>) {
        connection.fail(request.id, sluice_wire::FAILED_INTERNAL, "this peer answers nothing");
    }

    fn reply(&mut self, reply: ReplyRef<'_>) {
        let Some(Asked { token, mut sink, bytes }) = self.asked.remove(&reply.id) else { return };
        let len = reply.body.bytes.len();
        (self.came, self.answered) = (self.came + len, self.answered + bytes);
        let outcome = match sink.place(len) {
            Some(Place::Memory(memory)) => {
                memory.copy_from_slice(reply.body.bytes);
                sink.filled(len);
                Ok(Arrived { len, crc: reply.body.crc, epoch: reply.epoch })
            }
            Some(Place::Pipe(pipe)) => match rustix::io::write(pipe, reply.body.bytes) {
                Ok(written) if written == len => Ok(Arrived { len, crc: reply.body.crc, epoch: reply.epoch }),
                _ => Err(AskError::BadLength(len)),
            },
            None => Err(AskError::BadLength(len)),
        };
        self.done.push(Done { token, sink, outcome });
    }
}
