//! A volume without its files: tables, a log, objects and a store.

use sluice_base::{Clock, Entropy, ObjectId, SeededEntropy, Seq, SystemClock};
use sluice_meta::store::{Log, MemoryLog, MemoryTables, MetaError, MetaStore, Options, Tables};
use sluice_object::{FaultyBackend, MemoryBackend, Store, StoreOptions};
use sluice_run::lock::Mutex;
use sluice_ship::{Line, Place, RestoreError, Restored, Shipper, ShipperParts, Taking, Tee, TeeLog, restore};
use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc, time::Duration};
use tokio::time::timeout;

pub const LONG: Duration = Duration::from_secs(60);
pub type Keys = BTreeMap<Vec<u8>, Vec<u8>>;
pub type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// Where processes say that they have the volume.
pub fn place() -> Place {
    Place { host: "host".into(), dir: "/volume".into() }
}

/// By force, as a directory of line `line`.
pub fn taking(line: u64) -> Taking {
    Taking { line: Line(line), wall_secs: 0, is_forced: true }
}

/// A volume's tables and log, and the store.
pub struct Rig {
    pub tables: Arc<MemoryTables>,
    pub log: Arc<MemoryLog>,
    pub backend: Arc<FaultyBackend<MemoryBackend>>,
    pub store: Store,
    /// The keys after each record.
    pub history: Vec<Keys>,
    pub random: SeededEntropy,
    pub line: Line,
}

/// A process that ships.
pub struct Process {
    pub meta: Arc<MetaStore>,
    pub shipper: Arc<Shipper>,
    pub bytes: Arc<Bytes>,
}

/// What a process knows of objects that the store may lack.
#[derive(Default)]
pub struct Bytes(pub Mutex<Dirty>);

#[derive(Default)]
pub struct Dirty {
    /// Not stored, each with the first record that may speak of it.
    pub objects: BTreeMap<ObjectId, u64>,
    /// Given up before they were stored: spoken of from the first record to the last one.
    pub given_up: Vec<(u64, u64)>,
}

impl Bytes {
    pub fn bound(&self, known: Seq, end: Seq) -> Seq {
        let mut dirty = self.0.lock();
        let mut end = dirty.objects.values().min().map_or(end, |first| end.min(Seq(first - 1)));
        dirty.given_up.retain(|(_, last)| *last > known.0);
        while let Some((first, _)) = dirty.given_up.iter().find(|(first, last)| *first <= end.0 && end.0 < *last) {
            end = Seq(first - 1);
        }
        end
    }

    /// How far must be shipped, for `seq` to be.
    pub fn whole(&self, mut seq: u64) -> u64 {
        let dirty = self.0.lock();
        while let Some((_, last)) = dirty.given_up.iter().find(|(first, last)| *first <= seq && seq < *last) {
            seq = *last;
        }
        seq
    }
}

impl Process {
    /// Ends it; from then on it asks nothing of the store.
    pub async fn end(&self) {
        self.shipper.stop();
        timeout(LONG, self.shipper.ended()).await.expect("it ends");
    }
}

impl Rig {
    pub fn new(seed: u64) -> Self {
        let backend = Arc::new(FaultyBackend::new(MemoryBackend::default(), seed));
        let (backoff_base, attempts_max) = (Duration::from_millis(1), 20);
        let options = StoreOptions { backoff_base, attempts_max, ..StoreOptions::default() };
        let entropy = Arc::new(SeededEntropy::new(seed));
        let store = Store::with_backend(backend.clone(), "memory:", options, entropy);
        let (tables, log) = Default::default();
        let (history, random, line) = (vec![Keys::new()], SeededEntropy::new(seed), Line(1));
        Self { tables, log, backend, store, history, random, line }
    }

    pub fn below(&self, end: u64) -> u64 {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes);
        u64::from_le_bytes(bytes) % end
    }

    /// Starts a process whose journal has the records behind `journal`, and that ships behind the bytes.
    pub fn start(&self, journal: Seq) -> Process {
        self.start_with(journal, Arc::default(), false)
    }

    pub fn start_with(&self, journal: Seq, bytes: Arc<Bytes>, is_ahead: bool) -> Process {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let tee = Tee::new(clock.clone());
        for (seq, _, record) in self.log.records().into_iter().filter(|(seq, ..)| *seq > journal) {
            tee.push(seq, &record);
        }
        let log = Arc::new(TeeLog::new(self.log.clone(), tee.clone()));
        let meta = Arc::new(MetaStore::new(self.tables.clone(), log, self.log.last(), Options::default()));
        let entropy = Arc::new(SeededEntropy::new(self.below(u64::MAX)));
        let (tables, store, line) = (meta.clone(), self.store.clone(), self.line);
        let on_checkpoint = Box::new(|| Ok(()));
        let parts = ShipperParts { tables, tee, store, clock, entropy, line, on_checkpoint, is_ahead, place: place() };
        let shipper = Shipper::new(parts);
        let runtime = sluice_run::task::handle(&tokio::runtime::Handle::current());
        let known = bytes.clone();
        shipper.begin(Box::new(move |whole, end| known.bound(whole, end)), &runtime);
        Process { meta, shipper, bytes }
    }

    /// Commits a transaction; returns its number.
    pub fn commit(&mut self, process: &Process, changes: Changes) -> u64 {
        let mut keys = self.history.last().expect("one at least").clone();
        let done = process.meta.transact::<_, MetaError>(|txn| {
            for (key, value) in &changes {
                match value {
                    Some(value) => txn.put(key, value.clone()),
                    None => txn.delete(key),
                }
            }
            txn.attach(b"header".to_vec(), b"bytes of a file");
            Ok(())
        });
        for (key, value) in changes {
            match value {
                Some(value) => drop(keys.insert(key, value)),
                None => drop(keys.remove(&key)),
            }
        }
        let seq = done.expect("committed").seq.0;
        assert_eq!(seq, self.history.len() as u64);
        self.history.push(keys);
        self.log.ensure_synced(Seq(seq)).expect("memory");
        seq
    }

    /// Some transactions.
    pub fn write(&mut self, process: &Process, count: u64) {
        for _ in 0..count {
            let changes = (0..1 + self.below(3))
                .map(|_| {
                    // Among them those of the tables that engines treat apart.
                    let table = b"idsv"[self.below(4) as usize];
                    let key = [&[table][..], &self.below(40).to_be_bytes()].concat();
                    let value = (self.below(4) != 0).then(|| vec![self.below(256) as u8; self.below(3000) as usize]);
                    (key, value)
                })
                .collect();
            self.commit(process, changes);
        }
    }

    /// What the store has now. Whoever asks is of the volume's line, so that its directory may go on.
    pub async fn restored(&self) -> Result<(Keys, Seq), RestoreError> {
        let (tables, restored) = self.restore_as(self.line).await?;
        Ok((all_keys(&tables), restored.seq))
    }

    pub async fn restore_as(&self, line: Line) -> Result<(MemoryTables, Restored), RestoreError> {
        loop {
            let tables = MemoryTables::default();
            match restore(&self.store, &tables, Taking { line, wall_secs: 0, is_forced: true }, |_, _| {}).await {
                // A process that was told to stop may still end what it was about.
                Err(RestoreError::Moved(_)) => {}
                restored => return Ok((tables, restored?)),
            }
        }
    }

    /// Waits until it is so.
    pub async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let waits = async {
            while !is_so(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(LONG, waits).await.expect("it comes to that");
    }

    /// The host is gone, and what the store has goes on on another one.
    pub fn go_on(&mut self, tables: MemoryTables, seq: Seq, line: Line) {
        let log = MemoryLog::default();
        for (_, class, record) in self.log.records().into_iter().take(seq.0 as usize) {
            log.append(class, &[&record]).expect("memory");
        }
        log.ensure_synced(seq).expect("memory");
        self.history.truncate(seq.0 as usize + 1);
        (self.tables, self.log, self.line) = (Arc::new(tables), Arc::new(log), line);
        assert_eq!(self.log.last(), seq);
    }
}

pub fn all_keys(tables: &dyn Tables) -> Keys {
    let mut keys = Keys::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        keys.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    };
    tables.scan(&[1], &[0xff], tables.applied(), &mut visit).expect("memory");
    keys
}
