//! Reads: inline body, memory, slot, object store, in that order. Every byte is checked on its way.

use crate::{
    Failure, HandleId, Vfs,
    away::on_thread,
    files::{FileData, FileState, Shape},
};
use bytes::Bytes;
use futures::{StreamExt, stream};
use sluice_base::{Errno, Ino, limits::SEGMENT_BYTES};
use sluice_meta::{
    Error,
    extent::{Extent, Place},
    store::Value,
};
use sluice_run::lock::RwLockWriteGuard;
use sluice_store::{Pin, ReadError};
use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

/// Extents of one read that are fetched at once.
const FETCHES_MAX: usize = 8;
/// Most pieces of an answer: the kernel takes 1024 from one call.
const PIECES_MAX: usize = 512;

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
        let (len, extents) = match self.locate(file, offset, buf.len())? {
            Located::Inline(len, body) => {
                copy_inline(body.as_deref(), offset, &mut buf[..len]);
                return Ok(Read::Done(len));
            }
            Located::Extents(len, extents) => (len, extents),
        };
        let buf = &mut buf[..len];
        for extent in &extents {
            let part = &mut buf[(extent.offset - offset) as usize..][..extent.len as usize];
            match extent.place {
                None => part.fill(0),
                Some(place) => {
                    if let Copied::Missing = self.copy_cached(place, part) {
                        return Ok(Read::Later);
                    }
                }
            }
        }
        file.read_end.store(offset + len as u64, Ordering::Relaxed);
        self.counters.read_cached.fetch_add(len as u64, Ordering::Relaxed);
        Ok(Read::Done(len))
    }

    /// Reads `len` bytes from `offset`, waiting for the network where needed. The bytes come in pieces, those of other hosts as they
    /// were received.
    pub async fn read_later(self: Arc<Self>, handle: HandleId, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        let file = self.file(handle)?.file.clone();
        let sequential = file.read_end.load(Ordering::Relaxed) == offset;
        // Extents may change under a reader, and the object they named be deleted: then they are read again.
        for _ in 0..3 {
            let (len, extents) = match self.locate_from_task(&file, offset, len).await? {
                Located::Inline(len, body) => {
                    let mut bytes = vec![0; len];
                    copy_inline(body.as_deref(), offset, &mut bytes);
                    return Ok(vec![bytes.into()]);
                }
                Located::Extents(len, extents) => (len, extents),
            };
            match self.gather(&extents, sequential).await {
                Ok(pieces) => {
                    file.read_end.store(offset + len as u64, Ordering::Relaxed);
                    if sequential {
                        self.read_ahead(&file, offset + len as u64);
                    }
                    return Ok(pieces);
                }
                Err(Errno::ENOENT) => {}
                Err(other) => return Err(other),
            }
        }
        tracing::error!(ino = %file.ino, offset, "an object of this file is neither cached nor in the store");
        Err(Errno::EIO)
    }

    /// The bytes of `extents`, one behind the other.
    async fn gather(self: &Arc<Self>, extents: &[Extent], whole: bool) -> Result<Vec<Bytes>, Errno> {
        let one = |extent: &Extent| self.clone().bytes_of(*extent, whole);
        let mut found = stream::iter(extents.iter().map(one)).buffered(FETCHES_MAX);
        let mut pieces = Vec::new();
        while let Some(some) = found.next().await {
            pieces.extend(some?);
        }
        Ok(if pieces.len() > PIECES_MAX { vec![pieces.concat().into()] } else { pieces })
    }

    async fn bytes_of(self: Arc<Self>, extent: Extent, whole: bool) -> Result<Vec<Bytes>, Errno> {
        let len = extent.len as usize;
        let Some(place) = extent.place else { return Ok(vec![vec![0; len].into()]) };
        if let Some(bytes) = self.cached(place, len) {
            self.counters.read_cached.fetch_add(len as u64, Ordering::Relaxed);
            return Ok(vec![bytes]);
        }
        self.counters.read_stored.fetch_add(len as u64, Ordering::Relaxed);
        self.fetched(place, len, whole).await
    }

    /// Bytes of an object that are in memory or in a slot.
    pub(crate) fn cached(&self, place: Place, len: usize) -> Option<Bytes> {
        let dirty = self.dirty.get(place.object).is_some();
        let pin = if dirty { None } else { self.parts.cache.as_ref().and_then(|cache| cache.pin(place.object)) };
        if !dirty && pin.is_none() {
            return None;
        }
        let mut bytes = vec![0; len];
        let copied = match pin {
            Some(pin) => self.copy_pinned(pin, place, &mut bytes),
            None => self.copy_cached(place, &mut bytes),
        };
        matches!(copied, Copied::All).then(|| bytes.into())
    }

    /// Copies bytes of an object that are in memory or in a slot.
    fn copy_cached(&self, place: Place, part: &mut [u8]) -> Copied {
        if self.dirty.read_memory(place.object, place.offset, part) {
            return Copied::All;
        }
        let pin = self.parts.cache.as_ref().and_then(|cache| cache.pin(place.object));
        pin.map_or(Copied::Missing, |pin| self.copy_pinned(pin, place, part))
    }

    /// A damaged segment counts as missing: a good copy may be in the store.
    fn copy_pinned(&self, pin: Pin, place: Place, part: &mut [u8]) -> Copied {
        match pin.read_at(place.offset, part) {
            Ok(()) => Copied::All,
            Err(ReadError::Absent { .. }) => Copied::Missing,
            Err(error) => {
                tracing::warn!(object = %place.object, %error, "a cached segment is bad");
                drop(pin);
                if let (Some(cache), ReadError::Corrupt { index }) = (&self.parts.cache, &error) {
                    cache.retire(place.object, *index);
                }
                Copied::Missing
            }
        }
    }

    /// What [offset, offset + len) of a file is made of. Loads what is not known of the file.
    fn locate(&self, file: &FileState, offset: u64, len: usize) -> Result<Located, Failure> {
        if let Some(known) = known(file, offset, len) {
            return Ok(known);
        }
        let mut data = file.shared()?;
        let shape = match data.shape {
            Some(shape) if shape.inline || is_loaded(&data, &shape, &wanted(&shape, offset, len)) => shape,
            _ => {
                let mut all = FileState::upgraded(data)?;
                let shape = self.shape(file.ino, &mut all)?;
                self.namespace().load_extents(file.ino, &mut all.extents, wanted(&shape, offset, len))?;
                data = RwLockWriteGuard::downgrade_to_upgradable(all);
                shape
            }
        };
        let range = wanted(&shape, offset, len);
        let len = (range.end - range.start) as usize;
        Ok(match () {
            () if len == 0 => Located::Inline(0, None),
            () if shape.inline => Located::Inline(len, self.namespace().body(file.ino)?),
            () => Located::Extents(len, data.extents.map(range)),
        })
    }

    /// As [`Vfs::locate`], for a task: it waits for no lock, as whoever loads the file holds it while he waits for the network.
    async fn locate_from_task(
        self: &Arc<Self>,
        file: &Arc<FileState>,
        offset: u64,
        len: usize,
    ) -> Result<Located, Errno> {
        if let Some(known) = known(file, offset, len) {
            return Ok(known);
        }
        let (vfs, file) = (self.clone(), file.clone());
        let located = on_thread(move || vfs.locate(&file, offset, len)).await;
        located.ok_or(Errno::EIO)?.map_err(Failure::errno)
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
        let places = file.fresh(|data| {
            let shape = data.shape?;
            let range = from..shape.size.min(from + AHEAD_BYTES);
            (!range.is_empty() && is_loaded(data, &shape, &range)).then(|| data.extents.map(range))
        });
        let Some(places) = places else { return };
        for place in places.into_iter().filter_map(|extent| extent.place) {
            self.prefetch(place.object);
        }
    }
}

/// So many bytes, and what they are made of.
enum Located {
    /// This body from the offset on, and zeros where it ends.
    Inline(usize, Option<Value>),
    Extents(usize, Vec<Extent>),
}

/// As [`Vfs::locate`], as far as that is known and nobody changes it at the moment. Never waits.
fn known(file: &FileState, offset: u64, len: usize) -> Option<Located> {
    file.fresh(|data| {
        let shape = data.shape.filter(|shape| !shape.inline)?;
        let range = wanted(&shape, offset, len);
        let len = (range.end - range.start) as usize;
        is_loaded(data, &shape, &range).then(|| Located::Extents(len, data.extents.map(range)))
    })
}

/// The part of [offset, offset + len) that a file of this shape has.
fn wanted(shape: &Shape, offset: u64, len: usize) -> Range<u64> {
    offset..shape.size.min(offset + len as u64).max(offset)
}

fn is_loaded(data: &FileData, shape: &Shape, range: &Range<u64>) -> bool {
    !shape.extents || spans(range).all(|span| data.extents.has(span))
}

fn copy_inline(body: Option<&[u8]>, offset: u64, buf: &mut [u8]) {
    let body = body.unwrap_or_default();
    let rest = &body[(offset as usize).min(body.len())..];
    let have = rest.len().min(buf.len());
    buf[..have].copy_from_slice(&rest[..have]);
    buf[have..].fill(0);
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
