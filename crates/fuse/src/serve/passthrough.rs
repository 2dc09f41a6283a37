//! Files that the kernel reads by itself (FUSE passthrough, Linux 6.9): on the first open for reading, a file whose bytes are all here is
//! copied, checked, into a file of its own without a name, which the kernel is given in place of the handle.
//!
//! The kernel's rules (fs/fuse/iomode.c) decide the rest. An inode is open by way of the page cache, or by passthrough to one file,
//! never both: the wrong answer to OPEN is EIO for the program. So the first handle decides for all until the last is
//! released; and since nobody may then open it for writing any other way, whoever wants to gets ETXTBSY, as for a program that is running.

use crate::abi::flags::fopen;
use crate::device::Backings;
use crate::{Body, LateReply, Reply};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as Raw;
use sluice_base::{Errno, Ino};
use sluice_vfs::{Failure, HandleId, Read, Vfs};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use tokio::sync::watch;

/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;

/// Where copies are, and how much.
#[derive(Clone, Debug)]
pub struct PassthroughOptions {
    /// A directory of a disk.
    pub dir: PathBuf,
    /// Bytes of all copies together; further files are read as without.
    pub bytes_max: u64,
}

/// Which files the kernel has.
pub(super) struct Passthrough {
    options: PassthroughOptions,
    /// Once the mount is there, where the kernel can do it.
    backings: OnceLock<Backings>,
    is_refused: AtomicBool,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    bytes: u64,
    inodes: HashMap<Ino, Inode>,
    handles: HashMap<HandleId, Ino>,
}

/// An inode that is open.
#[derive(Default)]
struct Inode {
    handles: usize,
    backing: Option<Backing>,
    /// It is being copied, for this handle; further readers wait for the outcome.
    copying: Option<(HandleId, Outcome)>,
    /// Somebody opened it for writing or changed it since the copy was begun.
    disturbed: bool,
}

/// The number of a copy, or that there is none; nothing yet while it is made.
type Outcome = watch::Receiver<Option<Option<i32>>>;

struct Backing {
    id: i32,
    bytes: u64,
}

/// An open that is not answered yet. Dropped when its program was interrupted: no release will come for it.
struct Opening {
    passthrough: Arc<Passthrough>,
    vfs: Arc<Vfs>,
    handle: HandleId,
    is_open: bool,
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.is_open {
            self.passthrough.release(self.handle);
            self.vfs.release(self.handle);
        }
    }
}

/// How a file is opened.
pub(super) enum How {
    /// By way of the page cache.
    Cached,
    /// By the file with this number.
    Through(i32),
    /// It may be copied first: [`Passthrough::answer`], which tells the others by the sender.
    Copy(watch::Sender<Option<Option<i32>>>),
    /// Somebody copies it: [`Passthrough::answer_as`].
    Wait(Outcome),
}

impl Passthrough {
    pub(super) fn new(options: PassthroughOptions) -> Self {
        let (backings, is_refused, open) = (OnceLock::new(), AtomicBool::new(false), Mutex::default());
        Self { options, backings, is_refused, open }
    }

    /// The kernel can do it.
    pub(super) fn start(&self, backings: Backings) {
        let _ = self.backings.set(backings);
    }

    /// A new handle, of a file of `size` bytes.
    pub(super) fn open(&self, ino: Ino, handle: HandleId, writes: bool, size: u64) -> Result<How, Errno> {
        let mut open = self.open.lock();
        let fits = size > 0 && open.bytes.saturating_add(size) <= self.options.bytes_max;
        let inode = open.inodes.entry(ino).or_default();
        let under_way =
            inode.copying.as_ref().filter(|_| !writes && !inode.disturbed).map(|(_, outcome)| outcome.clone());
        let how = match &inode.backing {
            None if under_way.is_some() => under_way.map_or(How::Cached, How::Wait),
            Some(_) if writes => return Err(Errno::ETXTBSY),
            Some(backing) => How::Through(backing.id),
            None if inode.handles > 0 || writes || !fits || !self.is_possible() => {
                inode.disturbed = true;
                How::Cached
            }
            None => {
                let (sender, outcome) = watch::channel(None);
                (inode.copying, inode.disturbed) = (Some((handle, outcome)), false);
                How::Copy(sender)
            }
        };
        inode.handles += 1;
        if matches!(how, How::Copy(_)) {
            open.bytes += size;
        }
        open.handles.insert(handle, ino);
        Ok(how)
    }

    fn is_possible(&self) -> bool {
        self.backings.get().is_some() && !self.is_refused.load(Relaxed)
    }

    /// Somebody is about to change the file other than by a handle.
    pub(super) fn change(&self, ino: Ino) -> Result<(), Errno> {
        match self.open.lock().inodes.get_mut(&ino) {
            Some(Inode { backing: Some(_), .. }) => Err(Errno::ETXTBSY),
            Some(inode) => {
                inode.disturbed = true;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A handle is released.
    pub(super) fn release(&self, handle: HandleId) {
        let mut open = self.open.lock();
        let Some(ino) = open.handles.remove(&handle) else { return };
        let Some(inode) = open.inodes.get_mut(&ino) else { return };
        inode.handles -= 1;
        if inode.handles > 0 {
            return;
        }
        let gone = open.inodes.remove(&ino).and_then(|inode| inode.backing);
        if let Some(Backing { id, bytes }) = gone {
            open.bytes -= bytes;
            drop(open);
            if let Some(backings) = self.backings.get() {
                backings.close(id);
            }
        }
    }

    /// Copies the file of `size` bytes for the handle that was told to. Waits for disks: not on a reactor. The number of the copy, or
    /// `None` when the handle goes by way of the page cache after all.
    fn copy(&self, vfs: &Arc<Vfs>, ino: Ino, handle: HandleId, size: u64) -> Option<i32> {
        let copied = self.fill(vfs, handle, size);
        let id = copied.and_then(|file| self.register(&file));
        let mut open = self.open.lock();
        // The program may have given up meanwhile, and others may be at it.
        let is_own = |inode: &&mut Inode| inode.copying.as_ref().is_some_and(|(copier, _)| *copier == handle);
        let own = open.inodes.get_mut(&ino).filter(is_own);
        if let Some(inode) = own {
            inode.copying = None;
            if let Some(id) = id.filter(|_| !inode.disturbed) {
                inode.backing = Some(Backing { id, bytes: size });
                return Some(id);
            }
        }
        open.bytes -= size;
        drop(open);
        if let (Some(id), Some(backings)) = (id, self.backings.get()) {
            backings.close(id);
        }
        None
    }

    /// The answer to the OPEN of the handle that was told to copy.
    pub(super) async fn answer(
        self: Arc<Self>,
        vfs: Arc<Vfs>,
        (ino, size): (Ino, u64),
        handle: HandleId,
        how: u32,
        sender: watch::Sender<Option<Option<i32>>>,
    ) -> LateReply {
        let (copier, its_vfs, outcome) = (self.clone(), vfs.clone(), sender.subscribe());
        // To its end, also when the program does not wait for it.
        tokio::task::spawn_blocking(move || sender.send_replace(Some(copier.copy(&its_vfs, ino, handle, size))));
        self.answer_as(vfs, handle, how, outcome).await
    }

    /// The answer to the OPEN of a handle once there is an outcome.
    pub(super) async fn answer_as(
        self: Arc<Self>,
        vfs: Arc<Vfs>,
        handle: HandleId,
        how: u32,
        mut outcome: Outcome,
    ) -> LateReply {
        let mut opening = Opening { passthrough: self, vfs, handle, is_open: false };
        let copied = outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.flatten());
        opening.is_open = true;
        Ok(Body::with(|body| match copied {
            Some(id) => body.opened_through(handle.0, fopen::NOFLUSH, id),
            None => body.opened(handle.0, how),
        }))
    }

    /// A file without a name that has the bytes; `None` when they are not all here, or there is no room.
    fn fill(&self, vfs: &Arc<Vfs>, handle: HandleId, size: u64) -> Option<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let made = rustix::fs::open(&self.options.dir, flags, Mode::RUSR | Mode::WUSR);
        let file = made.map(File::from).map_err(|error| self.refused("making a copy", error)).ok()?;
        let (mut piece, mut at) = (vec![0; PIECE], 0);
        while at < size {
            match vfs.read(handle, at, &mut piece, true) {
                Ok(Read::Done(len @ 1..)) => {
                    if let Err(error) = file.write_all_at(&piece[..len], at) {
                        tracing::warn!(%error, "a file is read without passthrough: copying it failed");
                        return None;
                    }
                    at += len as u64;
                }
                Ok(_) | Err(Failure::Errno(_) | Failure::Away | Failure::Wait | Failure::DiskFull) => return None,
            }
        }
        (at == size).then_some(file)
    }

    fn register(&self, file: &File) -> Option<i32> {
        let opened = self.backings.get()?.open(file);
        opened.map_err(|error| self.refused("giving a file to the kernel", error)).ok()
    }

    /// Says once why there is none.
    fn refused(&self, what: &str, error: Raw) {
        if !self.is_refused.swap(true, Relaxed) {
            tracing::warn!(what, %error, "files are read without passthrough, which needs root (CAP_SYS_ADMIN) and a disk with O_TMPFILE");
        }
    }
}
