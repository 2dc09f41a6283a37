//! Whole segments that may leave the disk unread, by sendfile or splice.

use super::read::{Wait, failed, fetch, loading, readable};
use crate::{
    ReadError,
    entry::{Entry, Hold},
};
use sluice_base::{
    ObjectId,
    crc::{crc32c_combine, place_crc},
    limits::SEGMENT_BYTES,
};
use std::{fmt, io, os::fd::BorrowedFd, sync::Arc};

/// A run of present segments, as they lie on the disk. Their bytes stay where they are while this exists, and it knows what their
/// CRC must be; **nobody has checked them**: who receives them does.
///
/// sendfile(2) and splice(2) take references to pages of memory, which may still be on their way when they return. That is no
/// reason to keep the region: a slot that is given away is punched first as a whole, which detaches such pages.
pub struct Region {
    hold: Hold,
    first: u32,
    count: u32,
    bytes: u32,
    crc: u32,
}

impl Region {
    pub(super) fn new(entry: &Arc<Entry>, first: u32, count: u32) -> Result<Self, ReadError> {
        let absent = |index| ReadError::Absent { index };
        let (mut bytes, mut crc) = (0, 0);
        for index in first..first.checked_add(count).filter(|_| count > 0).ok_or(absent(first))? {
            let sum = readable(entry, index as usize)?.sum;
            if bytes != (index - first) * SEGMENT_BYTES as u32 {
                return Err(absent(index - 1));
            }
            bytes += sum.len;
            crc = crc32c_combine(crc, sum.crc ^ place_crc(entry.object, index), sum.len);
        }
        // Whoever asks holds the entry, which may be doomed: then nobody new may.
        let hold = entry.hold().ok_or(absent(first))?;
        Ok(Self { hold, first, count, bytes, crc })
    }

    /// The object.
    pub fn object(&self) -> ObjectId {
        self.hold.object
    }

    /// Its first segment.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of all of them.
    #[allow(clippy::len_without_is_empty, reason = "it has at least a segment, which has a byte")]
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// CRC-32C of the bytes, as they should be.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Fills `buf` from `offset` of the region with what the disk has, **unchecked**. Waits for it.
    pub fn read_at(&self, offset: usize, buf: &mut [u8]) -> Result<(), ReadError> {
        if offset.checked_add(buf.len()).is_none_or(|end| end > self.len()) {
            return Err(ReadError::Absent { index: self.first + self.count });
        }
        let from = self.first as usize * SEGMENT_BYTES + offset;
        let touched = from / SEGMENT_BYTES..(from + buf.len()).div_ceil(SEGMENT_BYTES);
        if !self.is_there(offset, buf.len())? {
            loading(&self.hold, touched.clone());
        }
        fetch(&self.hold, from, buf, Wait::ForDisk, || loading(&self.hold, touched))
    }

    /// Whether memory has all of the bytes at this moment, so that to send them waits for no disk. False where the kernel does not say.
    pub fn is_resident(&self) -> io::Result<bool> {
        self.is_there(0, self.len())
    }

    /// Has the bytes brought into memory, **unchecked**. Waits for the disk.
    pub fn load(&self) -> Result<(), ReadError> {
        loading(&self.hold, self.first as usize..(self.first + self.count) as usize);
        self.hold.slab.load(self.place(), u64::from(self.bytes)).map_err(|error| failed(error, self.first))
    }

    fn is_there(&self, offset: usize, bytes: usize) -> io::Result<bool> {
        let place = self.place() + offset as u64;
        Ok(self.hold.slab.is_resident(place, bytes as u64)? == Some(true))
    }

    /// The file, and where in it the region starts; `None` where the bytes are had by [`Self::read_at`] only.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.hold.slab.descriptor()?, self.place()))
    }

    /// Where the region starts in its slab.
    fn place(&self) -> u64 {
        self.hold.base() + u64::from(self.first) * SEGMENT_BYTES as u64
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, segments {}+{}, {} bytes)", self.object(), self.first, self.count, self.bytes)
    }
}
