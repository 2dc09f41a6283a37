//! A connection and its socket, on one thread.

use super::{
    Techniques,
    socket::{Poller, Socket},
    stats::{Shared, add},
};
use rustix::io::Errno;
use sluice_wire::{Connection, Output, Visitor};
use std::{io::IoSlice, time::Duration};

/// Reads of one turn: after this many others have theirs.
const READS_MAX: usize = 8;
/// Who answers takes some sixteen reads at a time: the other end uses their answers while this one makes the next.
const REQUESTS_BYTES: usize = 1600;
/// Bytes written in one turn: after this many others have theirs.
const WRITE_BYTES_MAX: usize = 4 << 20;
/// Pieces of one write.
const SLICES_MAX: usize = 64;
/// Bytes of one sendfile: what a turn may write, so that one call does it.
const SENDFILE_BYTES: usize = WRITE_BYTES_MAX;
/// Bytes that are read and written again at once, where sendfile is not used.
const COPY_BYTES: usize = 256 << 10;
/// With so much gathered it is sent, whether more comes or not.
pub(super) const COALESCE_BYTES: usize = 4 << 10;
/// Small lanes read up to so much at once: 16 answers of the largest kind, and it stays in the L2 cache.
pub(super) const SCRATCH_BYTES: usize = 256 << 10;

pub(super) struct Stream {
    pub(super) socket: Socket,
    pub(super) connection: Connection,
    pub(super) key: u64,
    /// Connecting is under way.
    pub(super) connecting: bool,
    /// The socket took less than it was given.
    blocked: bool,
    /// When it last took something, or had nothing to take.
    pub(super) took_at: Duration,
    interest: (bool, bool),
    low_water: usize,
    stats: Shared,
    techniques: Techniques,
    /// The most of one read, after which what was gathered is sent.
    part: usize,
}

impl Stream {
    pub(super) fn new(
        socket: Socket,
        connection: Connection,
        key: u64,
        connecting: bool,
        (techniques, stats): (Techniques, &Shared),
    ) -> Self {
        add(&stats.connections, 1);
        Self {
            socket,
            connection,
            key,
            connecting,
            blocked: connecting,
            took_at: Duration::ZERO,
            interest: (true, connecting),
            low_water: 1,
            stats: stats.clone(),
            techniques,
            part: if connecting { usize::MAX } else { REQUESTS_BYTES },
        }
    }

    /// What a poller is to watch at first.
    pub(super) fn interest(&self) -> (bool, bool) {
        self.interest
    }

    /// Has the poller watch what matters now.
    pub(super) fn watch(&mut self, poller: &Poller) {
        let interest = (!self.connecting && self.connection.wants_input(), self.blocked);
        if interest != self.interest {
            self.interest = interest;
            poller.change(&self.socket, self.key, interest);
        }
    }

    /// It can be written again.
    pub(super) fn writable(&mut self) {
        self.blocked = false;
        if self.connecting {
            match self.socket.error() {
                Ok(()) => self.connecting = false,
                Err(error) => self.connection.handle_lost(error.to_string()),
            }
        }
    }

    /// Reads what there is and shows it to `visitor`.
    pub(super) fn read(&mut self, now: Duration, scratch: &mut [u8], visitor: &mut dyn Visitor) {
        for _ in 0..READS_MAX {
            if self.connection.is_closed() || !self.connection.wants_input() {
                return;
            }
            let most =
                if self.techniques.batch { scratch.len().min(self.part) } else { self.one_by_one(scratch.len()) };
            let buffer = &mut scratch[..most];
            let Some(came) = self.took(|socket| socket.read(buffer)) else { return };
            // An error is an event too.
            let _ = self.connection.handle_visited(now, &mut scratch[..came], visitor);
            // Not only at the end: the other end is to have something to do.
            if self.part < scratch.len() && self.is_due() {
                self.flush(now, scratch);
            }
            // A short read has emptied the socket; if more has come since, it is readable.
            if came < most && self.techniques.batch {
                return;
            }
        }
    }

    /// Bytes to the end of what is awaited, as a reader without a buffer takes them.
    fn one_by_one(&self, most: usize) -> usize {
        match self.connection.expects_body() {
            Some(header) => most.min(header.length as usize),
            None if self.connection.is_open() => most.min(self.connection.header_bytes_missing().max(1)),
            None => most,
        }
    }

    /// One read by `call`; `None` when there was nothing, or the stream has ended.
    pub(super) fn took(&mut self, mut call: impl FnMut(&Socket) -> Result<usize, Errno>) -> Option<usize> {
        loop {
            add(&self.stats.reads, 1);
            match call(&self.socket) {
                Ok(0) => self.connection.handle_lost("the peer closed the stream"),
                Ok(came) => {
                    add(&self.stats.read_bytes, came);
                    return Some(came);
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                Err(error) => self.connection.handle_lost(error.to_string()),
            }
            return None;
        }
    }

    pub(super) fn stats(&self) -> &Shared {
        &self.stats
    }

    /// Whether what was gathered is to be sent now, before the others have had their say.
    pub(super) fn is_due(&self) -> bool {
        !self.techniques.coalesce || self.connection.output_bytes() >= COALESCE_BYTES
    }

    /// Writes what the socket takes.
    pub(super) fn flush(&mut self, now: Duration, scratch: &mut [u8]) {
        let mut written = 0;
        while !self.blocked && written < WRITE_BYTES_MAX {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let (outcome, asked) = match self.connection.output(&mut slices) {
                Output::Nothing => {
                    self.took_at = now;
                    return;
                }
                Output::Slices { count, more } => {
                    add(&self.stats.writes, 1);
                    let slices = &slices[..count];
                    (self.socket.write(slices, more), slices.iter().map(|slice| slice.len()).sum())
                }
                Output::Region { region, at } => {
                    let left = region.len() - at;
                    match region.file().filter(|_| self.techniques.sendfile) {
                        Some((file, start)) => {
                            let count = left.min(SENDFILE_BYTES);
                            add(&self.stats.sendfiles, 1);
                            // The file is shorter than it should be: what was promised cannot be sent.
                            let sent = self.socket.send_file(file, start + at as u64, count);
                            (if sent == Ok(0) { Err(Errno::IO) } else { sent }, count)
                        }
                        None => {
                            let count = left.min(COPY_BYTES).min(scratch.len());
                            let buffer = &mut scratch[..count];
                            add(&self.stats.writes, 1);
                            let read = region.read_at(at, buffer).map_err(|_| Errno::IO);
                            (read.and_then(|()| self.socket.write(&[IoSlice::new(buffer)], left > count)), count)
                        }
                    }
                }
            };
            match outcome {
                Ok(sent) => {
                    add(&self.stats.sent_bytes, sent);
                    self.connection.handle_sent(now, sent);
                    (written, self.took_at) = (written + sent, now);
                    self.blocked = sent < asked;
                }
                Err(Errno::AGAIN) => self.blocked = true,
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.connection.handle_lost(error.to_string());
                    return;
                }
            }
        }
        // Others have their turn; it is writable at once again.
        self.blocked |= self.connection.output_bytes() > 0;
    }

    /// `left` bytes of a large body are awaited; 0: a header is.
    pub(super) fn awaits(&mut self, left: usize) {
        /// Below this a wake-up for what is there costs less than two changes of the option.
        const WORTH: usize = 128 << 10;
        /// Half of a receive buffer that the kernel gives without asking; the seed of the idea uses the same.
        const MOST: usize = 512 << 10;
        let wanted = if self.techniques.low_water && left >= WORTH { left.min(MOST) } else { 1 };
        if wanted != self.low_water {
            self.low_water = wanted;
            add(&self.stats.low_waters, 1);
            self.socket.set_low_water(wanted);
        }
    }
}
