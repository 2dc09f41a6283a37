//! Applying an operation to one side, and what of its result can be compared.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    mem::MaybeUninit,
    path::Path,
};

use rustix::{
    fd::OwnedFd,
    fs::{self as sys, AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps},
    io::{Errno, Result},
    process::{Gid, Uid},
};

use crate::operation::{HANDLES, Operation, SET_TIMES_BEFORE};

/// What an operation returned. Not in it, because two file systems rightly differ: inode and device numbers, the sizes
/// of directories, blocks, access times, times that come from the clock, the order of a listing.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Count(usize),
    Bytes { len: usize, hash: u64 },
    Listing(Vec<(Vec<u8>, u8)>),
    Stat { mode: u32, nlink: u64, owner: (u32, u32), size: i64, set_mtime: Option<(i64, u64)> },
}

/// One of the two directories.
pub struct Side {
    root: OwnedFd,
    handles: [Option<OwnedFd>; HANDLES],
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);

impl Side {
    pub fn new(root: &Path) -> Self {
        let root = sys::open(root, DIRECTORY, Mode::empty()).expect("open the root");
        Self { root, handles: Default::default() }
    }

    fn handle(&self, slot: usize) -> Result<&OwnedFd> {
        self.handles[slot].as_ref().ok_or(Errno::BADF)
    }

    pub fn apply(&mut self, operation: &Operation) -> Result<Outcome> {
        match operation {
            Operation::Open { slot, path, flags } => {
                // Opening a FIFO would wait for its other end.
                let flags = *flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
                self.handles[*slot] = Some(sys::openat(&self.root, path, flags, Mode::from_raw_mode(0o644))?);
            }
            Operation::Close { slot } => self.handles[*slot] = None,
            Operation::WriteHandle { .. }
            | Operation::ReadHandle { .. }
            | Operation::TruncateHandle { .. }
            | Operation::StatHandle { .. }
            | Operation::Fallocate { .. }
            | Operation::CopyRange { .. }
            | Operation::Holes { .. }
            | Operation::Fsync { .. } => return self.apply_to_handle(operation),
            _ => return self.apply_to_path(operation),
        }
        Ok(Outcome::Done)
    }

    fn apply_to_handle(&self, operation: &Operation) -> Result<Outcome> {
        match *operation {
            Operation::WriteHandle { slot, offset, len, fill } => {
                let bytes: Vec<u8> = (0..len).map(|i| fill.wrapping_add((i / 7) as u8)).collect();
                return Ok(Outcome::Count(rustix::io::pwrite(self.handle(slot)?, &bytes, offset)?));
            }
            Operation::ReadHandle { slot, offset, len } => {
                let mut bytes = vec![0; len];
                let read = rustix::io::pread(self.handle(slot)?, &mut bytes, offset)?;
                return Ok(digest(&bytes[..read]));
            }
            Operation::TruncateHandle { slot, len } => sys::ftruncate(self.handle(slot)?, len)?,
            Operation::StatHandle { slot } => return Ok(stat_outcome(&sys::fstat(self.handle(slot)?)?)),
            Operation::Fallocate { slot, mode, offset, len } => sys::fallocate(self.handle(slot)?, mode, offset, len)?,
            Operation::CopyRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.handle(from)?, self.handle(to)?);
                let mut done = 0;
                while done < len {
                    let (mut a, mut b) = (from_offset + done as u64, to_offset + done as u64);
                    match sys::copy_file_range(from, Some(&mut a), to, Some(&mut b), len - done)? {
                        0 => break,
                        n => done += n,
                    }
                }
                return Ok(Outcome::Count(done));
            }
            Operation::Holes { slot } => check_holes(self.handle(slot)?)?,
            Operation::Fsync { slot } => sys::fsync(self.handle(slot)?)?,
            _ => unreachable!("an operation on a path"),
        }
        Ok(Outcome::Done)
    }

    fn apply_to_path(&self, operation: &Operation) -> Result<Outcome> {
        let root = &self.root;
        match operation {
            Operation::Truncate { path, len } => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                sys::ftruncate(sys::openat(root, path, flags, Mode::empty())?, *len)?;
            }
            Operation::Rename { from, to, flags } => sys::renameat_with(root, from, root, to, *flags)?,
            Operation::Link { from, to } => sys::linkat(root, from, root, to, AtFlags::empty())?,
            Operation::Symlink { target, path } => sys::symlinkat(target, root, path)?,
            Operation::Mknod { path, socket } => {
                let kind = if *socket { FileType::Socket } else { FileType::Fifo };
                sys::mknodat(root, path, kind, Mode::from_raw_mode(0o600), 0)?;
            }
            Operation::Unlink { path } => sys::unlinkat(root, path, AtFlags::empty())?,
            Operation::Mkdir { path, mode } => sys::mkdirat(root, path, Mode::from_raw_mode(*mode))?,
            Operation::Rmdir { path } => sys::unlinkat(root, path, AtFlags::REMOVEDIR)?,
            Operation::Chmod { path, mode } => {
                sys::chmodat(root, path, Mode::from_raw_mode(*mode), AtFlags::empty())?;
            }
            Operation::Chown { path, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                sys::chownat(root, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Operation::SetTimes { path, atime, mtime } => {
                let time = |t: &(i64, i64)| Timespec { tv_sec: t.0, tv_nsec: t.1 };
                let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
                sys::utimensat(root, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Operation::SetXattr { path, name, len, fill, flags } => {
                sys::setxattr(self.by_proc(path), name, &vec![*fill; *len], *flags)?;
            }
            Operation::GetXattr { path, name } => {
                let mut value = vec![0; 65536];
                let len = sys::getxattr(self.by_proc(path), name, &mut value)?;
                return Ok(digest(&value[..len]));
            }
            Operation::RemoveXattr { path, name } => sys::removexattr(self.by_proc(path), name)?,
            Operation::List { path } => return list(&sys::openat(root, path, DIRECTORY, Mode::empty())?),
            Operation::Stat { path } => return Ok(stat_outcome(&sys::statat(root, path, AtFlags::SYMLINK_NOFOLLOW)?)),
            Operation::ReadLink { path } => {
                return Ok(digest(sys::readlinkat(root, path, Vec::new())?.as_bytes()));
            }
            _ => unreachable!("an operation on a handle"),
        }
        Ok(Outcome::Done)
    }

    /// The attribute calls have no form relative to a descriptor: go through /proc.
    fn by_proc(&self, path: &str) -> String {
        use std::os::fd::AsRawFd;
        format!("/proc/self/fd/{}/{path}", self.root.as_raw_fd())
    }
}

fn digest(bytes: &[u8]) -> Outcome {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Outcome::Bytes { len: bytes.len(), hash: hasher.finish() }
}

fn stat_outcome(stat: &Stat) -> Outcome {
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let set = stat.st_mtime < SET_TIMES_BEFORE;
    Outcome::Stat {
        mode: stat.st_mode,
        nlink: stat.st_nlink,
        owner: (stat.st_uid, stat.st_gid),
        size: if is_dir { 0 } else { stat.st_size },
        set_mtime: set.then_some((stat.st_mtime, stat.st_mtime_nsec)),
    }
}

fn list(fd: &OwnedFd) -> Result<Outcome> {
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut dir = sys::RawDir::new(fd, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = dir.next() {
        let entry = entry?;
        entries.push((entry.file_name().to_bytes().to_vec(), entry.file_type() as u8));
    }
    entries.sort();
    Ok(Outcome::Listing(entries))
}

/// Where a hole starts and ends is each file system's own affair, but what is reported as one must read as zeros.
fn check_holes(fd: &OwnedFd) -> Result<()> {
    let size = sys::fstat(fd)?.st_size as u64;
    if sys::fcntl_getfl(fd)?.contains(OFlags::WRONLY) {
        return Ok(());
    }
    let mut at = 0;
    while at < size {
        let data = match sys::seek(fd, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => size,
            Err(e) => return Err(e),
        };
        let mut bytes = vec![0; (data.min(size) - at) as usize];
        let read = rustix::io::pread(fd, &mut bytes, at)?;
        if let Some(index) = bytes[..read].iter().position(|b| *b != 0) {
            panic!("{at}..{data} is reported as a hole, but byte {} is not zero", at as usize + index);
        }
        if data >= size {
            break;
        }
        at = sys::seek(fd, SeekFrom::Hole(data))?;
    }
    Ok(())
}
