//! What a reactor has of its handler for itself: state that needs no lock, and work that goes on between requests.

use crate::channel::Channel;
use crate::counters::add;
use crate::device::Written;
use crate::handler::LateReply;
use crate::later;
use crate::pipes::Pipes;
use crate::reactor::Peer;
use crate::reply::ReplyBuffer;
use crate::session::Shared;
use rustix::fd::BorrowedFd;
use sluice_base::{Errno, Pipe};
use sluice_vfs::direct::Region;
use std::pin::Pin;

/// A READ.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The kernel's number for it.
    pub unique: u64,
    /// The inode.
    pub nodeid: u64,
    /// Handle of the open file.
    pub fh: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: usize,
    /// Flags of the open file.
    pub flags: u32,
}

/// What became of a READ.
pub enum Taken {
    /// It is answered.
    Answered,
    /// [`Companion::turn`] will answer it.
    Begun,
    /// This future has the answer, as in [`crate::Answer::Later`].
    Later(Pin<Box<dyn Future<Output = LateReply> + Send>>),
    /// Nothing was done: [`crate::Handler::handle`] is asked.
    No,
}

/// One reactor's part of a handler, on its thread alone.
pub trait Companion: Send {
    /// A READ, before the handler is asked. Must not block.
    fn read(&mut self, asked: Asked, out: &mut Outgoing<'_>) -> Taken;

    /// Readable whenever [`Companion::turn`] has something to do. Asked for once.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Goes on with what was begun. Must not block.
    fn turn(&mut self, out: &mut Outgoing<'_>) {
        let _ = out;
    }
}

/// A reactor's way back to the kernel. Each request is answered once.
pub struct Outgoing<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) peer: &'a Peer,
    pub(crate) channel: &'a mut Channel,
    pub(crate) reply: &'a mut ReplyBuffer,
    pub(crate) pipes: &'a mut Pipes,
    pub(crate) sent: Sent,
}

/// What went out.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    /// How the last answer went.
    pub(crate) written: Written,
    /// Requests that were answered, or handed on.
    pub(crate) answered: usize,
}

impl Default for Sent {
    fn default() -> Self {
        Self { written: Written::Taken, answered: 0 }
    }
}

impl Outgoing<'_> {
    /// Memory for an answer of `len` bytes, the same for every answer.
    pub fn memory(&mut self, len: usize) -> &mut [u8] {
        self.reply.data_mut(len)
    }

    /// Answers with the first `len` bytes of the memory.
    pub fn send_memory(&mut self, unique: u64, len: usize) {
        self.reply.set_len(len);
        // Before: who has the answer may ask for the counts.
        add(&self.peer.counters.copied);
        let written = self.channel.answer(self.peer, unique, 0, self.reply);
        self.note(written);
    }

    /// Answers a request that was begun with bytes from elsewhere.
    pub fn send(&mut self, unique: u64, bytes: &[u8]) {
        let body = Some(bytes).into_iter().filter(|body| !body.is_empty());
        add(&self.peer.counters.copied);
        let written = self.channel.send(self.peer, unique, 0, body);
        self.note(written);
    }

    /// Answers with an error.
    pub fn fail(&mut self, unique: u64, error: Errno) {
        let written = self.channel.answer(self.peer, unique, error.0, self.reply);
        self.note(written);
    }

    /// A pipe that has the header of an answer of `len` bytes, which are to be put behind it; `None` when they are to be copied.
    pub fn pipe(&mut self, unique: u64, len: usize) -> Option<Pipe> {
        self.channel.device()?;
        self.pipes.begin(unique, len, &self.peer.counters)
    }

    /// Answers with what is in a pipe from [`Outgoing::pipe`]. False when the kernel did not take it, and the request is still open.
    pub fn send_pipe(&mut self, pipe: Pipe) -> bool {
        let Some(device) = self.channel.device() else { return false };
        let written = self.pipes.send(device, pipe, &self.peer.counters);
        self.spliced(written)
    }

    /// Has `future` find the answer to a request that was begun.
    pub fn later(&mut self, unique: u64, future: Pin<Box<dyn Future<Output = LateReply> + Send>>) {
        add(&self.peer.counters.later);
        later::begin(self.shared, self.peer, unique, future, false);
        self.note(Written::Taken);
    }

    /// Notes how an answer by way of a pipe went; false when there was none.
    fn spliced(&mut self, written: Option<Written>) -> bool {
        let Some(written) = written else { return false };
        if written == Written::Unwanted {
            add(&self.peer.counters.replies_lost);
        }
        self.note(written);
        true
    }

    fn note(&mut self, written: Written) {
        self.sent = Sent { written, answered: self.sent.answered + 1 };
    }

    /// Whether answers of `len` bytes are wanted as regions.
    pub fn wants_regions(&self, len: usize) -> bool {
        self.channel.device().is_some() && self.pipes.wants(len)
    }

    /// Answers with regions of files, by reference. False when they have to be copied; then nothing was sent.
    pub fn send_regions(&mut self, unique: u64, regions: &[Region<'_>]) -> bool {
        let Some(device) = self.channel.device() else { return false };
        let written = self.pipes.reply(device, unique, regions, &self.peer.counters);
        self.spliced(written)
    }
}
