//! Disks as files of a FUSE mount, which the kernel's loop device takes as drives: its writes become WRITE, its flushes FSYNC.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use rustix::mount::UnmountFlags;
use sluice_base::Errno;
use sluice_fuse::{
    Answer, Attr, Config, Entry, Handler, MountOptions, Operation, Reply, ReplyBuffer, Request, Session, StatFs,
    abi::{ROOT_ID, flags::fopen},
};
use tokio::runtime::Runtime;

use crate::disk::Disk;

/// Where disks are put in to be used as files.
pub struct Drives {
    slots: Arc<Slots>,
    path: PathBuf,
    session: Option<Session>,
    /// The session's; nothing runs on it, since every answer is at hand.
    _runtime: Runtime,
}

impl Drives {
    /// Mounts at `path`.
    pub fn new(path: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        let slots = Arc::new(Slots::default());
        let mount = MountOptions { source: "recording".into(), ..MountOptions::default() };
        let config = Config { mount, reactors: Some(2), ..Config::default() };
        let session = Session::start(&config, path, slots.clone(), runtime.handle().clone()).expect("a FUSE mount");
        Self { slots, path: path.to_owned(), session: Some(session), _runtime: runtime }
    }

    /// The file that `disk` is for as long as somebody has it.
    pub fn insert(&self, disk: &Arc<Disk>) -> PathBuf {
        let mut disks = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = disks.last_key_value().map_or(ROOT_ID, |(last, _)| *last) + 1;
        disks.insert(number, Arc::downgrade(disk));
        self.path.join(number.to_string())
    }
}

impl Drop for Drives {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.path, UnmountFlags::FORCE | UnmountFlags::DETACH);
        drop(self.session.take());
    }
}

/// Disks by inode; the name of one is its number.
#[derive(Default)]
struct Slots(Mutex<BTreeMap<u64, Weak<Disk>>>);

impl Slots {
    fn disk(&self, ino: u64) -> Result<Arc<Disk>, Errno> {
        let disks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        disks.get(&ino).and_then(Weak::upgrade).ok_or(Errno::ENOENT)
    }

    fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        let (mode, size) = if ino == ROOT_ID { (0o040_755, 0) } else { (0o100_600, self.disk(ino)?.size) };
        Ok(Attr { ino, size, blocks: size / 512, mode, nlink: 1, blksize: 4096, ..Attr::default() })
    }

    fn answer(&self, request: &Request<'_>, reply: &mut ReplyBuffer) -> Result<(), Errno> {
        let ino = request.nodeid;
        match request.operation {
            Operation::Lookup { name } => {
                let number = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok()).ok_or(Errno::ENOENT)?;
                reply.entry(&Entry { nodeid: number, attr: self.attr(number)?, ..Entry::default() });
            }
            Operation::GetAttr { .. } | Operation::SetAttr(_) => reply.attr(&self.attr(ino)?, Duration::ZERO),
            // Past the page cache: a write is here when the loop device is told that it is done.
            Operation::Open { .. } => reply.opened(0, fopen::DIRECT_IO),
            Operation::Read { offset, size, .. } => {
                let disk = self.disk(ino)?;
                let len = u64::from(size).min(disk.size.saturating_sub(offset)) as usize;
                disk.read(offset, reply.data_mut(len));
                reply.set_len(len);
            }
            Operation::Write { offset, data, .. } => {
                let disk = self.disk(ino)?;
                if offset + data.len() as u64 > disk.size {
                    return Err(Errno::ENOSPC);
                }
                disk.write(offset, data);
                reply.written(data.len() as u32);
            }
            Operation::Fsync { .. } => self.disk(ino)?.flush(),
            Operation::Flush { .. } | Operation::Release { .. } => {}
            Operation::StatFs => reply.statfs(&StatFs::default()),
            Operation::FAllocate { .. } => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::ENOSYS),
        }
        Ok(())
    }
}

impl Handler for Slots {
    fn handle(&self, request: &Request<'_>, reply: &mut ReplyBuffer) -> Answer {
        match self.answer(request, reply) {
            Ok(()) => Answer::Done,
            Err(errno) => Answer::Error(errno),
        }
    }

    fn forget(&self, _nodeid: u64, _lookups: u64) {}

    fn destroyed(&self) {}
}
