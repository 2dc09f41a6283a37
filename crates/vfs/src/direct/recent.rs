//! What one thread remembers of files that it read lately: their handles, a window of their extents, and the slots of those.

use super::counters::{DirectCounters, count};
use crate::{
    HandleId, Vfs,
    files::{FileData, FileState, Shape},
    handles::FileHandle,
};
use sluice_base::{ObjectId, limits::SPAN_BYTES};
use sluice_meta::extent::{Extent, Place};
use sluice_object::StoredObject;
use sluice_store::{Cache, Known, Pin};
use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

/// Files that are remembered. Another one takes the place of the one whose handle has the same number modulo this.
const FILES: usize = 32;
/// Runs of one file that are remembered: 48 KiB. A gigabyte in objects of 4 MiB has 256, and as many holes may lie
/// between them.
const RUNS_MAX: usize = 512;
/// A window lies within a block of this many spans: 1 GiB.
const BLOCK_SPANS: u64 = 16;

/// A run of a file's bytes, and where its object was found last.
pub(super) struct Run {
    extent: Extent,
    known: Option<Known>,
    stored: Option<StoredObject>,
}

impl Run {
    pub(super) fn is_hole(&self) -> bool {
        self.extent.place.is_none()
    }

    /// The part of the run within `range` of the file: from where in the object (0 in a hole), and where in the range.
    pub(super) fn cut(&self, range: &Range<u64>) -> (u32, Range<usize>) {
        let (from, to) = (self.extent.offset.max(range.start), self.end().min(range.end));
        let start = self.extent.place.map_or(0, |place| place.offset + (from - self.extent.offset) as u32);
        (start, (from - range.start) as usize..(to - range.start) as usize)
    }

    /// Keeps the object's slot in place. Looks the object up only where it is not remembered, or has left its slot.
    pub(super) fn pin(&mut self, cache: &Cache, counters: &DirectCounters) -> Option<Pin> {
        let Place { object, .. } = self.extent.place?;
        if let Some(pin) = self.known.as_ref().and_then(|known| cache.pin_known(known)) {
            count(&counters.pins, 1);
            return Some(pin);
        }
        let pin = cache.pin(object);
        self.known = pin.as_ref().map(Pin::known);
        pin
    }

    /// The object, unless this is a hole.
    pub(super) fn object(&self) -> Option<ObjectId> {
        self.extent.place.map(|place| place.object)
    }

    /// The object as it is stored; `None` when it is not, or nobody has asked lately.
    pub(super) fn stored(&mut self, vfs: &Vfs) -> Option<StoredObject> {
        if self.stored.is_none() {
            self.stored = vfs.fetches.known(self.object()?);
        }
        self.stored
    }

    fn end(&self) -> u64 {
        self.extent.offset + self.extent.len
    }
}

/// What a read is made of.
pub(super) struct Found<'a> {
    pub(super) open: &'a FileHandle,
    pub(super) runs: &'a mut [Run],
    /// The part of what was asked for that the file has.
    pub(super) range: Range<u64>,
}

/// The files that were read lately.
pub(super) struct Recent {
    files: [Remembered; FILES],
    /// Handles that had been closed when that was looked at last: some of these may be closed by now if there are more.
    closed: u64,
}

impl Default for Recent {
    fn default() -> Self {
        Self { files: std::array::from_fn(|_| Remembered::default()), closed: 0 }
    }
}

#[derive(Default)]
struct Remembered {
    open: Option<(HandleId, Arc<FileHandle>)>,
    window: Window,
}

impl Recent {
    /// What [offset, offset + len) of an open file is made of; `None` when that is not to be had at once, or is nothing.
    pub(super) fn find(
        &mut self,
        vfs: &Vfs,
        handle: HandleId,
        offset: u64,
        len: usize,
        counters: &DirectCounters,
    ) -> Option<Found<'_>> {
        self.forget_closed(vfs);
        let Remembered { open, window } = &mut self.files[handle.0 as usize % FILES];
        if open.as_ref().is_none_or(|(known, _)| *known != handle) {
            *open = Some((handle, vfs.file(handle).ok()?));
            window.runs.clear();
            *window = Window { runs: std::mem::take(&mut window.runs), ..Window::default() };
        }
        let (_, open) = open.as_ref()?;
        vfs.note_access(open).ok()?;
        let end = offset.checked_add(len as u64)?;
        if !window.has(&open.file, offset..end) {
            count(&counters.windows, 1);
            if window.copy(&open.file, offset..end).is_none() {
                // It may have to be loaded first, which takes memory.
                vfs.load(&open.file, offset, len).ok()?;
                window.copy(&open.file, offset..end)?;
            }
        }
        window.served += 1;
        let range = offset..end.min(window.size);
        let first = window.runs.partition_point(|run| run.end() <= range.start);
        let last = window.runs.partition_point(|run| run.extent.offset < range.end);
        Some(Found { open, runs: &mut window.runs[first..last], range })
    }

    /// Nothing of a closed file is kept alive for longer than until the next read.
    fn forget_closed(&mut self, vfs: &Vfs) {
        let closed = vfs.handles.closed();
        if closed == self.closed {
            return;
        }
        self.closed = closed;
        for file in &mut self.files {
            if file.open.as_ref().is_some_and(|(_, open)| open.closed.load(Ordering::Relaxed)) {
                file.open = None;
                file.window.runs.clear();
            }
        }
    }
}

/// Extents of a part of a file.
#[derive(Default)]
struct Window {
    /// Of the file's data, before they were copied.
    version: u64,
    /// The file's length.
    size: u64,
    /// What the runs cover, without gaps; empty when there are none.
    covers: Range<u64>,
    runs: Vec<Run>,
    /// Reads that were found in it.
    served: u64,
}

/// A window that served fewer reads than this was not worth its size.
const SERVED_MIN: u64 = 8;

impl Window {
    /// Whether it has, and has still, what the file has of `range`.
    fn has(&self, file: &FileState, range: Range<u64>) -> bool {
        file.version() == self.version
            && self.covers.start <= range.start
            && range.start < self.covers.end
            && range.end.min(self.size) <= self.covers.end
    }

    fn copy(&mut self, file: &FileState, range: Range<u64>) -> Option<()> {
        let wide = self.served >= SERVED_MIN || self.covers.is_empty();
        let version = file.version();
        self.covers = 0..0;
        self.runs.clear();
        file.fresh(|data| {
            let shape = data.shape.filter(|shape| !shape.inline)?;
            let wanted = range.start..range.end.min(shape.size);
            if wanted.is_empty() {
                return None;
            }
            let covers = covers(data, &shape, &wanted, wide)?;
            let mut fits = true;
            data.extents.for_each(covers.clone(), |extent| {
                fits = self.runs.len() < RUNS_MAX;
                if fits {
                    self.runs.push(Run { extent, known: None, stored: None });
                }
            });
            if !fits {
                return None;
            }
            (self.version, self.size, self.covers, self.served) = (version, shape.size, covers, 0);
            Some(())
        })
    }
}

/// What a window for `wanted` covers: the spans that it touches, and where `wide` those beside them that are loaded, as far as all
/// their runs fit; `wanted` alone where its own spans have too many. `None` where it is not loaded.
fn covers(data: &FileData, shape: &Shape, wanted: &Range<u64>, wide: bool) -> Option<Range<u64>> {
    if !shape.extents {
        return Some(wanted.clone());
    }
    // Each run may have a hole before it, and the last one behind it.
    let cost = |span: u64| 2 * data.extents.runs_of(span) + 1;
    let (mut first, mut last) = (wanted.start / SPAN_BYTES, (wanted.end - 1) / SPAN_BYTES);
    if !(first..=last).all(|span| data.extents.has(span)) {
        return None;
    }
    let mut runs: usize = (first..=last).map(cost).sum();
    if runs > RUNS_MAX {
        return Some(wanted.clone());
    }
    if wide {
        let block = first / BLOCK_SPANS * BLOCK_SPANS..(last / BLOCK_SPANS + 1) * BLOCK_SPANS;
        let mut has_room = |span: u64| {
            let fits = data.extents.has(span) && runs + cost(span) <= RUNS_MAX;
            runs += if fits { cost(span) } else { 0 };
            fits
        };
        while last + 1 < block.end && has_room(last + 1) {
            last += 1;
        }
        while first > block.start && has_room(first - 1) {
            first -= 1;
        }
    }
    Some(first * SPAN_BYTES..((last + 1) * SPAN_BYTES).min(shape.size))
}
