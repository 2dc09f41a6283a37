//! What a server answers after the header: `struct fuse_*_out`.

use super::{AttrWire, FileLock, wire};

wire! {
    /// `struct fuse_init_out`
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    /// `struct fuse_entry_out`
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: AttrWire,
    }
    /// `struct fuse_attr_out`
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: AttrWire }
    /// `struct fuse_open_out`
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 }
    /// `struct fuse_write_out`, of WRITE and COPY_FILE_RANGE
    WriteOut = 8 { size: u32, padding: u32 }
    /// `struct fuse_kstatfs`, all of `struct fuse_statfs_out`
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    /// `struct fuse_getxattr_out`: the answer to a size of 0
    GetxattrOut = 8 { size: u32, padding: u32 }
    /// `struct fuse_lk_out`
    LkOut = 24 { lk: FileLock }
    /// `struct fuse_bmap_out`
    BmapOut = 8 { block: u64 }
    /// `struct fuse_ioctl_out`
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// `struct fuse_poll_out`
    PollOut = 8 { revents: u32, padding: u32 }
    /// `struct fuse_lseek_out`
    LseekOut = 8 { offset: u64 }
    /// `struct fuse_copy_file_range_out`, of COPY_FILE_RANGE_64
    CopyFileRangeOut = 8 { bytes_copied: u64 }
    /// `struct fuse_dirent`, followed by the name and padding to 8 bytes
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
    /// `struct fuse_sx_time`
    SxTime = 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    /// `struct fuse_statx`
    Statx = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// `struct fuse_statx_out`
    StatxOut = 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    /// `struct fuse_notify_inval_inode_out`
    NotifyInvalInodeOut = 24 { ino: u64, off: i64, len: i64 }
    /// `struct fuse_notify_inval_entry_out`, followed by the name and a NUL
    NotifyInvalEntryOut = 16 { parent: u64, namelen: u32, flags: u32 }
    /// `struct fuse_notify_delete_out`, followed by the name and a NUL
    NotifyDeleteOut = 24 { parent: u64, child: u64, namelen: u32, padding: u32 }
}
