//! What the kernel sends after the header: `struct fuse_*_in`.

use super::{FileLock, wire};

wire! {
    /// `struct fuse_init_in`
    InitIn = 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    /// `struct fuse_forget_in`
    ForgetIn = 8 { nlookup: u64 }
    /// `struct fuse_forget_one`
    ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    /// `struct fuse_batch_forget_in`, followed by `count` of [`ForgetOne`]
    BatchForgetIn = 8 { count: u32, dummy: u32 }
    /// `struct fuse_getattr_in`
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    /// `struct fuse_setattr_in`
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// `struct fuse_mknod_in`
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// `struct fuse_mkdir_in`
    MkdirIn = 8 { mode: u32, umask: u32 }
    /// `struct fuse_rename_in`
    RenameIn = 8 { newdir: u64 }
    /// `struct fuse_rename2_in`
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    /// `struct fuse_link_in`
    LinkIn = 8 { oldnodeid: u64 }
    /// `struct fuse_open_in`
    OpenIn = 8 { flags: u32, open_flags: u32 }
    /// `struct fuse_create_in`
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// `struct fuse_release_in`
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// `struct fuse_flush_in`
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// `struct fuse_read_in`, of READ, READDIR and READDIRPLUS
    ReadIn = 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// `struct fuse_write_in`, followed by the bytes
    WriteIn = 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// `struct fuse_fsync_in`
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    /// `struct fuse_setxattr_in` in its extended form (`FUSE_SETXATTR_EXT`)
    SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    /// `struct fuse_getxattr_in`, of GETXATTR and LISTXATTR
    GetxattrIn = 8 { size: u32, padding: u32 }
    /// `struct fuse_lk_in`
    LkIn = 48 { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    /// `struct fuse_access_in`
    AccessIn = 8 { mask: u32, padding: u32 }
    /// `struct fuse_interrupt_in`
    InterruptIn = 8 { unique: u64 }
    /// `struct fuse_bmap_in`
    BmapIn = 16 { block: u64, blocksize: u32, padding: u32 }
    /// `struct fuse_ioctl_in`
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    /// `struct fuse_poll_in`
    PollIn = 24 { fh: u64, kh: u64, flags: u32, events: u32 }
    /// `struct fuse_fallocate_in`
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// `struct fuse_lseek_in`
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// `struct fuse_copy_file_range_in`, of both opcodes
    CopyFileRangeIn = 56 { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    /// `struct fuse_syncfs_in`
    SyncfsIn = 8 { padding: u64 }
    /// `struct fuse_statx_in`
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
}
