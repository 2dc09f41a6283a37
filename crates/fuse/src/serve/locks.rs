//! flock(2) and fcntl(2) locks where the server keeps them. A mount that is its volume's only one leaves them to the kernel.

use super::{Outcome, VfsHandler};
use crate::{Answer, Body, Operation, Reply, abi::FileLock, request::LockRequest};
use sluice_base::{Errno, Ino};
use sluice_meta::rpc::{LockKind, LockMode, LockRange};
use sluice_vfs::{Failure, HandleId, remote::LockCall};

const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;

fn kind(request: &LockRequest) -> LockKind {
    if request.flock { LockKind::Flock } else { LockKind::Record }
}

fn range(request: &LockRequest) -> Result<LockRange, Errno> {
    LockRange::new(request.lock.start, request.lock.end).ok_or(Errno::EINVAL)
}

/// `None` to unlock.
fn mode(request: &LockRequest) -> Result<Option<LockMode>, Errno> {
    match request.lock.kind {
        F_RDLCK => Ok(Some(LockMode::Shared)),
        F_WRLCK => Ok(Some(LockMode::Exclusive)),
        F_UNLCK => Ok(None),
        _ => Err(Errno::EINVAL),
    }
}

fn call(unique: u64, ino: Ino, request: &LockRequest, mode: LockMode) -> Result<LockCall, Errno> {
    let (handle, owner, pid) = (HandleId(request.fh), request.owner, request.lock.pid);
    Ok(LockCall { ino, handle, kind: kind(request), owner, range: range(request)?, mode, pid, call: unique })
}

impl VfsHandler {
    pub(super) fn set_lock(&self, unique: u64, ino: Ino, request: LockRequest, wait: bool) -> Outcome {
        let remote = self.options.locks.clone().ok_or(Errno::ENOSYS)?;
        let Some(mode) = mode(&request)? else {
            remote.unlock(ino, kind(&request), request.owner, range(&request)?)?;
            return Ok(Answer::Done);
        };
        let call = call(unique, ino, &request, mode)?;
        Ok(Answer::Interruptible(Box::new(move |interrupted| {
            Box::pin(async move { remote.lock(call, wait, interrupted).await.map(|()| Body::empty()) })
        })))
    }

    pub(super) fn test_lock(&self, unique: u64, ino: Ino, request: LockRequest) -> Outcome {
        let remote = self.options.locks.clone().ok_or(Errno::ENOSYS)?;
        let mode = mode(&request)?.ok_or(Errno::EINVAL)?;
        let call = call(unique, ino, &request, mode)?;
        Ok(Answer::later(async move {
            let found = match remote.test_lock(call).await? {
                None => FileLock { kind: F_UNLCK, ..request.lock },
                Some(lock) => FileLock {
                    start: lock.range.first(),
                    end: lock.range.last(),
                    kind: if lock.mode == LockMode::Exclusive { F_WRLCK } else { F_RDLCK },
                    pid: lock.pid,
                },
            };
            Ok(Body::with(|reply| reply.lock(found)))
        }))
    }

    /// Whether what is about the bytes of a handle may be done: not when locks that were taken through it are lost.
    pub(super) fn check_locks(&self, operation: &Operation<'_>) -> Result<(), Failure> {
        let Some(remote) = &self.options.locks else { return Ok(()) };
        let check = |fh: u64| remote.check_locks(HandleId(fh));
        match *operation {
            Operation::Read { fh, .. } | Operation::Fsync { fh, .. } | Operation::FAllocate { fh, .. } => check(fh),
            // Pages of a mapping come through any handle.
            Operation::Write { fh, cached: false, .. } => check(fh),
            Operation::CopyFileRange { fh_in, fh_out, .. } => check(fh_in).and_then(|()| check(fh_out)),
            _ => Ok(()),
        }
    }

    pub(super) fn flushed(&self, ino: Ino, handle: HandleId, owner: u64) -> Result<(), Failure> {
        self.options.locks.as_ref().map_or(Ok(()), |remote| remote.flushed(ino, handle, owner))
    }

    pub(super) fn released(&self, handle: HandleId) -> Result<(), Failure> {
        self.options.locks.as_ref().map_or(Ok(()), |remote| remote.released(handle))
    }
}
