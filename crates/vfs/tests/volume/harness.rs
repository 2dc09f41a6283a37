//! A volume in process: the shipped parts over disks and a store in memory that fail as told, joined as `sluice up` joins them.

use sluice_base::{
    Clock, Disk, Errno, Ino, ManualClock, SeededEntropy, Seq, VolumeId, disk::FaultPlan, disk::FaultyDisk,
    disk::MemoryDisk,
};
use sluice_journal::{Committer, Journal, JournalError, JournalOptions, Syncable};
use sluice_meta::{
    Caller, Namespace,
    store::{Checkpointer, MemoryLog, MemoryTables, MetaStore, Options, Record, Tables, replay},
};
use sluice_object::{FaultyBackend, MemoryBackend, Store, StoreOptions};
use sluice_store::{Cache, CacheOptions, SLOT_BYTES};
use sluice_vfs::{
    CacheSync, Failure, Group, HandleId, JournalLog, Owner, Parts, Read, Recovered, Replay, Settings, Vfs, unstored,
};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::runtime::Runtime;

pub const ROOT: Caller = Caller { uid: 0, gid: 0 };
pub const CACHE: &str = "/volume/cache";
pub const JOURNAL: &str = "/volume/journal";
/// What nothing here may take longer than.
const DEADLINE: Duration = Duration::from_secs(60);
const VOLUME: VolumeId = VolumeId([9; 16]);

/// What a volume is started with.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Slots of the cache; 0 is a volume without one.
    pub slots: u64,
    pub segment_bytes: u64,
    pub segments: u64,
    /// Whether metadata is checkpointed in the background, or only by `Volume::checkpoint`.
    pub checkpoints: bool,
    /// How long the timer lets a record wait for its sync.
    pub sync_interval: Duration,
}

impl Default for Shape {
    fn default() -> Self {
        let sync_interval = Duration::from_secs(3600);
        Self { slots: 64, segment_bytes: 16 << 20, segments: 16, checkpoints: false, sync_interval }
    }
}

/// What outlives a process.
pub struct World {
    pub disk: MemoryDisk,
    pub plan: Arc<FaultPlan>,
    pub tables: Arc<MemoryTables>,
    pub backend: Arc<FaultyBackend<MemoryBackend>>,
    pub clock: Arc<ManualClock>,
    pub shape: Shape,
    pub group: Option<Arc<dyn Group>>,
    pub owner: Option<Arc<dyn Owner>>,
    seed: u64,
}

impl World {
    pub fn new(seed: u64, shape: Shape) -> Self {
        let backend = Arc::new(FaultyBackend::new(MemoryBackend::default(), seed));
        let (disk, plan, tables, clock) = Default::default();
        Self { disk, plan, tables, backend, clock, shape, group: None, owner: None, seed }
    }

    fn journal_options(&self, first_seq: Seq) -> JournalOptions {
        let Shape { segment_bytes, segments, .. } = self.shape;
        let capacity_bytes = segment_bytes * segments;
        JournalOptions { segment_bytes, capacity_bytes, first_seq, ..JournalOptions::new(JOURNAL, VOLUME) }
    }

    pub fn start(&mut self) -> Volume {
        self.try_start().unwrap()
    }

    /// Starts as `sluice up` does.
    pub fn try_start(&mut self) -> Result<Volume, JournalError> {
        self.seed += 1;
        let (clock, tables): (Arc<dyn Clock>, _) = (self.clock.clone(), self.tables.clone());
        let disk: Arc<dyn Disk> = Arc::new(FaultyDisk::new(Arc::new(self.disk.clone()), self.plan.clone()));
        let cache = (self.shape.slots > 0).then(|| {
            let options =
                CacheOptions { dir: CACHE.into(), capacity_bytes: self.shape.slots * SLOT_BYTES, volume: VOLUME };
            Arc::new(Cache::open(disk.clone(), options, clock.clone()).unwrap())
        });
        let options = self.journal_options(Seq(tables.persisted().0 + 1));
        let mut apply = |seq, record: &[u8]| {
            replay(&*tables, seq, record, &mut |_, _, _| {}).unwrap();
            Ok(())
        };
        let (journal, found) = Journal::open(disk.clone(), options.clone(), &mut apply)?;
        drop(journal);
        let log = Arc::new(MemoryLog::default());
        let view = Arc::new(MetaStore::new(tables.clone(), log, found.last_seq, Options::default()));
        let view = Namespace::new(view, clock.clone());
        let mut data = Replay::new(unstored(&view).unwrap(), cache.as_deref());
        let mut restore = |seq, record: &[u8]| {
            let record = Record::parse(record).unwrap();
            record.attachments().iter().for_each(|(header, bytes)| data.attachment(seq, header, bytes));
            Ok(())
        };
        let (journal, _) = Journal::open(disk, options, &mut restore)?;
        let no_room = |error| JournalError::Replay { seq: found.last_seq, source: Box::new(error) };
        let recovered = data.finish().map_err(no_room)?;
        Ok(self.join(cache.clone(), Arc::new(journal), found.last_seq, recovered))
    }

    fn join(&self, cache: Option<Arc<Cache>>, journal: Arc<Journal>, last: Seq, recovered: Recovered) -> Volume {
        let slabs = cache.clone().map(|cache| CacheSync::new(cache, journal.clone()));
        let also_sync = slabs.iter().map(|slabs| slabs.clone() as Arc<dyn Syncable>).collect();
        let committer = Committer::start(journal.clone(), also_sync, self.shape.sync_interval);
        let log = Arc::new(JournalLog::new(journal.clone(), committer.clone()));
        let store = Arc::new(MetaStore::new(self.tables.clone(), log, last, Options::default()));
        let namespace = Arc::new(Namespace::new(store.clone(), self.clock.clone()));
        namespace.format(ROOT).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let entropy = Arc::new(SeededEntropy::new(self.seed));
        let objects = Store::with_backend(self.backend.clone(), "test", store_options(), entropy.clone());
        let session = namespace.begin_session().unwrap();
        let parts = Parts {
            namespace: namespace.clone(),
            journal: journal.clone(),
            committer: committer.clone(),
            cache: cache.clone(),
            store: Arc::new(objects),
            clock: self.clock.clone(),
            entropy,
            session,
            others: None,
            group: self.group.clone(),
            runtime: sluice_run::task::handle(runtime.handle()),
        };
        let damaged = recovered.damaged_segments;
        let settings = Settings {
            upload_delay: Duration::from_secs(3600),
            read_tries: 2,
            owner: self.owner.clone(),
            ..Settings::default()
        };
        let vfs = Vfs::start(parts, settings, recovered);
        let trimmer = Arc::downgrade(&vfs);
        let on_persisted = Box::new(move |_| trimmer.upgrade().iter().for_each(|vfs| vfs.trim_journal()));
        let checkpointer = self.shape.checkpoints.then(|| Checkpointer::start(store, on_persisted).unwrap());
        Volume {
            vfs,
            namespace,
            cache,
            journal,
            committer,
            slabs,
            checkpointer,
            damaged,
            clock: self.clock.clone(),
            runtime,
        }
    }

    /// The process is killed: what it wrote stays, what it knew goes.
    pub fn kill(&self, volume: Volume) {
        volume.end();
        self.tables.lose_power();
    }

    /// The host loses its power. Nothing may be under way but what was asked to wait.
    pub fn lose_power(&mut self, volume: Volume, seed: u64) {
        let found = self.disk.power_loss(seed);
        self.kill(volume);
        self.disk = found;
    }

    /// Somebody empties the cache directory of a volume that does not run.
    pub fn remove_cache(&self) {
        for path in self.disk.list(Path::new(CACHE)).unwrap() {
            self.disk.remove(&path).unwrap();
        }
    }
}

fn store_options() -> StoreOptions {
    let ms = Duration::from_millis;
    let (deadline, attempt_timeout, backoff_base) = (ms(2000), ms(400), ms(1));
    StoreOptions { attempts_max: 3, deadline, attempt_timeout, backoff_base, ..StoreOptions::default() }
}

/// A running process.
pub struct Volume {
    pub vfs: Arc<Vfs>,
    pub namespace: Arc<Namespace>,
    pub cache: Option<Arc<Cache>>,
    pub journal: Arc<Journal>,
    committer: Arc<Committer>,
    slabs: Option<Arc<CacheSync>>,
    checkpointer: Option<Checkpointer>,
    /// Damaged segments that replay found.
    pub damaged: usize,
    clock: Arc<ManualClock>,
    runtime: Runtime,
}

impl Volume {
    fn end(self) {
        self.vfs.stop();
        self.slabs.iter().for_each(|slabs| slabs.end());
        drop(self.vfs);
        self.runtime.shutdown_timeout(DEADLINE);
        drop(self.checkpointer);
        self.committer.shutdown();
    }

    /// Waits, but not for ever.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(DEADLINE, future).await.expect("it ends in time") })
    }

    pub fn create(&self, name: &str) -> (Ino, HandleId) {
        let (attr, opened) = self.vfs.create(Ino::ROOT, name.as_bytes(), 0o644, ROOT).unwrap();
        (attr.ino, opened.handle)
    }

    pub fn open(&self, name: &str) -> Option<(Ino, HandleId)> {
        let ino = self.namespace.find(Ino::ROOT, name.as_bytes()).unwrap()?;
        Some((ino, self.vfs.open(ino).unwrap().handle))
    }

    /// As a front end writes: what must wait waits elsewhere.
    pub fn write(&self, handle: HandleId, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        match self.vfs.write(handle, offset, bytes, false) {
            Ok(()) => Ok(()),
            Err(Failure::Errno(errno)) => Err(errno),
            Err(_) => self.wait(self.vfs.clone().write_later(handle, offset, bytes.to_vec(), false)),
        }
    }

    /// As a front end does what may find the journal full.
    pub fn patiently<T: Send + 'static>(
        &self,
        mut operation: impl FnMut(&Vfs) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Errno> {
        let vfs = self.vfs.clone();
        self.wait(self.vfs.make_room(move || operation(&vfs)))
    }

    pub fn read(&self, handle: HandleId, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut buf = vec![0xa5; len];
        let read = match self.vfs.read(handle, offset, &mut buf, false) {
            // Somebody has the file's data for long.
            Err(Failure::Away) => sluice_vfs::waiting(|| self.vfs.read(handle, offset, &mut buf, false)),
            other => other,
        };
        match read.map_err(Failure::errno)? {
            Read::Done(done) => {
                buf.truncate(done);
                Ok(buf)
            }
            Read::Later => {
                self.wait(self.vfs.clone().read_later(handle, offset, len, false)).map(|pieces| pieces.concat())
            }
        }
    }

    pub fn size(&self, ino: Ino) -> u64 {
        self.vfs.namespace().getattr(ino).unwrap().size
    }

    /// The whole file, in reads of 128 KiB.
    pub fn read_all(&self, name: &str) -> Result<Vec<u8>, Errno> {
        let (ino, handle) = self.open(name).ok_or(Errno::ENOENT)?;
        let mut all = Vec::new();
        while (all.len() as u64) < self.size(ino) {
            all.extend(self.read(handle, all.len() as u64, 128 << 10)?);
        }
        self.vfs.release(handle);
        Ok(all)
    }

    pub fn sync(&self) -> Result<(), Errno> {
        self.vfs.sync().map_or(Ok(()), |synced| self.wait(synced))
    }

    pub fn checkpoint(&self) {
        self.namespace.store().checkpoint().unwrap();
        self.vfs.trim_journal();
    }

    /// What is dirty and nobody adds to goes to the store, sooner or later.
    pub fn upload_some(&self) {
        self.clock.advance(Duration::from_secs(7200));
        let mut tried = false;
        self.patiently(move |_| if std::mem::replace(&mut tried, true) { Ok(()) } else { Err(Failure::Wait) }).unwrap();
    }

    /// Everything that is dirty now goes to the store.
    pub fn upload(&self) {
        self.clock.advance(Duration::from_secs(7200));
        self.patiently(|vfs| if vfs.dirty_totals().0 == 0 { Ok(()) } else { Err(Failure::Wait) }).unwrap();
    }
}

/// Bytes that tell where they belong.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let word = |at: usize| (at as u64 + 1).wrapping_mul(seed.wrapping_mul(2) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len).map(|at| (word(at / 4) >> (24 + at % 4 * 8)) as u8).collect()
}
