//! What changes the volume.

use super::{Invalidation, SpanRecords, read::messages};
use crate::{
    Attr, Caller, RenameMode, SetAttributes, SizeChange, XattrMode,
    records::Inode,
    rpc::codec::{Item, Reader, Wire},
    rpc::values::{Body, Extents, Name},
};
use sluice_base::{Ino, ObjectId, Timestamp};

messages! {
    /// Makes `name` in `dir`: mkdir, mknod, symlink and create alike. A new inode is held for the session.
    Create<'a> {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name<'a>,
        /// Type and permission bits.
        mode: u32,
        /// Device number of a device node.
        rdev: u32,
        /// Target of a symbolic link.
        target: &'a [u8],
        /// Whose it becomes.
        caller: Caller,
    }
    /// Makes a file without a name (O_TMPFILE), held for the session.
    CreateUnnamed {
        /// Directory whose group is inherited.
        dir: Ino,
        /// Type and permission bits.
        mode: u32,
        /// Whose it becomes.
        caller: Caller,
    }
    /// Another name for an inode.
    Link<'a> {
        /// The inode.
        ino: Ino,
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name<'a>,
    }
    /// Takes a name that is not a directory's.
    Unlink<'a> {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name<'a>,
    }
    /// Takes an empty directory.
    Rmdir<'a> {
        /// The directory that holds it.
        dir: Ino,
        /// Its name.
        name: Name<'a>,
    }
    /// rename(2), renameat2(2). Answers what the replaced target left.
    Rename<'a> {
        /// Old directory.
        from_dir: Ino,
        /// Old name.
        from: Name<'a>,
        /// New directory.
        to_dir: Ino,
        /// New name.
        to: Name<'a>,
        /// What happens to an existing target.
        how: RenameMode,
    }
    /// Changes attributes, but not the size.
    Setattr {
        /// The inode.
        ino: Ino,
        /// What changes.
        set: SetAttributes,
    }
    /// Marks an inode as read, where relatime asks for it.
    UpdateAtime {
        /// The inode.
        ino: Ino,
        /// When, by the mount's clock: what it has shown since. What the server's clock has not reached becomes its now.
        at: Timestamp,
    }
    /// Sets an extended attribute.
    Setxattr<'a> {
        /// The inode.
        ino: Ino,
        /// Its name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// Whether it may or must exist.
        how: XattrMode,
    }
    /// Removes an extended attribute.
    Removexattr<'a> {
        /// The inode.
        ino: Ino,
        /// Its name.
        name: &'a [u8],
    }
    /// A change of a file's content: see [`crate::DataChange`]. The data itself stays with the mount or is in the store.
    Publish<'a> {
        /// The file.
        ino: Ino,
        /// Extents and holes to put, in order.
        extents: Extents,
        /// The new inline body; `Some(None)` removes it.
        body: Option<Option<Body<'a>>>,
        /// What happens to the size.
        size: SizeChange,
        /// When the content changed; without it, the content's change leaves all times alone.
        mtime: Option<Timestamp>,
        /// Take setuid and setgid away.
        kill_suidgid: bool,
        /// Objects that begin with this change, as the session's.
        new_objects: Vec<ObjectId>,
        /// It was written while the mount held a lock on the file: it is refused once that is lost.
        locked: bool,
    }
    /// Answers [`Publish`]: what [`super::Open`] would, but for the body, which the publish may have.
    Published {
        /// The attributes.
        attr: Attr,
        /// The stored record.
        inode: Inode,
        /// The records of span 0, unless they are large ([`Published::SPAN_BYTES_MAX`]): then they are asked for apart.
        first_span: Option<SpanRecords>,
    }
    /// The store acknowledged an object.
    ObjectStored {
        /// The object.
        id: ObjectId,
        /// Its segments.
        segments: u32,
        /// Its length in the store.
        bytes: u64,
    }
    /// Removes the record of an object that nothing refers to and the store has no copy of. Answers false when something does.
    ForgetObject {
        /// The object.
        id: ObjectId,
    }
}

/// What a change answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed<T> {
    /// The operation's value.
    pub value: T,
    /// What the session itself must drop from its caches, before it caches the value.
    pub touched: Vec<Invalidation>,
    /// The directories whose entries changed, as they are now. Empty when another change of one of them came between: then
    /// neither they nor the entries may be cached.
    pub dirs: Vec<Attr>,
}

impl Item for Attr {}

impl Published {
    /// Most bytes of extent records that come with a publish: they are stored with its result.
    pub const SPAN_BYTES_MAX: usize = 1 << 10;
}

impl<'a, T: Wire<'a>> Wire<'a> for Changed<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.touched.put(out);
        self.value.put(out);
        self.dirs.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        let touched = Wire::take(from)?;
        Some(Self { touched, value: Wire::take(from)?, dirs: Wire::take(from)? })
    }
}
