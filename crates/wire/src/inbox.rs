//! Bytes on their way in, until they are a frame.

use crate::{ConnectionError, Header, Records, header::HEADER_BYTES};
use bytes::{Buf, Bytes, BytesMut};

/// Room for one read, in bytes: a few hundred small frames, or the start of a large one.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// With less room than this a read is not worth its system call.
const READ_BYTES_MIN: usize = 4 << 10;
/// Bodies up to this size are copied, so that the buffer is free for the next read and a small body does not keep a large
/// buffer alive.
const COPY_BYTES_MAX: usize = 4 << 10;

/// At most one incomplete frame, and behind it nothing.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) buffer: BytesMut,
    /// Of the frame whose body is awaited.
    header: Option<Header>,
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

    /// The header of the next frame, once it is there; `None` while its body is awaited.
    pub(crate) fn next_header(&mut self, records: &mut dyn Records) -> Result<Option<Header>, ConnectionError> {
        let tag_bytes = records.tag_bytes();
        if self.header.is_some() || self.buffer.len() < HEADER_BYTES + tag_bytes {
            return Ok(None);
        }
        let (record, rest) = self.buffer.split_at_mut(HEADER_BYTES);
        records.open(record, &rest[..tag_bytes])?;
        let header = Header::parse(self.buffer[..HEADER_BYTES].try_into().expect("its length"))?;
        self.buffer.advance(HEADER_BYTES + tag_bytes);
        self.header = Some(header);
        Ok(Some(header))
    }

    /// The frame whose header was taken, once its body is there.
    pub(crate) fn next_frame(&mut self, records: &mut dyn Records) -> Result<Option<(Header, Bytes)>, ConnectionError> {
        let Some(header) = self.header else { return Ok(None) };
        let length = header.length as usize;
        if length == 0 {
            self.header = None;
            return Ok(Some((header, Bytes::new())));
        }
        let tag_bytes = records.tag_bytes();
        if self.buffer.len() < length + tag_bytes {
            return Ok(None);
        }
        let (record, rest) = self.buffer.split_at_mut(length);
        records.open(record, &rest[..tag_bytes])?;
        let body = if length <= COPY_BYTES_MAX {
            let body = Bytes::copy_from_slice(&self.buffer[..length]);
            self.buffer.advance(length + tag_bytes);
            body
        } else {
            let body = self.buffer.split_to(length).freeze();
            self.buffer.advance(tag_bytes);
            body
        };
        self.header = None;
        Ok(Some((header, body)))
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
