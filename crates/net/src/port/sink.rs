//! Where an answer goes.

use rustix::fd::BorrowedFd;

/// The place of an answer. It comes back with the answer, so one can be used again and again.
pub trait Sink {
    /// Where a body of `len` bytes goes; `None` if it is not wanted so. Called before each read, with the same `len`.
    fn place(&mut self, len: usize) -> Option<Place<'_>>;

    /// The first `filled` bytes are in the memory: whoever has to look at them finds them in the processor's cache now.
    fn filled(&mut self, filled: usize) {
        let _ = filled;
    }

    /// The pipe takes no more after `filled` bytes. If they are in the memory that [`Self::place`] gives from now on, `true`; else the
    /// answer is given up.
    fn pipe_is_full(&mut self, filled: usize) -> bool {
        let _ = filled;
        false
    }
}

/// A place for bytes.
pub enum Place<'a> {
    /// Exactly as many bytes as the body has.
    Memory(&'a mut [u8]),
    /// The write end of a pipe that does not block.
    Pipe(BorrowedFd<'a>),
}

impl Sink for Vec<u8> {
    fn place(&mut self, len: usize) -> Option<Place<'_>> {
        self.resize(len, 0);
        Some(Place::Memory(self))
    }
}

impl Sink for sluice_base::Page {
    fn place(&mut self, len: usize) -> Option<Place<'_>> {
        let page = self.as_mut();
        (page.len() == len).then_some(Place::Memory(page))
    }
}
