//! Changes of file content that this mount has acked and the server does not know yet.
//!
//! Each is a record of the mount's own store, under `p` inode number, in the same log record as the data; so a restart
//! finds it again. A publish takes all changes of a file, merged, under a number of the session that is noted first (`q`
//! number -> inode, last change): after a crash the same changes go under the same number, which the server does once.

use sluice_base::{Ino, ObjectId, Seq, Timestamp, limits::SPAN_BYTES};
use sluice_meta::{
    Attr, DataChange, SizeChange,
    extent::{Extent, FileExtents},
    records::{Inode, flags},
    rpc::{
        Body, Extents,
        message::{self, Method, Number, Publish, Request},
    },
    store::Value,
};
use sluice_run::Bug;
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use std::{
    collections::VecDeque,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

/// A change as it waits.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its number in this mount.
    pub n: u64,
    /// The server's change counter of the file, as it was known before: when the counter stands there after this was logged, neither
    /// this change was published nor another mount's came after it.
    pub on: u64,
    /// The highest number of the session whose change the server had done before: to a server that lacks this one it is not told.
    pub after: u64,
    /// Its log record; the journal is needed from there on.
    pub seq: Seq,
    pub extents: Vec<Extent>,
    pub body: Option<Option<Value>>,
    pub size: SizeChange,
    pub mtime: Option<Timestamp>,
    pub kill_suidgid: bool,
    pub new_objects: Vec<ObjectId>,
    /// This mount held a lock on the file.
    pub locked: bool,
    /// Bytes that the file gains or loses; not known of a change that was found again.
    pub held_bytes: i64,
}

impl Change {
    /// What a data change says, without the data.
    pub fn of(n: u64, (on, after): (u64, u64), now: Timestamp, change: &DataChange<'_>, locked: bool) -> Self {
        Self {
            n,
            on,
            after,
            seq: Seq(0),
            extents: change.extents.clone(),
            body: change.body.map(|body| body.map(Value::from)),
            size: change.size,
            mtime: change.touch.then_some(now),
            kill_suidgid: change.kill_suidgid,
            new_objects: change.new_objects.iter().map(|(id, _)| *id).collect(),
            locked,
            held_bytes: 0,
        }
    }

    /// The stored form: what it is after, and the body of a publish request. `None` when there are more extents than one may have.
    pub fn encode(&self, ino: Ino) -> Option<Vec<u8>> {
        let number = Number { number: self.n, seen_up_to: self.on, again: None };
        Some([&self.after.to_be_bytes()[..], &Request::Publish(self.publish(ino)?).encode(number)].concat())
    }

    /// The change of a stored form.
    pub fn decode(seq: Seq, bytes: &[u8]) -> Option<(Ino, Self)> {
        let (after, bytes) = bytes.split_first_chunk()?;
        let parsed = message::parse(Method::Publish.number(), bytes).ok()?;
        let Request::Publish(publish) = parsed.request else { return None };
        let change = Self {
            n: parsed.number.number,
            on: parsed.number.seen_up_to,
            after: u64::from_be_bytes(*after),
            seq,
            extents: publish.extents.list().to_vec(),
            body: publish.body.map(|body| body.map(|body| Value::from(body.bytes()))),
            size: publish.size,
            mtime: publish.mtime,
            kill_suidgid: publish.kill_suidgid,
            new_objects: publish.new_objects,
            locked: publish.locked,
            held_bytes: 0,
        };
        Some((publish.ino, change))
    }

    /// Bytes that it puts into its file.
    pub fn bytes(&self) -> u64 {
        let extents = self.extents.iter().filter(|extent| extent.place.is_some());
        let body = self.body.as_ref().and_then(|body| body.as_ref());
        extents.map(|extent| extent.len).sum::<u64>() + body.map_or(0, |body| body.len() as u64)
    }

    /// The request that publishes it.
    pub fn publish(&self, ino: Ino) -> Option<Publish<'_>> {
        let body = match &self.body {
            Some(Some(bytes)) => Some(Some(Body::new(bytes)?)),
            Some(None) => Some(None),
            None => None,
        };
        Some(Publish {
            ino,
            extents: Extents::new(self.extents.clone())?,
            body,
            size: self.size,
            mtime: self.mtime,
            kill_suidgid: self.kill_suidgid,
            new_objects: self.new_objects.clone(),
            locked: self.locked,
        })
    }

    /// This change and then `next` as one; false, and nothing happens, when that is too large for one request.
    fn then(&mut self, next: &Change) -> bool {
        let mut extents = self.extents.clone();
        extents.extend(&next.extents);
        if Extents::new(extents.clone()).is_none() {
            return false;
        }
        self.extents = extents;
        if next.body.is_some() {
            self.body = next.body.clone();
        }
        self.size = then(self.size, next.size);
        self.mtime = next.mtime.or(self.mtime);
        self.kill_suidgid |= next.kill_suidgid;
        self.locked |= next.locked;
        self.new_objects
            .extend(next.new_objects.iter().filter(|id| !self.new_objects.contains(id)).copied().collect::<Vec<_>>());
        self.n = next.n;
        true
    }
}

/// What all changes of a file together do to its attributes.
#[derive(Default)]
struct Sum {
    size: Option<SizeChange>,
    mtime: Option<Timestamp>,
    kill_suidgid: bool,
    count: u64,
    held_bytes: i64,
    body: Option<Option<Value>>,
    extents: bool,
}

impl Sum {
    fn add(&mut self, change: &Change) {
        self.size = Some(then(self.size.unwrap_or(SizeChange::Keep), change.size));
        self.mtime = change.mtime.or(self.mtime);
        self.kill_suidgid |= change.kill_suidgid;
        self.count += 1;
        self.held_bytes += change.held_bytes;
        self.extents |= change.extents.iter().any(|extent| extent.place.is_some());
        if change.body.is_some() {
            self.body = change.body.clone();
        }
    }
}

#[derive(Default)]
struct File {
    changes: VecDeque<Change>,
    sum: Sum,
}

/// Files are told apart by so many marks of the last publish.
const MARKS: usize = 256;

/// A moment in the order of this mount's publishes.
#[derive(Clone, Copy, Debug)]
pub struct Moment(u64);

/// The changes of all files.
pub struct Pending {
    files: Mutex<HashMap<Ino, File>>,
    /// Counts publishes.
    count: AtomicU64,
    /// The last publish of such an inode.
    marks: [AtomicU64; MARKS],
}

impl Default for Pending {
    fn default() -> Self {
        Self { files: Mutex::default(), count: AtomicU64::new(0), marks: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Pending {
    fn mark(&self, ino: Ino) -> &AtomicU64 {
        &self.marks[ino.0 as usize % MARKS]
    }

    /// Before the server is asked: see [`Pending::is_whole`].
    pub fn now(&self) -> Moment {
        Moment(self.count.load(SeqCst))
    }

    /// Whether what the server said of a file, asked after `asked`, has all of this mount's changes now that those that wait were laid
    /// over it. A publish that came to its end between the two leaves its changes out: the server's answer is from before it, and here
    /// they wait no more.
    pub fn is_whole(&self, ino: Ino, asked: Moment) -> bool {
        self.mark(ino).load(SeqCst) <= asked.0
    }

    /// What the server says of a file with this mount's changes over it, by `look`, which asks the one and then lays on the other:
    /// once more where that is not whole.
    pub fn over<T, E>(&self, ino: Ino, mut look: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        loop {
            let asked = self.now();
            let seen = look()?;
            if self.is_whole(ino, asked) {
                return Ok(seen);
            }
        }
    }

    /// Adds a change, the newest of its file; how many there are now.
    pub fn add(&self, ino: Ino, change: Change) -> usize {
        let mut files = self.files.lock();
        let file = files.entry(ino).or_default();
        file.sum.add(&change);
        file.changes.push_back(change);
        file.changes.len()
    }

    /// The oldest changes of a file as one, up to `last` or to what fits into one request.
    pub fn merged(&self, ino: Ino, last: Option<u64>) -> Option<Change> {
        let files = self.files.lock();
        let mut changes = files.get(&ino)?.changes.iter().filter(|change| last.is_none_or(|last| change.n <= last));
        let mut merged = changes.next()?.clone();
        changes.take_while(|next| merged.then(next)).for_each(drop);
        Some(merged)
    }

    /// Numbers of a file's changes up to `last`.
    pub fn numbers(&self, ino: Ino, last: u64) -> Vec<u64> {
        let files = self.files.lock();
        files
            .get(&ino)
            .into_iter()
            .flat_map(|file| &file.changes)
            .map(|change| change.n)
            .take_while(|n| *n <= last)
            .collect()
    }

    /// Changes of a file behind `sent` that may have been published, when the server's change counter of the file is `now`: those before
    /// the first that was made on `now`.
    pub fn doubtful(&self, ino: Ino, sent: u64, now: u64) -> Vec<u64> {
        let files = self.files.lock();
        let changes = files.get(&ino).into_iter().flat_map(|file| &file.changes);
        changes
            .skip_while(|change| change.n <= sent)
            .take_while(|change| change.on != now)
            .map(|change| change.n)
            .collect()
    }

    /// Changes of a file from the first on that was made after one of a higher number than `known`.
    pub fn since_unknown(&self, ino: Ino, known: u64) -> Vec<u64> {
        let files = self.files.lock();
        let changes = files.get(&ino).into_iter().flat_map(|file| &file.changes);
        changes.skip_while(|change| change.after <= known).map(|change| change.n).collect()
    }

    /// Files with changes that were made under a lock.
    pub fn locked_files(&self) -> Vec<Ino> {
        let files = self.files.lock();
        files.iter().filter(|(_, file)| file.changes.iter().any(|change| change.locked)).map(|(ino, _)| *ino).collect()
    }

    /// Changes of a file from the first on that was made under a lock: what comes behind it stands on it.
    pub fn since_locked(&self, ino: Ino) -> Vec<u64> {
        let files = self.files.lock();
        let changes = files.get(&ino).into_iter().flat_map(|file| &file.changes);
        changes.skip_while(|change| !change.locked).map(|change| change.n).collect()
    }

    /// The server has the changes of a file up to `last`.
    pub fn published(&self, ino: Ino, last: u64) {
        self.keep(ino, |change| change.n > last);
    }

    /// These changes of a file are no longer to be published.
    pub fn forget(&self, ino: Ino, numbers: &[u64]) {
        self.keep(ino, |change| !numbers.contains(&change.n));
    }

    fn keep(&self, ino: Ino, keep: impl FnMut(&Change) -> bool) {
        let mut files = self.files.lock();
        let Some(file) = files.get_mut(&ino) else { return };
        // Under the lock: who finds them gone finds this too.
        self.mark(ino).store(self.count.fetch_add(1, SeqCst) + 1, SeqCst);
        file.changes.retain(keep);
        file.sum = Sum::default();
        file.changes.iter().for_each(|change| file.sum.add(change));
        if file.changes.is_empty() {
            files.remove(&ino);
        }
    }

    /// Whether a file has changes.
    pub fn has(&self, ino: Ino) -> bool {
        self.files.lock().contains_key(&ino)
    }

    /// Files with changes.
    pub fn files(&self) -> Vec<Ino> {
        self.files.lock().keys().copied().collect()
    }

    /// Files whose changes begin one of `objects`.
    pub fn files_of(&self, object: ObjectId) -> Vec<Ino> {
        let files = self.files.lock();
        let is_in = |change: &Change| {
            let places = change.extents.iter().filter_map(|extent| extent.place);
            change.new_objects.contains(&object) || places.into_iter().any(|place| place.object == object)
        };
        files.iter().filter(|(_, file)| file.changes.iter().any(is_in)).map(|(ino, _)| *ino).collect()
    }

    /// The attributes as this mount's programs must see them.
    pub fn attr(&self, attr: &mut Attr) {
        let files = self.files.lock();
        let Some(File { sum, .. }) = files.get(&attr.ino) else { return };
        attr.size = sum.size.map_or(attr.size, |change| change.of(attr.size));
        attr.change += sum.count;
        attr.held_bytes = attr.held_bytes.saturating_add_signed(sum.held_bytes);
        if let Some(mtime) = sum.mtime {
            (attr.mtime, attr.ctime) = (mtime, mtime);
        }
    }

    /// How the file's bytes are kept, likewise.
    pub fn inode(&self, ino: Ino, inode: &mut Inode) {
        let files = self.files.lock();
        let Some(File { sum, .. }) = files.get(&ino) else { return };
        inode.size = sum.size.map_or(inode.size, |change| change.of(inode.size));
        if let Some(body) = &sum.body {
            inode.set(flags::INLINE, body.is_some());
        }
        if sum.extents {
            inode.set(flags::EXTENTS, true);
        }
        if sum.kill_suidgid {
            inode.kill_suidgid();
        }
    }

    /// The body, if a change says what it is.
    pub fn body(&self, ino: Ino) -> Option<Option<Value>> {
        self.files.lock().get(&ino)?.sum.body.clone()
    }

    /// The first span from `span` on that a change puts bytes into.
    pub fn next_span(&self, ino: Ino, span: u64) -> Option<u64> {
        let files = self.files.lock();
        let extents = files.get(&ino)?.changes.iter().flat_map(|change| &change.extents);
        let spans = extents.filter(|extent| extent.place.is_some()).filter_map(|extent| {
            let last = (extent.offset + extent.len - 1) / SPAN_BYTES;
            (last >= span).then_some(span.max(extent.offset / SPAN_BYTES))
        });
        spans.min()
    }

    /// Puts the changes over the spans in `loaded`, which were just loaded from the server.
    pub fn cover(&self, ino: Ino, loaded: &[Range<u64>], extents: &mut FileExtents) {
        if Bug::OwnWritesUnseen.is_planted() {
            return;
        }
        let files = self.files.lock();
        let changes = files.get(&ino).into_iter().flat_map(|file| &file.changes);
        for extent in changes.flat_map(|change| &change.extents) {
            for range in loaded {
                let (from, to) = (extent.offset.max(range.start), (extent.offset + extent.len).min(range.end));
                if from < to {
                    extents.put(ino, part(extent, from, to), &mut Default::default());
                }
            }
        }
    }
}

/// One change of size, and then another.
fn then(first: SizeChange, next: SizeChange) -> SizeChange {
    match (first, next) {
        (size, SizeChange::Keep) => size,
        (_, SizeChange::Exactly(bytes)) => SizeChange::Exactly(bytes),
        (SizeChange::Exactly(before), SizeChange::AtLeast(bytes)) => SizeChange::Exactly(before.max(bytes)),
        (SizeChange::AtLeast(before), SizeChange::AtLeast(bytes)) => SizeChange::AtLeast(before.max(bytes)),
        (SizeChange::Keep, size) => size,
    }
}

fn part(extent: &Extent, from: u64, to: u64) -> Extent {
    let place = extent.place.map(|place| sluice_meta::extent::Place {
        object: place.object,
        offset: place.offset + (from - extent.offset) as u32,
    });
    Extent { offset: from, len: to - from, place }
}
