//! Parts of files that are sent without being read.

use std::{fmt, io, os::fd::BorrowedFd};

/// Bytes of a file, which stay in place as long as this lives.
pub trait Region: Send + Sync + fmt::Debug {
    /// How many.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset` of the region: where the kernel cannot send it from the file by itself.
    fn read_at(&self, offset: usize, buf: &mut [u8]) -> io::Result<()>;

    /// The file, and where in it the region begins; `None` if it can only be read.
    fn file(&self) -> Option<(BorrowedFd<'_>, u64)>;
}
