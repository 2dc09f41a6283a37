//! READs that the vfs answers on the reactor's own thread.

use super::{O_DIRECT, ServeOptions};
use crate::{Asked, Body, Companion, Outgoing, Taken};
use rustix::fd::BorrowedFd;
use sluice_base::Pipe;
use sluice_vfs::{
    HandleId, Vfs,
    direct::{self, Begun, Carrier, Direct, Region, Replies},
    remote::Remote,
};
use std::sync::Arc;

/// A reactor's own way to what is hot.
pub(super) struct Reader {
    vfs: Arc<Vfs>,
    direct: Direct,
    locks: Option<Arc<Remote>>,
}

impl Reader {
    pub(super) fn new(vfs: Arc<Vfs>, options: &ServeOptions) -> Self {
        Self { direct: Direct::new(vfs.clone(), options.verify), vfs, locks: options.locks.clone() }
    }
}

impl Companion for Reader {
    fn read(&mut self, asked: Asked, out: &mut Outgoing<'_>) -> Taken {
        let Asked { unique, fh, offset, size, flags, .. } = asked;
        let (handle, direct) = (HandleId(fh), flags & O_DIRECT != 0);
        // The handler says what is the matter.
        if self.locks.as_ref().is_some_and(|locks| locks.check_locks(handle).is_err()) {
            return Taken::No;
        }
        match self.direct.read(unique, (handle, offset, size), direct, &mut Reply { out, unique }) {
            direct::Taken::Answered => Taken::Answered,
            direct::Taken::Begun => Taken::Begun,
            direct::Taken::No => Taken::No,
            direct::Taken::Cold => {
                let vfs = self.vfs.clone();
                Taken::Later(Box::pin(
                    async move { vfs.read_waiting(handle, offset, size, direct).await.map(Body::pieces) },
                ))
            }
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.direct.descriptor()
    }

    fn turn(&mut self, out: &mut Outgoing<'_>) {
        self.direct.turn(&mut Late { out, vfs: &self.vfs });
    }
}

/// Answers to READs that were begun.
struct Late<'a, 'b> {
    out: &'a mut Outgoing<'b>,
    vfs: &'a Arc<Vfs>,
}

impl Replies for Late<'_, '_> {
    fn send(&mut self, id: u64, bytes: &[u8]) {
        self.out.send(id, bytes);
    }

    fn send_pipe(&mut self, pipe: Pipe) -> bool {
        self.out.send_pipe(pipe)
    }

    fn read_later(&mut self, id: u64, read: Begun) {
        let (vfs, Begun { handle, offset, len, direct, .. }) = (self.vfs.clone(), read);
        self.out
            .later(id, Box::pin(async move { vfs.read_later(handle, offset, len, direct).await.map(Body::pieces) }));
    }
}

/// The answer to one READ.
struct Reply<'a, 'b> {
    out: &'a mut Outgoing<'b>,
    unique: u64,
}

impl Carrier for Reply<'_, '_> {
    fn memory(&mut self, len: usize) -> &mut [u8] {
        self.out.memory(len)
    }

    fn send_memory(&mut self, len: usize) {
        self.out.send_memory(self.unique, len);
    }

    fn wants_regions(&self, len: usize) -> bool {
        self.out.wants_regions(len)
    }

    fn send_regions(&mut self, regions: &[Region<'_>]) -> bool {
        self.out.send_regions(self.unique, regions)
    }

    fn pipe(&mut self, len: usize) -> Option<Pipe> {
        self.out.pipe(self.unique, len)
    }
}
