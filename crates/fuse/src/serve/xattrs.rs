//! Extended attributes: those that are no file system's own affair (xattr(7)).

use super::{Outcome, VfsHandler};
use crate::{Answer, Operation, Reply, ReplyBuffer, Request};
use sluice_base::{Errno, Ino};
use sluice_meta as meta;
use sluice_vfs::Failure;

const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

impl VfsHandler {
    pub(super) fn dispatch_xattrs(&self, request: &Request<'_>, ino: Ino, reply: &mut ReplyBuffer) -> Outcome {
        let namespace = self.vfs.namespace();
        match request.operation {
            Operation::GetXattr { name, size } => {
                check_xattr(name)?;
                sized(&namespace.getxattr(ino, name)?, size, reply)
            }
            Operation::ListXattr { size } => sized(&namespace.listxattr(ino)?, size, reply),
            Operation::SetXattr { name, value, flags, .. } => {
                check_xattr(name)?;
                let how = match flags {
                    0 => meta::XattrMode::Set,
                    XATTR_CREATE => meta::XattrMode::Create,
                    XATTR_REPLACE => meta::XattrMode::Replace,
                    _ => return Err(Errno::EINVAL.into()),
                };
                namespace.setxattr(ino, name, value, how)?;
                Ok(Answer::Done)
            }
            Operation::RemoveXattr { name } => {
                check_xattr(name)?;
                namespace.removexattr(ino, name)?;
                Ok(Answer::Done)
            }
            _ => Err(Errno::ENOSYS.into()),
        }
    }
}

/// A value, or its length when the caller asked for that (getxattr(2)).
fn sized(value: &[u8], size: u32, reply: &mut ReplyBuffer) -> Outcome {
    if size == 0 {
        reply.xattr_size(value.len() as u32);
    } else if value.len() > size as usize {
        return Err(Errno::ERANGE.into());
    } else {
        reply.put(value);
    }
    Ok(Answer::Done)
}

/// Only the namespaces that every file has; ACLs (system.) are not kept.
fn check_xattr(name: &[u8]) -> Result<(), Failure> {
    for prefix in [&b"user."[..], b"trusted.", b"security."] {
        match name.strip_prefix(prefix) {
            Some(b"") => return Err(Errno::EINVAL.into()),
            Some(_) => return Ok(()),
            None => {}
        }
    }
    Err(Errno::EOPNOTSUPP.into())
}
