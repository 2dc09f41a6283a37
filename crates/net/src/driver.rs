//! The task of one lane: reads, writes the rest, keeps time, runs handlers.

use crate::{
    CallError, Failure,
    intake::Intake,
    lane::{Lane, Reply, State},
};
use futures::{
    FutureExt, StreamExt,
    future::{AbortHandle, Abortable, Aborted, BoxFuture},
    stream::FuturesUnordered,
};
use sluice_run::collections::HashMap;
use sluice_run::{
    net::{shutdown_both, shutdown_write},
    time::{Sleep, sleep_until, timeout},
    watch,
};
use sluice_wire::{
    Connection, ConnectionError, Event, Hello, Payload, Push, PushNumber, RefusalCode, Request, RequestId, Welcome,
};
use std::{io, io::ErrorKind, panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};
use tokio::io::Interest;

/// Reads of one turn: after this many others have theirs.
const READS_MAX: usize = 16;
/// For the last words to reach a peer that still reads.
const LINGER: Duration = Duration::from_secs(1);
/// Without anything to wait for the task looks after this long.
const LOOK: Duration = Duration::from_secs(60);

/// What a lane's owner does with what the peer says.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Whether to let an initiator in.
    fn hello(&self, hello: Hello) -> impl Future<Output = Result<Welcome, (RefusalCode, String)>> + Send;
    /// The answer to a request.
    fn call(&self, request: Request) -> impl Future<Output = Result<Payload, Failure>> + Send;
    /// Acts on a push; the ack follows.
    fn push(&self, push: Push) -> impl Future<Output = ()> + Send;
    /// Requests may flow.
    fn open(&self, welcome: Welcome);
}

/// What a handler's future came to.
enum Done {
    Hello(Result<Welcome, (RefusalCode, String)>),
    Call(RequestId, Result<Result<Payload, Failure>, Aborted>),
    /// Whether the handler came to its end.
    Push(PushNumber, bool),
}

/// Runs `lane` to its end; returns why it ended. Once `closing` is true it takes no more requests and ends when it has answered
/// those that it has.
pub(crate) async fn drive<H: Handler>(
    lane: Arc<Lane>,
    handler: &H,
    mut closing: watch::Receiver<bool>,
    intake: Option<Intake>,
) -> ConnectionError {
    let mut driver = Driver {
        handler,
        running: FuturesUnordered::new(),
        aborts: HashMap::default(),
        timer: Box::pin(sleep_until(sluice_run::time::now() + LOOK)),
        readable: false,
        closing: *closing.borrow_and_update(),
        ended: None,
        intake,
        lane,
    };
    let why = loop {
        if let Some(why) = driver.turn() {
            break why;
        }
        driver.wait(&mut closing).await;
    };
    // Nobody wants the answers that are still being made.
    driver.running.clear();
    linger(&driver.lane.clone()).await;
    why
}

struct Driver<'a, H> {
    lane: Arc<Lane>,
    handler: &'a H,
    running: FuturesUnordered<BoxFuture<'a, Done>>,
    aborts: HashMap<RequestId, AbortHandle>,
    timer: Pin<Box<Sleep>>,
    /// The socket may have something to read.
    readable: bool,
    closing: bool,
    ended: Option<ConnectionError>,
    /// Takes large bodies, where there are any.
    intake: Option<Intake>,
}

impl<'a, H: Handler> Driver<'a, H> {
    /// Reads, does what is due, lets handlers run, writes; never waits.
    fn turn(&mut self) -> Option<ConnectionError> {
        let lane = self.lane.clone();
        {
            let mut state = lane.state.lock();
            self.read(&mut state);
            let now = lane.clock.monotonic();
            if state.connection.poll_timeout().is_some_and(|at| at <= now) {
                state.connection.handle_timeout(now);
            }
        }
        self.look();
        self.run();
        let mut state = lane.state.lock();
        if self.closing && !state.connection.is_closed() && state.connection.requests_unanswered() == 0 {
            state.connection.close("this peer ends");
        }
        lane.flush(&mut state);
        self.arm(&mut state);
        let closed = state.connection.is_closed();
        drop(state);
        if closed {
            self.look();
        }
        lane.tell_room();
        self.ended.take()
    }

    /// Hands answers to their callers and begins what the peer asks.
    fn look(&mut self) {
        let mut asked = Vec::new();
        let ended = events(&mut self.lane.state.lock(), &mut asked);
        self.ended = self.ended.take().or(ended);
        // Handlers may use the lane, so they are not called under its lock.
        asked.into_iter().for_each(|event| self.begin(event));
    }

    fn read(&mut self, state: &mut State) {
        for _ in 0..READS_MAX {
            if !self.readable || !state.connection.wants_input() {
                return;
            }
            match self.read_once(&mut state.connection) {
                Ok(0) => state.connection.handle_lost("the peer closed the stream"),
                Ok(_) => {
                    if let Some(id) = self.intake.as_mut().and_then(Intake::begun) {
                        state.begun(id);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => state.connection.handle_lost(error.to_string()),
            }
        }
    }

    fn read_once(&mut self, connection: &mut Connection) -> io::Result<usize> {
        let (stream, now) = (&self.lane.stream, self.lane.clock.monotonic());
        if let Some(intake) = &mut self.intake {
            return intake.read(stream, connection, now);
        }
        let came = stream.try_read_buf(connection.input())?;
        if came > 0 {
            // An error is an event too.
            let _ = connection.handle_received(now);
        }
        Ok(came)
    }

    /// Begins what `event` asks of the handler.
    fn begin(&mut self, event: Event) {
        let handler: &'a H = self.handler;
        match event {
            Event::Hello(hello) => self.running.push(handler.hello(hello).map(Done::Hello).boxed()),
            Event::Established { welcome, .. } => handler.open(welcome),
            Event::Request(request) => self.begin_call(request),
            Event::Cancelled { id } => {
                if let Some(abort) = self.aborts.remove(&id) {
                    abort.abort();
                }
            }
            Event::Push(push) => {
                let number = push.number;
                let act = AssertUnwindSafe(handler.push(push)).catch_unwind();
                self.running.push(act.map(move |acted| Done::Push(number, acted.is_ok())).boxed());
            }
            // The others are for callers.
            _ => {}
        }
    }

    fn begin_call(&mut self, request: Request) {
        let id = request.id;
        if self.closing {
            let failure = Failure::closing();
            return self.lane.state.lock().connection.fail(id, failure.code, &failure.text);
        }
        let handler: &'a H = self.handler;
        let answer = AssertUnwindSafe(handler.call(request)).catch_unwind();
        let answer =
            answer.map(|done| done.unwrap_or_else(|_| Err(Failure::internal("the handler of this request failed"))));
        let (abort, registration) = AbortHandle::new_pair();
        self.aborts.insert(id, abort);
        self.running.push(Abortable::new(answer, registration).map(move |answer| Done::Call(id, answer)).boxed());
    }

    /// Lets handlers run until none is ready, or too much waits to be sent.
    fn run(&mut self) {
        while !self.running.is_empty() && self.lane.state.lock().connection.has_room() {
            match self.running.next().now_or_never() {
                Some(Some(done)) => self.finish(done),
                _ => return,
            }
        }
    }

    fn finish(&mut self, done: Done) {
        match done {
            Done::Hello(Ok(welcome)) => {
                self.lane.state.lock().connection.accept(welcome);
                // The handler hears of it before the peer can.
                self.look();
            }
            Done::Hello(Err((code, text))) => self.lane.state.lock().connection.refuse(code, text),
            Done::Push(number, true) => self.lane.state.lock().connection.ack_push(number),
            // An ack would be a lie, and without one the peer would wait.
            Done::Push(_, false) => self.lane.state.lock().connection.close("the handler of a push failed"),
            Done::Call(id, answer) => {
                self.aborts.remove(&id);
                match answer {
                    Ok(Ok(payload)) => {
                        // Outside the lock: it reads the bytes.
                        let payload = payload.summed();
                        self.lane.state.lock().connection.reply(id, &payload);
                    }
                    Ok(Err(failure)) => self.lane.state.lock().connection.fail(id, failure.code, &failure.text),
                    Err(Aborted) => {}
                }
            }
        }
    }

    /// Sets the timer if it would ring too late. One that rings early costs a turn, less than setting it each time.
    fn arm(&mut self, state: &mut State) {
        let now = self.lane.clock.monotonic();
        let next = state.connection.poll_timeout().unwrap_or(now + LOOK).min(now + LOOK);
        if state.wakes_at.is_none_or(|at| next < at || at <= now) {
            state.wakes_at = Some(next);
            self.timer.as_mut().reset(sluice_run::time::now() + next.saturating_sub(now));
        }
    }

    async fn wait(&mut self, closing: &mut watch::Receiver<bool>) {
        let lane = self.lane.clone();
        let (interest, has_room) = {
            let state = lane.state.lock();
            let reads = state.connection.wants_input().then_some(Interest::READABLE);
            let writes = state.has_unwritten().then_some(Interest::WRITABLE);
            (reads.into_iter().chain(writes).reduce(|a, b| a | b), state.connection.has_room())
        };
        let ready = async {
            match interest {
                // An error shows at the next read or write.
                Some(interest) => lane.stream.ready(interest).await.is_ok_and(|ready| !ready.is_readable()),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(done) = self.running.next(), if has_room => self.finish(done),
            only_writable = ready => self.readable |= !only_writable,
            () = lane.wake.notified() => {}
            () = self.timer.as_mut() => {}
            changed = closing.changed(), if !self.closing => self.closing = changed.is_err() || *closing.borrow(),
        }
    }
}

impl<H> Drop for Driver<'_, H> {
    /// Whatever ends the task, nobody waits for it any more.
    fn drop(&mut self) {
        let mut state = self.lane.state.lock();
        if !state.connection.is_closed() {
            state.connection.close("this peer ends at once");
            self.lane.flush(&mut state);
            events(&mut state, &mut Vec::new());
            // Others may hold the lane for long; the peer must not wait for them.
            let _ = shutdown_both(&self.lane.stream);
        }
        drop(state);
        self.lane.tell_room();
    }
}

/// Lets the last words out. To close a socket with unread input resets it, and the peer may never see them; so input is
/// read on for a moment.
async fn linger(lane: &Lane) {
    let stream = &lane.stream;
    let last_words = async {
        loop {
            let unwritten = {
                let mut state = lane.state.lock();
                lane.flush(&mut state);
                state.has_unwritten()
            };
            if !unwritten {
                break;
            }
            stream.writable().await?;
        }
        shutdown_write(stream)?;
        let mut scratch = [0; 4096];
        loop {
            stream.readable().await?;
            match stream.try_read(&mut scratch) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    };
    let _: Result<std::io::Result<()>, _> = timeout(LINGER, last_words).await;
    // Others may hold the lane for long; the socket need not wait for them.
    let _ = shutdown_both(stream);
}

/// Hands answers to their callers and puts what the peer asks into `asked`; returns why the connection ended, if it did.
fn events(state: &mut State, asked: &mut Vec<Event>) -> Option<ConnectionError> {
    while let Some(event) = state.connection.poll_event() {
        match event {
            Event::Reply { id, epoch, body } => state.answer(id, Ok(Reply { epoch, body })),
            Event::Failed { id, code, text, .. } => state.answer(id, Err(CallError::Failed { code, text })),
            Event::TimedOut { id } => state.answer(id, Err(CallError::TimedOut)),
            Event::PushAcked { number } => state.acked(number),
            Event::Closed { why } => {
                state.end(&why);
                return Some(why);
            }
            event => asked.push(event),
        }
    }
    None
}
