//! Writes: small files stay inline in the metadata, small writes travel in the log record and pack an open object, large
//! ones go straight to a slot while the record has their address and sums, and their ends that fill no segment.

use crate::{
    DataNote, Failure, HandleId, Vfs,
    brake::{Room, WAIT_MAX},
    dirty::{DirtyObject, Reservation},
    files::{FileData, FileState, Shape},
};
use sluice_base::{
    Errno, Ino, ObjectId,
    limits::{FILE_BYTES_MAX, INLINE_BYTES_MAX, SEGMENT_BYTES, SMALL_WRITE_BYTES},
};
use sluice_meta::{
    Attachment, DataChange, SizeChange,
    extent::{Extent, Place},
};
use sluice_run::collections::HashSet;
use sluice_store::SegmentSum;
use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Largest piece of one log record; the journal takes records of up to 2 MiB.
const RECORD_DATA_MAX: usize = 1 << 20;

impl Vfs {
    /// Writes to an open file. On return the bytes survive the end of this process.
    pub fn write(&self, handle: HandleId, offset: u64, bytes: &[u8], kill_suidgid: bool) -> Result<(), Failure> {
        self.let_in(bytes.len())?;
        self.write_now(handle, offset, bytes, kill_suidgid)
    }

    fn write_now(&self, handle: HandleId, offset: u64, bytes: &[u8], kill_suidgid: bool) -> Result<(), Failure> {
        let open = self.file_to_write(handle)?;
        self.write_file(&open.file, Some(offset), bytes, kill_suidgid)
    }

    /// Writes behind the last byte that is known here, for O_APPEND where the front end's word of the size may be from before
    /// another mount's change.
    pub fn append(&self, handle: HandleId, bytes: &[u8], kill_suidgid: bool) -> Result<(), Failure> {
        self.let_in(bytes.len())?;
        self.append_now(handle, bytes, kill_suidgid)
    }

    fn append_now(&self, handle: HandleId, bytes: &[u8], kill_suidgid: bool) -> Result<(), Failure> {
        let open = self.file_to_write(handle)?;
        self.write_file(&open.file, None, bytes, kill_suidgid)
    }

    /// Writes pages of a mapping, which may come when no handle is known.
    pub fn write_ino(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.let_in(bytes.len())?;
        self.write_ino_now(ino, offset, bytes)
    }

    fn write_ino_now(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let held = self.files.with(ino);
        self.write_file(&held.file, Some(offset), bytes, false)
    }

    /// As [`Vfs::write`], waiting for room in journal and cache.
    pub async fn write_later(
        self: Arc<Self>,
        handle: HandleId,
        offset: u64,
        bytes: Vec<u8>,
        kill: bool,
    ) -> Result<(), Errno> {
        let (vfs, _room) = (self.clone(), self.ahead.room_of_write(bytes.len()));
        self.held_back(bytes.len()).await;
        self.make_room(move || vfs.write_now(handle, offset, &bytes, kill)).await
    }

    /// As [`Vfs::append`], waiting for room in journal and cache.
    pub async fn append_later(self: Arc<Self>, handle: HandleId, bytes: Vec<u8>, kill: bool) -> Result<(), Errno> {
        let (vfs, _room) = (self.clone(), self.ahead.room_of_write(bytes.len()));
        self.held_back(bytes.len()).await;
        self.make_room(move || vfs.append_now(handle, &bytes, kill)).await
    }

    /// As [`Vfs::write_ino`], waiting for room in journal and cache.
    pub async fn write_ino_later(self: Arc<Self>, ino: Ino, offset: u64, bytes: Vec<u8>) -> Result<(), Errno> {
        let (vfs, _room) = (self.clone(), self.ahead.room_of_write(bytes.len()));
        self.held_back(bytes.len()).await;
        self.make_room(move || vfs.write_ino_now(ino, offset, &bytes)).await
    }

    /// Whether the journal has room for a write at once.
    fn let_in(&self, len: usize) -> Result<(), Failure> {
        match self.scarce_room(len) {
            Some(room) if !self.brake.lock().try_let_in(self.brake_time(), len, room) => Err(Failure::Wait),
            _ => Ok(()),
        }
    }

    /// Waits as long as a write is held back.
    async fn held_back(&self, len: usize) {
        let Some(room) = self.scarce_room(len) else { return };
        let began = self.brake_time();
        let ticket = self.brake.lock().queue(began, len, room);
        while let Some(room) = self.scarce_room(len) {
            let now = self.brake_time();
            let wait = self.brake.lock().wait(now, ticket, room);
            if wait.is_zero() || now - began >= WAIT_MAX {
                return;
            }
            sluice_run::time::sleep(wait).await;
        }
    }

    /// The time by which waits end.
    pub(crate) fn brake_time(&self) -> Duration {
        sluice_run::time::now().duration_since(self.brake_began)
    }

    /// The journal's room, where it is scarce and a write of so many bytes takes it.
    fn scarce_room(&self, len: usize) -> Option<Room> {
        let (used_bytes, limit_bytes, segment_bytes) = self.parts.journal.room();
        let room = Room { used_bytes, limit_bytes, segment_bytes };
        (len < SMALL_WRITE_BYTES && room.is_scarce()).then_some(room)
    }

    /// Without an `offset` at the file's end.
    pub(crate) fn write_file(
        &self,
        file: &FileState,
        offset: Option<u64>,
        bytes: &[u8],
        kill_suidgid: bool,
    ) -> Result<(), Failure> {
        if bytes.is_empty() {
            return Ok(());
        }
        let too_large = |offset: u64| offset.checked_add(bytes.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX);
        let mut data = file.exclusive()?;
        let offset = match offset {
            Some(offset) => offset,
            None => self.shape(file.ino, &mut data)?.size,
        };
        if too_large(offset) {
            return Err(Errno::EFBIG.into());
        }
        for (index, piece) in bytes.chunks(RECORD_DATA_MAX).enumerate() {
            let offset = offset + (index * RECORD_DATA_MAX) as u64;
            self.write_piece(file.ino, &mut data, offset, piece, kill_suidgid)?;
        }
        self.counters.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn write_piece(&self, ino: Ino, data: &mut FileData, offset: u64, bytes: &[u8], kill: bool) -> Result<(), Failure> {
        let shape = self.shape(ino, data)?;
        let end = offset + bytes.len() as u64;
        if !shape.extents && end <= INLINE_BYTES_MAX as u64 {
            return self.write_inline(ino, data, offset as usize, bytes, kill);
        }
        let body = if shape.inline { self.namespace().body(ino)? } else { None };
        // What the write does not cover of the inline body becomes an extent as well.
        let kept = body.as_deref().filter(|body| offset > 0 || bytes.len() < body.len());
        self.namespace().load_extents(ino, &mut data.extents, 0..kept.map_or(0, |b| b.len() as u64))?;
        self.namespace().load_extents(ino, &mut data.extents, offset..end)?;
        let mut batch = Batch::default();
        if let Some(kept) = kept {
            self.place(data, &mut batch, 0, kept)?;
        }
        self.place(data, &mut batch, offset, bytes)?;
        let change = DataChange {
            extents: batch.extents,
            body: shape.inline.then_some(None),
            size: SizeChange::AtLeast(end),
            new_objects: batch.new.iter().map(|id| (*id, self.parts.session)).collect(),
            attachments: batch.attachments,
            kill_suidgid: kill,
            ..DataChange::default()
        };
        self.commit(ino, data, &change)?;
        let noted = self.parts.journal.written();
        batch.reservations.iter().for_each(|reserved| reserved.object.was_noted(noted));
        drop(batch.reservations);
        Ok(())
    }

    fn write_inline(
        &self,
        ino: Ino,
        data: &mut FileData,
        offset: usize,
        bytes: &[u8],
        kill: bool,
    ) -> Result<(), Failure> {
        let shape = self.shape(ino, data)?;
        let old = if shape.inline { self.namespace().body(ino)? } else { None };
        let mut body = old.map_or_else(Vec::new, |old| old.to_vec());
        let end = offset + bytes.len();
        if body.len() < end {
            body.resize(end, 0);
        }
        body[offset..end].copy_from_slice(bytes);
        let size = SizeChange::AtLeast(end as u64);
        self.commit(
            ino,
            data,
            &DataChange { body: Some(Some(&body)), size, kill_suidgid: kill, ..DataChange::default() },
        )
    }

    /// Commits a change and keeps the file's shape true.
    pub(crate) fn commit(&self, ino: Ino, data: &mut FileData, change: &DataChange<'_>) -> Result<(), Failure> {
        let lost = self.lost(data, change);
        let result = self.namespace().change_data(ino, &mut data.extents, change);
        match result {
            Ok(()) => {
                let gained: Vec<_> =
                    change.extents.iter().filter_map(|extent| Some((extent.place?, extent.len))).collect();
                self.dirty.count(&gained, &lost);
                let shape = data.shape.expect("loaded before a change");
                let inline = change.body.map_or(shape.inline, |body| body.is_some());
                let extents = shape.extents || change.extents.iter().any(|extent| extent.place.is_some());
                data.shape = Some(Shape { size: change.size.of(shape.size), inline, extents });
                Ok(())
            }
            Err(error) => {
                data.shape = None;
                Err(error.into())
            }
        }
    }

    /// What a change takes from objects that are not stored yet; where that is not plain, nothing.
    fn lost(&self, data: &FileData, change: &DataChange<'_>) -> Vec<(Place, u64)> {
        let all = &change.extents;
        // Another mount may have cloned what this one overwrites.
        if self.namespace().is_shared() || all.windows(2).any(|two| two[0].offset + two[0].len > two[1].offset) {
            return Vec::new();
        }
        let mut lost = Vec::new();
        for extent in all {
            let note = |old: Extent| lost.extend(old.place.map(|place| (place, old.len)));
            data.extents.for_each(extent.offset..extent.offset + extent.len, note);
        }
        lost
    }

    /// Puts bytes into open objects and notes what the log record must say.
    fn place<'a>(
        &self,
        data: &mut FileData,
        batch: &mut Batch<'a>,
        offset: u64,
        bytes: &'a [u8],
    ) -> Result<(), Failure> {
        let large = bytes.len() >= SMALL_WRITE_BYTES;
        let mut done = 0;
        while done < bytes.len() {
            let (at, rest) = (offset + done as u64, &bytes[done..]);
            let next_seq = sluice_base::Seq(self.parts.journal.written().0 + 1);
            let reserved = self.dirty.append(&mut data.stream, at, rest, large, next_seq)?;
            let object = &reserved.object;
            for part in parts(object, &reserved, large) {
                let (start, end) = (part.range.start - reserved.offset, part.range.end - reserved.offset);
                let in_record = if part.sums.is_some() { 0..0 } else { start as usize..end as usize };
                if in_record.is_empty() {
                    object.rely_on_slot(part.range.clone());
                }
                let (offset, len) = (part.range.start, part.range.end - part.range.start);
                let note = DataNote { object: object.id, offset, len, slot: object.location(), sums: part.sums };
                batch.attachments.push(Attachment { header: note.encode(), data: &rest[in_record] });
            }
            let place = Some(Place { object: object.id, offset: reserved.offset });
            batch.extents.push(Extent { offset: at, len: reserved.len.into(), place });
            // Another writer's commit may have failed after it began the object, so every commit offers the record; it is
            // made once.
            batch.new.insert(object.id);
            done += reserved.len as usize;
            batch.reservations.push(reserved);
        }
        Ok(())
    }
}

/// A part of what a write put into an object.
struct Part {
    range: Range<u32>,
    /// Of a part that only the slot has.
    sums: Option<Vec<SegmentSum>>,
}

/// Of a large write the whole segments are in the slot only. What shares a segment with other writes is in the record as well: a
/// segment has one sum, so where the power takes bytes that were not synced it would take what was synced beside them.
fn parts(object: &DirtyObject, reserved: &Reservation, large: bool) -> Vec<Part> {
    const SEGMENT: u32 = SEGMENT_BYTES as u32;
    let (start, end) = (reserved.offset, reserved.offset + reserved.len);
    let whole = start.next_multiple_of(SEGMENT)..end - end % SEGMENT;
    let sums = if large && !whole.is_empty() { object.sums(whole.start, whole.end - whole.start) } else { None };
    if sums.is_none() {
        return vec![Part { range: start..end, sums }];
    }
    let in_record = |range| Part { range, sums: None };
    let parts = [in_record(start..whole.start), Part { range: whole.clone(), sums }, in_record(whole.end..end)];
    parts.into_iter().filter(|part| !part.range.is_empty()).collect()
}

/// What a write collects before it commits.
#[derive(Default)]
struct Batch<'a> {
    extents: Vec<Extent>,
    attachments: Vec<Attachment<'a>>,
    new: HashSet<ObjectId>,
    reservations: Vec<Reservation>,
}
