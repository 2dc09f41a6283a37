//! Transactions a second, one thread: what a small create costs above the log's write.
//!
//! `cargo run --release --example txnbench [transactions]`

use sluice_base::{Clock, Seq, SystemClock};
use sluice_meta::store::{
    Checkpointer, Log, LogClass, LogError, LsmOptions, LsmTables, Merge, MetaError, MetaStore, Options, Tables,
};
use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Copies each record into one buffer, as the page cache would, and keeps none.
#[derive(Default)]
struct NullLog {
    last: AtomicU64,
    buffer: parking_lot::Mutex<Vec<u8>>,
}

impl Log for NullLog {
    fn append(&self, _: LogClass, parts: &[&[u8]]) -> Result<Seq, LogError> {
        let mut buffer = self.buffer.lock();
        buffer.clear();
        parts.iter().for_each(|part| buffer.extend_from_slice(part));
        Ok(Seq(self.last.fetch_add(1, Ordering::SeqCst) + 1))
    }

    fn ensure_synced(&self, _: Seq) -> Result<(), LogError> {
        Ok(())
    }

    fn synced(&self) -> Seq {
        Seq(self.last.load(Ordering::SeqCst))
    }
}

fn key(table: u8, id: u64, rest: &[u8]) -> Vec<u8> {
    [&[table], id.to_be_bytes().as_slice(), rest].concat()
}

fn add(by: u64) -> Box<dyn Merge> {
    Box::new(move |now: Option<&[u8]>| {
        let mut value = now.map_or([0; 24], |bytes| bytes.try_into().expect("a counter"));
        let count = u64::from_le_bytes(value[..8].try_into().expect("8 bytes")) + by;
        value[..8].copy_from_slice(&count.to_le_bytes());
        Some(value.to_vec())
    })
}

/// Four keys read, six put, two merged: about what a create in one of 64 directories does.
fn create(store: &MetaStore, ino: u64) -> Result<(), MetaError> {
    let directory = ino % 64;
    let name = format!("file-{ino:012}");
    let (entry, inode) = (key(b'd', directory, name.as_bytes()), key(b'i', ino, b""));
    store
        .transact(|txn| {
            txn.peek(&key(b'i', directory, b""))?;
            txn.get(&entry)?;
            txn.get(&key(b'q', 1, b""))?;
            txn.get(&inode)?;
            txn.put(&entry, ino.to_le_bytes());
            txn.put(&key(b'c', directory, &ino.to_be_bytes()), name.as_bytes());
            txn.put(&inode, [7; 120]);
            txn.put(&key(b'x', ino, b"security"), [1; 40]);
            txn.put(&key(b'r', ino % 1000, b""), [2; 32]);
            txn.put(&key(b'q', 1, b""), ino.to_le_bytes());
            txn.merge(&key(b's', directory, b""), add(1));
            txn.merge(&key(b'v', 0, b"count"), add(1));
            Ok(())
        })
        .map(drop)
}

/// Time that this thread has run, without what others on the machine and the checkpointer took.
fn cpu_us() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e3
}

fn rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let total: u64 = std::env::args().nth(1).map_or(Ok(200_000), |text| text.parse())?;
    let (clock, dir) = (SystemClock::default(), tempfile::tempdir()?);
    let tables = Arc::new(LsmTables::open(dir.path(), LsmOptions::default())?);
    let store = Arc::new(MetaStore::new(tables.clone(), Arc::new(NullLog::default()), Seq(0), Options::default()));
    let checkpointer = Checkpointer::start(store.clone(), Box::new(|_| ()))?;
    let (mut rss_max, mut slowest, start, start_cpu) = (0, 0, clock.monotonic(), cpu_us());
    let portion = 10_000;
    for from in (0..total).step_by(portion as usize) {
        let before = clock.monotonic();
        (from..(from + portion).min(total)).try_for_each(|n| create(&store, n + 1))?;
        slowest = slowest.max((clock.monotonic() - before).as_micros());
        rss_max = rss_max.max(rss_mib());
    }
    let took = clock.monotonic() - start;
    let each = took.as_secs_f64() * 1e6 / total as f64;
    let cpu = (cpu_us() - start_cpu) / total as f64;
    println!("{total} creates: {:.0} a second, {each:.2} us each, {cpu:.2} us of this thread's CPU", 1e6 / each);
    println!("slowest {portion}: {:.2} us each; RSS at most {rss_max} MiB", slowest as f64 / portion as f64);
    let before = clock.monotonic();
    checkpointer.shutdown()?;
    println!(
        "last checkpoint {:?}; {} MiB of tables, persisted {}",
        clock.monotonic() - before,
        tables.disk_bytes() >> 20,
        tables.persisted()
    );

    let gets = 100_000.min(total);
    let before = cpu_us();
    for n in 0..gets {
        let ino = n * 7919 % total + 1;
        assert!(store.snapshot().get(&key(b'i', ino, b""))?.is_some());
    }
    println!("random get from tables: {:.2} us", (cpu_us() - before) / gets as f64);
    let (before, mut seen) = (cpu_us(), 0u64);
    store.snapshot().scan(&key(b'd', 1, b""), &key(b'd', 2, b""), &mut |_, _| {
        seen += 1;
        ControlFlow::Continue(())
    })?;
    println!("scan of {seen} entries: {:.2} us each", (cpu_us() - before) / seen as f64);
    Ok(())
}
