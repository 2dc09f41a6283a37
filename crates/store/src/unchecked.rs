//! Bytes of slots as they are on the disk, for who does without a check.

use crate::{Pin, ReadError, pin::loading};
use sluice_base::limits::SEGMENT_BYTES;
use std::io;

impl Pin {
    /// Whether memory has all of [offset, offset + len) of the object's plain form at this moment. Where the kernel does not say, it
    /// counts as if it had; a disk that fails tells when it is read.
    pub fn is_resident(&self, offset: u32, len: usize) -> bool {
        let told = self.0.slab.is_resident(self.0.base() + u64::from(offset), len as u64);
        told.ok().flatten().unwrap_or(true)
    }

    /// Fills `buf` from `offset` of the object's plain form, **unchecked**, if that needs no disk; all of it must be what [`Pin::file`]
    /// would give. [`ReadError::NotResident`] where the disk would have to be waited for.
    pub fn read_unchecked(&self, offset: u32, buf: &mut [u8]) -> Result<(), ReadError> {
        let index = offset / SEGMENT_BYTES as u32;
        match self.0.slab.read_resident(buf, self.0.base() + u64::from(offset)) {
            Ok(true) => Ok(()),
            Ok(false) => {
                // The kernel loads it now, and nobody has looked at that.
                let end = (offset as usize + buf.len()).div_ceil(SEGMENT_BYTES);
                loading(&self.0, index as usize..end);
                Err(ReadError::NotResident { index })
            }
            // A slab that lost its tail.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ReadError::Corrupt { index }),
            Err(error) => Err(ReadError::Io(error)),
        }
    }
}
