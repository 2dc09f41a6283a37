//! Programs on a mount: what they do is random, what they see is judged.

use crate::{
    hosts::Mount,
    oracle::{Oracle, Tick, UNIT_BYTES, unit_of},
    seed::World,
};
use rand::{Rng, rngs::SmallRng};
use sluice_base::{Errno, Ino};
use sluice_run::simulation;
use sluice_vfs::HandleId;
use std::{sync::Arc, time::Duration};

/// Names that all programs use.
const NAMES: usize = 6;
/// Units of a file whose content is in the metadata, of one of small writes, and of one of large ones.
const SIZES: [u64; 3] = [8, 200, 1200];

pub struct Program {
    pub world: Arc<World>,
    /// Which mount it is on, and the mount.
    pub at: usize,
    pub mount: Arc<Mount>,
    pub rng: SmallRng,
    /// Tells its names from those of others.
    pub tag: String,
}

impl Program {
    /// Works until its mount's share of the work is done.
    pub fn run(mut self) {
        let mut round = 0;
        while self.world.take_work(self.at) {
            round += 1;
            let name = format!("f{}", self.rng.random_range(0..NAMES));
            match self.rng.random_range(0..10) {
                0..4 => self.write_some(&name),
                4..7 => self.read_some(&name),
                7 => self.replace(&name, &format!("{}-{round}", self.tag)),
                8 => self.remove(&name),
                _ => self.list(),
            }
            simulation::sleep(Duration::from_micros(self.rng.random_range(0..600_000)));
        }
    }

    /// Looks at the same few names again and again, as long as there is work: what is cached here may be all that it sees.
    pub fn watch(mut self) {
        while self.world.has_work() {
            let name = format!("f{}", self.rng.random_range(0..2));
            if let Some(ino) = self.find(&name)
                && self.rng.random_ratio(1, 3)
            {
                self.read_file(ino);
            }
            simulation::sleep(Duration::from_millis(self.rng.random_range(100..1500)));
        }
    }

    fn tick(&self) -> Tick {
        self.oracle(Oracle::tick)
    }

    fn oracle<R>(&self, work: impl FnOnce(&mut Oracle) -> R) -> R {
        self.world.oracle(work)
    }

    fn judged(&self, judged: Result<(), String>) {
        self.world.judged(judged.map_err(|why| format!("mount {}: {why}", self.at)));
    }

    /// An answer that is none: only while something is wrong with the world.
    fn excused(&self, what: &str, errno: Errno) {
        self.world.trace(|| format!("{} {what}: {errno}", self.tag));
        self.world.excused(&format!("mount {}: {what}", self.at), errno);
    }

    /// The file of a name, as it is found.
    fn find(&self, name: &str) -> Option<Ino> {
        let since = self.tick();
        let found = match self.mount.lookup(name) {
            Ok(attr) => Some(attr.ino),
            Err(Errno::ENOENT) => None,
            Err(errno) => {
                self.excused(&format!("looking up {name}"), errno);
                return None;
            }
        };
        self.world.trace(|| format!("{} {name} is {found:?}", self.tag));
        self.judged(self.oracle(|oracle| oracle.judge_name(name, found, since)));
        found
    }

    fn create(&self, name: &str) -> Option<(Ino, HandleId)> {
        let change = self.oracle(|oracle| oracle.change_name(name, Some(None)));
        let made = self.mount.create(name);
        self.world.trace(|| format!("{} created {name}: {made:?}", self.tag));
        match made {
            Ok((ino, handle)) => {
                self.oracle(|oracle| oracle.name_changed(name, change, Some(Some(ino))));
                Some((ino, handle))
            }
            Err(Errno::EEXIST) => {
                self.oracle(|oracle| oracle.name_refused(name, change));
                None
            }
            Err(errno) => {
                self.excused(&format!("creating {name}"), errno);
                None
            }
        }
    }

    fn write_some(&mut self, name: &str) {
        let (ino, handle) = match self.find(name) {
            None => match self.create(name) {
                Some((ino, handle)) if self.world.take_file(ino, self.at) => (ino, handle),
                Some((_, handle)) => return self.mount.release(handle),
                None => return,
            },
            Some(ino) => {
                if !self.world.take_file(ino, self.at) {
                    return self.read_file(ino);
                }
                match self.mount.open(ino) {
                    Ok(handle) => (ino, handle),
                    Err(errno) => {
                        self.world.leave_file(ino);
                        return self.gone_or_excused("opening to write", errno);
                    }
                }
            }
        };
        self.fill(ino, handle);
    }

    /// Writes to a file that was taken, and closes it.
    fn fill(&mut self, ino: Ino, handle: HandleId) {
        let size = SIZES[(ino.0 % 3) as usize];
        for _ in 0..self.rng.random_range(1..5) {
            let first = self.rng.random_range(0..size);
            let large = size > 1000 && self.rng.random_ratio(1, 2);
            let (least, most) = if large { (260, 600) } else { (1, 60) };
            let end = (first + self.rng.random_range(least..=most)).min(size);
            if self.rng.random_ratio(1, 8) {
                self.cut(ino, first);
            } else {
                self.write(ino, handle, first, end);
            }
            if self.rng.random_ratio(1, 4) {
                self.read(ino, handle, self.world.before(), 0, size);
            }
            if self.rng.random_ratio(1, 4) {
                simulation::sleep(Duration::from_millis(self.rng.random_range(0..900)));
            }
        }
        if self.rng.random_ratio(1, 2) {
            self.fsync(ino);
            if self.rng.random_ratio(1, 2) {
                simulation::sleep(Duration::from_millis(self.rng.random_range(0..1500)));
            }
        }
        self.close(ino, handle);
    }

    fn write(&self, ino: Ino, handle: HandleId, first: u64, end: u64) {
        let number = self.oracle(|oracle| oracle.write(self.at, ino, first, end, false));
        let bytes = (first..end).map(|unit| unit_of(number, unit)).collect::<Vec<_>>().concat();
        let written = self.mount.write(handle, first * UNIT_BYTES as u64, &bytes);
        self.world.trace(|| format!("{} write {number} of {ino} {first}..{end}: {written:?}", self.tag));
        match written {
            Ok(()) => self.oracle(|oracle| oracle.acked(number)),
            Err(errno) => self.gone_or_excused("writing", errno),
        }
    }

    fn cut(&self, ino: Ino, first: u64) {
        let number = self.oracle(|oracle| oracle.write(self.at, ino, first, u64::MAX, true));
        let cut = self.mount.truncate(ino, first * UNIT_BYTES as u64);
        self.world.trace(|| format!("{} cut {number} of {ino} at {first}: {cut:?}", self.tag));
        match cut {
            Ok(()) => self.oracle(|oracle| oracle.acked(number)),
            Err(errno) => self.gone_or_excused("cutting", errno),
        }
    }

    fn fsync(&self, ino: Ino) {
        let since = self.tick();
        let synced = self.mount.fsync(ino);
        self.world.trace(|| format!("{} fsync of {ino}: {synced:?}", self.tag));
        match synced {
            Ok(()) => self.oracle(|oracle| {
                oracle.published(self.at, ino, since);
                oracle.synced(self.at, ino, since);
            }),
            Err(errno) => self.gone_or_excused("fsync", errno),
        }
    }

    fn close(&self, ino: Ino, handle: HandleId) {
        let since = self.tick();
        let flushed = self.mount.flush(ino);
        self.world.trace(|| format!("{} close of {ino}: {flushed:?}", self.tag));
        match flushed {
            Ok(()) => {
                self.oracle(|oracle| oracle.published(self.at, ino, since));
                self.world.leave_file(ino);
            }
            // Its mount publishes it later; until then nobody else writes it.
            Err(errno) => self.gone_or_excused("closing", errno),
        }
        self.mount.release(handle);
    }

    fn gone_or_excused(&self, what: &str, errno: Errno) {
        if errno != Errno::ENOENT && errno != Errno(116) {
            self.excused(what, errno);
        }
    }

    fn read_some(&mut self, name: &str) {
        if let Some(ino) = self.find(name) {
            self.read_file(ino);
        }
    }

    fn read_file(&mut self, ino: Ino) {
        let opened = self.tick();
        let handle = match self.mount.open(ino) {
            Ok(handle) => handle,
            Err(errno) => return self.gone_or_excused("opening", errno),
        };
        let size = SIZES[(ino.0 % 3) as usize];
        if self.rng.random_ratio(1, 2) {
            self.read(ino, handle, opened, 0, size);
        } else {
            let first = self.rng.random_range(0..size);
            let units = self.rng.random_range(1..=size - first);
            self.read(ino, handle, opened, first, units);
        }
        self.mount.release(handle);
    }

    fn read(&self, ino: Ino, handle: HandleId, opened: Tick, first: u64, units: u64) {
        let since = self.tick();
        let read = self.mount.read(handle, first * UNIT_BYTES as u64, units as usize * UNIT_BYTES);
        self.world.trace(|| format!("{} read of {ino} {first}+{units}: {:?}", self.tag, read.as_ref().map(Vec::len)));
        match read {
            Ok(bytes) => {
                self.judged(self.oracle(|oracle| oracle.judge(self.at, ino, first, units, &bytes, opened, since)));
            }
            Err(errno) if self.oracle(|oracle| oracle.may_be_damaged(ino)) => {
                self.world.trace(|| format!("{} a read of a damaged file: {errno}", self.tag));
            }
            Err(errno) => self.gone_or_excused("reading", errno),
        }
    }

    /// A file made aside and renamed over another, as editors do.
    fn replace(&mut self, name: &str, aside: &str) {
        let Some((ino, handle)) = self.create(aside) else { return };
        if !self.world.take_file(ino, self.at) {
            return self.mount.release(handle);
        }
        self.fill(ino, handle);
        let changes =
            self.oracle(|oracle| (oracle.change_name(aside, None), oracle.change_name(name, Some(Some(ino)))));
        let since = self.tick();
        let renamed = self.mount.rename(aside, name);
        self.world.trace(|| format!("{} renamed {aside} ({ino}) to {name}: {renamed:?}", self.tag));
        match renamed {
            Ok(()) => self.oracle(|oracle| {
                oracle.name_changed(aside, changes.0, None);
                oracle.name_changed(name, changes.1, Some(Some(ino)));
            }),
            Err(Errno::ENOENT) => {
                self.oracle(|oracle| {
                    oracle.name_refused(aside, changes.0);
                    oracle.name_refused(name, changes.1);
                });
                self.judged(self.oracle(|oracle| oracle.judge_name(aside, None, since)));
            }
            Err(errno) => self.excused("renaming", errno),
        }
    }

    fn remove(&self, name: &str) {
        let since = self.tick();
        let change = self.oracle(|oracle| oracle.change_name(name, None));
        let removed = self.mount.unlink(name);
        self.world.trace(|| format!("{} unlinked {name}: {removed:?}", self.tag));
        match removed {
            Ok(()) => self.oracle(|oracle| oracle.name_changed(name, change, None)),
            Err(Errno::ENOENT) => {
                self.oracle(|oracle| oracle.name_refused(name, change));
                self.judged(self.oracle(|oracle| oracle.judge_name(name, None, since)));
            }
            Err(errno) => self.excused("unlinking", errno),
        }
    }

    /// Lists the directory: every name as it may be.
    pub fn list(&self) {
        let since = self.tick();
        match self.mount.list() {
            Ok(found) => {
                self.world.trace(|| format!("{} lists {found:?}", self.tag));
                self.oracle(|oracle| oracle.judge_list(&found, since))
                    .map_or_else(|why| self.judged(Err(why)), |()| ());
            }
            Err(errno) => self.excused("listing", errno),
        }
    }

    /// Publishes what earlier programs of this mount, which were killed, had taken to write.
    pub fn take_over(&self) {
        for ino in self.world.files_of(self.at) {
            if let Ok(handle) = self.mount.open(ino) {
                self.read(ino, handle, self.world.before(), 0, SIZES[(ino.0 % 3) as usize]);
                self.fsync(ino);
                self.close(ino, handle);
            }
        }
    }

    /// Reads a whole file, for the end: the bytes.
    pub fn whole(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let opened = self.tick();
        let handle = self.mount.open(ino)?;
        let units = SIZES[(ino.0 % 3) as usize];
        let since = self.tick();
        let read = self.mount.read(handle, 0, units as usize * UNIT_BYTES);
        if let Ok(bytes) = &read {
            self.judged(self.oracle(|oracle| oracle.judge(self.at, ino, 0, units, bytes, opened, since)));
        }
        self.mount.release(handle);
        read
    }
}
