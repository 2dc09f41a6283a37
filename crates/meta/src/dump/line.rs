//! One line, and the keys and values that it stands for.

use super::{Counts, Header};
use crate::{
    extent::{self, Extent, Place},
    keys::{self, number_at},
    records::{DirStat, Dirent, Inode, ObjectRecord, ObjectState, Usage},
};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use sluice_base::{
    Ino, ObjectId, SessionId, Timestamp,
    limits::{NAME_BYTES_MAX, XATTR_NAME_BYTES_MAX},
};

/// Keys with their values.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Any bytes: text where they are UTF-8, else base64 in an object of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum TextForm<'a> {
    #[serde(borrow)]
    Plain(std::borrow::Cow<'a, str>),
    Other {
        base64: Bytes,
    },
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => to.serialize_str(text),
            Err(_) => TextForm::Other { base64: Bytes(self.0.clone()) }.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(match TextForm::deserialize(from)? {
            TextForm::Plain(text) => text.into_owned().into_bytes(),
            TextForm::Other { base64 } => base64.0,
        }))
    }
}

/// Bytes that are no text: base64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        BASE64.decode(text).map(Self).map_err(D::Error::custom)
    }
}

/// Seconds since 1970, and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time(pub i64, pub u32);

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self(time.secs, time.nanos)
    }
}

impl Time {
    fn stamp(self) -> Option<Timestamp> {
        Timestamp::new(self.0, self.1)
    }
}

/// First byte in the span, length, and of what is no hole the object and the first byte in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Run {
    Bytes(u64, u64, String, u32),
    Hole(u64, u64),
}

impl From<&Extent> for Run {
    fn from(extent: &Extent) -> Self {
        match extent.place {
            Some(Place { object, offset }) => Self::Bytes(extent.offset, extent.len, object.to_string(), offset),
            None => Self::Hole(extent.offset, extent.len),
        }
    }
}

impl Run {
    fn extent(&self) -> Option<Extent> {
        Some(match self {
            Self::Bytes(offset, len, object, at) => {
                let place = Place { object: object.parse().ok()?, offset: *at };
                Extent { offset: *offset, len: *len, place: Some(place) }
            }
            Self::Hole(offset, len) => Extent { offset: *offset, len: *len, place: None },
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Open,
    Sealed,
    Stored,
    Tombstone,
}

impl From<ObjectState> for State {
    fn from(state: ObjectState) -> Self {
        match state {
            ObjectState::Open => Self::Open,
            ObjectState::Sealed => Self::Sealed,
            ObjectState::Stored => Self::Stored,
            ObjectState::Tombstone => Self::Tombstone,
        }
    }
}

impl From<State> for ObjectState {
    fn from(state: State) -> Self {
        match state {
            State::Open => Self::Open,
            State::Sealed => Self::Sealed,
            State::Stored => Self::Stored,
            State::Tombstone => Self::Tombstone,
        }
    }
}

/// What a line says. The fields are those of the records, docs/disk-format.md.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    Header(Header),
    Body {
        ino: u64,
        bytes: Bytes,
    },
    Name {
        dir: u64,
        cookie: u64,
        name: Text,
        ino: u64,
        kind: u32,
    },
    Extents {
        ino: u64,
        span: u64,
        sequence: u64,
        runs: Vec<Run>,
    },
    Inode {
        ino: u64,
        mode: u32,
        uid: u32,
        gid: u32,
        links: u32,
        rdev: u32,
        flags: u8,
        size: u64,
        held_bytes: u64,
        change: u64,
        parent: u64,
        atime: Time,
        mtime: Time,
        ctime: Time,
        btime: Time,
    },
    Symlink {
        ino: u64,
        target: Text,
    },
    Session {
        session: u64,
        stored: Bytes,
    },
    Object {
        object: String,
        state: State,
        session: u64,
        segments: u32,
        stored_bytes: u64,
        live_bytes: u64,
        since: Time,
    },
    Result {
        session: u64,
        number: u64,
        stored: Bytes,
    },
    Directory {
        ino: u64,
        links: u32,
        entries: u64,
        change: u64,
        mtime: Time,
        ctime: Time,
    },
    Orphan {
        ino: u64,
    },
    Counter {
        name: String,
        value: u64,
    },
    Life {
        value: u32,
    },
    Usage {
        bytes: i64,
        inodes: i64,
    },
    Volume {
        name: Text,
        stored: Bytes,
    },
    Xattr {
        ino: u64,
        name: Text,
        value: Text,
    },
    End {
        records: u64,
        counts: Counts,
    },
}

/// Values of the volume that are one number.
const COUNTERS: [&str; 2] = ["ids", "session"];

impl Line {
    /// What it is called.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Header(_) => "header",
            Self::Body { .. } => "body",
            Self::Name { .. } => "name",
            Self::Extents { .. } => "extents",
            Self::Inode { .. } => "inode",
            Self::Symlink { .. } => "symlink",
            Self::Session { .. } => "session",
            Self::Object { .. } => "object",
            Self::Result { .. } => "result",
            Self::Directory { .. } => "directory",
            Self::Orphan { .. } => "orphan",
            Self::Counter { .. } => "counter",
            Self::Life { .. } => "life",
            Self::Usage { .. } => "usage",
            Self::Volume { .. } => "volume",
            Self::Xattr { .. } => "xattr",
            Self::End { .. } => "end",
        }
    }

    /// The record of a key; `None` where key or value is none that this version writes, or the key is a name's second.
    pub fn of(key: &[u8], value: &[u8]) -> Option<Self> {
        let (table, rest) = key.split_first()?;
        let ino = number_at(key, 1);
        Some(match table {
            b'b' => Self::Body { ino, bytes: Bytes(value.to_vec()) },
            b'c' => {
                let Dirent { ino: of, kind, cookie, name } = Dirent::decode(value).ok()?;
                Self::Name { dir: ino, cookie, name: Text(name), ino: of.0, kind }
            }
            b'e' => {
                let runs = extent::decode_runs(value).ok()?.iter().map(Run::from).collect();
                Self::Extents { ino, span: number_at(key, 9), sequence: number_at(key, 17), runs }
            }
            b'i' => Self::of_inode(ino, &Inode::decode(value).ok()?),
            b'l' => Self::Symlink { ino, target: Text(value.to_vec()) },
            b'm' => Self::Session { session: ino, stored: Bytes(value.to_vec()) },
            b'o' => {
                let ObjectRecord { state, session, segments, stored_bytes, live_bytes, since } =
                    ObjectRecord::decode(value).ok()?;
                let (object, state) = (ObjectId(rest.try_into().ok()?).to_string(), state.into());
                let (session, since) = (session.0, since.into());
                Self::Object { object, state, session, segments, stored_bytes, live_bytes, since }
            }
            b'r' => Self::Result { session: ino, number: number_at(key, 9), stored: Bytes(value.to_vec()) },
            b's' => {
                let DirStat { nlink, entries, change, mtime, ctime } = DirStat::decode(value).ok()?;
                Self::Directory { ino, links: nlink, entries, change, mtime: mtime.into(), ctime: ctime.into() }
            }
            b'u' => Self::Orphan { ino },
            b'v' => Self::of_volume(rest, value)?,
            b'x' => Self::Xattr { ino, name: Text(key.get(9..)?.to_vec()), value: Text(value.to_vec()) },
            _ => return None,
        })
    }

    fn of_inode(ino: u64, inode: &Inode) -> Self {
        let Inode { mode, uid, gid, rdev, flags, size, held_bytes, change, .. } = *inode;
        Self::Inode {
            ino,
            mode,
            uid,
            gid,
            links: inode.nlink,
            rdev,
            flags,
            size,
            held_bytes,
            change,
            parent: inode.parent.0,
            atime: inode.atime.into(),
            mtime: inode.mtime.into(),
            ctime: inode.ctime.into(),
            btime: inode.btime.into(),
        }
    }

    fn of_volume(name: &[u8], value: &[u8]) -> Option<Self> {
        Some(match std::str::from_utf8(name) {
            Ok(name) if COUNTERS.contains(&name) => {
                Self::Counter { name: name.into(), value: u64::from_le_bytes(value.try_into().ok()?) }
            }
            Ok("life") => Self::Life { value: u32::from_le_bytes(value.try_into().ok()?) },
            Ok("usage") => {
                let Usage { bytes, inodes } = Usage::decode(value).ok()?;
                Self::Usage { bytes, inodes }
            }
            _ => Self::Volume { name: Text(name.to_vec()), stored: Bytes(value.to_vec()) },
        })
    }

    /// What it puts into the tables, its own key first; `None` where a field cannot be.
    pub fn entries(&self) -> Option<Entries> {
        let one = |key: keys::Key, value: Vec<u8>| Some(vec![(key.to_vec(), value)]);
        match self {
            Self::Header(_) | Self::End { .. } => None,
            Self::Body { ino, bytes } => one(keys::body(Ino(*ino)), bytes.0.clone()),
            Self::Name { dir, cookie, name: Text(name), ino, kind } => {
                let (dir, ino) = (Ino(*dir), Ino(*ino));
                if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
                    return None;
                }
                let ordered = (keys::cookie(dir, *cookie).to_vec(), Dirent::encode(ino, *kind, *cookie, name));
                let named = (keys::entry(dir, name).to_vec(), Dirent::encode(ino, *kind, *cookie, b""));
                Some(vec![ordered, named])
            }
            Self::Extents { ino, span, sequence, runs } => {
                let runs: Option<Vec<Extent>> = runs.iter().map(Run::extent).collect();
                one(keys::extent(Ino(*ino), *span, *sequence), extent::encode_extents(&runs?)?)
            }
            Self::Inode { ino, .. } => one(keys::inode(Ino(*ino)), self.inode()?.encode()),
            Self::Symlink { ino, target } => one(keys::symlink(Ino(*ino)), target.0.clone()),
            Self::Session { session, stored } => one(keys::session(SessionId(*session)), stored.0.clone()),
            Self::Object { object, state, session, segments, stored_bytes, live_bytes, since } => {
                let (state, session, since) = ((*state).into(), SessionId(*session), since.stamp()?);
                let (segments, stored_bytes, live_bytes) = (*segments, *stored_bytes, *live_bytes);
                let record = ObjectRecord { state, session, segments, stored_bytes, live_bytes, since };
                one(keys::object(object.parse().ok()?), record.encode())
            }
            Self::Result { session, number, stored } => {
                one(keys::result(SessionId(*session), *number), stored.0.clone())
            }
            Self::Directory { ino, links, entries, change, mtime, ctime } => {
                let (nlink, entries, change) = (*links, *entries, *change);
                let stat = DirStat { nlink, entries, change, mtime: mtime.stamp()?, ctime: ctime.stamp()? };
                one(keys::dir_stat(Ino(*ino)), stat.encode())
            }
            Self::Orphan { ino } => one(keys::orphan(Ino(*ino)), Vec::new()),
            Self::Counter { name, value } if COUNTERS.contains(&&**name) => {
                one(keys::volume(name), value.to_le_bytes().to_vec())
            }
            Self::Counter { .. } => None,
            Self::Life { value } => one(keys::volume("life"), value.to_le_bytes().to_vec()),
            Self::Usage { bytes, inodes } => {
                one(keys::volume("usage"), Usage { bytes: *bytes, inodes: *inodes }.encode())
            }
            Self::Volume { name, stored } => {
                Some(vec![([b"v", &name.0[..]].concat(), stored.0.clone())]).filter(|_| name.0.len() <= NAME_BYTES_MAX)
            }
            Self::Xattr { ino, name: Text(name), value } => {
                let is_sound = (1..=XATTR_NAME_BYTES_MAX).contains(&name.len());
                is_sound.then(|| vec![(keys::xattr(Ino(*ino), name).to_vec(), value.0.clone())])
            }
        }
    }

    fn inode(&self) -> Option<Inode> {
        let Self::Inode {
            ino: _,
            mode,
            uid,
            gid,
            links,
            rdev,
            flags,
            size,
            held_bytes,
            change,
            parent,
            atime,
            mtime,
            ctime,
            btime,
        } = *self
        else {
            return None;
        };
        let (atime, mtime, ctime, btime) = (atime.stamp()?, mtime.stamp()?, ctime.stamp()?, btime.stamp()?);
        let (nlink, parent) = (links, Ino(parent));
        Some(Inode { mode, uid, gid, nlink, rdev, flags, size, held_bytes, change, parent, atime, mtime, ctime, btime })
    }
}
