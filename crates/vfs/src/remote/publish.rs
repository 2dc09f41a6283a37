//! From this mount's own log to the server.

use super::{Change, Remote, cache::Heard, session};
use sluice_base::{Ino, ObjectId, Seq};
use sluice_meta::{
    DataChange, Error, Result,
    records::flags,
    rpc::message::{Invalidation, Publish, Published},
    store::Txn,
};
use sluice_run::collections::HashSet;
use sluice_run::lock::MutexGuard;
use std::{collections::BTreeSet, ops::ControlFlow, sync::atomic::Ordering::SeqCst};

/// Keys of the mount's own store: a table byte, then big-endian numbers.
///
/// | table | key | value |
/// |---|---|---|
/// | `p` | inode, change | a change that is not published, as the body of a publish request |
/// | `q` | number of the session | inode and last change of a publish that was sent under it |
/// | `o` | object id | nothing: an object that is not stored |
fn change_key(ino: Ino, n: u64) -> Vec<u8> {
    [&b"p"[..], &ino.0.to_be_bytes(), &n.to_be_bytes()].concat()
}
fn sent_key(number: u64) -> Vec<u8> {
    [&b"q"[..], &number.to_be_bytes()].concat()
}
fn object_key(id: ObjectId) -> Vec<u8> {
    [&b"o"[..], &id.0].concat()
}

fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: [[u8; 8]; N] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(u64::from_be_bytes))
}

/// Objects of which the mount's own store says that they are not stored.
pub fn unstored(own: &sluice_meta::store::MetaStore) -> Result<HashSet<ObjectId>> {
    let mut found = HashSet::default();
    own.snapshot().scan(b"o", b"p", &mut |key, _| {
        found.extend(key[1..].try_into().ok().map(ObjectId));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Forgets under which numbers publishes were sent: they will go under others.
pub(super) fn forget_sent(own: &sluice_meta::store::MetaStore) -> Result<()> {
    let mut sent = Vec::new();
    own.snapshot().scan(b"q", b"r", &mut |key, _| {
        sent.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    own.transact(|txn| -> Result<()> {
        sent.iter().for_each(|key| txn.delete(key));
        Ok(())
    })?;
    Ok(())
}

impl Remote {
    /// Finds what an earlier process left: changes that wait, and publishes whose answer it may not have seen. Those go first,
    /// each under its number.
    pub(super) fn recover(&self, boot: [u8; 16]) -> Result<()> {
        let corrupt = || Error::Corrupt("the mount's own log".into());
        let (mut changes, mut sent) = (Vec::new(), Vec::new());
        let snapshot = self.own.snapshot();
        snapshot.scan(b"p", b"q", &mut |_, value| {
            changes.push(Change::decode(Seq(0), value));
            ControlFlow::Continue(())
        })?;
        snapshot.scan(b"q", b"r", &mut |key, value| {
            sent.push(numbers::<1>(&key[1..]).zip(numbers::<2>(value)));
            ControlFlow::Continue(())
        })?;
        for found in changes {
            let (ino, change) = found.ok_or_else(corrupt)?;
            self.next_change.fetch_max(change.n + 1, SeqCst);
            self.pending.add(ino, change);
        }
        let sent = sent.into_iter().collect::<Option<Vec<_>>>().ok_or_else(corrupt)?;
        if !self.is_whole(boot)? {
            let last = sent.iter().map(|(_, [ino, last])| (Ino(*ino), *last)).collect();
            crate::waiting(|| self.drop_doubtful(&last))?;
        }
        let line = self.session.line.load(SeqCst);
        if !session::is_of_line(&self.own, line)? {
            let files = self.drop_unfounded(self.session.retained.last())?;
            if !files.is_empty() {
                tracing::error!(
                    files = files.len(), inodes = ?&files[..files.len().min(16)],
                    "the server was recovered from its store, from an earlier state of the volume: what was written to these files after what it lacks, and \
                     not synced, is lost too"
                );
            }
            session::keep_line(&self.own, line)?;
        }
        for ([number], [ino, last]) in sent {
            self.session.again(number);
            self.resend(Ino(ino), number, last)?;
        }
        // Nobody has these files open any more.
        crate::waiting(|| self.pending.files().into_iter().try_for_each(|ino| self.publish_file(ino)))?;
        self.set_whole(boot)
    }

    /// Drops what was written after a change that the server, which knows none above `known`, has lost: the files.
    pub(super) fn drop_unfounded(&self, known: u64) -> Result<Vec<Ino>> {
        let mut files = Vec::new();
        for ino in self.pending.files() {
            let changes = self.pending.since_unknown(ino, known);
            if !changes.is_empty() {
                self.forget(ino, &changes)?;
                files.push(ino);
            }
        }
        Ok(files)
    }

    /// Changes of a file are no longer to be published.
    pub(super) fn forget(&self, ino: Ino, changes: &[u64]) -> Result<()> {
        self.own.transact(|txn| -> Result<()> {
            changes.iter().for_each(|n| txn.delete(&change_key(ino, *n)));
            Ok(())
        })?;
        self.pending.forget(ino, changes);
        Ok(())
    }

    /// Acks a change: from here on it survives this process.
    pub(super) fn log(&self, ino: Ino, mut change: Change, data: &DataChange<'_>) -> Result<Change> {
        let bytes = change.encode(ino).ok_or(Error::Invalid("a change of too many pieces"))?;
        let done = self.own.transact(|txn| -> Result<()> {
            txn.put(&change_key(ino, change.n), bytes.clone());
            // Without data the change names objects that were noted before, and may be stored by now.
            let written = change.new_objects.iter().filter(|_| !data.attachments.is_empty());
            written.for_each(|id| txn.put(&object_key(*id), b""));
            data.attachments.iter().for_each(|section| txn.attach(section.header.clone(), section.data));
            Ok(())
        })?;
        change.seq = done.seq;
        Ok(change)
    }

    /// Tells the server all changes of a file, if there are any.
    pub(super) fn publish_waiting(&self, ino: Ino) -> Result<()> {
        if self.pending.has(ino) { self.publish_file(ino) } else { Ok(()) }
    }

    /// Tells the server all changes of a file. Those that were made under a lock which is lost by then are dropped.
    pub(super) fn publish_file(&self, ino: Ino) -> Result<()> {
        if !crate::may_wait() {
            return Err(Error::Away);
        }
        loop {
            self.assert_locks()?;
            match self.publish_all(ino) {
                Err(Error::LocksLost) if self.locks.is_doubted() => {}
                done => return done,
            }
        }
    }

    /// On return no publish of these files is under way, nor begins as long as this is held.
    pub(super) fn turns(&self, inos: &[Ino]) -> Vec<MutexGuard<'_, ()>> {
        let stripes: BTreeSet<usize> = inos.iter().map(|ino| ino.0 as usize % self.publishing.len()).collect();
        stripes.into_iter().map(|stripe| self.publishing[stripe].lock()).collect()
    }

    fn publish_all(&self, ino: Ino) -> Result<()> {
        let _turn = self.turns(&[ino]);
        while let Some(change) = self.pending.merged(ino, None) {
            let number = self.new_number()?;
            let sent = [ino.0.to_be_bytes(), change.n.to_be_bytes()].concat();
            self.own.transact(|txn| -> Result<()> {
                txn.put(&sent_key(number), sent.clone());
                Ok(())
            })?;
            self.send(ino, number, &change)?;
        }
        Ok(())
    }

    fn resend(&self, ino: Ino, number: u64, last: u64) -> Result<()> {
        match self.pending.merged(ino, Some(last)) {
            Some(change) => crate::waiting(|| self.send(ino, number, &change)),
            None => self.done(ino, number, 0),
        }
    }

    /// Sends a change under `number`, and forgets it when it is done, or when its file is gone.
    fn send(&self, ino: Ino, number: u64, change: &Change) -> Result<()> {
        let mut call: Publish<'_> = change.publish(ino).ok_or(Error::Invalid("a change of too many pieces"))?;
        // What was stored meanwhile has begun, and may have ended.
        let snapshot = self.own.snapshot();
        for id in std::mem::take(&mut call.new_objects) {
            if snapshot.get(&object_key(id)).map_err(Error::from)?.is_some() {
                call.new_objects.push(id);
            }
        }
        drop(snapshot);
        let answer = self.change_as(&call, &[ino], Some(number));
        match answer {
            Ok((head, published)) => self.keep_published(head, change, published),
            Err(Error::Stale | Error::NotFound) => {}
            // A clone of bytes that it knew from long ago.
            Err(error @ Error::Gone) => {
                tracing::error!(%ino, %error, "what was not published of a file is lost");
                self.dropped.lock().add(ino);
                self.tell_lost(vec![Invalidation::Data(ino)]);
            }
            // It may have been done: it stays noted, and goes again under its number.
            Err(error @ (Error::Fenced | Error::Away)) => return Err(error),
            Err(error) => {
                self.session.answered(number);
                self.own.transact(|txn| -> Result<()> {
                    txn.delete(&sent_key(number));
                    Ok(())
                })?;
                return Err(error);
            }
        }
        self.session.answered(number);
        self.done(ino, number, change.n)
    }

    /// What was published is known, with the body that went: the next open need not ask.
    fn keep_published(&self, head: Heard, change: &Change, published: Published) {
        let Published { attr, inode, first_span } = published;
        let body = if inode.has(flags::INLINE) { change.body.clone() } else { Some(None) };
        self.cache.enter(head, attr.ino, |known| {
            known.body = body.or_else(|| known.body.take());
            (known.attr, known.inode, known.first_span) = (Some(attr), Some(inode), first_span);
        });
    }

    fn done(&self, ino: Ino, number: u64, last: u64) -> Result<()> {
        let changes = self.pending.numbers(ino, last);
        self.own.transact(|txn: &mut Txn<'_>| -> Result<()> {
            changes.iter().for_each(|n| txn.delete(&change_key(ino, *n)));
            txn.delete(&sent_key(number));
            Ok(())
        })?;
        self.pending.published(ino, last);
        Ok(())
    }

    /// An object needs this mount's journal no more.
    pub(super) fn note_clean(&self, id: ObjectId) -> Result<()> {
        self.own.transact(|txn| -> Result<()> {
            txn.delete(&object_key(id));
            Ok(())
        })?;
        Ok(())
    }
}
