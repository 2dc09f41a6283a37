//! What a program's calls become: the front end of a mount, without a kernel.

use crate::hosts::Mount;
use sluice_base::{Errno, Ino};
use sluice_meta::{Attr, Caller, RenameMode, SetAttributes};
use sluice_run::simulation::block_on;
use sluice_vfs::{Failure, HandleId, Read, waiting};
use std::ops::ControlFlow;

const ME: Caller = Caller { uid: 0, gid: 0 };

impl Mount {
    pub fn lookup(&self, name: &str) -> Result<Attr, Errno> {
        waiting(|| self.vfs.namespace().lookup(Ino::ROOT, name.as_bytes())).map_err(errno)
    }

    pub fn create(&self, name: &str) -> Result<(Ino, HandleId), Errno> {
        let made = waiting(|| self.vfs.create(Ino::ROOT, name.as_bytes(), 0o644, ME));
        made.map(|(attr, opened)| (attr.ino, opened.handle)).map_err(Failure::errno)
    }

    pub fn open(&self, ino: Ino) -> Result<HandleId, Errno> {
        waiting(|| self.vfs.open(ino)).map(|opened| opened.handle).map_err(Failure::errno)
    }

    pub fn write(&self, handle: HandleId, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        match waiting(|| self.vfs.write(handle, offset, bytes, false)) {
            Ok(()) => Ok(()),
            Err(Failure::Errno(errno)) => Err(errno),
            Err(_) => block_on(self.vfs.clone().write_later(handle, offset, bytes.to_vec(), false)),
        }
    }

    pub fn read(&self, handle: HandleId, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut buf = vec![0xa5; len];
        match waiting(|| self.vfs.read(handle, offset, &mut buf, false)).map_err(Failure::errno)? {
            Read::Done(done) => {
                buf.truncate(done);
                Ok(buf)
            }
            Read::Later => {
                block_on(self.vfs.clone().read_later(handle, offset, len, false)).map(|pieces| pieces.concat())
            }
        }
    }

    pub fn truncate(&self, ino: Ino, size: u64) -> Result<(), Errno> {
        let set = SetAttributes::default();
        match waiting(|| self.vfs.setattr(ino, Some(size), &set)) {
            Ok(_) => Ok(()),
            Err(Failure::Errno(errno)) => Err(errno),
            Err(_) => {
                let vfs = self.vfs.clone();
                block_on(self.vfs.make_room(move || vfs.setattr(ino, Some(size), &set))).map(drop)
            }
        }
    }

    /// What close does before the handle goes.
    pub fn flush(&self, ino: Ino) -> Result<(), Errno> {
        waiting(|| self.vfs.namespace().publish(ino)).map_err(errno)
    }

    pub fn fsync(&self, ino: Ino) -> Result<(), Errno> {
        self.flush(ino)?;
        self.vfs.sync().map_or(Ok(()), block_on)
    }

    pub fn release(&self, handle: HandleId) {
        waiting(|| self.vfs.release(handle));
    }

    pub fn unlink(&self, name: &str) -> Result<(), Errno> {
        waiting(|| self.vfs.unlink(Ino::ROOT, name.as_bytes())).map_err(Failure::errno)
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        let (from, to) = ((Ino::ROOT, from.as_bytes()), (Ino::ROOT, to.as_bytes()));
        waiting(|| self.vfs.rename(from, to, RenameMode::Replace)).map_err(Failure::errno)
    }

    /// The names in the root directory and what they are.
    pub fn list(&self) -> Result<Vec<(String, Ino)>, Errno> {
        waiting(|| {
            let namespace = self.vfs.namespace();
            let until = namespace.last_cookie()?;
            let mut found = Vec::new();
            namespace.read_dir(Ino::ROOT, 2, until, false, &mut |entry| {
                found.push((String::from_utf8_lossy(&entry.entry.name).into_owned(), entry.entry.ino));
                ControlFlow::Continue(())
            })?;
            Ok(found)
        })
        .map_err(errno)
    }
}

fn errno(error: sluice_meta::Error) -> Errno {
    Failure::from(error).errno()
}
