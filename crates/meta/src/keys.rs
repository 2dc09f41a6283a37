//! The key space: one byte of table, then big-endian ids, so that what belongs together lies together.
//!
//! | table | key | value |
//! |---|---|---|
//! | `b` | inode | inline body of a small file |
//! | `c` | directory, cookie | directory entry in readdir order |
//! | `d` | directory, name | directory entry by name |
//! | `e` | inode, span, sequence | extents |
//! | `i` | inode | attributes |
//! | `l` | inode | target of a symbolic link |
//! | `m` | session | session of a mount |
//! | `o` | object id | object record |
//! | `r` | session, number | result of a change |
//! | `s` | directory | times and counts that its children change |
//! | `u` | inode | orphan: no name left, to be reclaimed |
//! | `v` | name | values of the whole volume |
//! | `x` | inode, name | extended attribute |

use sluice_base::{Ino, ObjectId, SessionId};

/// A key that fits on the stack: the longest is a directory entry's, 1 + 8 + 255 bytes.
#[derive(Clone, Copy)]
pub struct Key {
    bytes: [u8; 264],
    len: usize,
}

impl Key {
    fn new(table: u8) -> Self {
        let mut bytes = [0; 264];
        bytes[0] = table;
        Self { bytes, len: 1 }
    }

    fn add(mut self, part: &[u8]) -> Self {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        self
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn of_ino(table: u8, ino: Ino) -> Key {
    Key::new(table).add(&ino.0.to_be_bytes())
}

/// Attributes of an inode.
pub fn inode(ino: Ino) -> Key {
    of_ino(b'i', ino)
}
/// Inline body of a small file.
pub fn body(ino: Ino) -> Key {
    of_ino(b'b', ino)
}
/// Target of a symbolic link.
pub fn symlink(ino: Ino) -> Key {
    of_ino(b'l', ino)
}
/// Times and counts of a directory.
pub fn dir_stat(dir: Ino) -> Key {
    of_ino(b's', dir)
}
/// Mark of an inode without a name.
pub fn orphan(ino: Ino) -> Key {
    of_ino(b'u', ino)
}
/// Entry `name` of a directory. `name` has at most 255 bytes.
pub fn entry(dir: Ino, name: &[u8]) -> Key {
    of_ino(b'd', dir).add(name)
}
/// Entry of a directory in readdir order.
pub fn cookie(dir: Ino, cookie: u64) -> Key {
    of_ino(b'c', dir).add(&cookie.to_be_bytes())
}
/// Extended attribute `name`, of at most 255 bytes.
pub fn xattr(ino: Ino, name: &[u8]) -> Key {
    of_ino(b'x', ino).add(name)
}
/// Extents of span `span` (number of 64 MiB), written as the `sequence`-th change; 0 is the packed value.
pub fn extent(ino: Ino, span: u64, sequence: u64) -> Key {
    of_ino(b'e', ino).add(&span.to_be_bytes()).add(&sequence.to_be_bytes())
}
/// Record of an object.
pub fn object(id: ObjectId) -> Key {
    Key::new(b'o').add(&id.0)
}
/// A mount's session.
pub fn session(session: SessionId) -> Key {
    of_ino(b'm', Ino(session.0))
}
/// Result of the `number`-th change of a session.
pub fn result(session: SessionId, number: u64) -> Key {
    of_ino(b'r', Ino(session.0)).add(&number.to_be_bytes())
}
/// All results of a session, as half-open range.
pub fn results(session: SessionId) -> (Key, Key) {
    all_of(b'r', Ino(session.0))
}
/// A value of the whole volume.
pub fn volume(name: &str) -> Key {
    Key::new(b'v').add(name.as_bytes())
}

/// The keys of `table` that belong to `ino`, as half-open range.
pub fn all_of(table: u8, ino: Ino) -> (Key, Key) {
    (of_ino(table, ino), of_ino(table, Ino(ino.0 + 1)))
}
/// All keys of `table`, as half-open range.
pub fn whole_table(table: u8) -> (Key, Key) {
    (Key::new(table), Key::new(table + 1))
}
/// The keys of the spans from `span` on.
pub fn extents_from(ino: Ino, span: u64) -> (Key, Key) {
    (of_ino(b'e', ino).add(&span.to_be_bytes()), of_ino(b'e', Ino(ino.0 + 1)))
}

/// The number in bytes [at, at + 8) of a key, or 0 when the key is shorter.
pub fn number_at(key: &[u8], at: usize) -> u64 {
    key.get(at..at + 8).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
}
