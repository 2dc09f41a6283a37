//! The reactor's own reply memory.

use super::{DirBuffer, DirPlusBuffer, Reply};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes that a [`ReplyBuffer`] holds: the largest READ (1 MiB) and a page for what goes around it.
pub const REPLY_CAPACITY: usize = (1 << 20) + PAGE;

const PAGE: usize = 4096;

/// One page, so that vectors of it start on a page.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Page-aligned, zeroed memory.
pub(crate) struct PageBuffer(Vec<Page>);

impl PageBuffer {
    /// At least `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        let pages = (0..len.div_ceil(PAGE)).map(|_| Page([0; PAGE])).collect();
        Self(pages)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_slice().as_mut_bytes()
    }
}

/// Where a handler puts the body of an answer that it has at once. One per reactor, used again for every request: the
/// memory is page-aligned, and what stood there before is still there.
pub struct ReplyBuffer {
    memory: PageBuffer,
    len: usize,
}

impl Default for ReplyBuffer {
    fn default() -> Self {
        Self { memory: PageBuffer::new(REPLY_CAPACITY), len: 0 }
    }
}

impl ReplyBuffer {
    /// The first `len` bytes, to be filled in place; [`Self::set_len`] then says how many count.
    ///
    /// # Panics
    /// When `len` is above [`REPLY_CAPACITY`]; no size in a request is.
    pub fn data_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory.bytes_mut()[..len]
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
        DirBuffer::counted(&mut self.memory.bytes_mut()[..size], &mut self.len)
    }

    /// Packs entries for a READDIRPLUS of `size` bytes; they are the body without a further call.
    pub fn directory_plus(&mut self, size: u32) -> DirPlusBuffer<'_> {
        DirPlusBuffer(self.directory(size))
    }

    /// The body so far.
    pub fn body(&self) -> &[u8] {
        &self.memory.bytes()[..self.len]
    }

    /// Empty again, for the next request.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

impl Reply for ReplyBuffer {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.memory.bytes_mut()[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }
}
