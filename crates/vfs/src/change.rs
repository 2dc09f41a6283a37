//! truncate(2) and attribute changes.

use crate::{
    Failure, HandleId, Vfs,
    files::{FileData, FileState},
};
use sluice_base::{
    Errno, Ino,
    limits::{FILE_BYTES_MAX, SPAN_BYTES},
};
use sluice_meta::{Attr, Caller, DataChange, SetAttributes, SizeChange, extent::Extent, records::mode};

/// Most runs that one hole of [`Vfs::holes`] covers.
const RUNS_AT_ONCE: usize = 1024;
/// Most holes that one transaction makes. Each run may end an object's use, at some 90 bytes of the record: 1.5 MiB of the 2
/// that a record may have. Of an unfragmented file that is 1 GiB.
pub(crate) const HOLES_AT_ONCE: usize = 16;

impl Vfs {
    /// setattr; `size` first, as truncate(2) and ftruncate(2) do.
    pub fn setattr(&self, ino: Ino, size: Option<u64>, set: &SetAttributes) -> Result<Attr, Failure> {
        if let Some(size) = size {
            let held = self.files.with(ino);
            self.truncate(&held.file, size, set.kill_suidgid)?;
        }
        if size.is_some() && (SetAttributes { kill_suidgid: false, ..*set }) == SetAttributes::default() {
            let attr = self.namespace().getattr(ino)?;
            // On a served volume the new size takes them when it is published, and the kernel keeps what it is told now.
            if !set.kill_suidgid || attr.mode & (mode::SETUID | mode::SETGID) == 0 {
                return Ok(attr);
            }
        }
        Ok(self.namespace().setattr(ino, set)?)
    }

    /// Takes setuid and setgid from a file that somebody but the superuser is about to change in a way that the kernel sends
    /// without saying so: fallocate and copy_file_range.
    pub fn changed_by(&self, handle: HandleId, caller: Caller) -> Result<(), Failure> {
        let ino = self.file(handle)?.file.ino;
        if caller.uid != 0 && self.namespace().getattr(ino)?.mode & (mode::SETUID | mode::SETGID) != 0 {
            self.namespace().setattr(ino, &SetAttributes { kill_suidgid: true, ..SetAttributes::default() })?;
        }
        Ok(())
    }

    pub(crate) fn truncate(&self, file: &FileState, size: u64, kill_suidgid: bool) -> Result<(), Failure> {
        if size > FILE_BYTES_MAX {
            return Err(Errno::EFBIG.into());
        }
        let mut data = file.exclusive()?;
        let shape = self.shape(file.ino, &mut data)?;
        let change = DataChange { size: SizeChange::Exactly(size), kill_suidgid, ..DataChange::default() };
        if shape.inline && size < shape.size {
            let body = self.namespace().body(file.ino)?.unwrap_or_else(|| (&[] as &[u8]).into());
            let kept = &body[..body.len().min(size as usize)];
            let body = Some((!kept.is_empty()).then_some(kept));
            return self.commit(file.ino, &mut data, &DataChange { body, ..change });
        }
        let mut holes = if shape.extents && size < shape.size {
            self.holes(file.ino, &mut data, size, shape.size)?
        } else {
            Vec::new()
        };
        // From the end, so that a crash in between leaves no extent past the size.
        while holes.len() > HOLES_AT_ONCE {
            let extents = holes.split_off(holes.len() - HOLES_AT_ONCE);
            let size = SizeChange::Exactly(extents[0].offset);
            self.commit(file.ino, &mut data, &DataChange { extents, size, ..DataChange::default() })?;
        }
        self.commit(file.ino, &mut data, &DataChange { extents: holes, ..change })
    }

    /// Holes that cover every extent in [from, to), one or more for each span that has any.
    pub(crate) fn holes(&self, ino: Ino, data: &mut FileData, from: u64, to: u64) -> Result<Vec<Extent>, Failure> {
        let mut holes = Vec::new();
        let mut at = from;
        while at < to {
            let Some(span) = self.namespace().next_span(ino, at / SPAN_BYTES)? else { break };
            let (start, end) = ((span * SPAN_BYTES).max(at), ((span + 1) * SPAN_BYTES).min(to));
            if start >= to {
                break;
            }
            self.namespace().load_extents(ino, &mut data.extents, start..end)?;
            for runs in data.extents.map(start..end).chunks(RUNS_AT_ONCE) {
                let (first, last) = (&runs[0], &runs[runs.len() - 1]);
                holes.push(Extent { offset: first.offset, len: last.offset + last.len - first.offset, place: None });
            }
            at = end;
        }
        Ok(holes)
    }
}
