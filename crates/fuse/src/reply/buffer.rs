//! The reactor's own reply memory.

use super::{DirBuffer, DirPlusBuffer, Reply};
use crate::memory::{PAGE, PageBuffer};

/// Bytes that a [`ReplyBuffer`] holds: the largest READ (1 MiB) and a page for what goes around it.
pub const REPLY_CAPACITY: usize = (1 << 20) + PAGE;

/// Where a handler puts the body of an answer that it has at once. One per reactor, used again for every request: the
/// memory is page-aligned, and what stood there before is still there.
pub struct ReplyBuffer {
    memory: PageBuffer,
    /// Where the body begins.
    start: usize,
    len: usize,
}

impl Default for ReplyBuffer {
    fn default() -> Self {
        Self::behind(0)
    }
}

impl ReplyBuffer {
    /// With `start` bytes before the body that are no part of it.
    pub(crate) fn behind(start: usize) -> Self {
        Self { memory: PageBuffer::new(start + REPLY_CAPACITY), start, len: 0 }
    }

    /// All of the memory, also what is before the body.
    pub(crate) fn memory_mut(&mut self) -> &mut PageBuffer {
        &mut self.memory
    }

    /// The first `len` bytes, to be filled in place; [`Self::set_len`] then says how many count.
    ///
    /// # Panics
    /// When `len` is above [`REPLY_CAPACITY`]; no size in a request is.
    pub fn data_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory.bytes_mut()[self.start..][..len]
    }

    /// The body is the first `len` bytes.
    ///
    /// # Panics
    /// When `len` is above [`REPLY_CAPACITY`].
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= REPLY_CAPACITY, "a reply of {len} bytes");
        self.len = len;
    }

    /// Packs entries for a READDIR of `size` bytes; they are the body without a further call.
    pub fn directory(&mut self, size: u32) -> DirBuffer<'_> {
        let size = (size as usize).min(REPLY_CAPACITY);
        self.len = 0;
        DirBuffer::counted(&mut self.memory.bytes_mut()[self.start..][..size], &mut self.len)
    }

    /// Packs entries for a READDIRPLUS of `size` bytes; they are the body without a further call.
    pub fn directory_plus(&mut self, size: u32) -> DirPlusBuffer<'_> {
        DirPlusBuffer(self.directory(size))
    }

    /// The body so far.
    pub fn body(&self) -> &[u8] {
        &self.memory.bytes()[self.start..][..self.len]
    }

    /// Empty again, for the next request.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

impl Reply for ReplyBuffer {
    fn put(&mut self, bytes: &[u8]) {
        let at = self.start + self.len;
        self.memory.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}
