//! The last bytes of a dirty slot, which wait in memory for the rest of their segment: one write to the disk for a segment instead of one
//! for each small append. They are read from memory meanwhile. A journal has them, as it has all that is appended in less than a segment,
//! so they may be lost with the process; they are written before the slot is sealed or uploaded.
//!
//! They are those that follow `Entry::end`, and never reach into a second segment.

use crate::{
    CacheError, SegmentSum,
    cache::Inner,
    dirty::grow,
    entry::{Entry, Writer},
    pin::bound,
};
use sluice_base::limits::SEGMENT_BYTES;
use std::sync::atomic::Ordering;

/// Bytes from the slot's start that were appended.
pub(crate) fn end(entry: &Entry, writer: &Writer) -> usize {
    entry.end.load(Ordering::Acquire) as usize + writer.pending.len()
}

/// Appends `bytes`, less than a segment. After an error nothing was appended.
pub(crate) fn add(cache: &Inner, entry: &Entry, writer: &mut Writer, bytes: &[u8]) -> Result<(), CacheError> {
    let (before, end) = (writer.pending.len(), end(entry, writer));
    writer.pending.extend_from_slice(bytes);
    if end % SEGMENT_BYTES + bytes.len() < SEGMENT_BYTES {
        entry.has_pending.store(true, Ordering::Release);
        return Ok(());
    }
    let written = write(cache, entry, writer);
    if written.is_err() {
        writer.pending.truncate(before);
    }
    written
}

/// Writes what waits. After an error it goes on to wait.
pub(crate) fn write(cache: &Inner, entry: &Entry, writer: &mut Writer) -> Result<(), CacheError> {
    if writer.pending.is_empty() {
        return Ok(());
    }
    if cache.health.is_failed() {
        return Err(CacheError::Failed);
    }
    let at = entry.end.load(Ordering::Relaxed) as usize;
    let mut pending = std::mem::take(&mut writer.pending);
    if let Err(error) = cache.write_dirty(entry, &pending, at as u64) {
        (writer.pending, writer.soiled) = (pending, true);
        return Err(error);
    }
    grow(cache, entry, writer, at, &pending);
    entry.end.store((at + pending.len()) as u32, Ordering::Release);
    entry.changed.store(true, Ordering::Release);
    // Last: who finds nothing here finds it there.
    entry.has_pending.store(false, Ordering::Release);
    pending.clear();
    writer.pending = pending;
    Ok(())
}

/// What waits.
pub(crate) fn bytes(entry: &Entry) -> Option<Vec<u8>> {
    let is_any = entry.has_pending.load(Ordering::Acquire);
    is_any.then(|| entry.writer.lock().pending.clone()).filter(|pending| !pending.is_empty())
}

/// Whether bytes of segment `index` wait.
pub(crate) fn is_in(entry: &Entry, index: usize) -> bool {
    entry.has_pending.load(Ordering::Acquire) && entry.end.load(Ordering::Acquire) as usize / SEGMENT_BYTES == index
}

/// The segment of which bytes wait, and its sum with them.
pub(crate) fn sum(entry: &Entry, writer: &Writer) -> Option<(usize, SegmentSum)> {
    let at = entry.end.load(Ordering::Relaxed) as usize;
    let (index, within) = (at / SEGMENT_BYTES, at % SEGMENT_BYTES);
    let mut crc = writer.tail.as_deref().filter(|_| within > 0).cloned().unwrap_or_default();
    crc.update(&writer.pending);
    let sum = SegmentSum { len: (within + writer.pending.len()) as u32, crc: bound(entry.object, index, crc.value()) };
    (!writer.pending.is_empty()).then_some((index, sum))
}

/// Copies what waits of the bytes from `offset` to the end of `buf`. Returns how many before them are written; nothing if there is a byte
/// that was not appended.
pub(crate) fn copy(entry: &Entry, offset: usize, buf: &mut [u8]) -> Option<usize> {
    if !entry.is_dirty() {
        return None;
    }
    let writer = entry.writer.lock();
    let at = entry.end.load(Ordering::Relaxed) as usize;
    if offset + buf.len() > at + writer.pending.len() {
        return None;
    }
    let written = at.saturating_sub(offset).min(buf.len());
    let (first, waiting) = ((offset + written).saturating_sub(at), &mut buf[written..]);
    waiting.copy_from_slice(&writer.pending[first..][..waiting.len()]);
    Some(written)
}
