//! Bytes that are acked and not stored: those of another mount are asked for, those of this one are given.

use crate::{Vfs, dirty::Body};
use bytes::Bytes;
use futures::future::BoxFuture;
use sluice_base::{Errno, ObjectId, SessionId, crc::segment_crc, limits::SEGMENT_BYTES};
use sluice_meta::rpc::message::Invalidation;
use std::ops::Range;

/// A segment as far as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its number in the object.
    pub index: u32,
    /// Its bytes, at most [`SEGMENT_BYTES`].
    pub bytes: Bytes,
    /// As in a stored object: over the bytes, the object's id and the index.
    pub crc: u32,
}

impl Piece {
    /// Whether the bytes are those that the object's writer wrote.
    pub fn is_sound(&self, object: ObjectId) -> bool {
        self.bytes.len() <= SEGMENT_BYTES && segment_crc(object, self.index, &self.bytes) == self.crc
    }
}

/// The way to the writers of objects that are not stored.
pub trait Others: Send + Sync {
    /// Segments of an object that `session` has begun, as far as they are written. `ENOENT` when it has been stored or given up
    /// meanwhile; waits for a writer that does not answer, as long as it may come back.
    fn segments(
        &self,
        session: SessionId,
        object: ObjectId,
        range: Range<u32>,
    ) -> BoxFuture<'static, Result<Vec<Piece>, Errno>>;
}

impl Vfs {
    /// Segments of an object that this mount has not stored yet; `ENOENT` when it has, or never had it. Reads the local disk, and the journal
    /// where that gives something else than what was written.
    pub fn unstored_segments(&self, object: ObjectId, range: Range<u32>) -> Result<Vec<Piece>, Errno> {
        let dirty = self.dirty.get(object).ok_or(Errno::ENOENT)?;
        let end = dirty.end() as usize;
        let last = range.end.min(end.div_ceil(SEGMENT_BYTES) as u32);
        let read = |index: u32| {
            let at = index as usize * SEGMENT_BYTES;
            let mut bytes = vec![0; SEGMENT_BYTES.min(end - at)];
            let done = match &dirty.body {
                Body::Memory(_) => self.dirty.read_memory(object, at as u32, &mut bytes),
                Body::Slot(_) => {
                    let pin = self.parts.cache.as_ref().and_then(|cache| cache.pin(object)).ok_or(Errno::ENOENT)?;
                    pin.read_at(at as u32, &mut bytes).is_ok()
                }
            };
            Ok((index, done.then(|| Bytes::from(bytes))))
        };
        let found: Vec<_> = (range.start..last).map(read).collect::<Result<_, Errno>>()?;
        let missing: Vec<_> = found.iter().filter(|(_, bytes)| bytes.is_none()).map(|(at, _)| *at as usize).collect();
        let mut mended = self.mended(&dirty, &missing);
        let piece = |(index, bytes): (u32, Option<Bytes>)| {
            let bytes = bytes.or_else(|| mended.remove(&(index as usize))).ok_or(Errno::EIO)?;
            let crc = segment_crc(object, index, &bytes);
            Ok(Piece { index, bytes, crc })
        };
        found.into_iter().map(piece).collect()
    }

    /// Others changed these: what was loaded of them is loaded again.
    pub fn invalidated(&self, items: &[Invalidation]) {
        for what in items {
            match what {
                Invalidation::Attr(ino)
                | Invalidation::Data(ino)
                | Invalidation::Extents(ino)
                | Invalidation::Inode(ino)
                | Invalidation::Unlinked(ino) => self.files.changed(*ino),
                Invalidation::Everything => self.files.all_changed(),
                Invalidation::Entry(..) => {}
            }
        }
    }
}
