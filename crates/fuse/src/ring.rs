//! FUSE over io_uring (Linux 6.14; Documentation/filesystems/fuse/fuse-io-uring.rst): requests come in entries of a ring, and an entry
//! that is committed with its answer fetches the next request. No read, no write, and one system call for as many of both as there are.
//!
//! The kernel has one queue for each possible core, into which programs that run there put their requests, and uses the ring only
//! once every queue has an entry. A [`Ring`] has entries of one or several queues, or a share of one. INTERRUPT and FORGET, and
//! whatever was asked before all rings were ready, come over /dev/fuse: a session with rings has one reactor for those.
//!
//! An entry's payload is both a request's data and the answer. A request with no payload (READ, READDIR, GETATTR) is copied out, which is
//! less than 200 bytes, and the reactor's reply buffer is exchanged for the entry's: the answer is built where the kernel takes it from. A
//! request with one (WRITE, names) is parsed where it stands, and its short answer copied in.

use crate::abi::uring::{ENT_IN_OUT, EntInOut, OP_IN, OP_IN_BYTES};
use crate::abi::{InHeader, OutHeader};
use crate::device::Device;
use crate::later::Inbox;
use crate::memory::{PAGE, PageBuffer};
use crate::reply::{REPLY_CAPACITY, ReplyBuffer};
use crate::uring::{Commands, ENTRY_BYTES};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno as Raw;
use sluice_base::Errno;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::{fs, io};
use zerocopy::{FromBytes, IntoBytes};

/// Entries of each core's queue, unless a setting says otherwise: as many requests as one core's programs may have under way. 32 keep
/// a store busy that takes 100 ms for each of them; their payloads are 33 MiB of address space, resident as far as they were used.
pub(crate) const DEPTH: u16 = 32;

/// Answers of so many bytes are handed to the kernel before the next request is looked at: who waits for them would wait for that too.
const UNSUBMITTED_MAX: usize = 64 << 10;

/// How FUSE over io_uring is set up.
#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// Requests of one core's programs under way at once, at least 1; each has some 1 MiB of address space, see
    /// [`RingOptions::entry_bytes`]. Further ones wait in the kernel.
    pub depth: u16,
    /// Threads that have a ring; `None` is one for each core up to 16.
    pub threads: Option<usize>,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self { depth: DEPTH, threads: None }
    }
}

impl RingOptions {
    /// Bytes of address space of each entry, of which what was used once is resident.
    pub fn entry_bytes() -> usize {
        ENTRY_BYTES
    }
}

/// What a reactor gets from its ring.
pub(crate) enum Fetched {
    /// A request: its place in the reactor's request buffer.
    Request(Range<usize>),
    /// A request that cannot be understood; it has its answer.
    Malformed,
    /// Nothing at the moment.
    Nothing,
    /// No entry is left: the mount is gone.
    Over,
}

/// An entry that has a request.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// The request's number, 0 when there is none.
    unique: u64,
    commit_id: u64,
    /// It waits for what may never come.
    is_patient: bool,
}

/// The request that the reactor is at.
struct Current {
    key: usize,
    /// Its memory is in the place of the reply buffer's, not of the request buffer's.
    is_reply: bool,
    /// The error to answer with, or 0 for what the reply buffer has.
    answered: Option<i32>,
}

/// A descriptor that is waited for beside the entries.
#[derive(Default)]
struct Poll {
    is_under_way: bool,
    is_ready: bool,
}

/// One reactor's entries.
pub(crate) struct Ring {
    commands: Commands,
    entries: Vec<Entry>,
    /// Entries that the kernel has not given up.
    alive: usize,
    /// Requests that came before anybody asked.
    early: VecDeque<(usize, i32)>,
    current: Option<Current>,
    inbox: Poll,
    companion: Poll,
    unsubmitted_bytes: usize,
}

impl Ring {
    /// On the thread that will use it; fails when the kernel refuses an entry.
    pub(crate) fn start(mut commands: Commands, device: Arc<Device>) -> io::Result<Self> {
        commands.start(device)?;
        let mut early = VecDeque::new();
        while let Some((key, result)) = commands.next() {
            if result < 0 {
                return Err(io::Error::from_raw_os_error(-result));
            }
            early.push_back((key, result));
        }
        let alive = commands.entries();
        Ok(Self {
            commands,
            entries: vec![Entry::default(); alive],
            alive,
            early,
            current: None,
            inbox: Poll::default(),
            companion: Poll::default(),
            unsubmitted_bytes: 0,
        })
    }

    /// The next request. Its bytes are in `requests`, at `at` if they had to be copied, until [`Ring::settle`].
    pub(crate) fn next(&mut self, requests: &mut PageBuffer, at: usize, reply: &mut ReplyBuffer) -> Fetched {
        while let Some((key, result)) = self.early.pop_front().or_else(|| self.commands.next()) {
            if key >= self.entries.len() {
                let poll = if key == self.entries.len() { &mut self.inbox } else { &mut self.companion };
                *poll = Poll { is_under_way: false, is_ready: true };
            } else if result < 0 {
                self.alive -= 1;
                match Raw::from_raw_os_error(-result) {
                    // What an unmount leaves behind.
                    Raw::NOTCONN | Raw::CONNABORTED | Raw::CANCELED => {}
                    error => tracing::error!(%error, "the kernel gave an entry of a FUSE ring up"),
                }
            } else {
                return self.take(key, requests, at, reply);
            }
        }
        if self.alive == 0 { Fetched::Over } else { Fetched::Nothing }
    }

    fn take(&mut self, key: usize, requests: &mut PageBuffer, at: usize, reply: &mut ReplyBuffer) -> Fetched {
        const HEAD: usize = size_of::<InHeader>();
        let memory = self.commands.memory(key);
        let bytes = memory.memory_mut().bytes_mut();
        let header = InHeader::read_from_prefix(bytes).map(|(header, _)| header).unwrap_or_default();
        let entry = EntInOut::read_from_prefix(&bytes[ENT_IN_OUT..]).map(|(entry, _)| entry).unwrap_or_default();
        self.entries[key] = Entry { unique: header.unique, commit_id: entry.commit_id, is_patient: false };
        let payload = entry.payload_size as usize;
        let op_in = (header.len as usize).checked_sub(HEAD + payload);
        let Some(op_in) = op_in.filter(|op_in| *op_in <= OP_IN_BYTES && payload <= REPLY_CAPACITY) else {
            tracing::error!(len = header.len, payload, "a request of a FUSE ring whose lengths do not fit");
            self.commit(key, Errno::EIO.0, 0);
            return Fetched::Malformed;
        };
        let is_reply = payload == 0;
        self.current = Some(Current { key, is_reply, answered: None });
        if is_reply {
            let (head, rest) = requests.bytes_mut()[at..][..HEAD + op_in].split_at_mut(HEAD);
            head.copy_from_slice(&bytes[..HEAD]);
            rest.copy_from_slice(&bytes[OP_IN..][..op_in]);
            std::mem::swap(reply, memory);
            return Fetched::Request(at..at + HEAD + op_in);
        }
        // All of it in one piece, as a read of the device has it. The header's page has room between what stands there and the payload.
        let start = PAGE - op_in - HEAD;
        bytes.copy_within(OP_IN..OP_IN + op_in, PAGE - op_in);
        bytes.copy_within(..HEAD, start);
        std::mem::swap(requests, memory.memory_mut());
        Fetched::Request(start..PAGE + payload)
    }

    /// Ends the turn over a request: its memory goes back, and its answer on its way, if there is one already.
    pub(crate) fn settle(&mut self, requests: &mut PageBuffer, reply: &mut ReplyBuffer) {
        let Some(Current { key, is_reply, answered }) = self.current.take() else { return };
        let memory = self.commands.memory(key);
        if is_reply {
            std::mem::swap(reply, memory);
        } else {
            std::mem::swap(requests, memory.memory_mut());
        }
        match answered {
            Some(0) if is_reply => {
                let len = memory.body().len();
                self.commit(key, 0, len);
            }
            Some(0) => {
                let body = reply.body();
                memory.data_mut(body.len()).copy_from_slice(body);
                self.commit(key, 0, body.len());
            }
            Some(error) => self.commit(key, error, 0),
            None => {}
        }
    }

    /// Whether the reactor is at `unique`.
    pub(crate) fn is_current(&self, unique: u64) -> bool {
        self.current.as_ref().is_some_and(|current| self.entries[current.key].unique == unique)
    }

    /// Answers the request that the reactor is at with `error`, or if that is 0 with what the reply buffer has.
    pub(crate) fn answer_current(&mut self, error: i32) {
        if let Some(current) = &mut self.current {
            current.answered.get_or_insert(error);
        }
    }

    /// Answers another one with `error`, or if that is 0 with `pieces`; false when it has its answer.
    pub(crate) fn answer<'a>(&mut self, unique: u64, error: i32, pieces: impl Iterator<Item = &'a [u8]>) -> bool {
        let Some(key) = self.entries.iter().position(|entry| entry.unique == unique) else { return false };
        let (mut len, mut error) = (0, error);
        let memory = self.commands.memory(key).data_mut(REPLY_CAPACITY);
        for piece in pieces.filter(|_| error == 0) {
            match memory.get_mut(len..len + piece.len()) {
                Some(place) => place.copy_from_slice(piece),
                None => {
                    error = Errno::EIO.0;
                    break;
                }
            }
            len += piece.len();
        }
        self.commit(key, error, if error == 0 { len } else { 0 });
        true
    }

    /// Whether the request that the reactor is at may keep its entry for as long as it likes. At most half of a queue's may: what they
    /// wait for has to come through the same queue, perhaps.
    pub(crate) fn may_be_patient(&mut self) -> bool {
        let Some(Current { key, .. }) = self.current else { return true };
        let qid = self.commands.qid(key);
        let of_queue = || (0..self.entries.len()).filter(|key| self.commands.qid(*key) == qid);
        let patient = of_queue().filter(|key| self.entries[*key].is_patient).count();
        let may = patient < of_queue().count() / 2;
        self.entries[key].is_patient = may;
        may
    }

    /// Waits until there is a request, something in `inbox`, or `companion` is readable.
    pub(crate) fn wait(&mut self, inbox: &Inbox, companion: Option<BorrowedFd<'_>>) -> Result<(), Raw> {
        let key = self.entries.len();
        if !std::mem::replace(&mut self.inbox.is_under_way, true) {
            self.commands.poll(key, inbox.event.as_fd());
        }
        if let Some(descriptor) = companion
            && !std::mem::replace(&mut self.companion.is_under_way, true)
        {
            self.commands.poll(key + 1, descriptor);
        }
        if !inbox.fall_asleep() {
            return self.flush();
        }
        let waited = self.submit(1);
        inbox.awake();
        waited
    }

    /// Whether the inbox's event was raised since this was asked.
    pub(crate) fn take_inbox(&mut self) -> bool {
        std::mem::take(&mut self.inbox.is_ready)
    }

    /// Whether the companion's descriptor was readable since this was asked.
    pub(crate) fn take_companion(&mut self) -> bool {
        std::mem::take(&mut self.companion.is_ready)
    }

    /// Sends the answers that are on their way.
    pub(crate) fn flush(&mut self) -> Result<(), Raw> {
        if self.commands.has_unsubmitted() { self.submit(0) } else { Ok(()) }
    }

    fn submit(&mut self, wanted: usize) -> Result<(), Raw> {
        self.unsubmitted_bytes = 0;
        match self.commands.submit(wanted) {
            // There are completions to be taken first.
            Err(Raw::INTR | Raw::AGAIN | Raw::BUSY) => Ok(()),
            other => other,
        }
    }

    fn commit(&mut self, key: usize, error: i32, len: usize) {
        let Entry { unique, commit_id, .. } = std::mem::take(&mut self.entries[key]);
        let bytes = self.commands.memory(key).memory_mut().bytes_mut();
        let header = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error: -error, unique };
        bytes[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        let entry = EntInOut { commit_id, payload_size: len as u32, ..EntInOut::default() };
        bytes[ENT_IN_OUT..][..size_of::<EntInOut>()].copy_from_slice(entry.as_bytes());
        self.commands.commit(key, commit_id);
        self.unsubmitted_bytes += len;
        if self.unsubmitted_bytes >= UNSUBMITTED_MAX {
            // What fails now fails again when there is nothing to do but wait, which is told.
            let _ = self.flush();
        }
    }
}

/// Rings for the threads of `options`; nothing is asked of a mount yet.
pub(crate) fn prepare(options: RingOptions) -> io::Result<Vec<Commands>> {
    let queues = possible_cores()?;
    let reactors = options.threads.unwrap_or(usize::from(queues).min(REACTORS_MAX)).max(1);
    shares(queues, reactors, options.depth.max(1)).into_iter().map(|qids| Commands::new(qids.into_iter())).collect()
}

/// Threads that serve rings, unless a setting says otherwise.
const REACTORS_MAX: usize = 16;

/// For each reactor, the queue of each of its entries. `depth` entries of each queue in all, or one for each reactor that it has.
fn shares(queues: u16, reactors: usize, depth: u16) -> Vec<Vec<u16>> {
    let count = usize::from(queues);
    (0..reactors)
        .map(|reactor| {
            if reactors <= count {
                let own = (0..queues).skip(reactor).step_by(reactors);
                return own.flat_map(|qid| std::iter::repeat_n(qid, usize::from(depth))).collect();
            }
            let (qid, rank) = (reactor % count, reactor / count);
            let sharing = (reactors - qid).div_ceil(count);
            let share = (usize::from(depth) + sharing - 1 - rank) / sharing;
            vec![qid as u16; share.max(1)]
        })
        .collect()
}

/// How many queues the kernel has: one for each core that there may ever be.
fn possible_cores() -> io::Result<u16> {
    let path = "/sys/devices/system/cpu/possible";
    let text = fs::read_to_string(path)?;
    count_cores(text.trim()).ok_or_else(|| io::Error::other(format!("{path} has `{}`", text.trim())))
}

/// Of a list such as `0-3,8`.
fn count_cores(list: &str) -> Option<u16> {
    let mut count = 0u16;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Why the kernel did not offer FUSE over io_uring, and what to do.
pub(crate) fn why_not_offered() -> &'static str {
    match fs::read_to_string("/sys/module/fuse/parameters/enable_uring") {
        Ok(_) => {
            "it is turned off; as root: echo Y > /sys/module/fuse/parameters/enable_uring, then mount again \
             (for good: fuse.enable_uring=1 on the kernel's command line)"
        }
        Err(_) => "this kernel does not have it (Linux 6.14, built with CONFIG_FUSE_IO_URING)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_its_entries() {
        assert_eq!(shares(2, 2, 3), [[0, 0, 0], [1, 1, 1]]);
        assert_eq!(shares(3, 2, 1), [vec![0, 2], vec![1]]);
        assert_eq!(shares(2, 5, 4), [vec![0, 0], vec![1, 1], vec![0], vec![1, 1], vec![0]]);
        assert_eq!(shares(1, 3, 1), [[0], [0], [0]], "no reactor without one");
    }

    #[test]
    fn lists_of_cores() {
        assert_eq!(["0", "0-1", "0-3,8", "0-3,8-9"].map(count_cores), [Some(1), Some(2), Some(5), Some(6)]);
        assert_eq!(["", "a", "3-1", "0-99999"].map(count_cores), [None; 4]);
    }
}
