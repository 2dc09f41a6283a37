//! Frames on their way out.

use crate::{Header, Payload, Piece, Records, Region, header::HEADER_BYTES};
use bytes::Bytes;
use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::Arc,
};

/// Pieces up to this size are copied behind each other: cheaper than a reference count and an entry of writev's list each.
const COPY_BYTES_MAX: usize = 4 << 10;
/// Small bytes that have gone are forgotten when they are so many, if others are still to go.
const GONE_BYTES_MAX: usize = 64 << 10;

/// What is to be sent first, see [`crate::Connection::output`].
#[derive(Debug)]
pub enum Output<'a> {
    /// Nothing.
    Nothing,
    /// So many slices of those given are filled. `more`: something follows at once, so the kernel may wait for it (`MSG_MORE`).
    Slices {
        /// How many.
        count: usize,
        /// What does not fit, or lies in a file, follows.
        more: bool,
    },
    /// A file's bytes, from this offset of the region on.
    Region {
        /// Where they are.
        region: &'a dyn Region,
        /// Bytes of it that have gone already.
        at: usize,
    },
}

enum Queued {
    /// So many bytes of `Outbox::small`.
    Small(usize),
    Bytes(Bytes),
    Region {
        region: Arc<dyn Region>,
        at: usize,
    },
}

/// Sealed bytes in the order of their frames.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: VecDeque<Queued>,
    /// Small frames and headers, one behind the other; the first `gone` have been sent.
    small: Vec<u8>,
    gone: usize,
    bytes: usize,
}

impl Outbox {
    /// Bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Bytes of the record layer's handshake.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.small.extend_from_slice(bytes);
            self.added_small(bytes.len());
        }
    }

    /// A frame whose body is `bytes`; length and CRC are in `header`.
    pub(crate) fn frame_of(&mut self, records: &mut dyn Records, header: &Header, bytes: &[u8]) {
        assert_eq!(header.length as usize, bytes.len(), "a header is made for its body");
        self.header(records, header);
        if !bytes.is_empty() {
            let start = self.small.len();
            self.small.extend_from_slice(bytes);
            self.seal(records, start);
        }
    }

    /// A frame with the body `payload`, whose length and CRC are in `header`. Fails where a region must be read and cannot be.
    pub(crate) fn frame(&mut self, records: &mut dyn Records, header: &Header, payload: &Payload) -> io::Result<()> {
        assert_eq!(header.length as usize, payload.len(), "a header is made for its body");
        self.header(records, header);
        if payload.is_empty() {
            return Ok(());
        }
        if records.tag_bytes() > 0 {
            return self.sealed(records, payload);
        }
        for piece in payload.pieces().iter().filter(|piece| !piece.is_empty()) {
            let queued = match piece {
                Piece::Bytes(bytes) if bytes.len() <= COPY_BYTES_MAX => {
                    self.small.extend_from_slice(bytes);
                    self.added_small(bytes.len());
                    continue;
                }
                Piece::Bytes(bytes) => Queued::Bytes(bytes.clone()),
                Piece::Region(region) => Queued::Region { region: region.clone(), at: 0 },
            };
            self.bytes += piece.len();
            self.queue.push_back(queued);
        }
        Ok(())
    }

    fn header(&mut self, records: &mut dyn Records, header: &Header) {
        let start = self.small.len();
        self.small.extend_from_slice(&header.to_bytes());
        debug_assert_eq!(self.small.len() - start, HEADER_BYTES);
        self.seal(records, start);
    }

    /// The body as one record.
    fn sealed(&mut self, records: &mut dyn Records, payload: &Payload) -> io::Result<()> {
        let start = self.small.len();
        for piece in payload.pieces() {
            match piece {
                Piece::Bytes(bytes) => self.small.extend_from_slice(bytes),
                Piece::Region(region) => {
                    let at = self.small.len();
                    self.small.resize(at + region.len(), 0);
                    region.read_at(0, &mut self.small[at..])?;
                }
            }
        }
        self.seal(records, start);
        Ok(())
    }

    /// Makes what `small` holds from `start` on a record.
    fn seal(&mut self, records: &mut dyn Records, start: usize) {
        let end = self.small.len();
        self.small.resize(end + records.tag_bytes(), 0);
        let (record, tag) = self.small[start..].split_at_mut(end - start);
        records.seal(record, tag);
        self.added_small(self.small.len() - start);
    }

    fn added_small(&mut self, bytes: usize) {
        self.bytes += bytes;
        match self.queue.back_mut() {
            Some(Queued::Small(last)) => *last += bytes,
            _ => self.queue.push_back(Queued::Small(bytes)),
        }
    }

    /// What is to be sent first.
    pub(crate) fn front<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> Output<'a> {
        let (mut count, mut small) = (0, self.gone);
        for queued in &self.queue {
            let bytes = match queued {
                Queued::Small(len) => {
                    small += len;
                    &self.small[small - len..small]
                }
                Queued::Bytes(bytes) => bytes,
                Queued::Region { region, at } if count == 0 => return Output::Region { region: &**region, at: *at },
                Queued::Region { .. } => return Output::Slices { count, more: true },
            };
            match slices.get_mut(count) {
                Some(slice) => *slice = IoSlice::new(bytes),
                None => return Output::Slices { count, more: true },
            }
            count += 1;
        }
        if count == 0 { Output::Nothing } else { Output::Slices { count, more: false } }
    }

    /// The first `bytes` have gone.
    pub(crate) fn sent(&mut self, mut bytes: usize) {
        self.bytes -= bytes;
        while bytes > 0 {
            let first = self.queue.front_mut().expect("no more goes than was there");
            let (took, is_done) = match first {
                Queued::Small(len) => {
                    let took = bytes.min(*len);
                    (*len, self.gone) = (*len - took, self.gone + took);
                    (took, *len == 0)
                }
                Queued::Bytes(left) => {
                    let took = bytes.min(left.len());
                    let _ = left.split_to(took);
                    (took, left.is_empty())
                }
                Queued::Region { region, at } => {
                    let took = bytes.min(region.len() - *at);
                    *at += took;
                    (took, *at == region.len())
                }
            };
            bytes -= took;
            if is_done {
                self.queue.pop_front();
            }
        }
        if self.gone == self.small.len() {
            self.small.clear();
            self.gone = 0;
        } else if self.gone > GONE_BYTES_MAX {
            self.small.drain(..self.gone);
            self.gone = 0;
        }
    }

    /// Copies the first bytes, at most `bytes_max`, to `out`: for who cannot send from files. Returns how many.
    pub(crate) fn take(&mut self, out: &mut Vec<Bytes>, bytes_max: usize) -> io::Result<usize> {
        let mut taken = 0;
        while let Some(first) = self.queue.front().filter(|_| taken < bytes_max) {
            let room = bytes_max - taken;
            let piece = match first {
                Queued::Small(len) => Bytes::copy_from_slice(&self.small[self.gone..][..room.min(*len)]),
                Queued::Bytes(bytes) => bytes.slice(..room.min(bytes.len())),
                Queued::Region { region, at } => {
                    let mut bytes = vec![0; room.min(region.len() - at)];
                    region.read_at(*at, &mut bytes)?;
                    bytes.into()
                }
            };
            self.sent(piece.len());
            taken += piece.len();
            out.push(piece);
        }
        Ok(taken)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
