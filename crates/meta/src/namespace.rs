//! Every POSIX rule, once: front ends unpack requests, call here and map the error.
//!
//! Each operation is one transaction over the [`MetaStore`]; the attributes of a directory that its children change are
//! merged blindly ([`crate::records::DirDelta`]), so that creates in one directory do not conflict.

mod access;
mod attributes;
mod data;
mod directory;
mod names;
mod objects;
mod once;
mod remote;
mod rename;
mod xattrs;

pub use access::atime_is_due;
pub use attributes::{SetAttributes, SetTime};
pub use data::{Attachment, DataChange, SizeChange};
pub use directory::DirEntry;
pub use names::{NewNode, Unlinked};
pub(crate) use names::{count, put_entry};
pub use objects::{FileSpan, Moved};
pub(crate) use once::{Effects, InSession, Once};
pub use rename::RenameMode;
pub use xattrs::XattrMode;

use crate::{
    Error, Result, keys,
    records::{DirStat, Inode, Usage, mode},
    rpc::codec::Wire,
    store::{Committed, MetaStore, Snapshot, Txn},
};
use sluice_base::{Clock, Ino, Timestamp, limits::NAME_BYTES_MAX};
use sluice_run::lock::Mutex;
use std::{ops::Range, sync::Arc};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
}

/// Attributes as stat(2) shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Attr {
    pub ino: Ino,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size: u64,
    /// Bytes held, for st_blocks.
    pub held_bytes: u64,
    pub change: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
}

impl Attr {
    fn of(ino: Ino, inode: &Inode) -> Self {
        Self {
            ino,
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: inode.size,
            held_bytes: inode.held_bytes,
            change: inode.change,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
        }
    }

    fn of_dir(ino: Ino, inode: &Inode, stat: &DirStat) -> Self {
        let size = 4096;
        let (nlink, mtime, ctime) = (stat.nlink, stat.mtime, stat.ctime);
        Self { nlink, size, mtime, ctime, change: stat.change, ..Self::of(ino, inode) }
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & mode::TYPE == mode::DIRECTORY
    }
    /// Whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & mode::TYPE == mode::REGULAR
    }
}

/// Key of the number of the line.
const LINE: &str = "line";
/// The line of which the store has had metadata.
const SHIPPED: &str = "shipped";
/// The last session that was begun.
const SESSION: &str = "session";
/// Sessions that the line before may have begun behind the state that this one began with: of these this one gives none away.
const LOST_SESSIONS: &str = "lost-sessions";
/// The next inode number or cookie.
const IDS: &str = "ids";
/// A line counts from so far behind the state that it begins with, and up to twice that: more than is given away before the store hears of it, and 200
/// lines have inode numbers of 32 bits.
const LINE_APART: u64 = 1 << 24;
/// Ids are reserved in blocks of this many, so that most allocations touch no table.
const ID_BLOCK: u64 = 65_536;

/// Numbers that are reserved.
#[derive(Default)]
struct Ids {
    block: Range<u64>,
    /// A block survives power loss before a number of it is given: what was told to others is not given to something else then.
    durable: bool,
    /// The run of the server that gives them; 0 without one.
    life: u32,
}

/// The file system's rules over its tables.
pub struct Namespace {
    store: Arc<MetaStore>,
    clock: Arc<dyn Clock>,
    ids: Arc<Mutex<Ids>>,
    accesses: Arc<access::Accesses>,
    /// Of a view for one operation of a session.
    once: Option<Box<once::OnceState>>,
}

impl Namespace {
    /// The rules over `store`, whose root directory exists ([`Namespace::format`]).
    pub fn new(store: Arc<MetaStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, ids: Arc::default(), accesses: Arc::default(), once: None }
    }

    /// Makes the root directory of an empty volume, owned by `owner`; does nothing when there is one.
    pub fn format(&self, owner: Caller) -> Result<()> {
        let now = self.clock.wall();
        self.store.transact(|txn| -> Result<()> {
            if txn.get(&keys::inode(Ino::ROOT))?.is_some() {
                return Ok(());
            }
            let root = new_inode(mode::DIRECTORY | 0o755, owner.uid, owner.gid, now);
            let root = Inode { parent: Ino::ROOT, ..root };
            txn.put(&keys::inode(Ino::ROOT), root.encode());
            txn.put(&keys::dir_stat(Ino::ROOT), DirStat::empty(now).encode());
            // Numbers below 16 are kept for `.` and `..` as cookies, and for what may come.
            txn.put(&keys::volume(IDS), 16u64.to_le_bytes());
            txn.merge(&keys::volume("usage"), Box::new(Usage { bytes: 0, inodes: 1 }));
            Ok(())
        })?;
        Ok(())
    }

    /// The number of the line of changes that these tables belong to: `fresh` where they have none yet.
    pub fn line(&self, fresh: u64) -> Result<u64> {
        match self.known_line()? {
            Some(number) => Ok(number),
            None => {
                self.store.transact(|txn| -> Result<()> {
                    txn.put(&keys::volume(LINE), fresh.to_le_bytes());
                    Ok(())
                })?;
                Ok(fresh)
            }
        }
    }

    /// The same; none where they have none yet.
    pub fn known_line(&self) -> Result<Option<u64>> {
        let Some(known) = self.store.snapshot().get(&keys::volume(LINE))? else { return Ok(None) };
        let number = known.as_ref().try_into();
        let number = number.map_err(|_| Error::Corrupt("the number of the line is damaged".into()))?;
        Ok(Some(u64::from_le_bytes(number)))
    }

    /// Another line begins here, of a random number. What the one before has given away behind this state, of which mounts that go on may still speak, is
    /// not given again: numbers of sessions, inodes and cookies.
    pub fn begin_line(&self, number: u64) -> Result<()> {
        let moved = LINE_APART + (number >> 40);
        self.store.transact(|txn| -> Result<()> {
            txn.put(&keys::volume(LINE), number.to_le_bytes());
            let known = last_session(txn)?;
            txn.put(&keys::volume(LOST_SESSIONS), [known, known + moved].map(u64::to_le_bytes).concat());
            for (counter, last) in [(IDS, last_id(txn)?), (SESSION, known)] {
                txn.put(&keys::volume(counter), (last + moved).to_le_bytes());
            }
            Ok(())
        })?;
        self.ids.lock().block = 0..0;
        Ok(())
    }

    /// That the store has metadata of this line: from now on it is missing where nothing is there.
    pub fn note_shipped(&self, line: u64) -> Result<()> {
        if !self.was_shipped(line)? {
            self.store.transact(|txn| -> Result<()> {
                txn.put(&keys::volume(SHIPPED), line.to_le_bytes());
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether that was noted.
    pub fn was_shipped(&self, line: u64) -> Result<bool> {
        let known = self.store.snapshot().get(&keys::volume(SHIPPED))?;
        Ok(known.is_some_and(|known| known.as_ref() == line.to_le_bytes()))
    }

    /// The store below, for checkpoints and health.
    pub fn store(&self) -> &Arc<MetaStore> {
        &self.store
    }

    /// Now, for file times.
    pub fn now(&self) -> Timestamp {
        self.clock.wall()
    }

    /// A number never given before in this volume: inode numbers and directory cookies.
    fn next_id(&self) -> Result<u64> {
        let mut ids = self.ids.lock();
        if let Some(id) = ids.block.next() {
            return Ok(id);
        }
        let block = self.store.transact(|txn| -> Result<u64> {
            let first = last_id(txn)?;
            txn.put(&keys::volume(IDS), (first + ID_BLOCK).to_le_bytes());
            Ok(first)
        })?;
        if ids.durable {
            self.store.ensure_synced(block.seq)?;
        }
        ids.block = block.value..block.value + ID_BLOCK;
        ids.block.next().ok_or_else(|| Error::Corrupt("the id counter is at its end".into()))
    }

    /// Bytes and inodes in use.
    pub fn usage(&self) -> Result<Usage> {
        self.store.snapshot().get(&keys::volume("usage"))?.map_or(Ok(Usage::default()), |bytes| Usage::decode(&bytes))
    }

    /// The one transaction of an operation.
    fn write<'a, R: for<'r> Wire<'r>>(&self, f: impl FnMut(&mut Txn<'a>) -> Result<R>) -> Result<Committed<R>> {
        match &self.once {
            None => self.store.transact(f),
            Some(once) => once.write(&self.store, f),
        }
    }
}

/// Below this all inode numbers and cookies are given away, or left out.
fn last_id(txn: &mut Txn<'_>) -> Result<u64> {
    counted(txn, IDS)?.ok_or_else(|| Error::Corrupt("the id counter is missing".into()))
}

/// The last session that was begun; 0 before the first one.
fn last_session(txn: &mut Txn<'_>) -> Result<u64> {
    Ok(counted(txn, SESSION)?.unwrap_or(0))
}

fn counted(txn: &mut Txn<'_>, counter: &str) -> Result<Option<u64>> {
    let count = txn.get(&keys::volume(counter))?;
    Ok(count.and_then(|count| Some(u64::from_le_bytes(count.get(..8)?.try_into().ok()?))))
}

/// An inode with one link and all times `now`.
pub(crate) fn new_inode(mode: u32, uid: u32, gid: u32, now: Timestamp) -> Inode {
    let (atime, mtime, ctime, btime) = (now, now, now, now);
    let parent = Ino(0);
    let (nlink, rdev, flags, size, held_bytes, change) = (1, 0, 0, 0, 0, 1);
    Inode { mode, uid, gid, nlink, rdev, flags, size, held_bytes, change, parent, atime, mtime, ctime, btime }
}

/// A name that a directory may hold.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Error::NotFound),
        b"." | b".." => Err(Error::Exists),
        _ if name.len() > NAME_BYTES_MAX => Err(Error::NameTooLong),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid("a name holds neither / nor NUL")),
        _ => Ok(()),
    }
}

/// What both transactions and snapshots can read.
trait Read {
    fn read(&mut self, key: &[u8]) -> Result<Option<crate::store::Value>>;

    fn inode(&mut self, ino: Ino) -> Result<Inode> {
        let found = self.read(&keys::inode(ino))?.ok_or(Error::Stale)?;
        Inode::decode(&found)
    }

    fn directory(&mut self, ino: Ino) -> Result<Inode> {
        let inode = self.inode(ino)?;
        match inode.is_dir() {
            // Removed while somebody holds it: nothing can be found or made there any more.
            true if inode.nlink == 0 => Err(Error::NotFound),
            true => Ok(inode),
            false => Err(Error::NotDirectory),
        }
    }

    fn dir_stat(&mut self, dir: Ino) -> Result<DirStat> {
        let found = self.read(&keys::dir_stat(dir))?;
        DirStat::decode(&found.ok_or_else(|| Error::Corrupt(format!("directory {dir} has no statistics")))?)
    }

    fn attr(&mut self, ino: Ino) -> Result<Attr> {
        let inode = self.inode(ino)?;
        if inode.is_dir() && inode.nlink > 0 {
            let stat = self.dir_stat(ino)?;
            return Ok(Attr::of_dir(ino, &inode, &stat));
        }
        Ok(Attr::of(ino, &inode))
    }
}

impl Read for Txn<'_> {
    fn read(&mut self, key: &[u8]) -> Result<Option<crate::store::Value>> {
        Ok(self.get(key)?)
    }
}

impl Read for Snapshot<'_> {
    fn read(&mut self, key: &[u8]) -> Result<Option<crate::store::Value>> {
        Ok(self.get(key)?)
    }
}
