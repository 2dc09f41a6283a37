//! A cursor over the bytes after the header.

use sluice_base::Timestamp;
use zerocopy::{FromBytes, Immutable, KnownLayout};

pub(super) struct Body<'a>(pub(super) &'a [u8]);

impl<'a> Body<'a> {
    /// The next structure, copied out: nothing is assumed about alignment.
    pub(super) fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    /// The next NUL-terminated string, without the NUL; never empty.
    pub(super) fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = rest.get(1..)?;
        (!name.is_empty()).then_some(name)
    }

    /// The next `len` bytes.
    pub(super) fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len as usize)?;
        self.0 = rest;
        Some(bytes)
    }
}

pub(super) fn time(secs: i64, nanos: u32) -> Option<Timestamp> {
    Timestamp::new(secs, nanos)
}
