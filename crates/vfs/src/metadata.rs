//! The metadata of a volume as a mount needs it: the [`Namespace`] of this process, or that of a server.

use sluice_base::{Ino, ObjectId, Seq};
use sluice_meta::{
    Attr, Caller, DataChange, DirEntry, Namespace, NewNode, RenameMode, Result, SetAttributes, Unlinked, XattrMode,
    extent::FileExtents,
    records::{Inode, ObjectRecord, Usage},
    store::Value,
};
use std::ops::{ControlFlow, Range};

/// Whole operations, each with every POSIX rule ([`Namespace`] says which). One whose answer is not at hand fails with
/// [`sluice_meta::Error::Away`] on a thread that must not wait; the caller asks again from one that may ([`crate::may_wait`]).
#[allow(missing_docs, reason = "the operations are those of Namespace")]
pub trait Metadata: Send + Sync {
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr>;
    fn getattr(&self, ino: Ino) -> Result<Attr>;
    /// The attributes, and whether nobody else has changed the file since it was opened here before. From here on the inode
    /// lives, with or without a name, until [`Metadata::forgotten`] or [`Metadata::reclaim`].
    fn open(&self, ino: Ino) -> Result<(Attr, bool)>;
    fn setattr(&self, ino: Ino, set: &SetAttributes) -> Result<Attr>;
    /// The inode was read now. Shown at once where relatime asks for it, and written some seconds later.
    fn note_access(&self, ino: Ino) -> Result<()>;
    /// Writes what [`Metadata::note_access`] left, as far as nobody else does.
    fn write_accesses(&self) -> Result<()>;

    fn create(&self, dir: Ino, name: &[u8], node: NewNode<'_>, caller: Caller) -> Result<Attr>;
    fn create_unnamed(&self, dir: Ino, mode: u32, caller: Caller) -> Result<Attr>;
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;
    /// What loses its last name becomes an orphan, until [`Metadata::reclaim`].
    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<Unlinked>;
    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<Unlinked>;
    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: RenameMode) -> Result<Option<Unlinked>>;
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;
    /// This mount no longer uses these orphans.
    fn reclaim(&self, orphans: &[Ino]) -> Result<()>;
    /// The kernel of this mount knows the inode no more.
    fn forgotten(&self, ino: Ino);
    /// Orphans that nobody uses any more.
    fn orphans(&self) -> Result<Vec<Ino>>;

    fn read_dir(
        &self,
        dir: Ino,
        after: u64,
        until: u64,
        with_attributes: bool,
        visit: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()>;
    fn last_cookie(&self) -> Result<u64>;
    fn parent(&self, dir: Ino) -> Result<Ino>;

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>>;
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: XattrMode) -> Result<()>;
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;

    fn inode(&self, ino: Ino) -> Result<Inode>;
    fn body(&self, ino: Ino) -> Result<Option<Value>>;
    fn next_span(&self, ino: Ino, span: u64) -> Result<Option<u64>>;
    fn load_extents(&self, ino: Ino, extents: &mut FileExtents, range: Range<u64>) -> Result<()>;
    /// What is remembered of the file's extents named an object that is gone: they are to be asked for.
    fn extents_are_old(&self, ino: Ino);
    /// On return the change survives this process.
    fn change_data(&self, ino: Ino, extents: &mut FileExtents, change: &DataChange<'_>) -> Result<()>;
    /// On return every mount sees the changes of a file. Fails once when some were dropped, with the locks under which they were made.
    fn publish(&self, ino: Ino) -> Result<()>;
    /// How often so far something that the server had done was lost.
    fn losses(&self) -> u64 {
        0
    }
    /// Whether something of a file was lost, and [`Metadata::sync`] has not told it.
    fn is_lost(&self, _: Ino) -> bool {
        false
    }
    /// The same, and it is told by this.
    fn take_lost(&self, _: Ino) -> bool {
        false
    }
    /// On return every mount sees the changes of all files that were made before, and they survive a loss of power as after [`Metadata::sync`].
    /// What was lost or dropped is left for the programs to be told.
    fn publish_all(&self) -> Result<()>;
    /// On return all changes that were made before survive a loss of power, as far as they are not in this process's own log. Fails
    /// once when a change of the file, or without one of any, was lost.
    fn sync(&self, ino: Option<Ino>) -> Result<()>;

    fn object(&self, id: ObjectId) -> Result<Option<ObjectRecord>>;
    fn object_stored(&self, id: ObjectId, segments: u32, bytes: u64) -> Result<()>;
    fn forget_object(&self, id: ObjectId) -> Result<bool>;
    fn usage(&self) -> Result<Usage>;
    /// Whether others change files too.
    fn is_shared(&self) -> bool;

    /// The journal's records up to here are not needed for the sake of metadata.
    fn settled(&self) -> Seq;
    /// The journal fills up: move on what [`Metadata::settled`] waits for.
    fn settle(&self);
    /// Why the metadata does not do its work, if it does not.
    fn trouble(&self) -> Option<String>;
}

impl Metadata for Namespace {
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        Ok(self.with_access(self.lookup(dir, name)?))
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.with_access(self.getattr(ino)?))
    }
    fn open(&self, ino: Ino) -> Result<(Attr, bool)> {
        Ok((self.with_access(self.getattr(ino)?), true))
    }
    fn setattr(&self, ino: Ino, set: &SetAttributes) -> Result<Attr> {
        Ok(self.with_access(self.setattr(ino, set)?.value))
    }
    fn note_access(&self, ino: Ino) -> Result<()> {
        self.note_access(ino)
    }
    fn write_accesses(&self) -> Result<()> {
        self.write_accesses()
    }

    fn create(&self, dir: Ino, name: &[u8], node: NewNode<'_>, caller: Caller) -> Result<Attr> {
        Ok(self.create(dir, name, node, caller)?.value)
    }
    fn create_unnamed(&self, dir: Ino, mode: u32, caller: Caller) -> Result<Attr> {
        Ok(self.create_unnamed(dir, mode, caller)?.value)
    }
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        Ok(self.with_access(self.link(ino, dir, name)?.value))
    }
    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<Unlinked> {
        Ok(self.unlink(dir, name, &|_| true)?.value)
    }
    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<Unlinked> {
        Ok(self.rmdir(dir, name, &|_| true)?.value)
    }
    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: RenameMode) -> Result<Option<Unlinked>> {
        Ok(self.rename(from, to, how, &|_| true)?.value)
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.readlink(ino)
    }
    fn reclaim(&self, orphans: &[Ino]) -> Result<()> {
        self.reclaim(orphans)
    }
    fn forgotten(&self, _ino: Ino) {}
    fn orphans(&self) -> Result<Vec<Ino>> {
        self.orphans()
    }

    fn read_dir(
        &self,
        dir: Ino,
        after: u64,
        until: u64,
        with_attributes: bool,
        visit: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.read_dir(dir, after, until, with_attributes, &mut |found| {
            visit(DirEntry { attr: found.attr.map(|attr| self.with_access(attr)), ..found })
        })
    }
    fn last_cookie(&self) -> Result<u64> {
        Ok(self.last_cookie())
    }
    fn parent(&self, dir: Ino) -> Result<Ino> {
        self.parent(dir)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.getxattr(ino, name)
    }
    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.listxattr(ino)
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: XattrMode) -> Result<()> {
        self.setxattr(ino, name, value, how).map(drop)
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.removexattr(ino, name).map(drop)
    }

    fn inode(&self, ino: Ino) -> Result<Inode> {
        self.inode(ino)
    }
    fn body(&self, ino: Ino) -> Result<Option<Value>> {
        self.body(ino)
    }
    fn next_span(&self, ino: Ino, span: u64) -> Result<Option<u64>> {
        self.next_span(ino, span)
    }
    fn load_extents(&self, ino: Ino, extents: &mut FileExtents, range: Range<u64>) -> Result<()> {
        self.load_extents(ino, extents, range)
    }
    /// Nothing is remembered beside the tables.
    fn extents_are_old(&self, _ino: Ino) {}
    fn change_data(&self, ino: Ino, extents: &mut FileExtents, change: &DataChange<'_>) -> Result<()> {
        self.change_data(ino, extents, change).map(drop)
    }
    /// It has seen them as they were acked.
    fn publish(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }
    fn publish_all(&self) -> Result<()> {
        self.write_accesses()
    }
    /// They are in this process's own log.
    fn sync(&self, _ino: Option<Ino>) -> Result<()> {
        Ok(())
    }

    fn object(&self, id: ObjectId) -> Result<Option<ObjectRecord>> {
        self.object(id)
    }
    fn object_stored(&self, id: ObjectId, segments: u32, bytes: u64) -> Result<()> {
        self.object_stored(id, segments, bytes).map(drop)
    }
    fn forget_object(&self, id: ObjectId) -> Result<bool> {
        self.forget_object(id)
    }
    fn usage(&self) -> Result<Usage> {
        self.usage()
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn settled(&self) -> Seq {
        self.store().persisted()
    }
    fn settle(&self) {
        self.store().request_checkpoint();
    }
    fn trouble(&self) -> Option<String> {
        self.store().health().err().map(|error| error.to_string())
    }
}
