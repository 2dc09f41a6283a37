//! A thread that serves requests: read, handle, answer, next.
//!
//! Run to completion: a request that the handler answers at once costs one read and one writev, and no other thread.
//! The reactor waits in epoll only after the device had nothing more and its inbox was empty. All clones of the device
//! share the kernel's queue, so EPOLLEXCLUSIVE wakes one reactor for one request.

use crate::abi::inputs::WriteIn;
use crate::abi::{InHeader, MIN_READ_BUFFER, opcode};
use crate::away::{self, Absent};
use crate::channel::{Channel, DeviceChannel, Next, sound};
use crate::companion::{Asked, Companion, Outgoing, Sent, Taken};
use crate::counters::{Class, Counters, add};
use crate::device::{Device, PIECES_MAX, Written};
use crate::handler::{Answer, Interruptible, LateReply};
use crate::later::{self, Completion, Inbox, Parked};
use crate::memory::PageBuffer;
use crate::pause::Pause;
use crate::pipes::Pipes;
use crate::reply::{Body, ReplyBuffer};
use crate::request::{Malformed, Operation, Request};
use crate::ring::Ring;
use crate::session::Shared;
use crate::uring::Commands;
use parking_lot::Mutex;
use sluice_base::{Errno, allocations};
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, OnceLock, Weak};

/// Requests served before completions are looked at again.
const BATCH: usize = 32;

/// Where the payload of a WRITE begins in a request.
const WRITE_PAYLOAD: usize = size_of::<InHeader>() + size_of::<WriteIn>();

/// Requests are read to here, so that the payload of a WRITE starts on a page and can go to a disk as it is.
const READ_START: usize = 4096 - WRITE_PAYLOAD;

/// What others may touch of a reactor.
pub(crate) struct Peer {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) counters: Counters,
    /// Requests of this reactor that others answer, and how many they may be.
    pub(crate) later: AtomicUsize,
    later_max: usize,
    /// The channel that its requests come through, unless that is a ring.
    pub(crate) device: OnceLock<Weak<Device>>,
    /// Requests of this channel that were put aside, to be asked again, and whether there are any.
    parked: Mutex<Vec<Parked>>,
    has_parked: AtomicBool,
    /// It waits for an answer itself, see `away.rs`; changed under the lock of [`Shared::running`].
    pub(crate) absent: AtomicBool,
}

impl Peer {
    pub(crate) fn new(inbox: Inbox, later_max: usize) -> Self {
        let (later, absent) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (device, parked, has_parked) = Default::default();
        let (inbox, counters) = (Arc::new(inbox), Counters::default());
        Self { inbox, counters, later, later_max, device, parked, has_parked, absent }
    }

    /// A request is put aside, until the reactor asks it again.
    pub(crate) fn park(&self, parked: Parked) {
        self.parked.lock().push(parked);
        self.has_parked.store(true, SeqCst);
    }

    /// What was put aside.
    pub(crate) fn parked(&self) -> Vec<Parked> {
        self.parked.lock().clone()
    }

    fn take_parked(&self) -> Vec<Parked> {
        if !self.has_parked.swap(false, SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut *self.parked.lock())
    }

    fn has_room(&self) -> bool {
        self.later.load(SeqCst) < self.later_max
    }

    /// One of the later requests is answered, not by way of the inbox.
    pub(crate) fn later_ended(&self, pause: &Pause) {
        if self.later.fetch_sub(1, SeqCst) >= self.later_max || pause.is_wanted() {
            self.inbox.wake();
        }
    }

    /// Answers `unique` over the `device` that it came from.
    pub(crate) fn send<'a>(
        &self,
        device: &Device,
        unique: u64,
        error: i32,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Written {
        // Other numbers the kernel refuses without ending the request, whose caller would wait for ever.
        let error = sound(error);
        let written = device.reply(unique, error, pieces);
        match written {
            Written::Taken | Written::Gone => return written,
            Written::Unwanted => {}
            Written::Refused(reason) => {
                tracing::error!(%reason, "the kernel refused a reply; the request ends with EIO");
                device.reply(unique, Errno::EIO.0, std::iter::empty());
            }
        }
        add(&self.counters.replies_lost);
        written
    }
}

pub(crate) struct Reactor {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    channel: Channel,
    requests: PageBuffer,
    reply: ReplyBuffer,
    pipes: Pipes,
    companion: Option<Box<dyn Companion>>,
    /// Requests that the companion has begun to answer.
    begun: usize,
    companion_is_ready: bool,
    completions: Vec<Completion>,
    /// It rests as long as the others suffice.
    is_spare: bool,
}

/// Where a reactor's requests come from.
pub(crate) enum Source {
    /// A channel of the device.
    Device(Arc<Device>),
    /// A ring, which is to be registered with the mount of this device.
    Ring(Box<Commands>, Arc<Device>),
}

/// How a turn over the device ended.
enum Turn {
    /// It may have more.
    More,
    /// It has nothing.
    Idle,
    /// It is gone.
    Over,
}

impl Reactor {
    /// On the thread that is to run it.
    pub(crate) fn new(
        shared: Arc<Shared>,
        peer: Arc<Peer>,
        source: Source,
        max_write: u32,
        pipes: Pipes,
        is_spare: bool,
    ) -> io::Result<Self> {
        let companion = shared.handler.companion();
        let channel = match source {
            Source::Device(device) => {
                let _ = peer.device.set(Arc::downgrade(&device));
                let descriptor = companion.as_ref().and_then(|companion| companion.descriptor());
                let lingering = shared.lingering.clone();
                Channel::Device(DeviceChannel::new(device, &peer.inbox, descriptor, lingering, !is_spare)?)
            }
            Source::Ring(commands, device) => Channel::Ring(Box::new(Ring::start(*commands, device)?)),
        };
        // The kernel refuses buffers below the largest WRITE with its headers.
        let len = READ_START + (WRITE_PAYLOAD + max_write as usize).max(MIN_READ_BUFFER);
        let (requests, reply, completions) = (PageBuffer::new(len), ReplyBuffer::default(), Vec::new());
        let (begun, companion_is_ready) = (0, false);
        Ok(Self {
            shared,
            peer,
            channel,
            requests,
            reply,
            pipes,
            companion,
            begun,
            companion_is_ready,
            completions,
            is_spare,
        })
    }

    /// Serves until the mount is gone or the session stops.
    pub(crate) fn run(&mut self) {
        while !self.shared.stop.load(SeqCst) {
            self.answer_completed();
            self.ask_again();
            let turn = if self.takes_requests() { self.serve_batch() } else { Turn::Idle };
            self.companion_is_ready |= self.channel.take_events(&self.peer.inbox);
            self.go_on();
            let waited = match turn {
                Turn::More => self.channel.flush(),
                Turn::Idle => self.wait(),
                Turn::Over => break,
            };
            if let Err(error) = waited {
                tracing::error!(%error, "a FUSE reactor cannot wait for requests and ends the session");
                break;
            }
        }
    }

    /// Serves what was put aside, in the order in which it came.
    fn ask_again(&mut self) {
        if !self.peer.has_parked.load(Relaxed) || self.shared.pause.is_wanted() {
            return;
        }
        for Parked { request, interrupted, .. } in self.peer.take_parked() {
            let place = READ_START..READ_START + request.len();
            let Some(buffer) = self.requests.bytes_mut().get_mut(place.clone()) else { continue };
            buffer.copy_from_slice(&request);
            if let Some(unique) = Request::parse(&request).ok().map(|request| request.unique).filter(|_| interrupted) {
                self.shared.waiting.add_early(unique);
            }
            self.serve(place);
        }
    }

    fn takes_requests(&self) -> bool {
        self.peer.has_room() && !self.shared.pause.is_wanted()
    }

    fn serve_batch(&mut self) -> Turn {
        for _ in 0..BATCH {
            if !self.takes_requests() {
                return Turn::More;
            }
            let place = match self.channel.next(&mut self.requests, READ_START, &mut self.reply) {
                Next::Request(place) => place,
                Next::Nothing => continue,
                Next::Idle => return Turn::Idle,
                Next::Over => return Turn::Over,
            };
            let written = self.serve(place);
            self.channel.settle(&mut self.requests, &mut self.reply);
            if written == Written::Gone {
                let _ = self.channel.flush();
                return Turn::Over;
            }
        }
        Turn::More
    }

    /// Serves the request at `place` in the buffer.
    fn serve(&mut self, place: Range<usize>) -> Written {
        let request = match Request::parse(&self.requests.bytes()[place.clone()]) {
            Ok(request) => request,
            Err(error) => return self.refuse(error),
        };
        let unique = request.unique;
        let counters = &self.peer.counters;
        counters.request(Class::of(&request.operation));
        match request.operation {
            Operation::Interrupt { unique } => {
                add(&counters.interrupts);
                if self.shared.waiting.interrupt(unique) {
                    away::give_up(&self.shared, &self.peer, unique);
                }
                return Written::Taken;
            }
            Operation::Destroy => {
                self.write(unique, 0);
                return Written::Gone;
            }
            Operation::Unknown { .. } | Operation::Init(_) => return self.write(unique, Errno::ENOSYS.0),
            Operation::Read { fh, offset, size, flags, .. } => {
                let asked = Asked { unique, nodeid: request.nodeid, fh, offset, size: size as usize, flags };
                return self.read(asked).unwrap_or_else(|| self.handle(place));
            }
            _ => {}
        }
        let answer = ask(&self.shared, &self.peer, &request, &mut self.reply);
        self.conclude(unique, place, answer)
    }

    /// Has the handler answer the request at `place` in the buffer, which was parsed before.
    fn handle(&mut self, place: Range<usize>) -> Written {
        let Ok(request) = Request::parse(&self.requests.bytes()[place.clone()]) else {
            return Written::Taken;
        };
        let answer = ask(&self.shared, &self.peer, &request, &mut self.reply);
        self.conclude(request.unique, place, answer)
    }

    fn conclude(&mut self, unique: u64, place: Range<usize>, answer: Answer) -> Written {
        match answer {
            Answer::Away => self.wait_for(unique, place),
            Answer::Interruptible(begin) => self.begin_patient(unique, place, begin),
            answer => self.finish(unique, answer),
        }
    }

    /// Has the companion answer a READ; `None` when the handler has to.
    fn read(&mut self, asked: Asked) -> Option<Written> {
        let before = allocations::of_this_thread();
        let (taken, out) = self.with_companion(|companion, out| companion.read(asked, out))?;
        let written = match taken {
            Some(Taken::No) => return None,
            Some(Taken::Answered) => out.written,
            Some(Taken::Begun) => {
                self.peer.later.fetch_add(1, SeqCst);
                self.begun += 1;
                Written::Taken
            }
            Some(Taken::Later(future)) => return Some(self.finish(asked.unique, Answer::Later(future))),
            // It panicked; nobody knows how far it came. A second answer the kernel refuses.
            None => self.write(asked.unique, Errno::EIO.0),
        };
        self.peer.counters.read_allocations.fetch_add(allocations::of_this_thread() - before, Relaxed);
        Some(written)
    }

    /// Lets the companion go on with what it has begun.
    fn go_on(&mut self) {
        if self.begun == 0 && !std::mem::take(&mut self.companion_is_ready) {
            return;
        }
        if let Some((_, out)) = self.with_companion(|companion, out| companion.turn(out)) {
            self.peer.later.fetch_sub(out.answered, SeqCst);
            self.begun -= out.answered;
        }
    }

    /// What `call` returns, or `None` when it panicked, and how the answers that it sent went.
    fn with_companion<R>(
        &mut self,
        call: impl FnOnce(&mut dyn Companion, &mut Outgoing<'_>) -> R,
    ) -> Option<(Option<R>, Sent)> {
        let companion = self.companion.as_deref_mut()?;
        let (shared, peer, channel) = (&*self.shared, &*self.peer, &mut self.channel);
        let (reply, pipes) = (&mut self.reply, &mut self.pipes);
        let mut out = Outgoing { shared, peer, channel, reply, pipes, sent: Sent::default() };
        let result = catch_unwind(AssertUnwindSafe(|| call(companion, &mut out))).ok();
        if result.is_none() {
            tracing::error!("a reactor's companion panicked");
            add(&peer.counters.panics);
        }
        Some((result, out.sent))
    }

    /// Has the request at `place` in the buffer answered by a thread that may wait: this one, if it can be spared.
    fn wait_for(&mut self, unique: u64, place: Range<usize>) -> Written {
        let bytes = &self.requests.bytes()[place];
        let (shared, peer, way) = (&self.shared, &self.peer, self.channel.way(&self.peer));
        add(&peer.counters.later);
        let (Some(absent), Ok(request)) = (Absent::begin(shared, peer), Request::parse(bytes)) else {
            away::spawn(shared, peer, unique, way, bytes.to_vec());
            return Written::Taken;
        };
        away::enter(shared, peer, unique, way);
        let answer = away::find(&*shared.handler, peer, &request, &mut self.reply);
        drop(absent);
        match shared.waiting.take_thread(unique) {
            // Its caller was let go.
            None => Written::Taken,
            Some((_, interrupted)) => match answer {
                Answer::Later(future) | Answer::Soon(future) => {
                    later::begin(shared, peer, unique, future, interrupted);
                    Written::Taken
                }
                answer => self.finish(unique, answer),
            },
        }
    }

    fn finish(&mut self, unique: u64, answer: Answer) -> Written {
        match answer {
            Answer::Done => self.write(unique, 0),
            Answer::Error(error) => self.write(unique, error.0),
            Answer::None | Answer::Away => Written::Taken,
            Answer::Later(future) => {
                add(&self.peer.counters.later);
                later::begin(&self.shared, &self.peer, unique, future, false);
                Written::Taken
            }
            Answer::Soon(future) => {
                add(&self.peer.counters.later);
                later::begin_soon(&self.shared, &self.peer, unique, future);
                Written::Taken
            }
            // Only a request itself may be patient, not what it becomes.
            Answer::Interruptible(_) => self.write(unique, Errno::EIO.0),
        }
    }

    /// Has a task answer the request at `place` in the buffer, which may take for ever.
    fn begin_patient(&mut self, unique: u64, place: Range<usize>, begin: Interruptible) -> Written {
        if !self.channel.may_be_patient() {
            // As where there are too many locks: fcntl(2), flock(2).
            return self.write(unique, Errno::ENOLCK.0);
        }
        add(&self.peer.counters.later);
        self.peer.later.fetch_add(1, SeqCst);
        let request = self.requests.bytes()[place].to_vec();
        let (shared, peer) = (Arc::clone(&self.shared), Arc::clone(&self.peer));
        let park = move || {
            peer.park(Parked { channel: 0, interrupted: false, request });
            peer.later_ended(&shared.pause);
            // The pause may be over already.
            peer.inbox.wake();
        };
        let route = (&self.peer.inbox, &self.shared.waiting);
        later::spawn_interruptible(&self.shared.runtime, begin, unique, route, park);
        Written::Taken
    }

    fn refuse(&mut self, error: Malformed) -> Written {
        tracing::error!(%error, "a request could not be parsed");
        match error {
            Malformed::Body { opcode: opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT, .. } => Written::Taken,
            Malformed::Body { unique, .. } => self.write(unique, Errno::EIO.0),
            Malformed::Header => Written::Taken,
        }
    }

    /// Answers with the reply buffer, or with an error when that is not 0.
    fn write(&mut self, unique: u64, error: i32) -> Written {
        self.channel.answer(&self.peer, unique, error, &self.reply)
    }

    fn answer_completed(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.peer.inbox.drain(&mut completions);
        for Completion { unique, outcome } in completions.drain(..) {
            self.peer.later.fetch_sub(1, SeqCst);
            let (error, body) = sendable(outcome);
            self.channel.send(&self.peer, unique, error, pieces(&body));
        }
        self.completions = completions;
    }

    /// Waits for the channel, unless too many requests are being answered later, and for completions.
    fn wait(&mut self) -> io::Result<()> {
        // Looked at after the event was lowered, which may have been the one that told of it.
        if self.shared.stop.load(SeqCst) {
            return Ok(());
        }
        if self.shared.pause.is_wanted() && self.peer.later.load(SeqCst) == 0 {
            self.shared.pause.rest();
            return Ok(());
        }
        if self.peer.has_parked.load(SeqCst) && !self.shared.pause.is_wanted() {
            return Ok(());
        }
        let descriptor = self.companion.as_ref().and_then(|companion| companion.descriptor());
        let is_wanted = !self.is_spare || self.shared.spares.are_needed();
        let is_wanted = is_wanted && self.takes_requests();
        self.channel.wait(is_wanted, &self.peer.inbox, descriptor, self.begun > 0)
    }
}

/// An outcome as error, 0 for none, and body that a device takes.
pub(crate) fn sendable(outcome: LateReply) -> (i32, Body) {
    match outcome {
        Err(error) => (error.0, Body::empty()),
        Ok(body) if body.as_pieces().len() <= PIECES_MAX => (0, body),
        Ok(body) => (0, Body::from(body.as_pieces().concat())),
    }
}

/// What is sent of a body.
pub(crate) fn pieces(body: &Body) -> impl Iterator<Item = &[u8]> {
    body.as_pieces().iter().map(|piece| &piece[..])
}

/// What the handler answers; a panic is EIO.
fn ask(shared: &Shared, peer: &Peer, request: &Request<'_>, reply: &mut ReplyBuffer) -> Answer {
    reply.clear();
    let handler = &shared.handler;
    let answer = catch_unwind(AssertUnwindSafe(|| match request.operation {
        Operation::Forget { lookups } => {
            handler.forget(request.nodeid, lookups);
            Answer::None
        }
        Operation::BatchForget(forgets) => {
            forgets.iter().for_each(|(nodeid, lookups)| handler.forget(nodeid, lookups));
            Answer::None
        }
        _ => handler.handle(request, reply),
    }));
    let replies = !matches!(request.operation, Operation::Forget { .. } | Operation::BatchForget(_));
    answer.unwrap_or_else(|_| {
        tracing::error!(nodeid = request.nodeid, "the handler panicked; the request ends with EIO");
        add(&peer.counters.panics);
        if replies { Answer::Error(Errno::EIO) } else { Answer::None }
    })
}
