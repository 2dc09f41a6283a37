//! rename(2) and renameat2(2).

use super::{
    Namespace, Read, Unlinked, check_name,
    names::{count, drop_dir, drop_link, find, put_entry, remove_entry},
};
use crate::{
    Error, Result, keys,
    records::{DirDelta, Dirent, mode},
    store::{Committed, Txn},
};
use sluice_base::{Ino, Timestamp};

/// What renameat2(2) does with an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails (RENAME_NOREPLACE).
    NoReplace,
    /// Swaps both (RENAME_EXCHANGE).
    Exchange,
}

/// One side of a rename.
#[derive(Clone, Copy)]
struct Side<'a> {
    dir: Ino,
    name: &'a [u8],
}

impl Namespace {
    /// Renames; tells what the replaced target left.
    pub fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: RenameMode,
        in_use: &dyn Fn(Ino) -> bool,
    ) -> Result<Committed<Option<Unlinked>>> {
        let (from, to) = (Side { dir: from.0, name: from.1 }, Side { dir: to.0, name: to.1 });
        for side in [from, to] {
            match check_name(side.name) {
                Err(Error::Exists) => return Err(Error::Invalid("rename of . or ..")),
                other => other?,
            }
        }
        let (cookie, other_cookie, now) = (self.next_id()?, self.next_id()?, self.now());
        self.write(|txn| {
            let moved = find(txn, from.dir, from.name)?;
            txn.directory(to.dir)?;
            let target = txn.get(&keys::entry(to.dir, to.name))?.map(|found| Dirent::decode(&found)).transpose()?;
            match (&target, how) {
                (Some(_), RenameMode::NoReplace) => return Err(Error::Exists),
                (None, RenameMode::Exchange) => return Err(Error::NotFound),
                _ => {}
            }
            if moved.kind == mode::DIRECTORY && from.dir != to.dir {
                check_no_loop(txn, moved.ino, to.dir)?;
            }
            match target {
                Some(target) if target.ino == moved.ino => Ok(None),
                Some(target) if how == RenameMode::Exchange => {
                    if target.kind == mode::DIRECTORY && from.dir != to.dir {
                        check_no_loop(txn, target.ino, from.dir)?;
                    }
                    remove_entry(txn, from.dir, from.name, &moved);
                    remove_entry(txn, to.dir, to.name, &target);
                    place(txn, from.dir, to, Dirent { cookie, ..moved }, now)?;
                    place(txn, to.dir, from, Dirent { cookie: other_cookie, ..target }, now)?;
                    Ok(None)
                }
                target => {
                    let left = target.map(|target| replace(txn, to, &moved, &target, in_use, now)).transpose()?;
                    remove_entry(txn, from.dir, from.name, &moved);
                    count(txn, from.dir, -1, -is_dir(&moved), now);
                    count(txn, to.dir, 1, is_dir(&moved), now);
                    reparent(txn, from.dir, to.dir, &moved, now)?;
                    put_entry(txn, to.dir, to.name, Dirent { cookie, ..moved });
                    Ok(left)
                }
            }
        })
    }
}

fn is_dir(entry: &Dirent) -> i32 {
    i32::from(entry.kind == mode::DIRECTORY)
}

/// Removes the target that `moved` replaces.
fn replace(
    txn: &mut Txn<'_>,
    to: Side<'_>,
    moved: &Dirent,
    target: &Dirent,
    in_use: &dyn Fn(Ino) -> bool,
    now: Timestamp,
) -> Result<Unlinked> {
    let left = match (moved.kind == mode::DIRECTORY, target.kind == mode::DIRECTORY) {
        (true, false) => return Err(Error::NotDirectory),
        (false, true) => return Err(Error::IsDirectory),
        (true, true) => drop_dir(txn, target, in_use, now)?,
        (false, false) => drop_link(txn, target.ino, in_use, now)?,
    };
    remove_entry(txn, to.dir, to.name, target);
    count(txn, to.dir, -1, -is_dir(target), now);
    Ok(left)
}

/// One half of an exchange: `entry`, which was in `old_dir`, becomes `to`.
fn place(txn: &mut Txn<'_>, old_dir: Ino, to: Side<'_>, entry: Dirent, now: Timestamp) -> Result<()> {
    reparent(txn, old_dir, to.dir, &entry, now)?;
    count(txn, old_dir, -1, -is_dir(&entry), now);
    count(txn, to.dir, 1, is_dir(&entry), now);
    put_entry(txn, to.dir, to.name, entry);
    Ok(())
}

/// The moved inode changed now, and a directory knows its parent.
fn reparent(txn: &mut Txn<'_>, from: Ino, to: Ino, moved: &Dirent, now: Timestamp) -> Result<()> {
    let mut inode = txn.inode(moved.ino)?;
    inode.touch(now);
    if inode.is_dir() {
        txn.merge(&keys::dir_stat(moved.ino), Box::new(DirDelta { ctime: Some(now), ..DirDelta::default() }));
        if from == to {
            return Ok(());
        }
        inode.parent = to;
    }
    txn.put(&keys::inode(moved.ino), inode.encode());
    Ok(())
}

/// `dir` is neither `moved` nor below it. Every step is a recorded read, so that two renames cannot make a loop together.
fn check_no_loop(txn: &mut Txn<'_>, moved: Ino, dir: Ino) -> Result<()> {
    let mut at = dir;
    while at != Ino::ROOT {
        if at == moved {
            return Err(Error::Invalid("a directory cannot move into itself"));
        }
        at = txn.directory(at)?.parent;
    }
    if moved == Ino::ROOT { Err(Error::Invalid("the root cannot move")) } else { Ok(()) }
}
