//! fallocate(2), lseek(2) for data and holes, copy_file_range(2).

use crate::{
    Failure, HandleId, Vfs,
    change::HOLES_AT_ONCE,
    files::{FileData, FileState},
};
use sluice_base::{
    Errno,
    limits::{FILE_BYTES_MAX, SPAN_BYTES},
};
use sluice_meta::{DataChange, SizeChange, extent::Extent};
use std::collections::BTreeSet;

/// fallocate(2) modes (linux/falloc.h).
mod mode {
    pub const KEEP_SIZE: u32 = 1;
    pub const PUNCH_HOLE: u32 = 2;
    pub const ZERO_RANGE: u32 = 16;
}

/// Most bytes that one copy_file_range call clones; the caller asks for the rest.
const COPY_MAX: u64 = 1 << 30;
/// Most runs that one call clones, so that its log record stays small however fragmented the source is.
const RUNS_MAX: usize = 1024;

/// What lseek(2) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFrom {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE.
    Hole,
}

impl Vfs {
    /// fallocate(2). Room is never reserved: objects are written anew, so an overwrite needs room whatever was promised.
    pub fn fallocate(&self, handle: HandleId, how: u32, offset: u64, len: u64) -> Result<(), Failure> {
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Errno::EFBIG)?;
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let zero = match how & !mode::KEEP_SIZE {
            0 => false,
            mode::PUNCH_HOLE if how & mode::KEEP_SIZE != 0 => true,
            mode::ZERO_RANGE => true,
            _ => return Err(Errno::EOPNOTSUPP.into()),
        };
        let open = self.file_to_write(handle)?;
        let mut data = open.file.exclusive()?;
        let shape = self.shape(open.file.ino, &mut data)?;
        let size = if how & mode::KEEP_SIZE == 0 { SizeChange::AtLeast(end) } else { SizeChange::Keep };
        if !zero {
            // Also where nothing changes but the times, as in ext4.
            return self.commit(open.file.ino, &mut data, &DataChange { size, ..DataChange::default() });
        }
        if shape.inline {
            let body = self.namespace().body(open.file.ino)?;
            let mut body = body.map_or_else(Vec::new, |body| body.to_vec());
            let to = body.len().min(end as usize);
            if let Some(cleared) = body.get_mut((offset as usize).min(to)..to) {
                cleared.fill(0);
            }
            return self.commit(
                open.file.ino,
                &mut data,
                &DataChange { body: Some(Some(&body)), size, ..DataChange::default() },
            );
        }
        let mut extents = if shape.extents { self.holes(open.file.ino, &mut data, offset, end)? } else { Vec::new() };
        while extents.len() > HOLES_AT_ONCE {
            let part: Vec<Extent> = extents.drain(..HOLES_AT_ONCE).collect();
            self.commit(open.file.ino, &mut data, &DataChange { extents: part, ..DataChange::default() })?;
        }
        self.commit(open.file.ino, &mut data, &DataChange { extents, size, ..DataChange::default() })
    }

    /// lseek(2) with SEEK_DATA or SEEK_HOLE; the end of the file counts as a hole.
    pub fn seek(&self, handle: HandleId, offset: u64, what: SeekFrom) -> Result<u64, Failure> {
        let open = self.file(handle)?;
        let mut data = open.file.exclusive()?;
        let shape = self.shape(open.file.ino, &mut data)?;
        if offset >= shape.size {
            return Err(Errno::ENXIO.into());
        }
        if shape.inline {
            let body = self.namespace().body(open.file.ino)?.map_or(0, |body| body.len() as u64);
            return match what {
                SeekFrom::Data if offset < body => Ok(offset),
                SeekFrom::Data => Err(Errno::ENXIO.into()),
                SeekFrom::Hole => Ok(offset.max(body)),
            };
        }
        self.seek_extents(&open.file, &mut data, offset, shape.size, what)
    }

    fn seek_extents(
        &self,
        file: &FileState,
        data: &mut FileData,
        from: u64,
        size: u64,
        what: SeekFrom,
    ) -> Result<u64, Failure> {
        let mut at = from;
        while at < size {
            let span = self.namespace().next_span(file.ino, at / SPAN_BYTES)?;
            let start = span.map_or(size, |span| (span * SPAN_BYTES).max(at)).min(size);
            if what == SeekFrom::Hole && start > at {
                return Ok(at);
            }
            if start >= size {
                break;
            }
            let end = ((start / SPAN_BYTES + 1) * SPAN_BYTES).min(size);
            self.namespace().load_extents(file.ino, &mut data.extents, start..end)?;
            let wanted = |extent: &Extent| extent.place.is_some() == (what == SeekFrom::Data);
            if let Some(found) = data.extents.map(start..end).into_iter().find(wanted) {
                return Ok(found.offset);
            }
            at = end;
        }
        if what == SeekFrom::Hole { Ok(size) } else { Err(Errno::ENXIO.into()) }
    }

    /// copy_file_range(2) as a clone: the target's extents point to the same objects, no byte moves. Returns the bytes copied.
    pub fn copy_range(&self, from: (HandleId, u64), to: (HandleId, u64), len: u64) -> Result<u64, Failure> {
        let (source, target) = (self.file(from.0)?.file.clone(), self.file_to_write(to.0)?.file.clone());
        let end = to.1.checked_add(len.min(COPY_MAX)).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Errno::EFBIG)?;
        if source.ino == target.ino {
            let mut data = target.exclusive()?;
            let Some(len) = self.copied(&source, &mut data, from.1, end - to.1)? else { return Ok(0) };
            if from.1 < to.1 + len && to.1 < from.1 + len {
                return Err(Errno::EINVAL.into());
            }
            return self.clone_within(&source, &mut data, from.1, to.1, len);
        }
        // Always in the order of the inodes, so that two copies in opposite directions do not wait for each other.
        let (first, second) = if source.ino < target.ino { (&source, &target) } else { (&target, &source) };
        let (mut first, mut second) = (first.exclusive()?, second.exclusive()?);
        let (from_data, to_data) =
            if source.ino < target.ino { (&mut first, &mut second) } else { (&mut second, &mut first) };
        let Some(len) = self.copied(&source, from_data, from.1, end - to.1)? else { return Ok(0) };
        if self.shape(source.ino, from_data)?.inline {
            let body = self.namespace().body(source.ino)?.unwrap_or_else(|| (&[] as &[u8]).into());
            if let Some(bytes) = body.get(from.1 as usize..).filter(|rest| !rest.is_empty()) {
                let bytes = &bytes[..bytes.len().min(len as usize)];
                drop((first, second));
                self.write_file(&target, Some(to.1), bytes, false)?;
                return Ok(bytes.len() as u64);
            }
            // Behind the body there are only zeros.
            let hole = Extent { offset: from.1, len, place: None };
            return self.put_clone(&target, to_data, vec![hole], from.1, to.1);
        }
        self.namespace().load_extents(source.ino, &mut from_data.extents, from.1..from.1 + len)?;
        let runs = from_data.extents.map(from.1..from.1 + len);
        self.put_clone(&target, to_data, runs, from.1, to.1)
    }

    /// How many of `len` bytes from `from` the file has; `None` when it ends before.
    fn copied(&self, file: &FileState, data: &mut FileData, from: u64, len: u64) -> Result<Option<u64>, Failure> {
        let size = self.shape(file.ino, data)?.size;
        Ok(Some(len.min(size.saturating_sub(from))).filter(|len| *len > 0))
    }

    fn clone_within(
        &self,
        file: &FileState,
        data: &mut FileData,
        from: u64,
        to: u64,
        len: u64,
    ) -> Result<u64, Failure> {
        if self.shape(file.ino, data)?.inline {
            // Inline bytes are few: EXDEV makes the kernel copy them.
            return Err(Errno::EXDEV.into());
        }
        self.namespace().load_extents(file.ino, &mut data.extents, from..from + len)?;
        let runs = data.extents.map(from..from + len);
        self.put_clone(file, data, runs, from, to)
    }

    /// Lets [`to`...) of the target refer to what `runs`, which start at `from`, refer to. Returns the bytes copied.
    fn put_clone(
        &self,
        target: &FileState,
        data: &mut FileData,
        mut runs: Vec<Extent>,
        from: u64,
        to: u64,
    ) -> Result<u64, Failure> {
        runs.truncate(RUNS_MAX);
        let len = runs.iter().map(|run| run.len).sum();
        let shape = self.shape(target.ino, data)?;
        if shape.inline && (to > 0 || len < shape.size) {
            // A body that the copy does not cover whole: the kernel copies, and the write turns it into extents.
            return Err(Errno::EXDEV.into());
        }
        self.namespace().load_extents(target.ino, &mut data.extents, to..to + len)?;
        // The target may be published before the source, whose change begins these objects, and the source be removed before it is.
        let objects: BTreeSet<_> = runs.iter().filter_map(|run| Some(run.place?.object)).collect();
        let unstored = objects.into_iter().filter(|object| self.dirty.get(*object).is_some());
        let new_objects = unstored.map(|object| (object, self.parts.session)).collect();
        let extents = runs.into_iter().map(|run| Extent { offset: run.offset - from + to, ..run }).collect();
        let body = shape.inline.then_some(None);
        let size = SizeChange::AtLeast(to + len);
        self.commit(target.ino, data, &DataChange { extents, body, size, new_objects, ..DataChange::default() })?;
        Ok(len)
    }
}
