//! Hosts: what outlives their processes, and how the processes on them are started.

mod mount;
mod node;
mod server;

pub use mount::{Mount, mount};
pub use node::{Node, lend, name};
pub use server::{Server, serve};

use crate::disk::SlowDisk;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sluice_base::{
    Clock, Disk, Entropy, Errno, SeededEntropy, Timestamp, VolumeId,
    disk::{FaultPlan, FaultyDisk, MemoryDisk, Operation},
    limits::{SEGMENT_BYTES, SEGMENTS_PER_OBJECT},
};
use sluice_join::Kept;
use sluice_journal::{Journal, JournalOptions};
use sluice_meta::{
    Caller,
    store::{MemoryTables, Tables},
};
use sluice_net::{Callbacks, Client, ClientOptions};
use sluice_object::{FaultyBackend, MemoryBackend, Store, StoreOptions};
use sluice_run::{net::address_of, simulation};
use sluice_store::{Cache, CacheError, CacheOptions, SLOT_BYTES};
use sluice_wire::Hello;
use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

pub const VOLUME: VolumeId = VolumeId([9; 16]);
/// The process of the server; mounts and nodes follow.
pub const SERVER: u32 = 1;
const JOURNAL: &str = "/host/journal";
const CACHE: &str = "/host/cache";
/// So small that segments are crossed and freed.
const LOG_SEGMENT_BYTES: u64 = 2 << 20;
const JOURNAL_BYTES: u64 = 16 << 20;
const ROOT: Caller = Caller { uid: 0, gid: 0 };

/// Virtual time, and a wall clock that is wrong.
pub struct HostClock {
    wall_ahead: i64,
    started: Duration,
}

impl Clock for HostClock {
    fn wall(&self) -> Timestamp {
        let now = simulation::now();
        Timestamp { secs: 1_700_000_000 + self.wall_ahead + now.as_secs() as i64, nanos: now.subsec_nanos() }
    }
    fn monotonic(&self) -> Duration {
        simulation::now() + self.started
    }
}

/// Which disk of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    Cache,
    Journal,
}

/// One host.
pub struct Host {
    /// The process that runs on it, and its place in the network.
    pub process: u32,
    disk: Mutex<MemoryDisk>,
    /// Room of its cache; without any there is none.
    slots: u64,
    /// What its disk refuses.
    pub plan: Arc<FaultPlan>,
    tables: Mutex<Arc<MemoryTables>>,
    backend: Arc<FaultyBackend<MemoryBackend>>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    boots: AtomicU64,
    /// Segments in which its cache disk had a bit flipped.
    pub rotten: AtomicU64,
    pub alive: AtomicBool,
}

impl Host {
    pub fn new(process: u32, seed: u64, slots: u64, backend: Arc<FaultyBackend<MemoryBackend>>) -> Self {
        let wall_ahead = SmallRng::seed_from_u64(seed ^ u64::from(process) << 32).random_range(-3600..=3600);
        let started = Duration::from_secs(1000 * u64::from(process));
        Self {
            process,
            slots,
            disk: Mutex::default(),
            plan: Arc::default(),
            tables: Mutex::default(),
            backend,
            clock: Arc::new(HostClock { wall_ahead, started }),
            entropy: Arc::new(SeededEntropy::new(seed.wrapping_mul(31).wrapping_add(process.into()))),
            boots: AtomicU64::new(1),
            rotten: AtomicU64::new(0),
            alive: AtomicBool::new(false),
        }
    }

    /// Its process is killed. What it wrote stays; when the host loses power too, what it synced.
    pub fn kill(&self, power: Option<u64>) {
        self.alive.store(false, Ordering::SeqCst);
        simulation::kill(self.process, power.is_some());
        self.tables().lose_power();
        if let Some(seed) = power {
            let mut disk = self.disk.lock().expect("nobody panics with it");
            let found = disk.power_loss(seed);
            *disk = found;
            self.boots.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub fn limit_disk(&self, bytes: u64) {
        self.disk.lock().expect("nobody panics with it").set_capacity(bytes);
    }

    pub fn disk_used(&self) -> u64 {
        self.disk.lock().expect("nobody panics with it").used_bytes()
    }

    /// One bit flips in some of the segments that its cache disk holds; returns in how many. Some of them somebody else reads, so
    /// that memory has them before the node has looked.
    pub fn rot(&self, rng: &mut SmallRng) -> usize {
        let disk = self.disk.lock().expect("nobody panics with it").clone();
        let slab = Path::new(CACHE).join("slab-00000");
        let segments = self.slots * SEGMENTS_PER_OBJECT as u64;
        let some: Vec<_> = (0..segments).filter(|_| rng.random_ratio(3, 4)).collect();
        let offsets = some.into_iter().map(|at| at * SEGMENT_BYTES as u64 + rng.random_range(0..SEGMENT_BYTES as u64));
        let flipped: Vec<_> = offsets.filter(|offset| disk.flip_bit(&slab, *offset)).collect();
        for offset in flipped.iter().filter(|_| rng.random_ratio(1, 2)) {
            let read = disk.open(&slab).and_then(|slab| slab.read_exact_at(&mut [0], *offset));
            read.expect("a disk in memory that has this byte");
        }
        let flipped = flipped.len();
        self.rotten.fetch_add(flipped as u64, Ordering::SeqCst);
        flipped
    }

    /// From now on `operation` fails there until the plan is healed, or only the `nth` time.
    pub fn fail_disk(&self, failing: Failing, operation: Operation, nth: Option<u64>) {
        let under = match failing {
            Failing::Cache => CACHE,
            Failing::Journal => JOURNAL,
        };
        match nth {
            Some(nth) => self.plan.fail_nth_under(operation, Path::new(under), nth, Errno::EIO),
            None => self.plan.fail_under(operation, Path::new(under), Errno::EIO),
        }
    }

    /// From now on its cache disk gives nothing back, or does again.
    pub fn break_cache(&self, broken: bool) {
        match broken {
            true => self.plan.fail_under(Operation::Read, Path::new(CACHE), Errno::EIO),
            false => self.plan.heal(),
        }
    }

    fn tables(&self) -> Arc<MemoryTables> {
        self.tables.lock().expect("nobody panics with it").clone()
    }

    fn opened_disk(&self) -> Arc<dyn Disk> {
        let disk = self.disk.lock().expect("nobody panics with it").clone();
        Arc::new(SlowDisk(FaultyDisk::new(Arc::new(disk), self.plan.clone())))
    }

    fn journal_options(&self) -> JournalOptions {
        let mut boot_id = [7; 16];
        boot_id[0] = self.boots.load(Ordering::SeqCst) as u8;
        let (segment_bytes, capacity_bytes) = (LOG_SEGMENT_BYTES, JOURNAL_BYTES);
        JournalOptions { segment_bytes, capacity_bytes, boot_id, ..JournalOptions::new(JOURNAL, VOLUME) }
    }

    /// As `format`, and the first start of a mount: there is a journal from the beginning.
    pub fn begin(&self) -> anyhow::Result<()> {
        Journal::open(self.opened_disk(), self.journal_options(), &mut |_, _| Ok(()))?;
        Ok(())
    }

    fn kept(&self) -> anyhow::Result<Kept> {
        let disk = self.opened_disk();
        let cache = if self.slots > 0 { Some(Arc::new(self.cache(disk.clone())?)) } else { None };
        let tables: Arc<dyn Tables> = self.tables();
        Ok(Kept { disk, tables, cache, journal: self.journal_options(), metadata_only: false, tee: None })
    }

    fn cache(&self, disk: Arc<dyn Disk>) -> Result<Cache, CacheError> {
        let options = CacheOptions { dir: CACHE.into(), capacity_bytes: self.slots * SLOT_BYTES, volume: VOLUME };
        Cache::open(disk, options, self.clock.clone())
    }

    /// `attempts_max` requests in vain, or `deadline`, are the end of a call.
    fn store(&self, attempts_max: u32, deadline: Duration) -> Store {
        let options = StoreOptions {
            attempts_max,
            deadline,
            attempt_timeout: Duration::from_secs(5),
            backoff_max: Duration::from_secs(2),
            ..StoreOptions::default()
        };
        Store::with_backend(self.backend.clone(), "the store", options, self.entropy.clone())
    }

    /// The store as a mount and the server mean it: they outlive its restarts.
    fn patient_store(&self) -> Arc<Store> {
        Arc::new(self.store(u32::MAX, Duration::from_secs(20)))
    }

    /// The way to the server, once there is one.
    fn connect<C: Callbacks>(&self, hello: Hello, callbacks: Arc<C>) -> Arc<Client> {
        let (options, clock, entropy) = (ClientOptions::default(), self.clock.clone(), self.entropy.clone());
        let client = Arc::new(Client::new(vec![server_address()], hello, callbacks, options, clock, entropy));
        while simulation::block_on(client.connected(Duration::from_secs(10))).is_err() {
            simulation::sleep(Duration::from_millis(100));
        }
        client
    }
}

/// Where the server listens.
pub fn server_address() -> SocketAddr {
    SocketAddr::new(address_of(SERVER), 7700)
}
