//! Sizes that formats and front ends share. Everything here is part of the stored form or of the POSIX surface.

/// Unit of checksum, codec, encryption and caching within an object, in bytes.
pub const SEGMENT_BYTES: usize = 32 << 10;
/// Most segments of one object.
pub const SEGMENTS_PER_OBJECT: usize = 128;
/// Most payload of one object, in bytes: 4 MiB.
pub const OBJECT_BYTES: usize = SEGMENT_BYTES * SEGMENTS_PER_OBJECT;
/// Extent keys of a file are grouped by spans of this many bytes of the file: 64 MiB.
pub const SPAN_BYTES: u64 = 64 << 20;
/// Files up to this size live inside the metadata.
pub const INLINE_BYTES_MAX: usize = 4 << 10;
/// Writes below this go through the journal; larger ones go straight to a slot.
pub const SMALL_WRITE_BYTES: usize = 128 << 10;
/// Longest name in a directory (Linux NAME_MAX), in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest symbolic link target (Linux PATH_MAX less its NUL), in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Longest name of an extended attribute (Linux XATTR_NAME_MAX), in bytes.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value of an extended attribute (Linux XATTR_SIZE_MAX), in bytes.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// Longest list of an inode's attribute names (Linux XATTR_LIST_MAX), in bytes.
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;
/// Most hard links to an inode.
pub const LINKS_MAX: u32 = 1_000_000;
/// Largest file offset: what the kernel's loff_t holds.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
