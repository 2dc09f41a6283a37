//! POSIX through a mount, one module per topic. docs/semantics.md names the test that holds each promise.

mod directories;
mod files;
mod links;
mod locks;
mod memory_maps;
mod names;
mod nodes;
mod open_flags;
mod permissions;
mod readdir;
mod rename;
mod space;
mod statfs;
mod times;
mod xattrs;

use std::path::Path;

use rustix::{
    fs::{self as sys, CWD, Mode, OFlags, Stat},
    io::Errno,
};

/// The raw error number of an I/O error of the standard library.
fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&result.expect_err("an error")).expect("an error of the system")
}

fn stat(path: impl AsRef<Path>) -> Stat {
    sys::lstat(path.as_ref()).unwrap_or_else(|e| panic!("lstat {}: {e}", path.as_ref().display()))
}

fn exists(path: impl AsRef<Path>) -> bool {
    sys::lstat(path.as_ref()).is_ok()
}

fn open(path: impl AsRef<Path>, flags: OFlags) -> rustix::io::Result<std::fs::File> {
    sys::openat(CWD, path.as_ref(), flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644)).map(Into::into)
}

fn chmod(path: impl AsRef<Path>, mode: u32) {
    sys::chmod(path.as_ref(), Mode::from_raw_mode(mode)).expect("chmod");
}

fn chown(path: impl AsRef<Path>, uid: u32, gid: u32) -> rustix::io::Result<()> {
    let (uid, gid) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(gid));
    sys::chown(path.as_ref(), Some(uid), Some(gid))
}

/// Bytes that are never zero and differ at every offset of a few hundred kilobytes.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31).wrapping_add(i >> 8) % 255) as u8 + 1).collect()
}
