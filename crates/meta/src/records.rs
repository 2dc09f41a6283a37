//! What the tables hold: fixed little-endian layouts, each opening with a version byte. docs/disk-format.md describes them.

use crate::{Error, store::Merge};
use sluice_base::{Ino, ObjectId, SessionId, Timestamp};

/// Version byte of every record below.
const VERSION: u8 = 1;
/// That of a session that was taken over.
const VERSION_CLAIMED: u8 = 2;
/// Added to that of a session that was given up.
const LEFT: u8 = 2;

/// File type bits of st_mode (inode(7)).
pub mod mode {
    #![allow(missing_docs)]
    pub const TYPE: u32 = 0o170_000;
    pub const SOCKET: u32 = 0o140_000;
    pub const SYMLINK: u32 = 0o120_000;
    pub const REGULAR: u32 = 0o100_000;
    pub const BLOCK: u32 = 0o060_000;
    pub const DIRECTORY: u32 = 0o040_000;
    pub const CHARACTER: u32 = 0o020_000;
    pub const FIFO: u32 = 0o010_000;
    pub const SETUID: u32 = 0o4000;
    pub const SETGID: u32 = 0o2000;
    pub const PERMISSIONS: u32 = 0o7777;
}

pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn new(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.push(VERSION);
        Self(bytes)
    }
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    pub fn time(self, time: Timestamp) -> Self {
        self.u64(time.secs as u64).u32(time.nanos)
    }
    pub fn bytes(mut self, value: &[u8]) -> Self {
        self.0.extend_from_slice(value);
        self
    }
}

pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (*bytes.first()? == VERSION).then_some(Self(&bytes[1..]))
    }
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    pub fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|b| b[0])
    }
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
    pub fn time(&mut self) -> Option<Timestamp> {
        Timestamp::new(self.u64()? as i64, self.u32()?)
    }
    pub fn rest(self) -> &'a [u8] {
        self.0
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn damaged(what: &str) -> Error {
    Error::Corrupt(format!("a {what} record does not parse"))
}

/// What lives in other tables for an inode, so that removing it looks only where there is something.
pub mod flags {
    /// The body is inline (table `b`).
    pub const INLINE: u8 = 1;
    /// There are extents (table `e`).
    pub const EXTENTS: u8 = 2;
    /// There are extended attributes (table `x`).
    pub const XATTRS: u8 = 4;
}

/// Attributes of an inode. A directory's mtime, ctime, nlink and change live in [`DirStat`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Type and permission bits, as st_mode.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links; 0 for an orphan.
    pub nlink: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// See [`flags`].
    pub flags: u8,
    /// Length in bytes.
    pub size: u64,
    /// Bytes that extents or the inline body hold.
    pub held_bytes: u64,
    /// Counts every change.
    pub change: u64,
    /// A directory's parent; 0 otherwise.
    pub parent: Ino,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

impl Inode {
    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & mode::TYPE == mode::DIRECTORY
    }
    /// Whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & mode::TYPE == mode::REGULAR
    }
    /// Whether `flag` of [`flags`] is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
    /// Sets or clears `flag`.
    pub fn set(&mut self, flag: u8, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }
    /// Content or attributes changed now.
    pub fn touch(&mut self, now: Timestamp) {
        self.ctime = now;
        self.change += 1;
    }
    /// What a write or chown by anybody takes away: setuid, and setgid where the group may execute (chown(2)).
    pub fn kill_suidgid(&mut self) {
        self.mode &= !mode::SETUID;
        if self.mode & 0o010 != 0 {
            self.mode &= !mode::SETGID;
        }
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let w =
            Writer::new(112).u32(self.mode).u32(self.uid).u32(self.gid).u32(self.nlink).u32(self.rdev).u8(self.flags);
        let w = w.u64(self.size).u64(self.held_bytes).u64(self.change).u64(self.parent.0);
        w.time(self.atime).time(self.mtime).time(self.ctime).time(self.btime).0
    }

    /// The value of a stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        Self::parse(bytes).ok_or_else(|| damaged("inode"))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes)?;
        Some(Self {
            mode: r.u32()?,
            uid: r.u32()?,
            gid: r.u32()?,
            nlink: r.u32()?,
            rdev: r.u32()?,
            flags: r.u8()?,
            size: r.u64()?,
            held_bytes: r.u64()?,
            change: r.u64()?,
            parent: Ino(r.u64()?),
            atime: r.time()?,
            mtime: r.time()?,
            ctime: r.time()?,
            btime: r.time()?,
        })
    }
}

/// A directory entry, by name or by cookie; `name` is empty in the table by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirent {
    /// What the name stands for.
    pub ino: Ino,
    /// Its file type bits (st_mode & S_IFMT).
    pub kind: u32,
    /// Place in readdir order.
    pub cookie: u64,
    /// The name, in the table by cookie.
    pub name: Vec<u8>,
}

impl Dirent {
    /// The stored form.
    pub fn encode(ino: Ino, kind: u32, cookie: u64, name: &[u8]) -> Vec<u8> {
        Writer::new(24 + name.len()).u64(ino.0).u32(kind).u64(cookie).bytes(name).0
    }
    /// The value of a stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let parse = || {
            let mut r = Reader::new(bytes)?;
            Some(Self { ino: Ino(r.u64()?), kind: r.u32()?, cookie: r.u64()?, name: r.rest().to_vec() })
        };
        parse().ok_or_else(|| damaged("directory entry"))
    }
}

/// The attributes of a directory that its children change, apart from the inode so that creates do not queue on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirStat {
    /// 2 and one for each subdirectory.
    pub nlink: u32,
    /// Entries, without `.` and `..`.
    pub entries: u64,
    /// Counts every change.
    pub change: u64,
    /// Last change of an entry.
    pub mtime: Timestamp,
    /// Last change of an entry or of attributes.
    pub ctime: Timestamp,
}

impl DirStat {
    /// An empty directory made at `now`.
    pub fn empty(now: Timestamp) -> Self {
        Self { nlink: 2, entries: 0, change: 1, mtime: now, ctime: now }
    }
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        Writer::new(48).u32(self.nlink).u64(self.entries).u64(self.change).time(self.mtime).time(self.ctime).0
    }
    /// The value of a stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let parse = || {
            let mut r = Reader::new(bytes)?;
            Some(Self { nlink: r.u32()?, entries: r.u64()?, change: r.u64()?, mtime: r.time()?, ctime: r.time()? })
        };
        parse().ok_or_else(|| damaged("directory statistics"))
    }
}

/// A change to a [`DirStat`].
#[derive(Clone, Debug, Default)]
pub struct DirDelta {
    /// Added to nlink.
    pub nlink: i32,
    /// Added to entries.
    pub entries: i64,
    /// New mtime.
    pub mtime: Option<Timestamp>,
    /// New ctime.
    pub ctime: Option<Timestamp>,
}

impl Merge for DirDelta {
    fn apply(&self, current: Option<&[u8]>) -> Option<Vec<u8>> {
        // A directory that is gone stays gone; a record that does not parse is kept for fsck.
        let current = current?;
        let Ok(mut stat) = DirStat::decode(current) else { return Some(current.to_vec()) };
        stat.nlink = stat.nlink.saturating_add_signed(self.nlink);
        stat.entries = stat.entries.saturating_add_signed(self.entries);
        stat.change += 1;
        stat.mtime = self.mtime.unwrap_or(stat.mtime);
        stat.ctime = self.ctime.unwrap_or(stat.ctime);
        Some(stat.encode())
    }
}

/// Where an object is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ObjectState {
    /// Its session still adds to it.
    Open = 0,
    /// Complete, not yet acknowledged by the store.
    Sealed = 1,
    /// In the store.
    Stored = 2,
    /// No extent is left; the store's copy may be deleted an hour after `since`.
    Tombstone = 3,
}

/// What the metadata knows of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRecord {
    /// Where it is on its way.
    pub state: ObjectState,
    /// Who made it.
    pub session: SessionId,
    /// Segments, once sealed.
    pub segments: u32,
    /// Length of the whole object in the store, table and footer included, once stored.
    pub stored_bytes: u64,
    /// Bytes that extents refer to; a range that two extents share counts twice.
    pub live_bytes: u64,
    /// When it became a tombstone.
    pub since: Timestamp,
}

impl ObjectRecord {
    /// An object that `session` begins.
    pub fn open(session: SessionId) -> Self {
        let since = Timestamp::default();
        Self { state: ObjectState::Open, session, segments: 0, stored_bytes: 0, live_bytes: 0, since }
    }
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let w = Writer::new(48).u8(self.state as u8).u64(self.session.0).u32(self.segments);
        w.u64(self.stored_bytes).u64(self.live_bytes).time(self.since).0
    }
    /// The value of a stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let parse = || {
            let mut r = Reader::new(bytes)?;
            let state = match r.u8()? {
                0 => ObjectState::Open,
                1 => ObjectState::Sealed,
                2 => ObjectState::Stored,
                3 => ObjectState::Tombstone,
                _ => return None,
            };
            let (session, segments) = (SessionId(r.u64()?), r.u32()?);
            Some(Self { state, session, segments, stored_bytes: r.u64()?, live_bytes: r.u64()?, since: r.time()? })
        };
        parse().ok_or_else(|| damaged("object"))
    }
}

/// The key of an object's record in the tables.
pub fn object_key(id: ObjectId) -> Vec<u8> {
    crate::keys::object(id).to_vec()
}

/// What an entry of the tables says of an object: whether files have bytes in it that the store has not acknowledged. `None` where it speaks of none.
pub fn unstored(key: &[u8], value: Option<&[u8]>) -> Option<(ObjectId, bool)> {
    let (b'o', id) = key.split_first().map(|(table, id)| (*table, id))? else { return None };
    let id = ObjectId(id.try_into().ok()?);
    let record = value.and_then(|value| ObjectRecord::decode(value).ok());
    let is_unstored =
        |record: ObjectRecord| matches!(record.state, ObjectState::Open | ObjectState::Sealed) && record.live_bytes > 0;
    Some((id, record.is_some_and(is_unstored)))
}

/// A change to an [`ObjectRecord`].
#[derive(Clone, Debug)]
pub enum ObjectDelta {
    /// Begins the record.
    Open(SessionId),
    /// Bytes that extents refer to, added or taken.
    Live(i64),
    /// In the store, with so many segments and bytes.
    Stored(u32, u64),
}

impl Merge for ObjectDelta {
    fn apply(&self, current: Option<&[u8]>) -> Option<Vec<u8>> {
        let mut record = match (self, current) {
            (ObjectDelta::Open(session), None) => return Some(ObjectRecord::open(*session).encode()),
            (_, None) => return None,
            (_, Some(bytes)) => match ObjectRecord::decode(bytes) {
                Ok(record) => record,
                Err(_) => return Some(bytes.to_vec()),
            },
        };
        match *self {
            ObjectDelta::Open(_) => {}
            ObjectDelta::Live(by) => {
                record.live_bytes = record.live_bytes.saturating_add_signed(by);
                // Somebody cloned what a moment ago nobody had.
                if record.state == ObjectState::Tombstone && record.live_bytes > 0 {
                    record.state = if record.segments > 0 { ObjectState::Stored } else { ObjectState::Open };
                }
            }
            ObjectDelta::Stored(segments, bytes) => {
                (record.state, record.segments, record.stored_bytes) = (ObjectState::Stored, segments, bytes);
            }
        }
        Some(record.encode())
    }
}

/// A mount's session, as long as it has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Grows with each incarnation that takes it over; nothing commits in an older one.
    pub epoch: u32,
    /// When it began.
    pub begun: Timestamp,
    /// Who it is, for people.
    pub name: Vec<u8>,
    /// By whom it was taken over last.
    pub claimed: Option<Claimed>,
    /// Nobody came for it for so long that it ended. Its journal may still take it over.
    pub left: bool,
}

/// A take-over, as whoever made it may make it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The epoch that it presented.
    pub from: u32,
    /// What tells it from another one that presents the same epoch.
    pub secret: u64,
}

impl SessionRecord {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new(29 + self.name.len()).u32(self.epoch).time(self.begun);
        if let Some(Claimed { from, secret }) = self.claimed {
            w = w.u32(from).u64(secret);
            w.0[0] = VERSION_CLAIMED;
        }
        w.0[0] += if self.left { LEFT } else { 0 };
        w.bytes(&self.name).0
    }
    /// The value of a stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let parse = || {
            let (&version, rest) = bytes.split_first()?;
            let (mut r, mut claimed) = (Reader(rest), None);
            let (epoch, begun) = (r.u32()?, r.time()?);
            let left = version > LEFT;
            match version - if left { LEFT } else { 0 } {
                VERSION => {}
                VERSION_CLAIMED => claimed = Some(Claimed { from: r.u32()?, secret: r.u64()? }),
                _ => return None,
            }
            Some(Self { epoch, begun, name: r.rest().to_vec(), claimed, left })
        };
        parse().ok_or_else(|| damaged("session"))
    }
}

/// What the volume holds in all, for statfs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that files hold.
    pub bytes: i64,
    /// Inodes.
    pub inodes: i64,
}

impl Usage {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        Writer::new(24).u64(self.bytes as u64).u64(self.inodes as u64).0
    }
    /// The value of a stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let parse = || {
            let mut r = Reader::new(bytes)?;
            Some(Self { bytes: r.u64()? as i64, inodes: r.u64()? as i64 })
        };
        parse().ok_or_else(|| damaged("usage"))
    }
}

/// Adds to [`Usage`].
impl Merge for Usage {
    fn apply(&self, current: Option<&[u8]>) -> Option<Vec<u8>> {
        let now = current.map_or(Ok(Usage::default()), Usage::decode).unwrap_or_default();
        Some(Usage { bytes: now.bytes + self.bytes, inodes: now.inodes + self.inodes }.encode())
    }
}
