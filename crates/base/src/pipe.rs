//! Pipes that bytes pass through without a copy into this process: from a file or a socket into the pipe, and out to a descriptor
//! (splice(2)).
//!
//! A pipe has a number of *slots*. Each takes a reference to a part of one page: 16 bytes that were written take a slot like 4096
//! that came from a file, and a socket's fragments may take one each. So a pipe that is large enough in bytes may still be full.
//! Whoever finds bytes in a pipe that he does not want destroys it: what is left must not become the beginning of the next answer.

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
    pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice},
};
use std::io;

/// Bytes of one slot, and how much of a file one refers to at most.
pub const SLOT_BYTES: usize = 4096;
/// What every pipe has (pipe(7)).
const SLOTS_MIN: usize = 16;

/// A pipe of this process alone, both ends non-blocking.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    slots: usize,
    held: usize,
}

impl Pipe {
    /// A pipe with as many slots as the kernel grants, up to `slots`: users may have fs.pipe-max-size bytes, 256 slots unless that was
    /// raised, and less once they have many pipes (pipe(7)).
    pub fn new(slots: usize) -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut wanted = slots.next_power_of_two();
        while wanted > SLOTS_MIN && fcntl_setpipe_size(&writer, wanted * SLOT_BYTES).is_err() {
            wanted /= 2;
        }
        let slots = fcntl_getpipe_size(&writer)? / SLOT_BYTES;
        Ok(Self { reader, writer, slots, held: 0 })
    }

    /// How many slots it has.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes in it.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Puts a copy of all of `bytes` in.
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = rustix::io::write(&self.writer, bytes)?;
        self.held += written;
        if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Puts `len` bytes of `file` from `offset` in, by reference: they are what the file has there when they leave the pipe. Waits for
    /// the disk. After an error some may be in.
    pub fn fill_from_file(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<()> {
        let (mut at, mut left) = (offset, len);
        while left > 0 {
            match splice(file, Some(&mut at), &self.writer, None, left, SpliceFlags::NONBLOCK) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(moved) => {
                    self.held += moved;
                    left -= moved;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Moves what `source` has into the pipe, up to `len` bytes; how many those were, 0 at its end. `WouldBlock` when it has none, or
    /// when no slot is free.
    pub fn fill(&mut self, source: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
        let moved = splice(source, None, &self.writer, None, len, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?;
        self.held += moved;
        Ok(moved)
    }

    /// The end that is filled, for who does that by calls of his own and tells of it with [`Pipe::filled`].
    pub fn writer(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }

    /// `bytes` were put in by way of [`Pipe::writer`].
    pub fn filled(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// Gives all bytes to `target` with one call, as /dev/fuse takes a reply: how many it took.
    pub fn pour(&mut self, target: BorrowedFd<'_>) -> Result<usize, Errno> {
        let moved = splice(&self.reader, None, target, None, self.held, SpliceFlags::empty())?;
        self.held -= moved;
        Ok(moved)
    }

    /// Takes bytes out.
    pub fn take(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let taken = rustix::io::read(&self.reader, buf)?;
        self.held -= taken;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, io::Write};

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn header_and_file_leave_in_their_order() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i >> 3) as u8).collect();
        let file = file(&bytes);
        let mut pipe = Pipe::new(64).unwrap();
        pipe.put(b"header").unwrap();
        pipe.fill_from_file(file.as_fd(), 5000, 70_000).unwrap();
        assert_eq!(pipe.held(), 70_006);
        let target = tempfile::tempfile().unwrap();
        assert_eq!(pipe.pour(target.as_fd()), Ok(70_006));
        let mut found = vec![0; 70_006];
        std::os::unix::fs::FileExt::read_exact_at(&target, &mut found, 0).unwrap();
        assert_eq!((&found[..6], &found[6..]), (&b"header"[..], &bytes[5000..75_000]));
        assert_eq!(pipe.held(), 0);
    }

    #[test]
    fn slots_run_out_before_bytes() {
        let file = file(&[7; 1 << 20]);
        let mut pipe = Pipe::new(16).unwrap();
        assert_eq!(pipe.slots(), 16);
        pipe.put(b"header").unwrap();
        let error = pipe.fill_from_file(file.as_fd(), 0, 16 * SLOT_BYTES).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(pipe.held(), 6 + 15 * SLOT_BYTES, "the rest is to be seen");
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error() {
        let file = file(&[7; 5000]);
        let mut pipe = Pipe::new(16).unwrap();
        let error = pipe.fill_from_file(file.as_fd(), 4096, 1000).unwrap_err();
        assert_eq!((error.kind(), pipe.held()), (io::ErrorKind::UnexpectedEof, 904));
    }

    #[test]
    fn what_the_kernel_refuses_is_asked_for_in_smaller_numbers() {
        // 4 GiB: more than any user may have.
        let pipe = Pipe::new(1 << 20).unwrap();
        assert!((SLOTS_MIN..1 << 20).contains(&pipe.slots()), "{}", pipe.slots());
    }
}
