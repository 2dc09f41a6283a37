//! The structures and numbers of `<linux/fuse.h>`, ABI 7.45 (Linux 6.18), in host byte order.
//!
//! Names and fields are those of the header without the `fuse_` prefix; sizes are asserted at compile time.

#![allow(missing_docs, reason = "fields and constants carry the names and meanings of linux/fuse.h")]

pub mod flags;
pub mod inputs;
pub mod opcode;
pub mod outputs;
pub mod uring;

/// `FUSE_KERNEL_VERSION`
pub const MAJOR: u32 = 7;
/// `FUSE_KERNEL_MINOR_VERSION` of the header these files follow.
pub const MINOR: u32 = 45;
/// The oldest minor version that this crate speaks: 7.36 (Linux 5.17) brought the second word of INIT flags, the last
/// change of a layout that is not behind a flag.
pub const MINOR_MIN: u32 = 36;
/// `FUSE_ROOT_ID`
pub const ROOT_ID: u64 = 1;
/// `FUSE_MIN_READ_BUFFER`
pub const MIN_READ_BUFFER: usize = 8192;

/// Declares `repr(C)` structures with their size in bytes as a C compiler lays them out.
macro_rules! wire {
    ($($(#[$meta:meta])* $name:ident = $size:literal { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
        #[repr(C)]
        pub struct $name { $(pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}
pub(crate) use wire;

wire! {
    /// `struct fuse_in_header`
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    }
    /// `struct fuse_out_header`; `error` is a negative errno, or a notification code when `unique` is 0.
    OutHeader = 16 { len: u32, error: i32, unique: u64 }
    /// `struct fuse_attr`
    AttrWire = 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    /// `struct fuse_file_lock`
    FileLock = 24 { start: u64, end: u64, kind: u32, pid: u32 }
}
