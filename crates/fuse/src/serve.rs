//! The vfs behind a session: unpack, call, reply. No rule of the file system lives here.

mod direct;
mod locks;
mod passthrough;
mod xattrs;

pub use passthrough::PassthroughOptions;

use crate::{
    Answer, Backings, Companion, Entry, Handler, Operation, Reply, ReplyBuffer, Request, StatFs,
    abi::flags::fopen,
    request::{SetAttr, SetTime},
};
use passthrough::{How, Passthrough};
use sluice_base::{Errno, Ino, limits::NAME_BYTES_MAX};
use sluice_meta as meta;
use sluice_vfs::{Failure, HandleId, Read, SeekFrom, Vfs, direct::Verify, remote::Remote, waiting};
use std::{ops::ControlFlow, sync::Arc, time::Duration};

/// How long the kernel may believe names and attributes, and how much room statfs shows.
pub struct ServeOptions {
    /// Of a mount that is the volume's only one everything that changes passes through it: an hour. Of others, what is left of the
    /// lease.
    pub valid: Box<dyn Fn() -> Duration + Send + Sync>,
    /// Who keeps the locks, where others mount the volume too: there a close publishes what was written, and is always told.
    pub locks: Option<Arc<Remote>>,
    /// Files may be read by the kernel itself, unchecked; only without `locks`.
    pub passthrough: Option<PassthroughOptions>,
    /// What of a read is checked on its way from the cache disk.
    pub verify: Verify,
    /// Bytes that may still be written, as far as anybody knows.
    pub available_bytes: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// Answers the kernel's requests from a volume.
pub struct VfsHandler {
    vfs: Arc<Vfs>,
    options: ServeOptions,
    passthrough: Option<Arc<Passthrough>>,
    on_end: Box<dyn Fn() + Send + Sync>,
}

const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;
/// Of this kernel's architecture: not one number everywhere.
const O_DIRECT: u32 = rustix::fs::OFlags::DIRECT.bits();
const O_ACCMODE: u32 = 3;
const O_RDWR: u32 = 2;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;

/// Where a write goes.
#[derive(Clone, Copy)]
enum At {
    /// To a place of the page cache, whoever wrote it there.
    Page(u64),
    Offset(u64),
    End,
}

/// What an operation gives back: the answer, or why not.
type Outcome = Result<Answer, Failure>;

impl Handler for VfsHandler {
    fn handle(&self, request: &Request<'_>, reply: &mut ReplyBuffer) -> Answer {
        match self.dispatch(request, reply) {
            Ok(answer) => answer,
            Err(Failure::Away) => Answer::Away,
            Err(failure) => Answer::Error(failure.errno()),
        }
    }

    fn handle_waiting(&self, request: &Request<'_>, reply: &mut ReplyBuffer) -> Answer {
        waiting(|| self.handle(request, reply))
    }

    fn companion(&self) -> Option<Box<dyn Companion>> {
        Some(Box::new(direct::Reader::new(self.vfs.clone(), &self.options)))
    }

    // The kernel gives all its references to an inode back at once, when it evicts it; only unlinked ones matter.
    fn forget(&self, nodeid: u64, _lookups: u64) {
        self.vfs.forget(Ino(nodeid));
    }

    fn started(&self, backings: Option<Backings>) {
        if let (Some(passthrough), Some(backings)) = (&self.passthrough, backings) {
            passthrough.start(backings);
        }
    }

    fn destroyed(&self) {
        (self.on_end)();
    }
}

impl VfsHandler {
    /// Serves `vfs`; `on_end` is called once when the mount is gone.
    pub fn new(vfs: Arc<Vfs>, options: ServeOptions, on_end: Box<dyn Fn() + Send + Sync>) -> Self {
        let allowed = options.passthrough.clone().filter(|_| options.locks.is_none());
        let passthrough = allowed.map(|options| Arc::new(Passthrough::new(options)));
        Self { vfs, options, passthrough, on_end }
    }

    fn dispatch(&self, request: &Request<'_>, reply: &mut ReplyBuffer) -> Outcome {
        let ino = Ino(request.nodeid);
        let caller = meta::Caller { uid: request.uid, gid: request.gid };
        self.check_locks(&request.operation)?;
        match request.operation {
            Operation::Lookup { name } => self.lookup(ino, name, reply),
            Operation::GetAttr { .. } => {
                let attr = self.vfs.namespace().getattr(ino)?;
                reply.attr(&to_wire(&attr), self.valid());
                Ok(Answer::Done)
            }
            Operation::Read { fh, offset, size, flags, .. } => {
                self.read(HandleId(fh), offset, size as usize, flags & O_DIRECT != 0, reply)
            }
            Operation::Write { fh, offset, data, flags, cached, kill_suidgid, .. } => {
                let size = data.len() as u32;
                let at = match cached {
                    true => At::Page(offset),
                    false if self.appends(flags) => At::End,
                    false => At::Offset(offset),
                };
                let done = match at {
                    At::Page(offset) => self.vfs.write_ino(ino, offset, data),
                    At::Offset(offset) => self.vfs.write(HandleId(fh), offset, data, kill_suidgid),
                    At::End => self.vfs.append(HandleId(fh), data, kill_suidgid),
                };
                match done {
                    Err(Failure::Wait | Failure::DiskFull) => {
                        Ok(self.write_later(ino, fh, at, data.to_vec(), kill_suidgid))
                    }
                    other => other.map(|()| {
                        reply.written(size);
                        Answer::Done
                    }),
                }
            }
            Operation::Open { flags } => self.open(ino, flags, reply),
            Operation::Create { name, flags, mode, kill_suidgid, .. } => {
                self.create(ino, name, flags, mode, kill_suidgid, caller, reply)
            }
            Operation::TmpFile { mode, .. } => {
                let (attr, opened) = self.vfs.create_unnamed(ino, mode, caller)?;
                self.opened_to_write(attr.ino, opened.handle)?;
                reply.created(&self.entry(&attr), opened.handle.0, fopen::KEEP_CACHE);
                Ok(Answer::Done)
            }
            Operation::Release { fh, .. } => {
                let freed = self.released(HandleId(fh));
                if freed != Err(Failure::Away) {
                    if let Some(passthrough) = &self.passthrough {
                        passthrough.release(HandleId(fh));
                    }
                    self.vfs.release(HandleId(fh));
                }
                freed.map(|()| Answer::Done)
            }
            Operation::Access { .. } => Ok(Answer::Done),
            Operation::Flush { fh, lock_owner } => {
                // Last what tells a loss: what comes before may be done again where it may wait.
                self.flushed(ino, HandleId(fh), lock_owner)?;
                self.vfs.publish(ino, HandleId(fh))?;
                Ok(Answer::Done)
            }
            Operation::SetLk { lock, wait } => self.set_lock(request.unique, ino, lock, wait),
            Operation::GetLk(lock) => self.test_lock(request.unique, ino, lock),
            Operation::Fsync { fh, .. } => {
                self.vfs.sync_metadata(ino, HandleId(fh))?;
                Ok(self.sync())
            }
            Operation::FsyncDir { .. } => {
                self.vfs.namespace().sync(Some(ino))?;
                Ok(self.sync())
            }
            Operation::SyncFs => {
                self.vfs.namespace().sync(None)?;
                Ok(self.sync())
            }
            Operation::SetAttr(set) => self.set_attr(ino, set, reply),
            Operation::FAllocate { fh, offset, length, mode } => {
                self.vfs.changed_by(HandleId(fh), caller)?;
                Ok(self.retry(reply, move |vfs| vfs.fallocate(HandleId(fh), mode, offset, length), |_, ()| {}))
            }
            Operation::LSeek { fh, offset, whence } => {
                let what = match whence {
                    SEEK_DATA => SeekFrom::Data,
                    SEEK_HOLE => SeekFrom::Hole,
                    _ => return Err(Errno::EINVAL.into()),
                };
                reply.position(self.vfs.seek(HandleId(fh), offset, what)?);
                Ok(Answer::Done)
            }
            Operation::CopyFileRange { fh_in, off_in, fh_out, off_out, len, wide, .. } => {
                self.vfs.changed_by(HandleId(fh_out), caller)?;
                // The narrow answer has 32 bits.
                let len = if wide { len } else { len.min(1 << 30) };
                let copy = move |vfs: &Vfs| vfs.copy_range((HandleId(fh_in), off_in), (HandleId(fh_out), off_out), len);
                let answer =
                    move |reply: &mut dyn Reply, n: u64| if wide { reply.copied(n) } else { reply.written(n as u32) };
                Ok(self.retry(reply, copy, answer))
            }
            _ => self.dispatch_names(request, ino, caller, reply),
        }
    }

    fn dispatch_names(
        &self,
        request: &Request<'_>,
        ino: Ino,
        caller: meta::Caller,
        reply: &mut ReplyBuffer,
    ) -> Outcome {
        match request.operation {
            Operation::MkNod { name, mode, rdev, .. } => self.make(ino, name, mode, rdev, b"", caller, reply),
            Operation::MkDir { name, mode, .. } => {
                self.make(ino, name, mode & 0o7777 | meta::records::mode::DIRECTORY, 0, b"", caller, reply)
            }
            Operation::SymLink { name, target } => {
                self.make(ino, name, meta::records::mode::SYMLINK | 0o777, 0, target, caller, reply)
            }
            Operation::Link { target, name } => {
                let attr = self.vfs.link(Ino(target), ino, name)?;
                reply.entry(&self.entry(&attr));
                Ok(Answer::Done)
            }
            Operation::Unlink { name } => Ok(self.vfs.unlink(ino, name).map(|()| Answer::Done)?),
            Operation::RmDir { name } => Ok(self.vfs.rmdir(ino, name).map(|()| Answer::Done)?),
            Operation::Rename { name, new_parent, new_name, flags } => {
                let how = match flags {
                    0 => meta::RenameMode::Replace,
                    RENAME_NOREPLACE => meta::RenameMode::NoReplace,
                    RENAME_EXCHANGE => meta::RenameMode::Exchange,
                    _ => return Err(Errno::EINVAL.into()),
                };
                Ok(self.vfs.rename((ino, name), (Ino(new_parent), new_name), how).map(|()| Answer::Done)?)
            }
            Operation::ReadLink => {
                reply.put(&self.vfs.namespace().readlink(ino)?);
                Ok(Answer::Done)
            }
            Operation::OpenDir { .. } => {
                reply.opened(self.vfs.open_dir(ino)?.0, 0);
                Ok(Answer::Done)
            }
            Operation::ReleaseDir { fh, .. } => {
                self.vfs.release_dir(HandleId(fh));
                Ok(Answer::Done)
            }
            Operation::ReadDir { fh, offset, size } => self.read_dir(HandleId(fh), offset, size, reply),
            Operation::ReadDirPlus { fh, offset, size } => self.read_dir_plus(HandleId(fh), offset, size, reply),
            Operation::StatFs => {
                reply.statfs(&self.stat_fs()?);
                Ok(Answer::Done)
            }
            _ => self.dispatch_xattrs(request, ino, reply),
        }
    }

    /// FOPEN_NOFLUSH where close has nothing to publish and to unlock: writes are acked by the journal as they come, and only pages of
    /// a writable mapping, which needs a file open for both reading and writing (mmap(2)), may wait in the kernel.
    fn on_close(&self, open_flags: u32) -> u32 {
        let must_know = self.options.locks.is_some() || open_flags & O_ACCMODE == O_RDWR;
        if must_know { 0 } else { fopen::NOFLUSH }
    }

    /// Whether a write of a file with these flags goes where the file ends, wherever the kernel thinks that is: it looks at the size
    /// that it had last, also after it was told that another mount has changed the file.
    fn appends(&self, open_flags: u32) -> bool {
        self.options.locks.is_some() && open_flags & O_APPEND != 0
    }

    /// FOPEN flags of a file that is opened.
    fn opens(&self, open_flags: u32, keep_cache: bool) -> u32 {
        let keep = if keep_cache { fopen::KEEP_CACHE } else { 0 };
        // Or the bytes would be in the page cache, and be read, where the kernel thought that the file ended.
        let direct = if self.appends(open_flags) { fopen::DIRECT_IO } else { 0 };
        keep | direct | self.on_close(open_flags)
    }

    fn valid(&self) -> Duration {
        (self.options.valid)()
    }

    fn entry(&self, attr: &meta::Attr) -> Entry {
        let valid = self.valid();
        Entry { nodeid: attr.ino.0, generation: 0, attr: to_wire(attr), entry_valid: valid, attr_valid: valid }
    }

    fn lookup(&self, dir: Ino, name: &[u8], reply: &mut ReplyBuffer) -> Outcome {
        match self.vfs.namespace().lookup(dir, name) {
            Ok(attr) => reply.entry(&self.entry(&attr)),
            // The kernel may remember that there is no such name: creating it passes through here as well.
            Err(meta::Error::NotFound) => reply.no_entry(self.valid()),
            Err(error) => return Err(error.into()),
        }
        Ok(Answer::Done)
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one request")]
    fn make(
        &self,
        dir: Ino,
        name: &[u8],
        mode: u32,
        rdev: u32,
        target: &[u8],
        caller: meta::Caller,
        reply: &mut ReplyBuffer,
    ) -> Outcome {
        let attr = self.vfs.namespace().create(dir, name, meta::NewNode { mode, rdev, target }, caller)?;
        reply.entry(&self.entry(&attr));
        Ok(Answer::Done)
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one request")]
    fn create(
        &self,
        dir: Ino,
        name: &[u8],
        flags: u32,
        mode: u32,
        kill: bool,
        caller: meta::Caller,
        reply: &mut ReplyBuffer,
    ) -> Outcome {
        match self.vfs.create(dir, name, mode, caller) {
            Ok((attr, opened)) => {
                self.opened_to_write(attr.ino, opened.handle)?;
                reply.created(&self.entry(&attr), opened.handle.0, self.opens(flags, true));
                Ok(Answer::Done)
            }
            // Somebody else made it since the kernel looked; it takes the file for a new one and sends no SETATTR for O_TRUNC.
            Err(Failure::Errno(Errno::EEXIST)) if flags & O_EXCL == 0 => {
                let attr = self.vfs.namespace().lookup(dir, name)?;
                if flags & O_TRUNC != 0 {
                    self.changes(attr.ino)?;
                    let set = meta::SetAttributes { kill_suidgid: kill, ..meta::SetAttributes::default() };
                    self.vfs.setattr(attr.ino, Some(0), &set)?;
                }
                let opened = self.vfs.open(attr.ino)?;
                self.opened_to_write(attr.ino, opened.handle)?;
                let attr = self.vfs.namespace().getattr(attr.ino)?;
                reply.created(&self.entry(&attr), opened.handle.0, self.opens(flags, false));
                Ok(Answer::Done)
            }
            Err(error) => Err(error),
        }
    }

    fn open(&self, ino: Ino, flags: u32, reply: &mut ReplyBuffer) -> Outcome {
        let opened = self.vfs.open(ino)?;
        let how = self.opens(flags, opened.keep_cache);
        let Some(passthrough) = &self.passthrough else {
            reply.opened(opened.handle.0, how);
            return Ok(Answer::Done);
        };
        if flags & O_ACCMODE != 0 {
            self.opened_to_write(ino, opened.handle)?;
            reply.opened(opened.handle.0, how);
            return Ok(Answer::Done);
        }
        let size = self.vfs.namespace().getattr(ino)?.size;
        match passthrough.open(ino, opened.handle, false, size)? {
            How::Cached => reply.opened(opened.handle.0, how),
            How::Through(id) => reply.opened_through(opened.handle.0, fopen::NOFLUSH, id),
            How::Copy(sender) => {
                let (passthrough, vfs) = (passthrough.clone(), self.vfs.clone());
                return Ok(Answer::later(passthrough.answer(vfs, (ino, size), opened.handle, how, sender)));
            }
            How::Wait(outcome) => {
                let (passthrough, vfs) = (passthrough.clone(), self.vfs.clone());
                return Ok(Answer::later(passthrough.answer_as(vfs, opened.handle, how, outcome)));
            }
        }
        Ok(Answer::Done)
    }

    /// Notes a handle that may write, or gives it back where the kernel reads the file by itself.
    fn opened_to_write(&self, ino: Ino, handle: HandleId) -> Result<(), Failure> {
        let noted = self.passthrough.as_ref().map_or(Ok(How::Cached), |noting| noting.open(ino, handle, true, 0));
        noted.map(drop).inspect_err(|_| self.vfs.release(handle)).map_err(Failure::from)
    }

    /// The file's bytes are about to change without a handle.
    fn changes(&self, ino: Ino) -> Result<(), Failure> {
        self.passthrough.as_ref().map_or(Ok(()), |passthrough| Ok(passthrough.change(ino)?))
    }

    fn read(&self, handle: HandleId, offset: u64, size: usize, direct: bool, reply: &mut ReplyBuffer) -> Outcome {
        match self.vfs.read(handle, offset, reply.data_mut(size), direct)? {
            Read::Done(len) => {
                reply.set_len(len);
                Ok(Answer::Done)
            }
            Read::Later => {
                let vfs = self.vfs.clone();
                Ok(Answer::later(
                    async move { vfs.read_later(handle, offset, size, direct).await.map(crate::Body::pieces) },
                ))
            }
        }
    }

    fn write_later(&self, ino: Ino, fh: u64, at: At, data: Vec<u8>, kill: bool) -> Answer {
        let vfs = self.vfs.clone();
        let size = data.len() as u32;
        Answer::later(async move {
            match at {
                At::Page(offset) => vfs.write_ino_later(ino, offset, data).await?,
                At::Offset(offset) => vfs.write_later(HandleId(fh), offset, data, kill).await?,
                At::End => vfs.append_later(HandleId(fh), data, kill).await?,
            }
            Ok(crate::Body::with(|reply| reply.written(size)))
        })
    }

    /// Runs `operation`; when there is no room, runs it again until there is.
    fn retry<T: Send + 'static>(
        &self,
        reply: &mut ReplyBuffer,
        operation: impl Fn(&Vfs) -> Result<T, Failure> + Send + Sync + 'static,
        answer: impl Fn(&mut dyn Reply, T) + Send + 'static,
    ) -> Answer {
        match operation(&self.vfs) {
            Ok(value) => {
                answer(reply, value);
                Answer::Done
            }
            Err(Failure::Errno(errno)) => Answer::Error(errno),
            Err(Failure::Away) => Answer::Away,
            Err(Failure::Wait | Failure::DiskFull) => {
                let vfs = self.vfs.clone();
                Answer::later(async move {
                    let runner = vfs.clone();
                    let value = vfs.make_room(move || operation(&runner)).await?;
                    Ok(crate::Body::with(|body| answer(body, value)))
                })
            }
        }
    }

    fn sync(&self) -> Answer {
        match self.vfs.sync() {
            None => Answer::Done,
            Some(synced) => {
                let answer = Box::pin(async move { synced.await.map(|()| crate::Body::empty()) });
                if self.vfs.waits_for_store() { Answer::Later(answer) } else { Answer::Soon(answer) }
            }
        }
    }

    fn set_attr(&self, ino: Ino, set: SetAttr, reply: &mut ReplyBuffer) -> Outcome {
        if set.size.is_some() {
            self.changes(ino)?;
            set.fh.map_or(Ok(()), |fh| self.vfs.may_change_by(HandleId(fh)))?;
        }
        let time = |time: SetTime| match time {
            SetTime::Now => meta::SetTime::Now,
            SetTime::At(at) => meta::SetTime::To(at),
        };
        let change = meta::SetAttributes {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            atime: set.atime.map(time),
            mtime: set.mtime.map(time),
            ctime: set.ctime,
            kill_suidgid: set.kill_suidgid,
        };
        let valid = self.valid();
        let size = set.size;
        Ok(self.retry(
            reply,
            move |vfs| vfs.setattr(ino, size, &change),
            move |reply, attr| reply.attr(&to_wire(&attr), valid),
        ))
    }

    fn read_dir(&self, handle: HandleId, offset: u64, size: u32, reply: &mut ReplyBuffer) -> Outcome {
        let dir = self.vfs.dir(handle, offset)?;
        let parent = self.parent(dir.ino, offset)?;
        let mut out = reply.directory(size);
        let kind = meta::records::mode::DIRECTORY;
        let dots_fit =
            (offset > 0 || out.push(dir.ino.0, 1, kind, b".")) && (offset > 1 || out.push(parent.0, 2, kind, b".."));
        if dots_fit {
            let until = dir.until.load(std::sync::atomic::Ordering::Relaxed);
            self.vfs.namespace().read_dir(dir.ino, offset.max(2), until, false, &mut |found| {
                let entry = found.entry;
                let fits = out.push(entry.ino.0, entry.cookie, entry.kind, &entry.name);
                if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
        }
        Ok(Answer::Done)
    }

    fn read_dir_plus(&self, handle: HandleId, offset: u64, size: u32, reply: &mut ReplyBuffer) -> Outcome {
        let dir = self.vfs.dir(handle, offset)?;
        let parent = self.parent(dir.ino, offset)?;
        let mut out = reply.directory_plus(size);
        // The dots carry no inode: the kernel has them.
        let dot = |ino: Ino| {
            let attr = crate::Attr { ino: ino.0, mode: meta::records::mode::DIRECTORY, ..crate::Attr::default() };
            Entry { attr, ..Entry::default() }
        };
        let dots_fit =
            (offset > 0 || out.push(&dot(dir.ino), 1, b".")) && (offset > 1 || out.push(&dot(parent), 2, b".."));
        if dots_fit {
            let until = dir.until.load(std::sync::atomic::Ordering::Relaxed);
            self.vfs.namespace().read_dir(dir.ino, offset.max(2), until, true, &mut |found| {
                let entry = found.entry;
                let known = match &found.attr {
                    Some(attr) => self.entry(attr),
                    None => return ControlFlow::Continue(()),
                };
                let fits = out.push(&known, entry.cookie, &entry.name);
                if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
        }
        Ok(Answer::Done)
    }

    /// The parent, where a listing needs it; a directory that was removed while open has none.
    fn parent(&self, dir: Ino, offset: u64) -> Result<Ino, Failure> {
        if offset > 1 {
            return Ok(dir);
        }
        let parent = self.vfs.namespace().parent(dir)?;
        Ok(if parent.0 == 0 { dir } else { parent })
    }

    fn stat_fs(&self) -> Result<StatFs, Failure> {
        const FRAGMENT: u64 = 4096;
        const INODES_FREE: u64 = 1 << 32;
        let (bytes, inodes) = self.vfs.usage()?;
        let available = (self.options.available_bytes)() / FRAGMENT;
        Ok(StatFs {
            blocks: bytes.div_ceil(FRAGMENT) + available,
            bfree: available,
            bavail: available,
            files: inodes + INODES_FREE,
            ffree: INODES_FREE,
            bsize: FRAGMENT as u32,
            namelen: NAME_BYTES_MAX as u32,
            frsize: FRAGMENT as u32,
        })
    }
}

fn to_wire(attr: &meta::Attr) -> crate::Attr {
    crate::Attr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: if attr.is_dir() { 8 } else { attr.held_bytes.div_ceil(512) },
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: 4096,
    }
}
