//! Frames on their way out.

use crate::{Header, Payload, Records, header::HEADER_BYTES};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;

/// Pieces up to this size are copied behind each other: cheaper than a reference count and an entry of writev's list each.
const COPY_BYTES_MAX: usize = 4 << 10;

/// Sealed bytes in the order of their frames.
#[derive(Default)]
pub(crate) struct Outbox {
    ready: VecDeque<Bytes>,
    /// Small frames; it belongs behind `ready`.
    tail: BytesMut,
    bytes: usize,
}

impl Outbox {
    /// Bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Bytes of the record layer's handshake.
    pub(crate) fn raw(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.seal_tail();
            self.ready.push_back(bytes.into());
        }
    }

    /// A frame with the body `payload`, whose length and CRC are in `header`.
    pub(crate) fn frame(&mut self, records: &mut dyn Records, header: &Header, payload: &Payload) {
        assert_eq!(header.length as usize, payload.len(), "a header is made for its body");
        let tag_bytes = records.tag_bytes();
        let records_in_frame = 1 + usize::from(!payload.is_empty());
        self.bytes += HEADER_BYTES + payload.len() + records_in_frame * tag_bytes;
        let start = self.tail.len();
        self.tail.extend_from_slice(&header.to_bytes());
        self.seal(records, start);
        if payload.is_empty() {
            return;
        }
        if tag_bytes > 0 || payload.len() <= COPY_BYTES_MAX {
            let start = self.tail.len();
            payload.pieces().iter().for_each(|piece| self.tail.extend_from_slice(piece));
            self.seal(records, start);
            return;
        }
        for piece in payload.pieces() {
            if piece.len() <= COPY_BYTES_MAX {
                self.tail.extend_from_slice(piece);
            } else {
                self.seal_tail();
                self.ready.push_back(piece.clone());
            }
        }
    }

    /// Makes what the tail holds from `start` on a record.
    fn seal(&mut self, records: &mut dyn Records, start: usize) {
        let end = self.tail.len();
        self.tail.resize(end + records.tag_bytes(), 0);
        let (record, tag) = self.tail[start..].split_at_mut(end - start);
        records.seal(record, tag);
    }

    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            self.ready.push_back(self.tail.split().freeze());
        }
    }

    /// Moves up to `bytes_max` bytes to `out`; returns how many.
    pub(crate) fn take(&mut self, out: &mut Vec<Bytes>, bytes_max: usize) -> usize {
        self.seal_tail();
        let mut room = bytes_max;
        while let Some(first) = self.ready.front_mut().filter(|_| room > 0) {
            let piece = if first.len() <= room {
                self.ready.pop_front().expect("there is a first")
            } else {
                first.split_to(room)
            };
            room -= piece.len();
            out.push(piece);
        }
        let taken = bytes_max - room;
        self.bytes -= taken;
        taken
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
