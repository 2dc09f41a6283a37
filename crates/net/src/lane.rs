//! One connection as its callers see it.

use crate::CallError;
use bytes::Bytes;
use sluice_base::Clock;
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use sluice_run::{net::TcpStream, time::timeout};
use sluice_wire::{Body, Connection, ConnectionError, Full, Payload, PushNumber, RequestId};
use std::{
    io::{ErrorKind, IoSlice},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// Most bytes handed to the kernel at once. With what the socket holds it is all that a call may wait behind.
const WRITE_BYTES: usize = 256 << 10;
/// Most pieces of one writev; IOV_MAX is 1024, few calls have as many as this.
const PIECES_MAX: usize = 64;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Epoch of the member list that the peer knows.
    pub epoch: u32,
    /// The answer; [`Body::checked`] where the peer left the check to us.
    pub body: Body,
}

/// A connection and its socket.
pub(crate) struct Lane {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stream: TcpStream,
    pub(crate) state: Mutex<State>,
    /// The task must look: there is more to write, an earlier deadline, or an end.
    pub(crate) wake: Notify,
    /// Answers and acks have come, or output has gone.
    room: Notify,
}

pub(crate) struct State {
    pub(crate) connection: Connection,
    calls: HashMap<RequestId, Caller>,
    pushes: HashMap<PushNumber, oneshot::Sender<()>>,
    /// Taken from the connection, not yet by the socket.
    unwritten: Vec<Bytes>,
    /// The time that the task will wake at by itself.
    pub(crate) wakes_at: Option<Duration>,
    ended: Option<ConnectionError>,
}

struct Caller {
    answer: oneshot::Sender<Result<Reply, CallError>>,
    /// To be set when the first of the answer comes.
    begun: Option<Arc<AtomicBool>>,
}

impl Lane {
    pub(crate) fn new(clock: Arc<dyn Clock>, stream: TcpStream, connection: Connection) -> Arc<Self> {
        let state = State {
            connection,
            calls: HashMap::default(),
            pushes: HashMap::default(),
            unwritten: Vec::new(),
            wakes_at: None,
            ended: None,
        };
        Arc::new(Self { clock, stream, state: Mutex::new(state), wake: Notify::new(), room: Notify::new() })
    }

    /// Asks the peer; waits for room, then for the answer. To drop the future cancels the request.
    /// `begun` is set when the first of a large answer comes.
    pub(crate) async fn call(
        &self,
        method: u16,
        body: Payload,
        deadline: Duration,
        begun: Option<&Arc<AtomicBool>>,
    ) -> Result<Reply, CallError> {
        let body = body.summed();
        let (id, answer) = self.when_room(deadline, || self.ask(method, &body, deadline, begun)).await?;
        drop(body);
        let guard = CancelOnDrop { lane: self, id };
        // The connection keeps the deadline, and tells the peer.
        let answer = answer.await.unwrap_or(Err(CallError::Closed));
        guard.disarm();
        answer
    }

    fn ask(
        &self,
        method: u16,
        body: &Payload,
        deadline: Duration,
        begun: Option<&Arc<AtomicBool>>,
    ) -> Result<(RequestId, oneshot::Receiver<Result<Reply, CallError>>), Full> {
        let mut state = self.state.lock();
        let id = state.connection.request(self.clock.monotonic(), method, body, Some(deadline))?;
        let (sender, receiver) = oneshot::channel();
        state.calls.insert(id, Caller { answer: sender, begun: begun.cloned() });
        self.send(&mut state);
        if state.wakes_at.is_none_or(|at| deadline < at) {
            self.wake.notify_one();
        }
        Ok((id, receiver))
    }

    /// Says something unasked; returns once it is acked.
    pub(crate) async fn push(&self, body: Payload, deadline: Duration) -> Result<(), CallError> {
        let body = body.summed();
        let acked = self
            .when_room(deadline, || {
                let mut state = self.state.lock();
                let number = state.connection.push(&body)?;
                let (sender, receiver) = oneshot::channel();
                state.pushes.insert(number, sender);
                self.send(&mut state);
                Ok(receiver)
            })
            .await?;
        match timeout(deadline.saturating_sub(self.clock.monotonic()), acked).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(CallError::Unknown(self.ended().unwrap_or(ConnectionError::Silent))),
            Err(_) => Err(CallError::TimedOut),
        }
    }

    /// Tries `send` until there is room, the deadline passes, or there never will be.
    async fn when_room<T>(&self, deadline: Duration, send: impl Fn() -> Result<T, Full>) -> Result<T, CallError> {
        loop {
            let mut room = pin!(self.room.notified());
            // Before the try: room that appears between it and the wait must not be missed.
            room.as_mut().enable();
            match send() {
                Ok(sent) => return Ok(sent),
                Err(full) if full.is_temporary() => {
                    let wait = deadline.saturating_sub(self.clock.monotonic());
                    timeout(wait, room).await.map_err(|_| CallError::TimedOut)?;
                }
                Err(Full::NotOpen) => {
                    let why = self.ended().map_or_else(|| Full::NotOpen.to_string(), |why| why.to_string());
                    return Err(CallError::NotSent(why));
                }
                Err(never) => return Err(CallError::Refused(never)),
            }
        }
    }

    /// Why it is over, once it is.
    pub(crate) fn ended(&self) -> Option<ConnectionError> {
        self.state.lock().ended.clone()
    }

    /// Ends it; what is under way has no answer.
    pub(crate) fn close(&self, text: &str) {
        let mut state = self.state.lock();
        state.connection.close(text);
        self.send(&mut state);
    }

    /// Writes what the socket takes now. If anything is left, or this is the end, the task goes on.
    fn send(&self, state: &mut State) {
        self.flush(state);
        if state.has_unwritten() || state.connection.is_closed() {
            self.wake.notify_one();
        }
    }

    /// Writes what the socket takes now.
    pub(crate) fn flush(&self, state: &mut State) {
        if let Err(error) = state.write(&self.stream, self.clock.monotonic()) {
            state.unwritten.clear();
            state.connection.handle_lost(error.to_string());
        }
    }

    /// Somebody may find room now.
    pub(crate) fn tell_room(&self) {
        self.room.notify_waiters();
    }
}

impl State {
    fn write(&mut self, stream: &TcpStream, now: Duration) -> std::io::Result<()> {
        loop {
            if self.unwritten.is_empty() && self.connection.poll_transmit(now, &mut self.unwritten, WRITE_BYTES) == 0 {
                return Ok(());
            }
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let count = self.unwritten.len().min(PIECES_MAX);
            slices.iter_mut().zip(&self.unwritten).for_each(|(slice, piece)| *slice = IoSlice::new(piece));
            match stream.try_write_vectored(&slices[..count]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.written(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn written(&mut self, mut bytes: usize) {
        let mut whole = 0;
        for piece in &mut self.unwritten {
            if piece.len() > bytes {
                let _ = piece.split_to(bytes);
                break;
            }
            bytes -= piece.len();
            whole += 1;
        }
        self.unwritten.drain(..whole);
    }

    /// Whether the socket must become writable before anything else can go.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Hands an answer to its caller, if there still is one.
    pub(crate) fn answer(&mut self, id: RequestId, answer: Result<Reply, CallError>) {
        if let Some(caller) = self.calls.remove(&id) {
            let _ = caller.answer.send(answer);
        }
    }

    /// The first of an answer has come.
    pub(crate) fn begun(&self, id: RequestId) {
        if let Some(begun) = self.calls.get(&id).and_then(|caller| caller.begun.as_ref()) {
            begun.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn acked(&mut self, number: PushNumber) {
        if let Some(caller) = self.pushes.remove(&number) {
            let _ = caller.send(());
        }
    }

    /// Nobody gets an answer any more.
    pub(crate) fn end(&mut self, why: &ConnectionError) {
        self.ended = Some(why.clone());
        for (_, caller) in self.calls.drain() {
            let _ = caller.answer.send(Err(CallError::Unknown(why.clone())));
        }
        self.pushes.clear();
    }
}

/// Cancels the request of a call that nobody waits for any more.
struct CancelOnDrop<'a> {
    lane: &'a Lane,
    id: RequestId,
}

impl CancelOnDrop<'_> {
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.lane.state.lock();
        if state.calls.remove(&self.id).is_some() {
            state.connection.cancel(self.id);
            self.lane.send(&mut state);
        }
    }
}
