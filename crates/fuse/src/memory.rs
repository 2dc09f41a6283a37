//! Page-aligned memory straight from the kernel: zeroed, and resident only where it was touched.

#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{Layout, handle_alloc_error};
use std::ptr::{self, NonNull};

/// Bytes of one page, on which the memory starts.
pub(crate) const PAGE: usize = 4096;

/// A private mapping, which stays where it is for its whole life.
pub(crate) struct PageBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: nobody else has the mapping, as with a `Box<[u8]>`.
unsafe impl Send for PageBuffer {}

impl PageBuffer {
    /// At least `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        let len = len.max(1).next_multiple_of(PAGE);
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory of ours.
        let mapped =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        match mapped.ok().and_then(|start| NonNull::new(start.cast())) {
            Some(start) => Self { start, len },
            None => handle_alloc_error(Layout::from_size_align(len, PAGE).unwrap_or(Layout::new::<u8>())),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped, readable and initialised (zero at first) until `self` is dropped, and borrowed with it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and writable; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Where it stands.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, whole, and no reference into it outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
