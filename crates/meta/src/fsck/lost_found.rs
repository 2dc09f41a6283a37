//! `/lost+found`, where inodes go that no name leads to.

use crate::{
    Error, Result, keys,
    namespace::{count, new_inode, put_entry},
    records::{DirStat, Dirent, Inode, Usage, mode},
    store::Txn,
};
use sluice_base::{Ino, Timestamp};

/// A number never given before. The counter was mended in the first stage.
pub(super) fn next_id(txn: &mut Txn<'_>) -> Result<u64> {
    let key = keys::volume("ids");
    let found = txn.get(&key)?.and_then(|value| Some(u64::from_le_bytes(value.get(..8)?.try_into().ok()?)));
    let id = found.ok_or_else(|| Error::Corrupt("the id counter is missing".into()))?;
    txn.put(&key, (id + 1).to_le_bytes());
    Ok(id)
}

/// Gives `ino` the name `#INO` in `/lost+found`.
pub(super) fn adopt(txn: &mut Txn<'_>, ino: Ino, now: Timestamp) -> Result<()> {
    let Some(bytes) = txn.get(&keys::inode(ino))? else { return Ok(()) };
    let mut inode = Inode::decode(&bytes)?;
    let dir = directory(txn, now)?;
    let is_dir = inode.is_dir();
    if is_dir {
        inode.parent = dir;
    }
    inode.nlink = 1;
    inode.touch(now);
    txn.put(&keys::inode(ino), inode.encode());
    txn.delete(&keys::orphan(ino));
    let name = free_name(txn, dir, format!("#{ino}"))?;
    let cookie = next_id(txn)?;
    put_entry(txn, dir, &name, Dirent { ino, kind: inode.mode & mode::TYPE, cookie, name: Vec::new() });
    count(txn, dir, 1, i32::from(is_dir), now);
    Ok(())
}

/// `name`, or the first of `name.1`, `name.2`... that is free.
fn free_name(txn: &mut Txn<'_>, dir: Ino, name: String) -> Result<Vec<u8>> {
    let mut tried = name.clone();
    for number in 1u32.. {
        if txn.get(&keys::entry(dir, tried.as_bytes()))?.is_none() {
            break;
        }
        tried = format!("{name}.{number}");
    }
    Ok(tried.into_bytes())
}

/// `/lost+found`, or the first of `/lost+found.1`... when that is something else; made when there is none. For root alone, as
/// what is in it may have lain in a closed directory.
fn directory(txn: &mut Txn<'_>, now: Timestamp) -> Result<Ino> {
    let mut name = b"lost+found".to_vec();
    for number in 1u32.. {
        let Some(found) = txn.get(&keys::entry(Ino::ROOT, &name))? else { break };
        let entry = Dirent::decode(&found)?;
        let inode = txn.get(&keys::inode(entry.ino))?.map(|bytes| Inode::decode(&bytes)).transpose()?;
        if inode.is_some_and(|inode| inode.is_dir()) {
            return Ok(entry.ino);
        }
        name = format!("lost+found.{number}").into_bytes();
    }
    let (ino, cookie) = (Ino(next_id(txn)?), next_id(txn)?);
    let inode = Inode { parent: Ino::ROOT, ..new_inode(mode::DIRECTORY | 0o700, 0, 0, now) };
    txn.put(&keys::inode(ino), inode.encode());
    txn.put(&keys::dir_stat(ino), DirStat::empty(now).encode());
    put_entry(txn, Ino::ROOT, &name, Dirent { ino, kind: mode::DIRECTORY, cookie, name: Vec::new() });
    count(txn, Ino::ROOT, 1, 1, now);
    txn.merge(&keys::volume("usage"), Box::new(Usage { bytes: 0, inodes: 1 }));
    Ok(ino)
}
