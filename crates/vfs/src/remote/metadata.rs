//! What the file layer asks of the metadata.

use super::{Change, LATER_MAX, Remote, calls::overtaken};
use crate::Metadata;
use sluice_base::{Ino, ObjectId, Seq, limits::SPAN_BYTES};
use sluice_meta::{
    Attr, Caller, DataChange, DirEntry, Error, NewNode, RenameMode, Result, SetAttributes, Unlinked, XattrMode,
    extent::{Extent, ExtentPlan, FileExtents},
    records::{Dirent, Inode, ObjectRecord, Usage, flags, mode},
    rpc::{
        Name,
        message::{
            Create, CreateUnnamed, ForgetObject, GetBody, GetObject, GetUsage, Getxattr, Invalidation, LastCookie,
            Link as LinkCall, Listxattr, Lookup, NextSpan, ObjectStored, Open, Parent, ReadDir, Readlink, Removexattr,
            Rename, Rmdir, Setattr, Setxattr, SpanRecords, Unlink,
        },
    },
    store::Value,
};
use sluice_run::Bug;
use std::{
    ops::{ControlFlow, Range},
    sync::atomic::Ordering::SeqCst,
};

/// Bytes of one page of a directory that is asked for.
const PAGE_BYTES: u32 = 64 << 10;

impl Metadata for Remote {
    fn lookup(&self, dir: Ino, text: &[u8]) -> Result<Attr> {
        let asked = self.pending.now();
        if self.is_believed() {
            match self.cache.name(dir, text) {
                Some(None) => return Err(Error::NotFound),
                Some(Some(ino)) => {
                    if let Some(attr) = self.cache.of(ino, |known| known.attr.clone()) {
                        return self.shown(attr, asked);
                    }
                }
                None => {}
            }
        }
        match self.ask_kept(&Lookup { dir, name: name(text)? }) {
            Ok((head, attr)) => {
                self.keep_name(head, dir, text, &attr);
                self.shown(attr, asked)
            }
            Err((head, Error::NotFound)) => {
                self.keep_entry(head, dir, text, None);
                Err(Error::NotFound)
            }
            Err((_, error)) => Err(error),
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.pending.over(ino, || Ok(self.laid_over(self.server_attr(ino)?)))
    }

    fn open(&self, ino: Ino) -> Result<(Attr, bool)> {
        let asked = self.pending.now();
        if self.is_held(ino)
            && self.is_believed()
            && let Some((attr, unchanged)) = self.cache.open(ino)
        {
            return Ok((self.shown(attr, asked)?, unchanged));
        }
        let (head, opened) = self.ask(&Open { ino })?;
        self.held.lock().insert(ino);
        self.cache.enter(head, ino, |known| {
            known.attr = Some(opened.attr.clone());
            known.inode = Some(opened.inode);
            known.body = Some(opened.body.map(Value::from));
            known.first_span = opened.first_span;
            known.is_opened();
        });
        Ok((self.shown(opened.attr, asked)?, false))
    }

    fn setattr(&self, ino: Ino, set: &SetAttributes) -> Result<Attr> {
        self.publish_waiting(ino)?;
        let asked = self.pending.now();
        let (head, attr) = self.change(&Setattr { ino, set: *set }, &[ino])?;
        if set.atime.is_some() {
            self.read.lock().remove(&ino);
        }
        self.keep_attr(head, &attr);
        self.shown(attr, asked)
    }

    /// Told to the server in the background: nobody waits for an access time.
    fn note_access(&self, ino: Ino) -> Result<()> {
        let now = self.clock.wall();
        let mut read = self.read.lock();
        if read.len() < LATER_MAX {
            read.insert(ino, now);
        }
        Ok(())
    }
    /// [`Remote::keep`] tells the server.
    fn write_accesses(&self) -> Result<()> {
        Ok(())
    }

    fn create(&self, dir: Ino, text: &[u8], node: NewNode<'_>, caller: Caller) -> Result<Attr> {
        let NewNode { mode, rdev, target } = node;
        let done = self.change(&Create { dir, name: name(text)?, mode, rdev, target, caller }, &[dir]);
        let (head, attr) = self.as_told(dir, text, done)?;
        self.keep_name(head, dir, text, &attr);
        self.made(head, &attr);
        Ok(attr)
    }

    fn create_unnamed(&self, dir: Ino, mode: u32, caller: Caller) -> Result<Attr> {
        let (head, attr) = self.change(&CreateUnnamed { dir, mode, caller }, &[dir])?;
        self.keep_attr(head, &attr);
        self.made(head, &attr);
        Ok(attr)
    }

    fn link(&self, ino: Ino, dir: Ino, text: &[u8]) -> Result<Attr> {
        let asked = self.pending.now();
        let done = self.change(&LinkCall { ino, dir, name: name(text)? }, &[ino, dir]);
        let (head, attr) = self.as_told(dir, text, done)?;
        self.keep_name(head, dir, text, &attr);
        self.shown(attr, asked)
    }

    fn unlink(&self, dir: Ino, text: &[u8]) -> Result<Unlinked> {
        let done = self.change(&Unlink { dir, name: name(text)? }, &[]);
        let (head, left) = self.as_told(dir, text, done)?;
        self.keep_entry(head, dir, text, None);
        Ok(left)
    }

    fn rmdir(&self, dir: Ino, text: &[u8]) -> Result<Unlinked> {
        let text = match text {
            b"." => return Err(Error::Invalid("rmdir of .")),
            b".." => return Err(Error::NotEmpty),
            text => text,
        };
        let done = self.change(&Rmdir { dir, name: name(text)? }, &[]);
        let (head, left) = self.as_told(dir, text, done)?;
        self.keep_entry(head, dir, text, None);
        Ok(left)
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: RenameMode) -> Result<Option<Unlinked>> {
        let call = Rename { from_dir: from.0, from: name(from.1)?, to_dir: to.0, to: name(to.1)?, how };
        Ok(self.change(&call, &[])?.1)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        Ok(self.ask(&Readlink { ino })?.1)
    }

    fn reclaim(&self, orphans: &[Ino]) -> Result<()> {
        self.release(orphans)
    }

    /// Those of others are the server's to find.
    fn orphans(&self) -> Result<Vec<Ino>> {
        Ok(Vec::new())
    }

    fn forgotten(&self, ino: Ino) {
        if self.held.lock().remove(&ino) {
            self.released.lock().push(ino);
        }
    }

    fn read_dir(
        &self,
        dir: Ino,
        after: u64,
        until: u64,
        with_attributes: bool,
        visit: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut after = after;
        loop {
            let call = ReadDir { dir, after, until, with_attributes, bytes_max: PAGE_BYTES };
            let asked = self.pending.now();
            let (head, page) = self.ask(&call)?;
            for entry in page.entries {
                after = entry.cookie;
                let attr = match entry.attr {
                    Some(attr) => {
                        self.keep_name(head, dir, &entry.name, &attr);
                        match self.shown(attr, asked) {
                            // It vanished meanwhile.
                            Err(Error::NotFound | Error::Stale) => None,
                            shown => Some(shown?),
                        }
                    }
                    None => None,
                };
                let (ino, kind, cookie, name) = (entry.ino, entry.kind, entry.cookie, entry.name);
                if visit(DirEntry { entry: Dirent { ino, kind, cookie, name }, attr }).is_break() {
                    return Ok(());
                }
            }
            if page.end {
                return Ok(());
            }
        }
    }

    fn last_cookie(&self) -> Result<u64> {
        Ok(self.ask(&LastCookie {})?.1)
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        Ok(self.ask(&Parent { dir })?.1)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self.ask(&Getxattr { ino, name })?.1)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        Ok(self.ask(&Listxattr { ino })?.1)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: XattrMode) -> Result<()> {
        self.change(&Setxattr { ino, name, value, how }, &[ino]).map(drop)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(&Removexattr { ino, name }, &[ino]).map(drop)
    }

    fn inode(&self, ino: Ino) -> Result<Inode> {
        self.pending.over(ino, || {
            let mut inode = self.server_inode(ino)?;
            self.pending.inode(ino, &mut inode);
            Ok(inode)
        })
    }

    fn body(&self, ino: Ino) -> Result<Option<Value>> {
        if let Some(body) = self.pending.body(ino) {
            return Ok(body);
        }
        if self.is_believed()
            && let Some(body) = self.cache.of(ino, |known| known.body.clone())
        {
            return Ok(body);
        }
        let (head, body) = self.ask(&GetBody { ino })?;
        let body = body.map(Value::from);
        self.cache.enter(head, ino, |known| known.body = Some(body.clone()));
        Ok(body)
    }

    fn next_span(&self, ino: Ino, span: u64) -> Result<Option<u64>> {
        self.pending.over(ino, || {
            let has_any = self.server_inode(ino)?.has(flags::EXTENTS);
            let theirs = if has_any { self.ask(&NextSpan { ino, span })?.1 } else { None };
            let ours = self.pending.next_span(ino, span);
            Ok(theirs.into_iter().chain(ours).min())
        })
    }

    fn load_extents(&self, ino: Ino, extents: &mut FileExtents, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let missing = (range.start / SPAN_BYTES..=(range.end - 1) / SPAN_BYTES).filter(|span| !extents.has(*span));
        let missing: Vec<u64> = missing.collect();
        let (Some(first), Some(last)) = (missing.first(), missing.last()) else { return Ok(()) };
        let loaded: Vec<_> = missing.iter().map(|span| span * SPAN_BYTES..(span + 1) * SPAN_BYTES).collect();
        self.pending.over(ino, || {
            let has_any = self.server_inode(ino)?.has(flags::EXTENTS);
            let found = if has_any { self.spans(ino, *first, last + 1)? } else { Vec::new() };
            for span in &missing {
                extents.load(*span, &[])?;
            }
            for (span, records) in found.into_iter().map(SpanRecords::into_records) {
                if missing.contains(&span) {
                    extents.load(span, &records)?;
                }
            }
            self.pending.cover(ino, &loaded, extents);
            Ok(())
        })
    }

    fn extents_are_old(&self, ino: Ino) {
        self.cache.drop_what(&Invalidation::Extents(ino), &mut Vec::new());
    }

    fn change_data(&self, ino: Ino, extents: &mut FileExtents, change: &DataChange<'_>) -> Result<()> {
        if self.session.over.load(SeqCst) {
            return Err(Error::Fenced);
        }
        if self.session.refusal.refuses() {
            return Err(overtaken());
        }
        let attr = self.server_attr(ino)?;
        match attr.mode & mode::TYPE {
            mode::REGULAR => {}
            mode::DIRECTORY => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("not a regular file")),
        }
        let (n, locked) = (self.next_change.fetch_add(1, SeqCst), self.locks.holds_any(ino));
        let stands = (attr.change, self.session.retained.last());
        let pending = Change::of(n, stands, self.clock.wall(), change, locked);
        let body_before = match change.body {
            Some(_) => self.body(ino)?.map_or(0, |body| body.len()),
            None => 0,
        };
        let mut pending = self.log(ino, pending, change)?;
        let mut plan = ExtentPlan::default();
        change.extents.iter().for_each(|extent: &Extent| extents.put(ino, *extent, &mut plan));
        let body_after = change.body.flatten().map_or(0, <[u8]>::len);
        pending.held_bytes = plan.held_bytes + body_after as i64 - body_before as i64;
        self.pending.add(ino, pending);
        Ok(())
    }

    fn publish(&self, ino: Ino) -> Result<()> {
        if Bug::CloseDoesNotPublish.is_planted() {
            return Ok(());
        }
        self.publish_waiting(ino)?;
        if self.dropped.lock().take(Some(ino)) { Err(Error::LocksLost) } else { Ok(()) }
    }

    fn losses(&self) -> u64 {
        self.session.retained.losses()
    }

    fn is_lost(&self, ino: Ino) -> bool {
        self.session.retained.is_lost(ino)
    }

    fn take_lost(&self, ino: Ino) -> bool {
        // Of more than are remembered only a sync tells: each close would.
        self.is_lost(ino) && self.session.retained.take_lost(Some(ino))
    }

    fn publish_all(&self) -> Result<()> {
        self.pending.files().into_iter().try_for_each(|ino| self.publish_waiting(ino))?;
        self.sync_log()
    }

    fn sync(&self, ino: Option<Ino>) -> Result<()> {
        self.sync_for(ino)
    }

    fn object(&self, id: ObjectId) -> Result<Option<ObjectRecord>> {
        // What refers to it here must be known there before anybody judges it.
        for ino in self.pending.files_of(id) {
            self.publish_waiting(ino)?;
        }
        Ok(self.ask(&GetObject { id })?.1)
    }

    fn object_stored(&self, id: ObjectId, segments: u32, bytes: u64) -> Result<()> {
        self.change(&ObjectStored { id, segments, bytes }, &[Ino(0)])?;
        self.note_clean(id)
    }

    fn forget_object(&self, id: ObjectId) -> Result<bool> {
        let gone = self.change(&ForgetObject { id }, &[Ino(0)])?.1;
        if gone {
            self.note_clean(id)?;
        }
        Ok(gone)
    }

    fn usage(&self) -> Result<Usage> {
        Ok(self.ask(&GetUsage {})?.1)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn settled(&self) -> Seq {
        self.own.persisted()
    }

    fn settle(&self) {
        self.own.request_checkpoint();
    }

    fn trouble(&self) -> Option<String> {
        if self.session.over.load(SeqCst) {
            return Some(Error::Fenced.to_string());
        }
        if let Some((since, why)) = &*self.silence.lock() {
            let seconds = self.clock.monotonic().saturating_sub(*since).as_secs();
            return Some(format!("the server has not answered for {seconds} s: {why}"));
        }
        self.own.health().err().map(|error| error.to_string())
    }
}

impl Remote {
    /// A change that was refused because of what a name stands for tells of it before the push does, which is on its way.
    fn as_told<T>(&self, dir: Ino, text: &[u8], done: Result<T>) -> Result<T> {
        if let Err(Error::Exists | Error::NotFound | Error::IsDirectory | Error::NotDirectory) = &done {
            self.cache.drop_own(&Invalidation::Entry(dir, text.into()));
        }
        done
    }
}

/// A name that can be in a directory, as a request wants it.
fn name(bytes: &[u8]) -> Result<Name<'_>> {
    Name::new(bytes)
}
