//! Opcode and bytes to [`Operation`]; `None` is a body that does not fit its opcode.

use super::body::{Body, time};
use super::operation::{Forgets, LockRequest, Operation, SetAttr, SetTime};
use crate::abi::flags::{self, fattr};
use crate::abi::{inputs, opcode};

pub(super) fn operation(code: u32, bytes: &[u8]) -> Option<Operation<'_>> {
    let mut body = Body(bytes);
    match code {
        opcode::INIT | opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::DESTROY => {
            session(code, &mut body)
        }
        opcode::LOOKUP
        | opcode::SYMLINK..=opcode::LINK
        | opcode::RENAME2
        | opcode::READLINK
        | opcode::CREATE
        | opcode::TMPFILE => namespace(code, &mut body),
        opcode::GETATTR | opcode::SETATTR | opcode::STATX | opcode::ACCESS | opcode::STATFS => {
            attributes(code, &mut body)
        }
        opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => xattr(code, &mut body),
        opcode::OPENDIR | opcode::READDIR | opcode::READDIRPLUS | opcode::RELEASEDIR | opcode::FSYNCDIR => {
            directory(code, &mut body)
        }
        _ => file(code, &mut body),
    }
}

fn session<'a>(code: u32, body: &mut Body<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::INIT => Operation::Init(body.take()?),
        opcode::FORGET => Operation::Forget { lookups: body.take::<inputs::ForgetIn>()?.nlookup },
        opcode::BATCH_FORGET => {
            let count = body.take::<inputs::BatchForgetIn>()?.count;
            let len = count.checked_mul(u32::try_from(size_of::<inputs::ForgetOne>()).ok()?)?;
            Operation::BatchForget(Forgets(body.bytes(len)?))
        }
        opcode::INTERRUPT => Operation::Interrupt { unique: body.take::<inputs::InterruptIn>()?.unique },
        _ => Operation::Destroy,
    })
}

fn namespace<'a>(code: u32, body: &mut Body<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::LOOKUP => Operation::Lookup { name: body.name()? },
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => Operation::SymLink { name: body.name()?, target: body.name()? },
        opcode::MKNOD => {
            let inputs::MknodIn { mode, rdev, umask, .. } = body.take()?;
            Operation::MkNod { name: body.name()?, mode, rdev, umask }
        }
        opcode::MKDIR => {
            let inputs::MkdirIn { mode, umask } = body.take()?;
            Operation::MkDir { name: body.name()?, mode, umask }
        }
        opcode::UNLINK => Operation::Unlink { name: body.name()? },
        opcode::RMDIR => Operation::RmDir { name: body.name()? },
        opcode::RENAME => {
            let new_parent = body.take::<inputs::RenameIn>()?.newdir;
            Operation::Rename { name: body.name()?, new_parent, new_name: body.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let inputs::Rename2In { newdir, flags, .. } = body.take()?;
            Operation::Rename { name: body.name()?, new_parent: newdir, new_name: body.name()?, flags }
        }
        opcode::LINK => {
            let target = body.take::<inputs::LinkIn>()?.oldnodeid;
            Operation::Link { target, name: body.name()? }
        }
        opcode::CREATE => {
            let inputs::CreateIn { flags, mode, umask, open_flags } = body.take()?;
            let kill_suidgid = open_flags & flags::OPEN_KILL_SUIDGID != 0;
            Operation::Create { name: body.name()?, flags, mode, umask, kill_suidgid }
        }
        opcode::TMPFILE => {
            let inputs::CreateIn { flags, mode, umask, .. } = body.take()?;
            Operation::TmpFile { flags, mode, umask }
        }
        opcode => Operation::Unknown { opcode },
    })
}

fn attributes<'a>(code: u32, body: &mut Body<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::GETATTR => {
            let inputs::GetattrIn { getattr_flags, fh, .. } = body.take()?;
            Operation::GetAttr { fh: (getattr_flags & flags::GETATTR_FH != 0).then_some(fh) }
        }
        opcode::SETATTR => Operation::SetAttr(set_attr(&body.take()?)?),
        opcode::STATX => {
            let inputs::StatxIn { getattr_flags, fh, sx_flags, sx_mask, .. } = body.take()?;
            let fh = (getattr_flags & flags::GETATTR_FH != 0).then_some(fh);
            Operation::Statx { fh, flags: sx_flags, mask: sx_mask }
        }
        opcode::ACCESS => Operation::Access { mask: body.take::<inputs::AccessIn>()?.mask },
        _ => Operation::StatFs,
    })
}

fn set_attr(wire: &inputs::SetattrIn) -> Option<SetAttr> {
    let has = |bit| wire.valid & bit != 0;
    let set_time = |bit, now, secs, nanos| match (has(bit), has(now)) {
        (false, _) => Some(None),
        (true, true) => Some(Some(SetTime::Now)),
        (true, false) => time(secs, nanos).map(|at| Some(SetTime::At(at))),
    };
    Some(SetAttr {
        mode: has(fattr::MODE).then_some(wire.mode),
        uid: has(fattr::UID).then_some(wire.uid),
        gid: has(fattr::GID).then_some(wire.gid),
        size: has(fattr::SIZE).then_some(wire.size),
        atime: set_time(fattr::ATIME, fattr::ATIME_NOW, wire.atime, wire.atimensec)?,
        mtime: set_time(fattr::MTIME, fattr::MTIME_NOW, wire.mtime, wire.mtimensec)?,
        ctime: if has(fattr::CTIME) { Some(time(wire.ctime, wire.ctimensec)?) } else { None },
        fh: has(fattr::FH).then_some(wire.fh),
        kill_suidgid: has(fattr::KILL_SUIDGID),
        lock_owner: has(fattr::LOCKOWNER).then_some(wire.lock_owner),
    })
}

fn xattr<'a>(code: u32, body: &mut Body<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::SETXATTR => {
            let inputs::SetxattrIn { size, flags, setxattr_flags, .. } = body.take()?;
            let acl_kill_sgid = setxattr_flags & flags::SETXATTR_ACL_KILL_SGID != 0;
            Operation::SetXattr { name: body.name()?, value: body.bytes(size)?, flags, acl_kill_sgid }
        }
        opcode::GETXATTR => {
            let size = body.take::<inputs::GetxattrIn>()?.size;
            Operation::GetXattr { name: body.name()?, size }
        }
        opcode::LISTXATTR => Operation::ListXattr { size: body.take::<inputs::GetxattrIn>()?.size },
        _ => Operation::RemoveXattr { name: body.name()? },
    })
}

fn directory<'a>(code: u32, body: &mut Body<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::OPENDIR => Operation::OpenDir { flags: body.take::<inputs::OpenIn>()?.flags },
        opcode::READDIR => {
            let inputs::ReadIn { fh, offset, size, .. } = body.take()?;
            Operation::ReadDir { fh, offset, size }
        }
        opcode::READDIRPLUS => {
            let inputs::ReadIn { fh, offset, size, .. } = body.take()?;
            Operation::ReadDirPlus { fh, offset, size }
        }
        opcode::RELEASEDIR => {
            let inputs::ReleaseIn { fh, flags, .. } = body.take()?;
            Operation::ReleaseDir { fh, flags }
        }
        _ => {
            let inputs::FsyncIn { fh, fsync_flags, .. } = body.take()?;
            Operation::FsyncDir { fh, data_only: fsync_flags & flags::FSYNC_FDATASYNC != 0 }
        }
    })
}

fn file<'a>(code: u32, body: &mut Body<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::OPEN => Operation::Open { flags: body.take::<inputs::OpenIn>()?.flags },
        opcode::READ => {
            let inputs::ReadIn { fh, offset, size, read_flags, lock_owner, flags, .. } = body.take()?;
            let lock_owner = (read_flags & flags::READ_LOCKOWNER != 0).then_some(lock_owner);
            Operation::Read { fh, offset, size, flags, lock_owner }
        }
        opcode::WRITE => {
            let inputs::WriteIn { fh, offset, size, write_flags, lock_owner, flags, .. } = body.take()?;
            let has = |bit| write_flags & bit != 0;
            Operation::Write {
                fh,
                offset,
                data: body.bytes(size)?,
                flags,
                cached: has(flags::WRITE_CACHE),
                kill_suidgid: has(flags::WRITE_KILL_SUIDGID),
                lock_owner: has(flags::WRITE_LOCKOWNER).then_some(lock_owner),
            }
        }
        opcode::RELEASE => {
            let inputs::ReleaseIn { fh, flags, release_flags, lock_owner } = body.take()?;
            let flush = release_flags & flags::RELEASE_FLUSH != 0;
            let flock_unlock = release_flags & flags::RELEASE_FLOCK_UNLOCK != 0;
            Operation::Release { fh, flags, flush, flock_unlock, lock_owner }
        }
        opcode::FLUSH => {
            let inputs::FlushIn { fh, lock_owner, .. } = body.take()?;
            Operation::Flush { fh, lock_owner }
        }
        opcode::FSYNC => {
            let inputs::FsyncIn { fh, fsync_flags, .. } = body.take()?;
            Operation::Fsync { fh, data_only: fsync_flags & flags::FSYNC_FDATASYNC != 0 }
        }
        code => return rare(code, body),
    })
}

fn rare<'a>(code: u32, body: &mut Body<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::GETLK => Operation::GetLk(lock(&body.take()?)),
        opcode::SETLK | opcode::SETLKW => Operation::SetLk { lock: lock(&body.take()?), wait: code == opcode::SETLKW },
        opcode::IOCTL => {
            let inputs::IoctlIn { fh, flags, cmd, arg, in_size, out_size } = body.take()?;
            Operation::Ioctl { fh, flags, cmd, arg, data: body.bytes(in_size)?, out_size }
        }
        opcode::POLL => {
            let inputs::PollIn { fh, kh, flags, events } = body.take()?;
            Operation::Poll { fh, kh, flags, events }
        }
        opcode::FALLOCATE => {
            let inputs::FallocateIn { fh, offset, length, mode, .. } = body.take()?;
            Operation::FAllocate { fh, offset, length, mode }
        }
        opcode::LSEEK => {
            let inputs::LseekIn { fh, offset, whence, .. } = body.take()?;
            Operation::LSeek { fh, offset, whence }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            let inputs::CopyFileRangeIn { fh_in, off_in, nodeid_out, fh_out, off_out, len, flags } = body.take()?;
            let wide = code == opcode::COPY_FILE_RANGE_64;
            Operation::CopyFileRange { fh_in, off_in, nodeid_out, fh_out, off_out, len, flags, wide }
        }
        opcode::SYNCFS => Operation::SyncFs,
        opcode::BMAP => {
            let inputs::BmapIn { block, blocksize, .. } = body.take()?;
            Operation::BMap { block, blocksize }
        }
        opcode => Operation::Unknown { opcode },
    })
}

fn lock(wire: &inputs::LkIn) -> LockRequest {
    LockRequest { fh: wire.fh, owner: wire.owner, lock: wire.lk, flock: wire.lk_flags & flags::LK_FLOCK != 0 }
}
