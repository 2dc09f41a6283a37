//! Reads: inline body, memory, slot, object store, in that order. Every byte is checked on its way.

use crate::{
    Failure, HandleId, Vfs,
    files::{FileData, FileState, Shape},
    waiting,
};
use parking_lot::RwLockUpgradableReadGuard;
use sluice_base::{Errno, Ino, limits::SEGMENT_BYTES};
use sluice_meta::{
    Error,
    extent::{Extent, Place},
};
use sluice_store::ReadError;
use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

/// How a read ended on the calling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// So many bytes are in the buffer; fewer than asked only at the end of the file.
    Done(usize),
    /// Some bytes must come from the store: call [`Vfs::read_later`].
    Later,
}

/// What a copy out of the cache met.
enum Copied {
    All,
    Missing,
}

impl Vfs {
    /// Reads into `buf` what is at hand.
    pub fn read(&self, handle: HandleId, offset: u64, buf: &mut [u8]) -> Result<Read, Failure> {
        let open = self.file(handle)?;
        if open.atime_due.load(Ordering::Relaxed) {
            match self.namespace().update_atime(open.file.ino) {
                Err(Error::Away) => return Err(Failure::Away),
                Err(error) => tracing::debug!(%error, "access time not updated"),
                Ok(()) => {}
            }
            open.atime_due.store(false, Ordering::Relaxed);
        }
        self.read_file(&open.file, offset, buf)
    }

    pub(crate) fn read_file(&self, file: &FileState, offset: u64, buf: &mut [u8]) -> Result<Read, Failure> {
        let (len, extents) = match self.locate(file, offset, buf)? {
            Located::Inline(len) => return Ok(Read::Done(len)),
            Located::Extents(len, extents) => (len, extents),
        };
        let buf = &mut buf[..len];
        for extent in &extents {
            let part = &mut buf[(extent.offset - offset) as usize..][..extent.len as usize];
            match extent.place {
                None => part.fill(0),
                Some(place) => {
                    if let Copied::Missing = self.copy_cached(place, part)? {
                        return Ok(Read::Later);
                    }
                }
            }
        }
        file.read_end.store(offset + len as u64, Ordering::Relaxed);
        self.counters.read_cached.fetch_add(len as u64, Ordering::Relaxed);
        Ok(Read::Done(len))
    }

    /// Reads `len` bytes from `offset`, waiting for the store where needed.
    pub async fn read_later(self: Arc<Self>, handle: HandleId, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let file = self.file(handle)?.file.clone();
        let sequential = file.read_end.load(Ordering::Relaxed) == offset;
        let mut buf = vec![0; len];
        // Extents may change under a reader, and the object they named be deleted: then they are read again.
        for _ in 0..3 {
            let located = match self.locate(&file, offset, &mut buf) {
                Err(Failure::Away) => tokio::task::block_in_place(|| waiting(|| self.locate(&file, offset, &mut buf))),
                other => other,
            };
            let (len, extents) = match located.map_err(Failure::errno)? {
                Located::Inline(len) => {
                    buf.truncate(len);
                    return Ok(buf);
                }
                Located::Extents(len, extents) => (len, extents),
            };
            match self.copy_or_fetch(&extents, offset, &mut buf[..len], sequential).await {
                Ok(()) => {
                    buf.truncate(len);
                    file.read_end.store(offset + len as u64, Ordering::Relaxed);
                    if sequential {
                        self.read_ahead(&file, offset + len as u64);
                    }
                    return Ok(buf);
                }
                Err(Errno::ENOENT) => {}
                Err(other) => return Err(other),
            }
        }
        tracing::error!(ino = %file.ino, offset, "an object of this file is neither cached nor in the store");
        Err(Errno::EIO)
    }

    async fn copy_or_fetch(&self, extents: &[Extent], offset: u64, buf: &mut [u8], whole: bool) -> Result<(), Errno> {
        for extent in extents {
            let part = &mut buf[(extent.offset - offset) as usize..][..extent.len as usize];
            let Some(place) = extent.place else {
                part.fill(0);
                continue;
            };
            if let Copied::All = self.copy_cached(place, part)? {
                self.counters.read_cached.fetch_add(part.len() as u64, Ordering::Relaxed);
                continue;
            }
            self.counters.read_stored.fetch_add(part.len() as u64, Ordering::Relaxed);
            self.fetch_into(place, part, whole).await?;
        }
        Ok(())
    }

    /// Copies bytes of an object that are in memory or in a slot. A damaged segment counts as missing: a good copy may be in
    /// the store.
    fn copy_cached(&self, place: Place, part: &mut [u8]) -> Result<Copied, Errno> {
        if self.dirty.read_memory(place.object, place.offset, part) {
            return Ok(Copied::All);
        }
        let Some(pin) = self.parts.cache.as_ref().and_then(|cache| cache.pin(place.object)) else {
            return Ok(Copied::Missing);
        };
        match pin.read_at(place.offset, part) {
            Ok(()) => Ok(Copied::All),
            Err(ReadError::Absent { .. }) => Ok(Copied::Missing),
            Err(error) => {
                tracing::warn!(object = %place.object, %error, "a cached segment is bad");
                drop(pin);
                if let (Some(cache), ReadError::Corrupt { index }) = (&self.parts.cache, &error) {
                    cache.retire(place.object, *index);
                }
                Ok(Copied::Missing)
            }
        }
    }

    /// What [offset, offset + buf.len()) of a file is made of; an inline body is copied at once.
    fn locate(&self, file: &FileState, offset: u64, buf: &mut [u8]) -> Result<Located, Failure> {
        file.refresh();
        let data = file.data.upgradable_read();
        let loaded = |data: &FileData, shape: &Shape, range: &Range<u64>| {
            !shape.extents || spans(range).all(|s| data.extents.has(s))
        };
        let mut shape = data.shape;
        let wanted = |shape: &Shape| offset..shape.size.min(offset + buf.len() as u64).max(offset);
        let data = match shape {
            Some(known) if known.inline || loaded(&data, &known, &wanted(&known)) => {
                RwLockUpgradableReadGuard::downgrade(data)
            }
            _ => {
                let mut data = RwLockUpgradableReadGuard::upgrade(data);
                let known = self.shape(file.ino, &mut data)?;
                shape = Some(known);
                let range = wanted(&known);
                self.namespace().load_extents(file.ino, &mut data.extents, range)?;
                parking_lot::RwLockWriteGuard::downgrade(data)
            }
        };
        let shape = shape.expect("known by now");
        let range = wanted(&shape);
        let len = (range.end - range.start) as usize;
        if len > 0 && shape.inline {
            let body = self.namespace().body(file.ino)?;
            let body = body.as_deref().unwrap_or_default();
            let from = (offset as usize).min(body.len());
            let have = len.min(body.len() - from);
            buf[..have].copy_from_slice(&body[from..from + have]);
            buf[have..len].fill(0);
            return Ok(Located::Inline(len));
        }
        Ok(if len == 0 { Located::Inline(0) } else { Located::Extents(len, data.extents.map(range)) })
    }

    /// The shape of a file, read once while it is in use.
    pub(crate) fn shape(&self, ino: Ino, data: &mut FileData) -> Result<Shape, Failure> {
        if let Some(shape) = data.shape {
            return Ok(shape);
        }
        let inode = self.namespace().inode(ino)?;
        if inode.is_dir() {
            return Err(Errno::EISDIR.into());
        }
        let shape = Shape::of(&inode);
        data.shape = Some(shape);
        Ok(shape)
    }

    /// Fetches the objects that a sequential reader will ask for next, as far as the budget allows.
    fn read_ahead(self: &Arc<Self>, file: &FileState, from: u64) {
        const AHEAD_BYTES: u64 = 16 << 20;
        let data = file.data.read();
        let Some(shape) = data.shape else { return };
        let range = from..shape.size.min(from + AHEAD_BYTES);
        if range.is_empty() || !spans(&range).all(|span| data.extents.has(span)) {
            return;
        }
        let places = data.extents.map(range);
        drop(data);
        for place in places.into_iter().filter_map(|extent| extent.place) {
            self.prefetch(place.object);
        }
    }
}

enum Located {
    Inline(usize),
    Extents(usize, Vec<Extent>),
}

fn spans(range: &Range<u64>) -> std::ops::RangeInclusive<u64> {
    use sluice_base::limits::SPAN_BYTES;
    range.start / SPAN_BYTES..=range.end.saturating_sub(1).max(range.start) / SPAN_BYTES
}

/// The segments that [offset, offset + len) of an object touches.
pub(crate) fn segments(offset: u32, len: usize) -> Range<u32> {
    let end = offset as usize + len;
    offset / SEGMENT_BYTES as u32..end.div_ceil(SEGMENT_BYTES) as u32
}
