//! /dev/fuse.

#![allow(unsafe_code)]

use crate::abi::OutHeader;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, IoSlice};
use rustix::ioctl;
use std::io;
use zerocopy::IntoBytes;

/// The most pieces in one writev (UIO_MAXIOV); one is the header.
pub(crate) const PIECES_MAX: usize = 1023;

/// An open /dev/fuse, or a clone of one: requests read from a clone are answered there. Always non-blocking.
pub(crate) struct Device(OwnedFd);

/// What became of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The kernel has it.
    Taken,
    /// Nobody waits for it any more.
    Unwanted,
    /// The mount is gone.
    Gone,
    /// The kernel refused it; the request is still open unless the kernel ended it by itself.
    Refused(Errno),
}

impl Device {
    /// A fresh one, not yet a mount's.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(Self(rustix::fs::open("/dev/fuse", flags, Mode::empty())?))
    }

    /// One that somebody else opened and mounted.
    pub(crate) fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        Ok(Self(fd))
    }

    /// A further channel of the same mount (`FUSE_DEV_IOC_CLONE`).
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        /// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, uint32_t)`, which takes a pointer to the other descriptor's number.
        const CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);
        let clone = Self::open()?;
        let mut source = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: the opcode belongs to this device and reads one u32, which `Updater` points it to.
        let call = unsafe { ioctl::Updater::<CLONE, u32>::new(&mut source) };
        // SAFETY: the call keeps nothing of the argument, and both descriptors are open for its duration.
        unsafe { ioctl::ioctl(&clone.0, call) }?;
        Ok(clone)
    }

    /// One request into `buffer`; its length.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.0, buffer)
    }

    /// Answers `unique` with `pieces`, or with an error.
    pub(crate) fn reply<'a>(&self, unique: u64, error: i32, pieces: impl Iterator<Item = &'a [u8]>) -> Written {
        // Nearly all replies are one piece; a vector on the stack serves them.
        let mut header = OutHeader { len: 0, error: -error, unique };
        let mut few = [&[][..]; 3];
        let mut many = Vec::new();
        let mut count = 0;
        let mut len = size_of::<OutHeader>();
        for piece in pieces {
            len += piece.len();
            if let Some(slot) = few.get_mut(count) {
                *slot = piece;
            } else {
                many.push(piece);
            }
            count += 1;
        }
        let Ok(len) = u32::try_from(len) else { return Written::Refused(Errno::TOOBIG) };
        header.len = len;
        let head = IoSlice::new(header.as_bytes());
        let result = if many.is_empty() {
            let slices = [head, IoSlice::new(few[0]), IoSlice::new(few[1]), IoSlice::new(few[2])];
            rustix::io::writev(&self.0, &slices[..=count])
        } else {
            let rest = few.into_iter().chain(many).map(IoSlice::new);
            rustix::io::writev(&self.0, &std::iter::once(head).chain(rest).collect::<Vec<_>>())
        };
        match result {
            Ok(_) => Written::Taken,
            Err(Errno::NOENT) => Written::Unwanted,
            Err(Errno::NODEV | Errno::CONNABORTED) => Written::Gone,
            Err(other) => Written::Refused(other),
        }
    }

    /// Sends a notification, whose code travels in the error field.
    pub(crate) fn notify(&self, code: i32, parts: [&[u8]; 3]) -> Result<(), Errno> {
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let len = u32::try_from(len).map_err(|_| Errno::TOOBIG)?;
        let header = OutHeader { len, error: code, unique: 0 };
        let [a, b, c] = parts.map(IoSlice::new);
        rustix::io::writev(&self.0, &[IoSlice::new(header.as_bytes()), a, b, c]).map(drop)
    }
}

/// Where files are given to the kernel, for it to read by itself (`FUSE_DEV_IOC_BACKING_OPEN`, Linux 6.9).
pub struct Backings(pub(crate) std::sync::Arc<Device>);

impl Backings {
    /// Gives `file` to the kernel, which keeps it open; its number, for answers to OPEN. EPERM without CAP_SYS_ADMIN.
    pub fn open(&self, file: impl AsFd) -> Result<i32, Errno> {
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: the value describes this device's call, see there; the call keeps nothing of it, and both descriptors are open.
        unsafe { ioctl::ioctl(&self.0.0, BackingOpen(BackingMap { fd, flags: 0, padding: 0 })) }
    }

    /// Takes a number back; handles that have it keep its file.
    pub fn close(&self, id: i32) {
        /// `_IOW(229, 2, uint32_t)`, which takes a pointer to the number.
        const CLOSE: ioctl::Opcode = ioctl::opcode::write::<u32>(229, 2);
        // SAFETY: the opcode belongs to this device and reads one u32, to which `Setter` points it.
        let call = unsafe { ioctl::Setter::<CLOSE, u32>::new(id.cast_unsigned()) };
        // SAFETY: the call keeps nothing of the argument, and the descriptor is open for its duration.
        if let Err(error) = unsafe { ioctl::ioctl(&self.0.0, call) } {
            tracing::debug!(%error, "a file was not taken back from the kernel");
        }
    }
}

/// `struct fuse_backing_map`
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// `FUSE_DEV_IOC_BACKING_OPEN`, which returns a number.
struct BackingOpen(BackingMap);

// SAFETY: the opcode is that of a call that reads one `struct fuse_backing_map`, to which the pointer leads, and writes nothing.
unsafe impl ioctl::Ioctl for BackingOpen {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> ioctl::Opcode {
        ioctl::opcode::write::<BackingMap>(229, 1)
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        (&raw mut self.0).cast()
    }

    // SAFETY: the pointer is not used.
    unsafe fn output_from_ptr(out: ioctl::IoctlOutput, _: *mut std::ffi::c_void) -> Result<i32, Errno> {
        Ok(out)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
