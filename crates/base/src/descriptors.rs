//! The descriptors of this process.

#![allow(unsafe_code, reason = "no library has close_range(2)")]

use std::io;

/// No program that this process starts from now on has a descriptor of it beside the three standard ones: close_range(2) with
/// CLOSE_RANGE_CLOEXEC.
pub fn keep_from_children() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: it takes numbers alone, and closes nothing: descriptors are only marked.
    let done = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
