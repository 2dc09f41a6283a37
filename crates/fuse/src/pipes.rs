//! Replies whose bytes the kernel takes by reference: header and regions of files go into one pipe, and one splice of all of it is the
//! reply.
//!
//! A pipe that was not emptied by its reply is destroyed, whatever went wrong: what is left in it would become the beginning of another
//! reply. Until the last splice nothing has reached the kernel, so whoever assembled the reply may still send a copy.

use crate::abi::OutHeader;
use crate::counters::{Counters, add};
use crate::device::{Device, Written};
use rustix::fd::AsFd;
use rustix::io::Errno;
use sluice_base::pipe::{Pipe, SLOT_BYTES};
use sluice_vfs::direct::Region;
use std::io;
use std::sync::Once;
use std::sync::atomic::Ordering::Relaxed;
use zerocopy::IntoBytes;

/// How the bytes of a READ go to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transfer {
    /// Spliced where that was found to be the faster one: from [`Transfer::SPLICE_MIN`] on.
    #[default]
    Auto,
    /// Spliced whatever their number, where they may go unchecked.
    Splice,
    /// Copied.
    Copy,
}

impl Transfer {
    /// Smaller replies are quicker copied than taken through a pipe: two more system calls cost as much as copying so many bytes.
    pub const SPLICE_MIN: usize = 32 << 10;
}

/// Slots that a pipe is meant to have: a reply of 1 MiB takes one for its header and 256 for its pages, 257 where it does not begin
/// with one.
pub(crate) const SLOTS: usize = 512;
/// Pipes that are kept when they are not in use.
const IDLE_MAX: usize = 4;
/// So many failures one behind the other, and a reactor tries no more: what serves as slab or device cannot be spliced.
const FAILURES_MAX: u32 = 8;

/// A reactor's pipes.
pub(crate) struct Pipes {
    transfer: Transfer,
    slots: usize,
    idle: Vec<Pipe>,
    failures: u32,
}

impl Pipes {
    /// Of at most `slots` slots each.
    pub(crate) fn new(transfer: Transfer, slots: usize) -> Self {
        Self { transfer, slots, idle: Vec::with_capacity(IDLE_MAX), failures: 0 }
    }

    /// Answers `unique` with `regions`; `None` when they have to be copied, and the kernel has nothing yet.
    pub(crate) fn reply(
        &mut self,
        device: &Device,
        unique: u64,
        regions: &[Region<'_>],
        counters: &Counters,
    ) -> Option<Written> {
        let len: usize = regions.iter().map(|region| region.len).sum();
        if !self.wants(len) {
            return None;
        }
        let pages = |region: &Region<'_>| (region.offset as usize % SLOT_BYTES + region.len).div_ceil(SLOT_BYTES);
        let mut pipe = self.take(1 + regions.iter().map(pages).sum::<usize>(), counters)?;
        let assembled = put_header(&mut pipe, unique, len)
            .and_then(|()| regions.iter().try_for_each(|r| pipe.fill_from_file(r.file, r.offset, r.len)));
        match assembled {
            Ok(()) => self.send(device, pipe, counters),
            Err(error) => {
                self.failed("filling a pipe", &error, counters);
                None
            }
        }
    }

    /// A pipe with the header of a reply of `len` bytes, which come from elsewhere in pieces of which nobody knows how many slots
    /// they take.
    pub(crate) fn begin(&mut self, unique: u64, len: usize, counters: &Counters) -> Option<Pipe> {
        if !self.wants(len) {
            return None;
        }
        let mut pipe = self.take(1 + len.div_ceil(SLOT_BYTES), counters)?;
        match put_header(&mut pipe, unique, len) {
            Ok(()) => Some(pipe),
            Err(error) => {
                self.failed("filling a pipe", &error, counters);
                None
            }
        }
    }

    /// Whether replies of `len` bytes go through pipes.
    pub(crate) fn wants(&self, len: usize) -> bool {
        match self.transfer {
            Transfer::Auto => len >= Transfer::SPLICE_MIN,
            Transfer::Splice => true,
            Transfer::Copy => false,
        }
    }

    /// An empty pipe with at least `slots` slots.
    fn take(&mut self, slots: usize, counters: &Counters) -> Option<Pipe> {
        let pipe = match self.idle.pop() {
            Some(pipe) => pipe,
            None => match Pipe::new(self.slots) {
                Ok(pipe) => pipe,
                Err(error) => {
                    self.failed("making a pipe", &error, counters);
                    return None;
                }
            },
        };
        if pipe.slots() >= slots {
            return Some(pipe);
        }
        add(&counters.pipes_too_small);
        if pipe.slots() < self.slots {
            static TOLD: Once = Once::new();
            let (has, needs) = (pipe.slots(), (slots * SLOT_BYTES).next_power_of_two());
            TOLD.call_once(|| {
                tracing::warn!("large replies are copied: pipes have {has} slots; `sysctl fs.pipe-max-size={needs}` lets them be spliced");
            });
        }
        self.give(pipe);
        None
    }

    /// Keeps a pipe, if it is empty.
    fn give(&mut self, pipe: Pipe) {
        if pipe.held() == 0 && self.idle.len() < IDLE_MAX {
            self.idle.push(pipe);
        }
    }

    /// Sends the reply that is in `pipe`; `None` when the kernel did not take it, and the request is still open.
    pub(crate) fn send(&mut self, device: &Device, mut pipe: Pipe, counters: &Counters) -> Option<Written> {
        let len = pipe.held();
        // Before: who has the answer may ask for the counts.
        add(&counters.spliced);
        match pipe.pour(device.as_fd()) {
            // The kernel takes a reply whole or not at all; a pipe that keeps some of it is not used again.
            Ok(sent) => {
                debug_assert_eq!(sent, len);
                self.failures = 0;
                self.give(pipe);
                Some(Written::Taken)
            }
            Err(Errno::NOENT) => Some(Written::Unwanted),
            Err(Errno::NODEV | Errno::CONNABORTED) => Some(Written::Gone),
            Err(error) => {
                counters.spliced.fetch_sub(1, Relaxed);
                self.failed("splicing to /dev/fuse", &error.into(), counters);
                None
            }
        }
    }

    fn failed(&mut self, what: &str, error: &io::Error, counters: &Counters) {
        add(&counters.splice_failures);
        self.failures += 1;
        tracing::debug!(what, %error, "a reply is copied instead of spliced");
        if self.failures == FAILURES_MAX {
            tracing::warn!(what, %error, "replies are copied from now on: splicing them failed {FAILURES_MAX} times");
            self.transfer = Transfer::Copy;
        }
    }
}

fn put_header(pipe: &mut Pipe, unique: u64, len: usize) -> io::Result<()> {
    let len = (size_of::<OutHeader>() + len) as u32;
    pipe.put(OutHeader { len, error: 0, unique }.as_bytes())
}
