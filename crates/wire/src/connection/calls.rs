//! Requests and pushes of either side: what is under way, and what may be.

use super::{Connection, PUSHES_MAX, Phase, Role};
use crate::{
    FAILED_INTERNAL, Full, Header, Kind, Limits, Payload, PushNumber, RequestId,
    handshake::{TEXT_BYTES_MAX, cut},
    header::{DATA_BYTES_MAX, PUSH_BYTES_MAX, deadline_ms},
};
use bytes::{BufMut, BytesMut};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
    time::Duration,
};

/// With so few it is not worth looking for those that nobody waits for.
const DEADLINES_MIN: usize = 64;

/// By number. Both sides count 1, 2, 3..., so nobody can choose numbers that collide, and they need no hashing to be spread.
type ById<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }
    fn write_u64(&mut self, number: u64) {
        // The map takes its group from the low bits and a tag from the high ones.
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// This side's requests without an answer.
pub(super) struct Asked {
    /// What the peer takes.
    pub(super) limits: Limits,
    last: u64,
    under_way: ById<Question>,
    bytes: usize,
    /// Earliest first; may have requests that were answered, but not as its first.
    deadlines: BinaryHeap<Reverse<(Duration, u64)>>,
}

struct Question {
    bytes: usize,
    has_deadline: bool,
    /// Cancelled or timed out: the answer is awaited only to be counted off.
    abandoned: bool,
}

impl Default for Asked {
    fn default() -> Self {
        let limits = Limits { requests_max: 0, bytes_max: 0 };
        Self { limits, last: 0, under_way: ById::default(), bytes: 0, deadlines: BinaryHeap::new() }
    }
}

impl Asked {
    /// Counts a request; returns its number.
    fn begin(&mut self, bytes: usize, deadline: Option<Duration>) -> u64 {
        self.last += 1;
        self.bytes += bytes;
        let has_deadline = deadline.is_some();
        self.under_way.insert(self.last, Question { bytes, has_deadline, abandoned: false });
        if let Some(at) = deadline {
            self.deadlines.push(Reverse((at, self.last)));
        }
        self.last
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }

    /// A request whose deadline has passed, which is abandoned from now on.
    pub(super) fn take_expired(&mut self, now: Duration) -> Option<u64> {
        let Reverse((_, id)) = self.deadlines.peek().filter(|Reverse((at, _))| *at <= now)?;
        let id = *id;
        self.abandon(id);
        Some(id)
    }

    /// `false` if it was abandoned or answered before.
    fn abandon(&mut self, id: u64) -> bool {
        let Some(question) = self.under_way.get_mut(&id).filter(|question| !question.abandoned) else { return false };
        question.abandoned = true;
        if question.has_deadline {
            self.forget_deadlines();
        }
        true
    }

    /// The answer to `id` is there: whether somebody still waits for it; `None` if it is not under way.
    pub(super) fn answered(&mut self, id: u64) -> Option<bool> {
        let question = self.under_way.remove(&id)?;
        self.bytes -= question.bytes;
        if question.has_deadline {
            self.forget_deadlines();
        }
        Some(!question.abandoned)
    }

    /// Those of requests that nobody waits for: all that come first, and the rest when they are the greater part. Cheaper than a
    /// tree that is searched for each, and no memory is taken for it once it has its size.
    fn forget_deadlines(&mut self) {
        let awaited =
            |under_way: &ById<Question>, id: u64| under_way.get(&id).is_some_and(|question| !question.abandoned);
        while self.deadlines.peek().is_some_and(|Reverse((_, id))| !awaited(&self.under_way, *id)) {
            self.deadlines.pop();
        }
        if self.deadlines.len() > 2 * self.under_way.len() + DEADLINES_MIN {
            self.deadlines.retain(|Reverse((_, id))| awaited(&self.under_way, *id));
        }
    }

    pub(super) fn clear(&mut self) {
        self.under_way.clear();
        self.deadlines.clear();
        self.bytes = 0;
    }
}

/// The peer's requests without an answer.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) last: u64,
    under_way: ById<usize>,
    bytes: usize,
}

impl Taken {
    /// Counts a request, unless it is more than the peer was allowed.
    pub(super) fn begin(&mut self, id: u64, bytes: usize, limits: Limits) -> Result<(), &'static str> {
        self.last = id;
        if self.under_way.len() >= limits.requests_max as usize {
            return Err("requests");
        }
        if !self.under_way.is_empty() && self.bytes + bytes > limits.bytes_max as usize {
            return Err("bytes of requests");
        }
        self.bytes += bytes;
        self.under_way.insert(id, bytes);
        Ok(())
    }

    pub(super) fn is_under_way(&self, id: u64) -> bool {
        self.under_way.contains_key(&id)
    }

    /// Whether it was under way.
    pub(super) fn end(&mut self, id: u64) -> bool {
        let bytes = self.under_way.remove(&id);
        self.bytes -= bytes.unwrap_or(0);
        bytes.is_some()
    }

    pub(super) fn clear(&mut self) {
        self.under_way.clear();
        self.bytes = 0;
    }
}

/// Pushes without an ack, sent or received.
#[derive(Default)]
pub(super) struct Pushed {
    pub(super) last: u64,
    pub(super) under_way: HashSet<u64>,
}

impl Pushed {
    pub(super) fn clear(&mut self) {
        self.under_way.clear();
    }
}

impl Connection {
    /// Asks the peer. `deadline` is a time on the clock of `now`; after it comes [`crate::Event::TimedOut`] instead of an answer.
    pub fn request(
        &mut self,
        now: Duration,
        method: u16,
        body: &Payload,
        deadline: Option<Duration>,
    ) -> Result<RequestId, Full> {
        let header = self.ask(now, method, body.len(), deadline)?;
        self.send_frame(header, body);
        Ok(RequestId(header.id))
    }

    /// As [`Self::request`], with a body that is copied: nothing is allocated for it.
    pub fn request_copied(
        &mut self,
        now: Duration,
        method: u16,
        body: &[u8],
        deadline: Option<Duration>,
    ) -> Result<RequestId, Full> {
        let header = self.ask(now, method, body.len(), deadline)?;
        self.send_bytes(header, body);
        Ok(RequestId(header.id))
    }

    /// Counts a request; returns what its header says.
    fn ask(&mut self, now: Duration, method: u16, bytes: usize, deadline: Option<Duration>) -> Result<Header, Full> {
        self.may_ask(bytes)?;
        let id = self.asked.begin(bytes, deadline);
        let told = deadline.filter(|_| self.options.deadlines);
        let deadline_ms = told.map(|at| deadline_ms(at.saturating_sub(now)));
        Ok(Header { method, deadline_ms, ..Header::new(Kind::Request, id) })
    }

    fn may_ask(&self, bytes: usize) -> Result<(), Full> {
        let limits = self.asked.limits;
        let under_way = self.asked.under_way.len();
        if self.phase != Phase::Open {
            Err(Full::NotOpen)
        } else if bytes > DATA_BYTES_MAX {
            Err(Full::TooLong)
        } else if limits.requests_max == 0 {
            Err(Full::NotTaken)
        } else if under_way >= limits.requests_max as usize {
            Err(Full::InFlight)
        } else if under_way > 0 && self.asked.bytes + bytes > limits.bytes_max as usize {
            Err(Full::BytesInFlight)
        } else if !self.has_room() {
            Err(Full::Output)
        } else {
            Ok(())
        }
    }

    /// This side's requests without an answer, abandoned ones included.
    pub fn requests_under_way(&self) -> usize {
        self.asked.under_way.len()
    }

    /// The peer's requests that are not answered yet.
    pub fn requests_unanswered(&self) -> usize {
        self.taken.under_way.len()
    }

    /// No answer is wanted any more: none will be an event. The peer is told. Nothing happens if there is one already.
    pub fn cancel(&mut self, id: RequestId) {
        if self.asked.abandon(id.0) {
            self.tell_abandoned(id.0);
        }
    }

    pub(super) fn tell_abandoned(&mut self, id: u64) {
        if self.options.cancel {
            self.send(Kind::Cancel, id, &Payload::default());
        }
    }

    /// Answers a request. Never refused for lack of room, but see [`Self::has_room`]; goes nowhere if the request was cancelled.
    /// A body that no frame can hold becomes [`FAILED_INTERNAL`].
    pub fn reply(&mut self, id: RequestId, body: &Payload) {
        if body.len() > DATA_BYTES_MAX {
            self.fail(id, FAILED_INTERNAL, "the answer is larger than any frame");
        } else if self.taken.end(id.0) {
            self.send(Kind::Reply, id.0, body);
        }
    }

    /// Answers a request with an error. A text of more than [`TEXT_BYTES_MAX`] is cut.
    pub fn fail(&mut self, id: RequestId, code: u32, text: &str) {
        if self.taken.end(id.0) {
            let text = cut(text, TEXT_BYTES_MAX).as_bytes();
            let mut body = BytesMut::with_capacity(4 + text.len());
            body.put_u32_le(code);
            body.put_slice(text);
            self.send(Kind::Failed, id.0, &body.freeze().into());
        }
    }

    /// Says something unasked; [`crate::Event::PushAcked`] follows. For acceptors.
    pub fn push(&mut self, body: &Payload) -> Result<PushNumber, Full> {
        if self.phase != Phase::Open || self.role != Role::Acceptor {
            return Err(Full::NotOpen);
        }
        if body.len() > PUSH_BYTES_MAX {
            return Err(Full::TooLong);
        }
        if self.pushed.under_way.len() >= PUSHES_MAX {
            return Err(Full::InFlight);
        }
        if !self.has_room() {
            return Err(Full::Output);
        }
        self.pushed.last += 1;
        let number = self.pushed.last;
        self.pushed.under_way.insert(number);
        self.send(Kind::Push, number, body);
        Ok(PushNumber(number))
    }

    /// The push has been acted on.
    pub fn ack_push(&mut self, number: PushNumber) {
        if self.role == Role::Initiator && self.pushed.under_way.remove(&number.0) {
            self.send(Kind::PushAck, number.0, &Payload::default());
        }
    }
}
