//! The metadata of a server over the network.
//!
//! What the server said is believed while the session's lease lasts and no push says otherwise (`remote/cache.rs`). Names and
//! attributes are changed on the server at once. The content of files is changed here: a write is acked when this mount's own
//! journal has it, and published on close, on fsync and in the background (`remote/pending.rs`). Until then it is laid over what the
//! server says, for this mount's programs alone.

mod again;
mod cache;
mod calls;
mod doubt;
mod hand_over;
mod left;
mod locks;
mod lost;
mod metadata;
mod pending;
mod publish;
mod refusal;
mod retained;
mod session;
mod ship;

pub use calls::{Link, LinkError, Session};
pub use hand_over::{KnownNames, SessionState, Silent};
pub use left::Left;
pub use locks::{BookState, LockCall, LockedHandle, OnLocked};
pub use lost::Losses;
pub use publish::unstored;
pub use refusal::{LOOK_INTERVAL, LOOKS_MIN};
pub use session::take_up;

use crate::Metadata;
use cache::{Cache, Heard, Known};
use pending::{Change, Moment, Pending};
use sluice_base::{Clock, Ino, Timestamp};
use sluice_meta::{
    Attr, Error, Result,
    records::Inode,
    rpc::message::{GetExtents, GetInode, Getattr, Invalidation, Release, Renew, SpanRecords, UpdateAtime},
    store::MetaStore,
};
use sluice_run::collections::{HashMap, HashSet};
use sluice_run::lock::Mutex;
use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

/// Access times and uses to give back that wait for the next round of [`Remote::keep`].
const LATER_MAX: usize = 16 << 10;

/// Told, on a thread that may wait, what this mount may no longer believe, when it has lost track of what others did.
pub type OnLost = Box<dyn Fn(Vec<Invalidation>) + Send + Sync>;

/// Who is told what is no longer to be believed; what came before there was anybody.
#[derive(Default)]
struct Hearer {
    tell: Option<OnLost>,
    untold: Vec<Invalidation>,
}

/// See the module.
pub struct Remote {
    link: Arc<dyn Link>,
    session: Session,
    clock: Arc<dyn Clock>,
    /// The mount's own store: changes that are not published, objects that are not stored.
    own: Arc<MetaStore>,
    cache: Cache,
    pending: Pending,
    next_change: AtomicU64,
    publishing: [Mutex<()>; 64],
    /// Inodes that the server keeps for this session, whether they have a name or not.
    held: Mutex<HashSet<Ino>>,
    released: Mutex<Vec<Ino>>,
    /// Files that were read, and when: told in the background.
    read: Mutex<HashMap<Ino, Timestamp>>,
    on_lost: Mutex<Hearer>,
    locks: locks::Book,
    /// Files of which writes were dropped that were made under locks which are lost.
    dropped: Mutex<lost::Lost>,
    /// Since when, and why, the server does not answer.
    silence: Mutex<Option<(Duration, String)>>,
    gate: hand_over::Gate,
    shipped: ship::Shared,
}

impl Remote {
    /// The metadata behind `link` for `session`, with `own` for what is the mount's alone. `boot` tells this boot of the host from
    /// every other one, so that it is known whether `own` may have lost something; all zero is not known.
    pub fn new(
        link: Arc<dyn Link>,
        session: Session,
        own: Arc<MetaStore>,
        clock: Arc<dyn Clock>,
        boot: [u8; 16],
    ) -> Result<Self> {
        let remote = Self::of(link, session, own, clock);
        remote.recover(boot)?;
        Ok(remote)
    }

    fn of(link: Arc<dyn Link>, session: Session, own: Arc<MetaStore>, clock: Arc<dyn Clock>) -> Self {
        let remote = Self {
            link,
            session,
            clock,
            own,
            cache: Cache::default(),
            pending: Pending::default(),
            next_change: AtomicU64::new(1),
            publishing: std::array::from_fn(|_| Mutex::default()),
            held: Mutex::default(),
            released: Mutex::default(),
            read: Mutex::default(),
            on_lost: Mutex::default(),
            locks: locks::Book::default(),
            dropped: Mutex::default(),
            silence: Mutex::default(),
            gate: hand_over::Gate::default(),
            shipped: ship::Shared::default(),
        };
        remote.cache.restart(remote.session.pushes, &mut Vec::new());
        remote
    }

    /// Whom to tell when track is lost, at once if it was. To be called on a thread that may wait.
    pub fn on_lost(&self, tell: OnLost) {
        let mut hearer = self.on_lost.lock();
        let untold = std::mem::take(&mut hearer.untold);
        if !untold.is_empty() {
            tell(untold);
        }
        hearer.tell = Some(tell);
    }

    /// Takes a push: nothing that it names is believed here any more when this returns. What it gives back is for those who keep
    /// copies of their own: all that the push says, name by name.
    pub fn take_push(&self, number: u64, items: &[Invalidation]) -> Vec<Invalidation> {
        self.cache.note_taken(number);
        let mut told = Vec::with_capacity(items.len());
        items.iter().for_each(|what| self.cache.drop_what(what, &mut told));
        let held = self.held.lock();
        let mut released = self.released.lock();
        for what in items {
            if let Invalidation::Unlinked(ino) = what
                && !held.contains(ino)
            {
                released.push(*ino);
            }
        }
        told
    }

    /// Nothing is known any more of what others did.
    fn lost_track(&self, pushes: u64) {
        let mut told = Vec::new();
        self.cache.restart(pushes, &mut told);
        self.tell_lost(told);
    }

    /// Those who keep copies of their own believe this no more.
    fn tell_lost(&self, items: Vec<Invalidation>) {
        let mut hearer = self.on_lost.lock();
        match &hearer.tell {
            Some(tell) => tell(items),
            None => hearer.untold.extend(items),
        }
    }

    /// The server's attributes, without what this mount has not published.
    fn server_attr(&self, ino: Ino) -> Result<Attr> {
        if self.is_believed()
            && let Some(attr) = self.cache.of(ino, |known| known.attr.clone())
        {
            return Ok(attr);
        }
        let (head, attr) = self.ask(&Getattr { ino })?;
        self.keep_attr(head, &attr);
        Ok(attr)
    }

    fn keep_attr(&self, head: Heard, attr: &Attr) {
        self.cache.enter(head, attr.ino, |known| known.attr = Some(attr.clone()));
    }

    /// What the server said of an inode, asked after `asked`, as this mount's programs must see it. Every answer with attributes goes
    /// through here.
    fn shown(&self, attr: Attr, asked: Moment) -> Result<Attr> {
        let ino = attr.ino;
        let attr = self.laid_over(attr);
        if self.pending.is_whole(ino, asked) { Ok(attr) } else { self.getattr(ino) }
    }

    fn laid_over(&self, mut attr: Attr) -> Attr {
        self.pending.attr(&mut attr);
        if let Some(atime) = self.read.lock().get(&attr.ino) {
            attr.atime = *atime;
        }
        attr
    }

    /// A new name for `attr`'s inode is known.
    fn keep_name(&self, head: Heard, dir: Ino, name: &[u8], attr: &Attr) {
        self.keep_attr(head, attr);
        self.keep_entry(head, dir, name, Some(attr.ino));
    }

    fn keep_entry(&self, head: Heard, dir: Ino, name: &[u8], ino: Option<Ino>) {
        if head.entries {
            self.cache.enter(head, dir, |known| known.set_name(name, ino));
        }
    }

    fn server_inode(&self, ino: Ino) -> Result<Inode> {
        if self.is_believed()
            && let Some(inode) = self.cache.of(ino, |known| known.inode.clone())
        {
            return Ok(inode);
        }
        let (head, shape) = self.ask(&GetInode { ino })?;
        self.cache.enter(head, ino, |known| {
            known.attr = Some(shape.attr.clone());
            known.inode = Some(shape.inode.clone());
        });
        Ok(shape.inode)
    }

    /// The records of the spans in [first, end).
    fn spans(&self, ino: Ino, first: u64, end: u64) -> Result<Vec<SpanRecords>> {
        if (first, end) == (0, 1)
            && self.is_believed()
            && let Some(span) = self.cache.of(ino, |known| known.first_span.clone())
        {
            return Ok(vec![span]);
        }
        let (mut at, mut all) = (first, Vec::new());
        loop {
            let (_, page) = self.ask(&GetExtents { ino, first: at, end })?;
            all.extend(page.spans);
            match page.next {
                Some(next) if next > at && next < end => at = next,
                _ => return Ok(all),
            }
        }
    }

    fn is_held(&self, ino: Ino) -> bool {
        self.held.lock().contains(&ino)
    }

    /// Something was made here: nothing is in it yet.
    fn made(&self, head: Heard, attr: &Attr) {
        self.held.lock().insert(attr.ino);
        if attr.is_dir() {
            self.cache.enter(head, attr.ino, Known::is_new_directory);
        }
        if attr.is_file() {
            let inode = empty_inode(attr);
            self.cache.enter(head, attr.ino, |known| {
                known.inode = Some(inode);
                known.body = Some(None);
                known.first_span = Some(SpanRecords { span: 0, records: Vec::new() });
                known.is_opened();
            });
        }
    }

    /// Gives uses back.
    fn release(&self, inos: &[Ino]) -> Result<()> {
        let mut rest = inos;
        while let Some(some) = rest.chunks(Release::INOS_MAX).next() {
            self.held.lock().retain(|ino| !some.contains(ino));
            if let Err(error) = self.ask(&Release { inos: some.to_vec(), cached: true }) {
                // Later, or by the process that goes on with the session.
                self.released.lock().extend(rest);
                return Err(error);
            }
            rest = &rest[some.len()..];
        }
        Ok(())
    }

    /// The mount is over: publishes what waits, and ends the session unless something is left for the next process.
    pub fn end(&self) -> Result<()> {
        self.catch_up()?;
        session::end(self)
    }

    /// What nobody waits for: access times, uses given back, files written and left open. From a thread that may wait, about
    /// once a second; any answer renews the lease.
    pub fn keep(&self) -> Result<()> {
        // None of it is done for the moment, and it would be taken for what comes late.
        let waits = self.session.refusal.is_on() && !self.gate.is_closed();
        if waits { self.renew() } else { self.catch_up() }
    }

    /// The same; fails where something of it cannot be done now.
    fn catch_up(&self) -> Result<()> {
        if self.gate.is_closed() {
            return Ok(());
        }
        self.assert_locks()?;
        let read: Vec<_> = self.read.lock().iter().map(|(ino, at)| (*ino, *at)).collect();
        for (ino, at) in read {
            match self.change(&UpdateAtime { ino, at }, &[ino]) {
                Ok(_) | Err(Error::Stale | Error::NotFound) => {}
                Err(error) => return Err(error),
            }
            let mut read = self.read.lock();
            if read.get(&ino) == Some(&at) {
                read.remove(&ino);
            }
        }
        let released = std::mem::take(&mut *self.released.lock());
        if !released.is_empty() {
            self.release(&released)?;
        }
        for ino in self.pending.files() {
            self.publish_waiting(ino)?;
        }
        self.sync_log()?;
        self.renew()
    }

    fn renew(&self) -> Result<()> {
        if self.valid() < self.session.lease() * 2 / 3 {
            self.ask(&Renew {})?;
        }
        Ok(())
    }

    /// Whether nothing is changed for the moment, as the server has lost what was done before. While it is so, to be asked every
    /// [`LOOK_INTERVAL`], by one thread: these are what ends it.
    pub fn looks_for_late_changes(&self) -> bool {
        self.session.refusal.look()
    }
}

/// The stored record of a regular file that was just made.
fn empty_inode(attr: &Attr) -> Inode {
    Inode {
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        rdev: attr.rdev,
        flags: 0,
        size: 0,
        held_bytes: 0,
        change: attr.change,
        parent: Ino(0),
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        btime: attr.btime,
    }
}
