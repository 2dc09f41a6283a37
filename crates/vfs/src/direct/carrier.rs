//! How an answer leaves.

use sluice_base::Pipe;
use std::os::fd::BorrowedFd;

/// Bytes of a file that the kernel may take by reference.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes.
    pub len: usize,
}

/// Takes the answer of one read to who asked. One of the two that send is called, once with success.
pub trait Carrier {
    /// Memory for `len` bytes of an answer; what is in it are bytes of former ones.
    fn memory(&mut self, len: usize) -> &mut [u8];

    /// Answers with the first `len` bytes of the memory.
    fn send_memory(&mut self, len: usize);

    /// Whether an answer of `len` bytes is wanted as regions.
    fn wants_regions(&self, len: usize) -> bool;

    /// Answers with `regions`, one behind the other, before it returns. False when they cannot go this way: then nothing was sent.
    fn send_regions(&mut self, regions: &[Region<'_>]) -> bool;

    /// A pipe with what goes before an answer of `len` bytes that come from elsewhere; `None` when it is to be copied.
    fn pipe(&mut self, len: usize) -> Option<Pipe>;
}
