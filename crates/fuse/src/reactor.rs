//! A thread that serves requests: read, handle, answer, next.
//!
//! Run to completion: a request that the handler answers at once costs one read and one writev, and no other thread.
//! The reactor waits in epoll only after the device had nothing more and its inbox was empty. All clones of the device
//! share the kernel's queue, so EPOLLEXCLUSIVE wakes one reactor for one request.

use crate::abi::inputs::WriteIn;
use crate::abi::{InHeader, MIN_READ_BUFFER, opcode};
use crate::away::{self, Absent};
use crate::counters::{Class, Counters, add};
use crate::device::{Device, PIECES_MAX, Written};
use crate::handler::{Answer, LateReply};
use crate::later::{self, Completion, Inbox};
use crate::reply::{PageBuffer, ReplyBuffer};
use crate::request::{Malformed, Operation, Request};
use crate::session::Shared;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno as Raw;
use sluice_base::Errno;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

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
    /// It waits for an answer itself, see `away.rs`; changed under the lock of [`Shared::running`].
    pub(crate) absent: AtomicBool,
}

impl Peer {
    pub(crate) fn new(inbox: Inbox, later_max: usize) -> Self {
        let (later, absent) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { inbox: Arc::new(inbox), counters: Counters::default(), later, later_max, absent }
    }

    fn has_room(&self) -> bool {
        self.later.load(SeqCst) < self.later_max
    }

    /// One of the later requests is answered, not by way of the inbox.
    pub(crate) fn later_ended(&self) {
        if self.later.fetch_sub(1, SeqCst) >= self.later_max {
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
        let error = if (0..512).contains(&error) { error } else { Errno::EIO.0 };
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
    device: Arc<Device>,
    epoll: OwnedFd,
    requests: PageBuffer,
    reply: ReplyBuffer,
    completions: Vec<Completion>,
    /// The device is in the epoll set.
    listening: bool,
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
    pub(crate) fn new(shared: Arc<Shared>, peer: Arc<Peer>, device: Arc<Device>, max_write: u32) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &peer.inbox.event, epoll::EventData::new_u64(INBOX), epoll::EventFlags::IN)?;
        // The kernel refuses buffers below the largest WRITE with its headers.
        let len = READ_START + (WRITE_PAYLOAD + max_write as usize).max(MIN_READ_BUFFER);
        let (requests, reply) = (PageBuffer::new(len), ReplyBuffer::default());
        let completions = Vec::new();
        let mut reactor = Self { shared, peer, device, epoll, requests, reply, completions, listening: false };
        reactor.listen(true)?;
        Ok(reactor)
    }

    /// Serves until the mount is gone or the session stops.
    pub(crate) fn run(&mut self) {
        while !self.shared.stop.load(SeqCst) {
            self.answer_completed();
            let turn = if self.peer.has_room() { self.serve_batch() } else { Turn::Idle };
            let waited = match turn {
                Turn::More => Ok(()),
                Turn::Idle => self.wait(),
                Turn::Over => break,
            };
            if let Err(error) = waited {
                tracing::error!(%error, "a FUSE reactor cannot wait for requests and ends the session");
                break;
            }
        }
    }

    fn serve_batch(&mut self) -> Turn {
        for _ in 0..BATCH {
            if !self.peer.has_room() {
                return Turn::More;
            }
            let len = match self.device.read(&mut self.requests.bytes_mut()[READ_START..]) {
                Ok(len) => len,
                Err(Raw::AGAIN) => return Turn::Idle,
                // ENOENT: the request was interrupted while it was being read.
                Err(Raw::INTR | Raw::NOENT) => continue,
                Err(Raw::NODEV | Raw::CONNABORTED) => return Turn::Over,
                Err(error) => {
                    tracing::error!(%error, "reading /dev/fuse failed");
                    return Turn::Over;
                }
            };
            if self.serve(len) == Written::Gone {
                return Turn::Over;
            }
        }
        Turn::More
    }

    /// Serves the request of `len` bytes in the buffer.
    fn serve(&mut self, len: usize) -> Written {
        let request = match Request::parse(&self.requests.bytes()[READ_START..READ_START + len]) {
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
            _ => {}
        }
        self.reply.clear();
        let (handler, reply) = (&self.shared.handler, &mut self.reply);
        let answer = catch_unwind(AssertUnwindSafe(|| match request.operation {
            Operation::Forget { lookups } => {
                handler.forget(request.nodeid, lookups);
                Answer::None
            }
            Operation::BatchForget(forgets) => {
                forgets.iter().for_each(|(nodeid, lookups)| handler.forget(nodeid, lookups));
                Answer::None
            }
            _ => handler.handle(&request, reply),
        }));
        let replies = !matches!(request.operation, Operation::Forget { .. } | Operation::BatchForget(_));
        let answer = answer.unwrap_or_else(|_| {
            tracing::error!(nodeid = request.nodeid, "the handler panicked; the request ends with EIO");
            add(&counters.panics);
            if replies { Answer::Error(Errno::EIO) } else { Answer::None }
        });
        match answer {
            Answer::Away => self.wait_for(unique, len),
            answer => self.finish(unique, answer),
        }
    }

    /// Has the request of `len` bytes in the buffer answered by a thread that may wait: this one, if it can be spared.
    fn wait_for(&mut self, unique: u64, len: usize) -> Written {
        let bytes = &self.requests.bytes()[READ_START..READ_START + len];
        let (shared, peer) = (&self.shared, &self.peer);
        add(&peer.counters.later);
        let (Some(absent), Ok(request)) = (Absent::begin(shared, peer), Request::parse(bytes)) else {
            away::spawn(shared, peer, unique, &self.device, bytes.to_vec());
            return Written::Taken;
        };
        away::enter(shared, peer, unique, &self.device);
        let answer = away::find(&*shared.handler, peer, &request, &mut self.reply);
        drop(absent);
        match shared.waiting.take_thread(unique) {
            // Its caller was let go.
            None => Written::Taken,
            Some((_, interrupted)) => match answer {
                Answer::Later(future) => {
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
            Answer::Interruptible(begin) => {
                add(&self.peer.counters.later);
                self.peer.later.fetch_add(1, SeqCst);
                let shared = &self.shared;
                later::spawn_interruptible(&shared.runtime, begin, unique, (&self.peer.inbox, &shared.waiting));
                Written::Taken
            }
        }
    }

    fn refuse(&self, error: Malformed) -> Written {
        tracing::error!(%error, "a request could not be parsed");
        match error {
            Malformed::Body { opcode: opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT, .. } => Written::Taken,
            Malformed::Body { unique, .. } => self.write(unique, Errno::EIO.0),
            Malformed::Header => Written::Taken,
        }
    }

    /// Answers with the reply buffer, or with an error when that is not 0.
    fn write(&self, unique: u64, error: i32) -> Written {
        let body = if error == 0 { self.reply.body() } else { &[] };
        self.send(unique, error, Some(body).into_iter().filter(|body| !body.is_empty()))
    }

    fn send<'a>(&self, unique: u64, error: i32, pieces: impl Iterator<Item = &'a [u8]>) -> Written {
        self.peer.send(&self.device, unique, error, pieces)
    }

    fn answer_completed(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.peer.inbox.drain(&mut completions);
        for Completion { unique, outcome } in completions.drain(..) {
            self.peer.later.fetch_sub(1, SeqCst);
            self.send_late(unique, outcome);
        }
        self.completions = completions;
    }

    fn send_late(&self, unique: u64, outcome: LateReply) {
        match outcome {
            Err(error) => self.send(unique, error.0, std::iter::empty()),
            Ok(body) if body.as_pieces().len() <= PIECES_MAX => {
                self.send(unique, 0, body.as_pieces().iter().map(|piece| &piece[..]))
            }
            Ok(body) => self.send(unique, 0, std::iter::once(&body.as_pieces().concat()[..])),
        };
    }

    /// Waits for the device, unless too many requests are being answered later, and for completions.
    fn wait(&mut self) -> io::Result<()> {
        self.listen(self.peer.has_room())?;
        if !self.peer.inbox.fall_asleep() {
            return Ok(());
        }
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
        let waited = epoll::wait(&self.epoll, &mut events, None);
        self.peer.inbox.awake();
        match waited {
            Ok(count) => {
                if events[..count].iter().any(|event| event.data.u64() == INBOX) {
                    self.peer.inbox.lower();
                }
                Ok(())
            }
            Err(Raw::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts the device into the epoll set or takes it out: an EPOLLEXCLUSIVE entry cannot be modified.
    fn listen(&mut self, on: bool) -> io::Result<()> {
        if on != self.listening {
            if on {
                let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
                epoll::add(&self.epoll, &*self.device, epoll::EventData::new_u64(DEVICE), flags)?;
            } else {
                epoll::delete(&self.epoll, &*self.device)?;
            }
            self.listening = on;
        }
        Ok(())
    }
}

const DEVICE: u64 = 0;
const INBOX: u64 = 1;
