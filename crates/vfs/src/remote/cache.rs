//! What a mount knows of the server's metadata under its lease.
//!
//! An answer may be kept when the server says so, no push that is newer than the answer has been taken, and no other change of
//! this session's own, of which it gets no push, was under way meanwhile ([`Changes`]). The server notes the session's interest
//! before it answers, and numbers its pushes. Whoever enters an answer looks at the last push under the
//! lock of the shard that the answer goes to; whoever takes a push counts it first and then goes through the shards. So an
//! answer that a push overtook is either not entered or removed again.

use super::hand_over::KnownNames;
use sluice_base::Ino;
use sluice_meta::{
    Attr,
    records::Inode,
    rpc::message::{Invalidation, ReplyHead, SpanRecords},
    store::Value,
};
use sluice_run::collections::HashMap;
use sluice_run::lock::Mutex;
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
};

const SHARDS: usize = 64;
/// Inodes and names kept, over all shards, about: 100 MiB.
const KEPT_MAX: usize = 256 << 10;

/// What is known of one inode.
#[derive(Default)]
pub struct Known {
    pub attr: Option<Attr>,
    /// How its bytes are kept, but for the body.
    pub inode: Option<Inode>,
    /// The inline body, or that there is none.
    pub body: Option<Option<Value>>,
    /// Extent records of span 0.
    pub first_span: Option<SpanRecords>,
    /// Nobody else changed its bytes since it was opened here: pages of them that the kernel kept are right.
    unchanged: bool,
    names: HashMap<Box<[u8]>, Name>,
    /// A name that is not among `names` is not in the directory.
    complete: bool,
}

/// What is known of a name in a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    /// It stands for this.
    Of(Ino),
    /// There is none.
    Absent,
    /// Nothing, though the directory's names are known, or the kernel may believe something.
    Unknown,
}

/// Names kept of one directory.
const NAMES_MAX: usize = KEPT_MAX / SHARDS;

impl Known {
    fn is_empty(&self) -> bool {
        let holds_data = self.inode.is_some() || self.body.is_some() || self.unchanged;
        !holds_data && self.attr.is_none() && self.names.is_empty() && !self.complete
    }

    /// What `name` stands for: nothing, if that is known.
    pub fn set_name(&mut self, name: &[u8], ino: Option<Ino>) {
        self.put_name(name, ino.map_or(Name::Absent, Name::Of));
    }

    fn put_name(&mut self, text: &[u8], name: Name) {
        if self.names.len() >= NAMES_MAX && !self.names.contains_key(text) {
            self.names.clear();
            self.complete = false;
        }
        self.names.insert(text.into(), name);
    }

    fn forget_name(&mut self, name: &[u8]) {
        if self.complete {
            self.put_name(name, Name::Unknown);
        } else {
            self.names.remove(name);
        }
    }

    /// It is a directory that was just made: nothing is in it.
    pub fn is_new_directory(&mut self) {
        self.complete = true;
    }

    /// It is open here from now on, and the kernel has dropped what it kept of it before.
    pub fn is_opened(&mut self) {
        self.unchanged = true;
    }

    fn forget(&mut self, ino: Ino, what: &Invalidation, told: &mut Vec<Invalidation>) {
        match what {
            Invalidation::Attr(_) => (self.attr, self.inode) = (None, None),
            Invalidation::Data(_) => {
                self.attr = None;
                self.forget_data();
            }
            Invalidation::Extents(_) => self.first_span = None,
            Invalidation::Unlinked(_) => {
                self.attr = None;
                (self.unchanged, self.complete) = (false, false);
                self.forget_data();
            }
            Invalidation::Entry(_, name) => self.forget_name(name),
            Invalidation::Inode(_) | Invalidation::Everything => tell_all(ino, std::mem::take(self), told),
        }
    }

    fn forget_data(&mut self) {
        (self.inode, self.body, self.first_span) = (None, None, None);
    }
}

/// An answer, and what decides whether it may be kept.
#[derive(Clone, Copy, Default)]
pub struct Heard {
    pub head: ReplyHead,
    /// When it was asked for, in the count of [`Changes`].
    since: u64,
    /// Of which start of the cache it is.
    start: u32,
    /// The change that it answers.
    own: Option<u64>,
    /// Entries that it names may be kept, as far as a change of them came with its directories.
    pub entries: bool,
}

/// Changes of this session: those under way, and the last ones that were.
#[derive(Default)]
struct Changes {
    count: u64,
    under_way: Vec<Ended>,
    ended: VecDeque<Ended>,
}

/// Ended changes that are remembered. What was asked for before all of them is not kept.
const ENDED_MAX: usize = 1024;

struct Ended {
    change: u64,
    at: u64,
    /// What it is about; empty while that is not known: then it may be about anything.
    inos: Vec<Ino>,
}

impl Changes {
    fn allow(&self, heard: Heard, ino: Ino) -> bool {
        let other = |ended: &&Ended| Some(ended.change) != heard.own;
        let apart = |ended: &Ended| !ended.inos.is_empty() && !ended.inos.contains(&ino);
        let remembered =
            self.ended.len() < ENDED_MAX || self.ended.front().is_some_and(|first| first.at <= heard.since);
        let later = self.ended.iter().rev().take_while(|ended| ended.at > heard.since);
        remembered && self.under_way.iter().chain(later).filter(other).all(apart)
    }
}

/// See the module.
pub struct Cache {
    changes: Mutex<Changes>,
    shards: Vec<Mutex<HashMap<Ino, Known>>>,
    /// Number of the last push that was taken.
    taken: AtomicU64,
    /// Counts how often all was dropped: what was asked for before is not kept, because its pushes are no longer counted.
    starts: AtomicU32,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            changes: Mutex::default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            taken: AtomicU64::new(0),
            starts: AtomicU32::new(0),
        }
    }
}

impl Cache {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Known>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Looks at what is known of an inode.
    pub fn of<R>(&self, ino: Ino, look: impl FnOnce(&Known) -> Option<R>) -> Option<R> {
        self.shard(ino).lock().get(&ino).and_then(look)
    }

    /// A request is about to be sent. A change says what it is about, as far as that is known: nothing stands for anything.
    pub fn begin(&self, change: Option<&[Ino]>) -> Heard {
        let start = self.starts.load(SeqCst);
        let mut changes = self.changes.lock();
        let since = changes.count;
        let own = change.map(|inos| {
            changes.count += 1;
            let change = changes.count;
            changes.under_way.push(Ended { change, at: 0, inos: inos.to_vec() });
            change
        });
        Heard { head: ReplyHead::default(), since, start, own, entries: own.is_none() }
    }

    /// A change has its answer, and was about `touched` too; or it will never have one.
    pub fn end(&self, heard: Heard, touched: impl Iterator<Item = Ino>) {
        let Some(own) = heard.own else { return };
        let mut changes = self.changes.lock();
        let Some(at) = changes.under_way.iter().position(|change| change.change == own) else { return };
        let mut ended = changes.under_way.swap_remove(at);
        ended.inos.extend(touched);
        changes.count += 1;
        ended.at = changes.count;
        if changes.ended.len() >= ENDED_MAX {
            changes.ended.pop_front();
        }
        changes.ended.push_back(ended);
    }

    /// Enters an answer about `ino`, if it may be kept.
    pub fn enter(&self, heard: Heard, ino: Ino, fill: impl FnOnce(&mut Known)) {
        if !heard.head.cacheable {
            return;
        }
        let mut shard = self.shard(ino).lock();
        if heard.start != self.starts.load(SeqCst) {
            return;
        }
        if heard.head.stamp < self.taken.load(SeqCst) || !self.changes.lock().allow(heard, ino) {
            return;
        }
        if shard.len() >= KEPT_MAX / SHARDS {
            shard.clear();
        }
        fill(shard.entry(ino).or_default());
    }

    /// What a name stands for: nothing, if that is known; `None` when it is not.
    pub fn name(&self, dir: Ino, text: &[u8]) -> Option<Option<Ino>> {
        let mut shard = self.shard(dir).lock();
        let known = shard.get_mut(&dir)?;
        match known.names.get(text) {
            Some(Name::Of(ino)) => Some(Some(*ino)),
            Some(Name::Absent) => Some(None),
            None if known.complete => {
                // The kernel is told, and so must be told when that is no longer so.
                known.put_name(text, Name::Absent);
                Some(None)
            }
            Some(Name::Unknown) | None => None,
        }
    }

    /// The attributes of a file of which all is known that an open asks for, and whether nobody else has changed it since it was
    /// opened here before. It is opened now.
    pub fn open(&self, ino: Ino) -> Option<(Attr, bool)> {
        let mut shard = self.shard(ino).lock();
        let known = shard.get_mut(&ino)?;
        let whole = known.inode.is_some() && known.body.is_some() && known.first_span.is_some();
        let attr = known.attr.clone().filter(|_| whole)?;
        Some((attr, std::mem::replace(&mut known.unchanged, true)))
    }

    /// The last push that was taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(SeqCst)
    }

    /// All inodes and names of which something is known, and was told.
    pub fn known(&self) -> Vec<KnownNames> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            all.extend(shard.iter().map(|(ino, known)| {
                let mut names: Vec<_> = known.names.keys().cloned().collect();
                names.sort_unstable();
                KnownNames { ino: *ino, names }
            }));
        }
        all.sort_unstable_by_key(|known| known.ino);
        all
    }

    /// Of these something was told by an earlier process of the mount: what it was is not known here.
    pub fn remember(&self, all: Vec<KnownNames>) {
        for KnownNames { ino, names } in all {
            let known =
                Known { names: names.into_iter().map(|name| (name, Name::Unknown)).collect(), ..Known::default() };
            self.shard(ino).lock().insert(ino, known);
        }
    }

    /// Pushes up to `number` are taken from here on.
    pub fn note_taken(&self, number: u64) {
        self.taken.fetch_max(number, SeqCst);
    }

    /// Pushes are counted anew: what they said before is dropped with everything else.
    pub fn restart(&self, pushes: u64, told: &mut Vec<Invalidation>) {
        self.starts.fetch_add(1, SeqCst);
        self.taken.store(pushes, SeqCst);
        self.drop_what(&Invalidation::Everything, told);
    }

    /// Drops what is no longer right; adds to `told` what that is, name by name.
    pub fn drop_what(&self, what: &Invalidation, told: &mut Vec<Invalidation>) {
        let Some(ino) = what.ino() else {
            for shard in &self.shards {
                let all = std::mem::take(&mut *shard.lock());
                all.into_iter().for_each(|(ino, known)| tell_all(ino, known, told));
            }
            return told.push(Invalidation::Everything);
        };
        told.push(what.clone());
        self.drop_of(ino, |known| {
            known.unchanged &= matches!(what, Invalidation::Extents(_));
            known.forget(ino, what, told);
        });
    }

    /// Drops what a change of this session's own touched, which the kernel knows of.
    pub fn drop_own(&self, what: &Invalidation) {
        if let Some(ino) = what.ino() {
            self.drop_of(ino, |known| known.forget(ino, what, &mut Vec::new()));
        }
    }

    fn drop_of(&self, ino: Ino, forget: impl FnOnce(&mut Known)) {
        let mut shard = self.shard(ino).lock();
        let Some(known) = shard.get_mut(&ino) else { return };
        forget(known);
        if known.is_empty() {
            shard.remove(&ino);
        }
    }
}

fn tell_all(ino: Ino, known: Known, told: &mut Vec<Invalidation>) {
    told.push(Invalidation::Data(ino));
    told.extend(known.names.into_keys().map(|name| Invalidation::Entry(ino, name.into())));
}

#[cfg(test)]
mod tests;
