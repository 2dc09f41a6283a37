//! Bytes on their way in, until they are a frame.

use crate::{Header, header::HEADER_BYTES};
use bytes::BytesMut;

/// Room for one read, in bytes: a few hundred small frames, or the start of a large one.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// With less room than this a read is not worth its system call.
const READ_BYTES_MIN: usize = 4 << 10;

/// At most one incomplete frame, and behind it nothing.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) buffer: BytesMut,
    /// Of the frame whose body is awaited.
    pub(crate) header: Option<Header>,
}

impl Inbox {
    /// The buffer, with room for what is awaited.
    pub(crate) fn room(&mut self, tag_bytes: usize) -> &mut BytesMut {
        let awaited = self.header.map_or(0, |header| header.length as usize + tag_bytes);
        let missing = awaited.saturating_sub(self.buffer.len());
        let spare = self.buffer.capacity() - self.buffer.len();
        if missing > spare {
            self.buffer.reserve(missing);
        } else if missing == 0 && spare < READ_BYTES_MIN {
            self.buffer.reserve(READ_BYTES);
        }
        &mut self.buffer
    }

    /// Bytes to the end of what is awaited, a header or a body; at least 1.
    pub(crate) fn missing(&self, tag_bytes: usize) -> usize {
        let awaited = self.header.map_or(HEADER_BYTES, |header| header.length as usize);
        (awaited + tag_bytes).saturating_sub(self.buffer.len()).max(1)
    }

    /// Whether the body of a frame is awaited, or the rest of it.
    pub(crate) fn awaits_body(&self) -> bool {
        self.header.is_some()
    }

    /// The header whose body is awaited and of which no byte has come.
    pub(crate) fn awaited(&self) -> Option<Header> {
        self.header.filter(|_| self.buffer.is_empty())
    }

    /// Takes [`Self::awaited`]: its body came another way.
    pub(crate) fn take_awaited(&mut self) -> Option<Header> {
        let header = self.awaited()?;
        self.header = None;
        Some(header)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
