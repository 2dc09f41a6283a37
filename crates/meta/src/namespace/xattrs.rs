//! Extended attributes with Linux's limits (xattr(7)). Which names a caller may use is the front end's (the kernel's) check.

use super::{Namespace, Read};
use crate::{
    Error, Result, keys,
    records::{DirDelta, flags},
    store::Committed,
};
use sluice_base::{
    Ino,
    limits::{XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX},
};
use std::ops::ControlFlow;

/// setxattr(2)'s flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// XATTR_CREATE: fails when it exists.
    Create,
    /// XATTR_REPLACE: fails when it does not.
    Replace,
}

impl Namespace {
    /// The value of attribute `name`.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr_name(name)?;
        let mut snapshot = self.store.snapshot();
        match snapshot.get(&keys::xattr(ino, name))? {
            Some(value) => Ok(value.to_vec()),
            None => snapshot.inode(ino).and(Err(Error::NoAttribute)),
        }
    }

    /// The names of all attributes, each ended by NUL, as listxattr(2) gives them.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut snapshot = self.store.snapshot();
        let mut list = Vec::new();
        if snapshot.inode(ino)?.has(flags::XATTRS) {
            let (from, to) = keys::all_of(b'x', ino);
            snapshot.scan(&from, &to, &mut |key, _| {
                list.extend_from_slice(&key[9..]);
                list.push(0);
                ControlFlow::Continue(())
            })?;
        }
        Ok(list)
    }

    /// Sets attribute `name`.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: XattrMode) -> Result<Committed<()>> {
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Error::AttributeTooLarge);
        }
        self.write(|txn| {
            let key = keys::xattr(ino, name);
            match (txn.get(&key)?.is_some(), how) {
                (true, XattrMode::Create) => return Err(Error::Exists),
                (false, XattrMode::Replace) => return Err(Error::NoAttribute),
                (false, _) => {
                    let (from, to) = keys::all_of(b'x', ino);
                    let mut bytes = name.len() + 1;
                    txn.scan(&from, &to, &mut |key, _| {
                        bytes += key.len() - 8;
                        ControlFlow::Continue(())
                    })?;
                    if bytes > XATTR_LIST_BYTES_MAX {
                        return Err(Error::AttributeTooLarge);
                    }
                }
                (true, _) => {}
            }
            txn.put(&key, value);
            self.touch_attributes(txn, ino, Some(true))
        })
    }

    /// Removes attribute `name`.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<Committed<()>> {
        check_xattr_name(name)?;
        self.write(|txn| {
            let key = keys::xattr(ino, name);
            if txn.get(&key)?.is_none() {
                return txn.inode(ino).and(Err(Error::NoAttribute));
            }
            txn.delete(&key);
            self.touch_attributes(txn, ino, None)
        })
    }

    fn touch_attributes(&self, txn: &mut crate::store::Txn<'_>, ino: Ino, some: Option<bool>) -> Result<()> {
        let now = self.now();
        let mut inode = txn.inode(ino)?;
        inode.touch(now);
        if let Some(some) = some {
            inode.set(flags::XATTRS, some);
        }
        txn.put(&keys::inode(ino), inode.encode());
        if inode.is_dir() && inode.nlink > 0 {
            txn.merge(&keys::dir_stat(ino), Box::new(DirDelta { ctime: Some(now), ..DirDelta::default() }));
        }
        Ok(())
    }
}

fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX { Err(Error::AttributeName) } else { Ok(()) }
}
