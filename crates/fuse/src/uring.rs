//! The commands of FUSE over io_uring: an io_uring of one thread, and the memory of the entries that it has registered.
//!
//! Who has an entry's memory is known at every moment. From its command (register, commit) to that command's completion it is the
//! kernel's, and [`Commands::memory`] refuses it; between completion and commit it is ours, and may even be lent out, but for a commit
//! it has to be home again. The kernel writes to it only within [`Commands::submit`]: the ring is set up so that its work is
//! done on this thread, when it asks for completions (`DEFER_TASKRUN`).

#![allow(unsafe_code)]

use crate::abi::uring::{COMMIT_AND_FETCH, CmdReq, HEADER_BYTES, REGISTER};
use crate::device::Device;
use crate::memory::PAGE;
use crate::reply::{REPLY_CAPACITY, ReplyBuffer};
use io_uring::squeue::{Entry128, PushError};
use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes of address space of an entry: a page for headers, and the payload.
pub(crate) const ENTRY_BYTES: usize = PAGE + REPLY_CAPACITY;

/// Polls that may be under way beside the entries' commands.
pub(crate) const POLLS_MAX: usize = 2;

/// Place of the device among the ring's registered files.
const DEVICE: types::Fixed = types::Fixed(0);

/// `struct iovec`, as io_uring takes it.
#[repr(C)]
struct Vector {
    start: *mut u8,
    len: usize,
}

struct Entry {
    memory: ReplyBuffer,
    /// Of the mapping that the kernel knows.
    address: NonNull<u8>,
    qid: u16,
    is_with_kernel: bool,
}

/// One thread's ring. Keys below the number of entries are those of entries.
pub(crate) struct Commands {
    // Closed before the memory goes.
    io: IoUring<Entry128>,
    entries: Vec<Entry>,
    _device: Option<Arc<Device>>,
}

// SAFETY: the pointers are those of mappings that the value owns. The ring itself asks that one thread alone submits, the one that
// called `start`: `submit` by another one fails with EEXIST.
unsafe impl Send for Commands {}

impl Commands {
    /// A ring for one entry of each of the queues in `qids`, which is off until [`Commands::start`].
    pub(crate) fn new(qids: impl Iterator<Item = u16>) -> io::Result<Self> {
        let entry = |qid| {
            let mut memory = ReplyBuffer::behind(PAGE);
            let address = memory.memory_mut().address();
            Entry { memory, address, qid, is_with_kernel: false }
        };
        let entries: Vec<Entry> = qids.map(entry).collect();
        let size = u32::try_from(entries.len() + POLLS_MAX).map_err(|_| io::ErrorKind::InvalidInput)?;
        let io = IoUring::<Entry128>::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .build(size.next_power_of_two())?;
        Ok(Self { io, entries, _device: None })
    }

    /// How many entries there are.
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// The queue that entry `key` is of.
    pub(crate) fn qid(&self, key: usize) -> u16 {
        self.entries[key].qid
    }

    /// Turns the ring on, for the calling thread alone, and registers every entry with the mount of `device`. An entry that is refused
    /// completes with an error.
    pub(crate) fn start(&mut self, device: Arc<Device>) -> io::Result<()> {
        self.io.submitter().register_enable_rings()?;
        self.io.submitter().register_files(&[device.as_fd().as_raw_fd()])?;
        self._device = Some(device);
        // The kernel reads the vectors while the commands are submitted, and not later.
        let count = self.entries.len();
        let vector = |key| {
            let bytes = self.memory(key).memory_mut().bytes_mut();
            let (head, payload) = bytes.split_at_mut(PAGE);
            [
                Vector { start: head.as_mut_ptr(), len: HEADER_BYTES },
                Vector { start: payload.as_mut_ptr(), len: REPLY_CAPACITY },
            ]
        };
        let vectors: Vec<[Vector; 2]> = (0..count).map(vector).collect();
        for (key, vectors) in vectors.iter().enumerate() {
            let address = vectors.as_ptr() as u64;
            self.command(key, REGISTER, 0, Some((address, 2))).map_err(|_| io::ErrorKind::OutOfMemory)?;
        }
        self.submit(0)?;
        Ok(())
    }

    /// The memory of an entry whose request is ours: a page for headers, then the payload. It may be exchanged for other memory until
    /// the commit.
    ///
    /// # Panics
    /// When the kernel has the entry.
    pub(crate) fn memory(&mut self, key: usize) -> &mut ReplyBuffer {
        let entry = &mut self.entries[key];
        assert!(!entry.is_with_kernel, "the memory of entry {key}, which the kernel has");
        &mut entry.memory
    }

    /// Answers the request `commit_id` of entry `key` with what its memory has, with the next [`Commands::submit`].
    ///
    /// # Panics
    /// When the kernel has the entry, or its memory is not home.
    pub(crate) fn commit(&mut self, key: usize, commit_id: u64) {
        let memory = self.memory(key).memory_mut().address();
        assert_eq!(memory, self.entries[key].address, "the memory of entry {key} is lent out");
        let pushed = self.command(key, COMMIT_AND_FETCH, commit_id, None);
        debug_assert!(pushed.is_ok(), "each entry has one command");
    }

    /// Completes with `key` when `descriptor`, which has to stay open, is readable; with the next [`Commands::submit`].
    pub(crate) fn poll(&mut self, key: usize, descriptor: BorrowedFd<'_>) {
        debug_assert!(key >= self.entries.len());
        let poll = opcode::PollAdd::new(types::Fd(descriptor.as_raw_fd()), POLLIN).build();
        // SAFETY: a poll names no memory.
        let pushed = unsafe { self.io.submission().push(&Entry128::from(poll.user_data(key as u64))) };
        debug_assert!(pushed.is_ok(), "there is room for the polls");
    }

    /// Whether commands wait for [`Commands::submit`].
    pub(crate) fn has_unsubmitted(&mut self) -> bool {
        !self.io.submission().is_empty()
    }

    /// Submits what there is, and waits for `wanted` completions.
    pub(crate) fn submit(&mut self, wanted: usize) -> Result<(), Errno> {
        match self.io.submit_and_wait(wanted) {
            Ok(_) => Ok(()),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }

    /// The next completion: its key, and its result as the kernel has it.
    pub(crate) fn next(&mut self) -> Option<(usize, i32)> {
        let completion = self.io.completion().next()?;
        let key = completion.user_data() as usize;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_with_kernel = false;
        }
        Some((key, completion.result()))
    }

    fn command(
        &mut self,
        key: usize,
        operation: u32,
        commit_id: u64,
        vectors: Option<(u64, u32)>,
    ) -> Result<(), PushError> {
        let entry = &mut self.entries[key];
        let mut command = [0; 80];
        let request = CmdReq { commit_id, qid: entry.qid, ..CmdReq::default() };
        command[..size_of::<CmdReq>()].copy_from_slice(request.as_bytes());
        let built = opcode::UringCmd80::new(DEVICE, operation).cmd(command);
        let mut built = match vectors {
            Some((address, count)) => with_len(built.addr(Some(address)).build(), count),
            None => built.build(),
        };
        built = built.user_data(key as u64);
        // SAFETY: the memory that the command lets the kernel use is the entry's mapping, which is home (a fresh one, or looked at by
        // `commit`), is not handed out by `memory` before the completion, and goes after the ring. The vectors of a registration live
        // until it is submitted, see `start`.
        unsafe { self.io.submission().push(&built) }?;
        entry.is_with_kernel = true;
        Ok(())
    }
}

/// As poll(2) has it, the same number everywhere.
const POLLIN: u32 = 1;

/// `entry` with `len` in its field of that name, which the builder of commands has no word for.
fn with_len(mut entry: Entry128, len: u32) -> Entry128 {
    /// `offsetof(struct io_uring_sqe, len)`, part of the kernel's ABI.
    const LEN: usize = 24;
    const _: () = assert!(size_of::<Entry128>() == 128);
    let field = (&raw mut entry).cast::<u8>().wrapping_add(LEN).cast::<u32>();
    // SAFETY: `Entry128` is `repr(C)` and begins with the kernel's structure, in which a u32 stands at this offset; every value is valid.
    unsafe { field.write_unaligned(len) };
    entry
}
