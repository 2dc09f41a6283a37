//! Access times of what this process reads. They are noted in memory and written together some seconds later, as with lazytime (mount(8)):
//! a file that is read and removed soon costs no transaction for it, and a loss of the process loses some seconds of them.

use super::{Attr, Namespace};
use crate::{Result, keys, records::Inode};
use sluice_base::{Ino, Timestamp};
use sluice_run::lock::Mutex;
use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
};

/// Inodes that one transaction writes.
const WRITE_AT_ONCE: usize = 256;
/// Inodes whose times wait at most; who notes one more writes them first.
const NOTED_MAX: usize = 16_384;

/// Access times that are not in the tables yet.
#[derive(Default)]
pub(super) struct Accesses {
    noted: Mutex<HashMap<Ino, Timestamp>>,
    /// Whether there are any, so that nobody takes the lock for none.
    any: AtomicBool,
}

impl Accesses {
    fn of(&self, ino: Ino) -> Option<Timestamp> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.noted.lock().get(&ino).copied()
    }

    /// Whoever sets a time, or has written it, knows better.
    pub(super) fn drop_of(&self, ino: Ino) {
        if self.any.load(Ordering::Acquire) {
            self.noted.lock().remove(&ino);
        }
    }
}

/// relatime (mount(8)): the access time is kept when it is newer than both others and younger than a day.
pub fn atime_is_due(attr: &Attr, now: Timestamp) -> bool {
    attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.seconds_since(attr.atime) >= 24 * 3600
}

impl Namespace {
    /// Attributes as the tables have them, with the access time that waits.
    pub fn with_access(&self, attr: Attr) -> Attr {
        match self.accesses.of(attr.ino) {
            Some(atime) if atime > attr.atime => Attr { atime, ..attr },
            _ => attr,
        }
    }

    /// Marks an inode as read now, where relatime asks for it: shown by [`Namespace::with_access`] from now on, in the tables after
    /// [`Namespace::write_accesses`].
    pub fn note_access(&self, ino: Ino) -> Result<()> {
        let now = self.now();
        if !atime_is_due(&self.with_access(self.getattr(ino)?), now) {
            return Ok(());
        }
        let is_full = {
            let mut noted = self.accesses.noted.lock();
            noted.insert(ino, now);
            self.accesses.any.store(true, Ordering::Release);
            noted.len() >= NOTED_MAX
        };
        if is_full { self.write_accesses() } else { Ok(()) }
    }

    /// Writes the access times that wait.
    pub fn write_accesses(&self) -> Result<()> {
        loop {
            let some: Vec<(Ino, Timestamp)> = {
                let noted = self.accesses.noted.lock();
                noted.iter().take(WRITE_AT_ONCE).map(|(ino, time)| (*ino, *time)).collect()
            };
            if some.is_empty() {
                return Ok(());
            }
            self.store.transact(|txn| -> Result<()> {
                for (ino, time) in &some {
                    let Some(bytes) = txn.get(&keys::inode(*ino))? else { continue };
                    let inode = Inode::decode(&bytes)?;
                    // A time that was set meanwhile stands: whoever set it has dropped this one before, or conflicts with this.
                    if inode.atime < *time && self.accesses.of(*ino).is_some() {
                        txn.put(&keys::inode(*ino), Inode { atime: *time, ..inode }.encode());
                    }
                }
                Ok(())
            })?;
            let mut noted = self.accesses.noted.lock();
            for (ino, time) in &some {
                if noted.get(ino) == Some(time) {
                    noted.remove(ino);
                }
            }
            self.accesses.any.store(!noted.is_empty(), Ordering::Release);
        }
    }

    /// Marks an inode as read at `at`, or now if that is yet to come, in the tables: for whoever has noted it elsewhere.
    pub fn update_atime(&self, ino: Ino, at: Timestamp) -> Result<()> {
        let at = at.min(self.now());
        self.write(|txn| {
            let attr = super::Read::attr(txn, ino)?;
            if attr.atime < at && atime_is_due(&attr, at) {
                let mut inode = super::Read::inode(txn, ino)?;
                inode.atime = at;
                txn.put(&keys::inode(ino), inode.encode());
            }
            Ok(())
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Caller, NewNode, SetAttributes, SetTime,
        records::mode,
        store::{MemoryLog, MemoryTables, MetaStore, Options},
    };
    use sluice_base::{ManualClock, Seq};
    use std::{sync::Arc, time::Duration};

    const CALLER: Caller = Caller { uid: 0, gid: 0 };

    fn names() -> (Namespace, Arc<ManualClock>) {
        let store = MetaStore::new(
            Arc::new(MemoryTables::default()),
            Arc::new(MemoryLog::default()),
            Seq(0),
            Options::default(),
        );
        let clock = Arc::new(ManualClock::default());
        let names = Namespace::new(Arc::new(store), clock.clone());
        names.format(CALLER).expect("a root");
        (names, clock)
    }

    fn file(names: &Namespace, name: &str) -> Ino {
        let node = NewNode { mode: mode::REGULAR | 0o644, rdev: 0, target: b"" };
        names.create(Ino::ROOT, name.as_bytes(), node, CALLER).expect("created").value.ino
    }

    fn shown(names: &Namespace, ino: Ino) -> Timestamp {
        names.with_access(names.getattr(ino).expect("there")).atime
    }

    #[test]
    fn shown_at_once_and_written_later_in_one_transaction() {
        let (names, clock) = names();
        let files: Vec<Ino> = (0..100).map(|n| file(&names, &n.to_string())).collect();
        let made = names.getattr(files[0]).unwrap().atime;
        clock.advance(Duration::from_secs(1));
        let before = names.store().snapshot().seq();
        files.iter().for_each(|ino| names.note_access(*ino).unwrap());
        assert_eq!(names.store().snapshot().seq(), before, "a read is no transaction");
        assert!(files.iter().all(|ino| shown(&names, *ino) > made));
        assert_eq!(names.getattr(files[0]).unwrap().atime, made);
        names.write_accesses().unwrap();
        assert_eq!(names.store().snapshot().seq().0, before.0 + 1);
        assert!(files.iter().all(|ino| names.getattr(*ino).unwrap().atime > made));
        // Nothing waits any more, and what was read within the day is not due.
        clock.advance(Duration::from_secs(1));
        names.note_access(files[0]).unwrap();
        names.write_accesses().unwrap();
        assert_eq!(names.store().snapshot().seq().0, before.0 + 1);
    }

    #[test]
    fn a_time_that_is_set_stands() {
        let (names, clock) = names();
        let ino = file(&names, "f");
        clock.advance(Duration::from_secs(1));
        names.note_access(ino).unwrap();
        let old = Timestamp { secs: -7, nanos: 0 };
        names.setattr(ino, &SetAttributes { atime: Some(SetTime::To(old)), ..SetAttributes::default() }).unwrap();
        assert_eq!(shown(&names, ino), old);
        names.write_accesses().unwrap();
        assert_eq!(names.getattr(ino).unwrap().atime, old);
    }

    #[test]
    fn what_is_gone_is_left_out_and_many_do_not_grow_without_end() {
        let (names, clock) = names();
        let (gone, kept) = (file(&names, "gone"), file(&names, "kept"));
        clock.advance(Duration::from_secs(1));
        names.note_access(gone).unwrap();
        names.note_access(kept).unwrap();
        names.unlink(Ino::ROOT, b"gone", &|_| false).unwrap();
        names.write_accesses().unwrap();
        assert!(names.getattr(gone).is_err() && names.getattr(kept).unwrap().atime == names.now());
        for n in 0..=NOTED_MAX {
            names.note_access(file(&names, &n.to_string())).unwrap();
            assert!(names.accesses.noted.lock().len() < NOTED_MAX);
        }
    }
}
