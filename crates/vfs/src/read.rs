//! Reads: inline body, memory, slot, object store, in that order. Every byte is checked on its way.

use crate::{
    Failure, HandleId, Vfs,
    ahead::{Part, Went},
    away::on_thread,
    files::{FileData, FileState, Shape},
    handles::FileHandle,
};
use bytes::Bytes;
use futures::{StreamExt, poll, stream};
use sluice_base::{Errno, Ino, limits::SEGMENT_BYTES};
use sluice_meta::{
    Error,
    extent::{Extent, Place},
    store::Value,
};
use sluice_run::lock::{RwLockUpgradableReadGuard, RwLockWriteGuard};
use sluice_store::{Pin, ReadError};
use std::{
    ops::Range,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
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
    /// Reads into `buf` what is at hand; `direct` says that it goes to its program without the page cache.
    pub fn read(
        self: &Arc<Self>,
        handle: HandleId,
        offset: u64,
        buf: &mut [u8],
        direct: bool,
    ) -> Result<Read, Failure> {
        let open = self.file(handle)?;
        self.note_access(&open)?;
        let read = self.read_file(&open.file, offset, buf)?;
        if let Read::Done(len) = read {
            self.read_ahead(&open, Went { offset, len, direct, late: false });
        }
        Ok(read)
    }

    /// A read through a handle whose access time is due.
    pub(crate) fn note_access(&self, open: &FileHandle) -> Result<(), Failure> {
        if open.atime_due.load(Ordering::Relaxed) {
            match self.namespace().note_access(open.file.ino) {
                Err(Error::Away) => return Err(Failure::Away),
                Err(error) => tracing::debug!(%error, "access time not updated"),
                Ok(()) => {}
            }
            open.atime_due.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What there is to know of [offset, offset + len) of a file is known when this returns, unless somebody changes it meanwhile.
    pub(crate) fn load(&self, file: &FileState, offset: u64, len: usize) -> Result<(), Failure> {
        self.loaded(file, offset, len).map(drop)
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
        let ahead = self.were_read(&extents);
        self.counters.read_stored.fetch_add(ahead, Ordering::Relaxed);
        self.counters.read_cached.fetch_add(len as u64 - ahead, Ordering::Relaxed);
        Ok(Read::Done(len))
    }

    /// Reads `len` bytes from `offset`, waiting for the network where needed. The bytes come in pieces, those of other hosts as they
    /// were received.
    pub async fn read_later(
        self: Arc<Self>,
        handle: HandleId,
        offset: u64,
        len: usize,
        direct: bool,
    ) -> Result<Vec<Bytes>, Errno> {
        let open = self.file(handle)?;
        let mut is_noted = false;
        // Extents may change under a reader, and the object they named be deleted: then they are read again.
        for _ in 0..3 {
            let (len, extents) = match self.locate_from_task(&open.file, offset, len).await? {
                Located::Inline(len, body) => {
                    let mut bytes = vec![0; len];
                    copy_inline(body.as_deref(), offset, &mut bytes);
                    return Ok(vec![bytes.into()]);
                }
                Located::Extents(len, extents) => (len, extents),
            };
            let room = self.ahead.room(memory_of(&extents)).await.ok_or(Errno::EIO)?;
            let under_way = self.ahead.waits(len, direct);
            let mut gathering = pin!(self.gather(&extents));
            // What somebody waits for is asked for before what nobody does, and nothing is read ahead of what comes at once.
            let near = self.ahead.near();
            let first = match near {
                Some(near) => {
                    sluice_run::time::timeout(near, gathering.as_mut()).await.map_or(Poll::Pending, Poll::Ready)
                }
                None => poll!(gathering.as_mut()),
            };
            if !std::mem::replace(&mut is_noted, true) {
                match &first {
                    Poll::Ready(_) if near.is_some() => open.reads.note_hot(offset..offset + len as u64),
                    _ => self.read_ahead(&open, Went { offset, len, direct, late: true }),
                }
            }
            let gathered = match first {
                Poll::Ready(gathered) => gathered,
                Poll::Pending => gathering.await,
            };
            drop(under_way);
            match gathered {
                Ok(mut pieces) => {
                    self.were_read(&extents);
                    room.keep_with(&mut pieces);
                    return Ok(pieces);
                }
                Err(Errno::ENOENT) => {
                    self.namespace().extents_are_old(open.file.ino);
                    self.files.changed(open.file.ino);
                }
                Err(other) => return Err(other),
            }
        }
        tracing::error!(ino = %open.file.ino, offset, "bytes of this file are neither cached nor in the store");
        Err(Errno::EIO)
    }

    /// These were read: what was kept in memory for it may go. Gives how many bytes had been read ahead.
    fn were_read(&self, extents: &[Extent]) -> u64 {
        let read = |extent: &Extent| {
            let part = |place: Place| Part { object: place.object, offset: place.offset, len: extent.len as usize };
            extent.place.map_or(0, |place| self.ahead.pool.read(&part(place)))
        };
        extents.iter().map(read).sum()
    }

    /// The bytes of `extents`, one behind the other.
    async fn gather(self: &Arc<Self>, extents: &[Extent]) -> Result<Vec<Bytes>, Errno> {
        let one = |extent: &Extent| self.clone().bytes_of(*extent);
        let mut found = stream::iter(extents.iter().map(one)).buffered(FETCHES_MAX);
        let mut pieces = Vec::new();
        while let Some(some) = found.next().await {
            pieces.extend(some?);
        }
        Ok(if pieces.len() > PIECES_MAX { vec![pieces.concat().into()] } else { pieces })
    }

    async fn bytes_of(self: Arc<Self>, extent: Extent) -> Result<Vec<Bytes>, Errno> {
        let len = extent.len as usize;
        let Some(place) = extent.place else { return Ok(vec![vec![0; len].into()]) };
        if let Some(pieces) = self.ahead.pool.pieces(place.object, place.offset, len) {
            self.counters.read_stored.fetch_add(len as u64, Ordering::Relaxed);
            return Ok(pieces);
        }
        if let Some(bytes) = self.cached(place, len) {
            self.counters.read_cached.fetch_add(len as u64, Ordering::Relaxed);
            return Ok(vec![bytes]);
        }
        self.counters.read_stored.fetch_add(len as u64, Ordering::Relaxed);
        let pieces = self.fetched(place, len).await?;
        // A few bytes would keep the whole answer that they came with.
        Ok(if is_small(len) { vec![pieces.concat().into()] } else { pieces })
    }

    /// Bytes of an object that are in memory or in a slot.
    pub(crate) fn cached(&self, place: Place, len: usize) -> Option<Bytes> {
        let dirty = self.dirty.get(place.object).is_some();
        let pin = if dirty { None } else { self.parts.cache.as_ref().and_then(|cache| cache.pin(place.object)) };
        if !dirty && pin.is_none() {
            return None;
        }
        let mut page = self.parts.store.pages().take(len);
        let copied = match pin {
            Some(pin) => self.copy_pinned(pin, place, page.as_mut()),
            None => self.copy_cached(place, page.as_mut()),
        };
        matches!(copied, Copied::All).then(|| Bytes::from_owner(page))
    }

    /// Copies bytes of an object that are in memory or in a slot.
    fn copy_cached(&self, place: Place, part: &mut [u8]) -> Copied {
        if self.dirty.read_memory(place.object, place.offset, part) {
            return Copied::All;
        }
        if self.ahead.pool.copy(place.object, place.offset, part) {
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
        let (data, shape) = self.loaded(file, offset, len)?;
        let range = wanted(&shape, offset, len);
        let len = (range.end - range.start) as usize;
        Ok(match () {
            () if len == 0 => Located::Inline(0, None),
            () if shape.inline => Located::Inline(len, self.namespace().body(file.ino)?),
            () => Located::Extents(len, data.extents.map(range)),
        })
    }

    /// A file's data, with its shape and the extents of [offset, offset + len).
    fn loaded<'a>(
        &self,
        file: &'a FileState,
        offset: u64,
        len: usize,
    ) -> Result<(RwLockUpgradableReadGuard<'a, FileData>, Shape), Failure> {
        let data = file.shared()?;
        if let Some(shape) = data.shape
            && (shape.inline || is_loaded(&data, &shape, &wanted(&shape, offset, len)))
        {
            return Ok((data, shape));
        }
        let mut all = file.upgraded(data)?;
        let shape = self.shape(file.ino, &mut all)?;
        self.namespace().load_extents(file.ino, &mut all.extents, wanted(&shape, offset, len))?;
        Ok((RwLockWriteGuard::downgrade_to_upgradable(all), shape))
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

    /// What a part of a file is made of, for a task; `None` of one that is inline, or cannot be found out.
    pub(crate) async fn extents_from_task(
        self: &Arc<Self>,
        file: &Arc<FileState>,
        offset: u64,
        len: usize,
    ) -> Option<Vec<Extent>> {
        match self.locate_from_task(file, offset, len).await {
            Ok(Located::Extents(_, extents)) => Some(extents),
            _ => None,
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

/// Bytes that are copied out of what they came with, so as not to keep it.
fn is_small(len: usize) -> bool {
    len < SEGMENT_BYTES / 2
}

/// Memory of the answer that these extents make: the segments that are fetched for them.
fn memory_of(extents: &[Extent]) -> usize {
    let of = |extent: &Extent| {
        let len = extent.len as usize;
        match extent.place {
            Some(place) if !is_small(len) => segments(place.offset, len).len() * SEGMENT_BYTES,
            _ => len,
        }
    };
    let kept: usize = extents.iter().map(of).sum();
    // Small ones have theirs only while they are fetched.
    kept + FETCHES_MAX.min(extents.len()) * SEGMENT_BYTES
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
