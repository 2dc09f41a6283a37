//! truncate(2) and attribute changes.

use crate::{Failure, Vfs, error::errno, files::{FileData, FileState}};
use sluice_base::{
    Errno, Ino,
    limits::{FILE_BYTES_MAX, SPAN_BYTES},
};
use sluice_meta::{Attr, DataChange, SetAttributes, SizeChange, extent::Extent};

/// Most spans whose extents one transaction removes: 16 GiB of a file.
const SPANS_AT_ONCE: usize = 256;

impl Vfs {
    /// setattr; `size` first, as truncate(2) and ftruncate(2) do.
    pub fn setattr(&self, ino: Ino, size: Option<u64>, set: &SetAttributes) -> Result<Attr, Failure> {
        if let Some(size) = size {
            let held = self.files.with(ino);
            self.truncate(&held.file, size, set.kill_suidgid)?;
        }
        let rest = SetAttributes { kill_suidgid: set.kill_suidgid && size.is_none(), ..*set };
        if rest.mode.is_none() && rest.uid.is_none() && rest.gid.is_none() && rest.atime.is_none() && rest.mtime.is_none() {
            if !rest.kill_suidgid && rest.ctime.is_none() {
                return Ok(self.namespace().getattr(ino)?);
            }
        }
        Ok(self.namespace().setattr(ino, &rest)?.value)
    }

    pub(crate) fn truncate(&self, file: &FileState, size: u64, kill_suidgid: bool) -> Result<(), Failure> {
        if size > FILE_BYTES_MAX {
            return Err(Errno::EFBIG.into());
        }
        let mut data = file.data.write();
        let shape = self.shape(file.ino, &mut data)?;
        let change = DataChange { size: SizeChange::Exactly(size), kill_suidgid, ..DataChange::default() };
        if shape.inline && size < shape.size {
            let body = self.namespace().body(file.ino).map_err(|e| errno(&e))?.unwrap_or_else(|| (&[] as &[u8]).into());
            let kept = &body[..body.len().min(size as usize)];
            let body = Some((!kept.is_empty()).then_some(kept));
            return self.commit(file.ino, &mut data, &DataChange { body, ..change });
        }
        let mut holes = if shape.extents && size < shape.size { self.holes(file.ino, &mut data, size, shape.size)? } else { Vec::new() };
        // From the end, so that a crash in between leaves no extent past the size.
        while holes.len() > SPANS_AT_ONCE {
            let extents = holes.split_off(holes.len() - SPANS_AT_ONCE);
            let size = SizeChange::Exactly(extents[0].offset);
            self.commit(file.ino, &mut data, &DataChange { extents, size, ..DataChange::default() })?;
        }
        self.commit(file.ino, &mut data, &DataChange { extents: holes, ..change })
    }

    /// Holes that cover every extent in [from, to), one for each span that has any.
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
            holes.push(Extent { offset: start, len: end - start, place: None });
            at = end;
        }
        Ok(holes)
    }
}
