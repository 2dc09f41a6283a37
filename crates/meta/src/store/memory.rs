//! An engine and a log in memory, for tests and the simulator.

use super::{Batch, EngineError, Log, LogClass, LogError, Tables, Value, Visit};
use parking_lot::{Mutex, RwLock};
use sluice_base::Seq;
use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::atomic::{AtomicBool, Ordering},
};

/// Keys of a scan that are copied out under one lock.
const SCAN_KEYS: usize = 256;

/// Ordered keys with versions, in a map.
#[derive(Default)]
pub struct MemoryTables {
    inner: RwLock<Inner>,
    fail_flush: AtomicBool,
}

#[derive(Default)]
struct Inner {
    /// Versions of a key, ascending.
    keys: BTreeMap<Value, Vec<(Seq, Option<Value>)>>,
    applied: Seq,
    sealed: Seq,
    persisted: Seq,
    memtable_bytes: u64,
}

impl MemoryTables {
    /// Forgets what is not persisted, as a power cut does to an engine with files.
    pub fn lose_power(&self) {
        let mut inner = self.inner.write();
        let persisted = inner.persisted;
        inner.keys.retain(|_, versions| {
            versions.retain(|(seq, _)| *seq <= persisted);
            !versions.is_empty()
        });
        (inner.applied, inner.sealed, inner.memtable_bytes) = (persisted, persisted, 0);
    }

    /// Makes flushes fail, or work again.
    pub fn fail_flush(&self, fail: bool) {
        self.fail_flush.store(fail, Ordering::SeqCst);
    }

    /// Versions held, of all keys.
    pub fn versions(&self) -> usize {
        self.inner.read().keys.values().map(Vec::len).sum()
    }
}

fn newest(versions: &[(Seq, Option<Value>)], at: Seq) -> Option<&Value> {
    versions.iter().rev().find(|(seq, _)| *seq <= at)?.1.as_ref()
}

impl Tables for MemoryTables {
    fn get(&self, key: &[u8], at: Seq) -> Result<Option<Value>, EngineError> {
        Ok(self.inner.read().keys.get(key).and_then(|versions| newest(versions, at)).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], at: Seq, visit: &mut Visit<'_>) -> Result<(), EngineError> {
        let mut start = Bound::Included(Value::from(from));
        // In portions, because `visit` may read again, and a lock taken twice waits for a writer that waits for it.
        loop {
            let portion: Vec<(Value, Option<Value>)> = {
                let inner = self.inner.read();
                let from = match &start {
                    Bound::Included(key) | Bound::Excluded(key) => key,
                    Bound::Unbounded => unreachable!("the start is always a key"),
                };
                if **from >= *to {
                    return Ok(());
                }
                let range = (start.as_ref().map(|key| &**key), Bound::Excluded(to));
                let keys = inner.keys.range::<[u8], _>(range).take(SCAN_KEYS);
                keys.map(|(key, versions)| (key.clone(), newest(versions, at).cloned())).collect()
            };
            for (key, value) in &portion {
                if let Some(value) = value
                    && let ControlFlow::Break(()) = visit(key, value)
                {
                    return Ok(());
                }
            }
            match portion.into_iter().next_back() {
                Some((last, _)) => start = Bound::Excluded(last),
                None => return Ok(()),
            }
        }
    }

    fn apply(&self, seq: Seq, batch: &Batch) {
        let mut inner = self.inner.write();
        let Inner { keys, applied, memtable_bytes, .. } = &mut *inner;
        for (key, value) in batch.entries() {
            *memtable_bytes += (key.len() + value.as_ref().map_or(0, |value| value.len())) as u64;
            let versions = keys.entry(key.clone()).or_default();
            match versions.binary_search_by_key(&seq, |(seq, _)| *seq) {
                Ok(same) => versions[same].1.clone_from(value),
                Err(place) => versions.insert(place, (seq, value.clone())),
            }
        }
        *applied = seq.max(*applied);
    }

    fn applied(&self) -> Seq {
        self.inner.read().applied
    }

    fn persisted(&self) -> Seq {
        self.inner.read().persisted
    }

    fn memtable_bytes(&self) -> u64 {
        self.inner.read().memtable_bytes
    }

    fn rotate(&self) {
        let mut inner = self.inner.write();
        (inner.sealed, inner.memtable_bytes) = (inner.applied, 0);
    }

    fn flush(&self, keep_versions_from: Seq) -> Result<Seq, EngineError> {
        if self.fail_flush.load(Ordering::SeqCst) {
            return Err(EngineError::Injected);
        }
        let mut inner = self.inner.write();
        inner.persisted = inner.sealed;
        // Versions after the persisted ones may be lost with the power, and the ones below must then still be there.
        let keep_from = keep_versions_from.min(inner.persisted);
        inner.keys.retain(|_, versions| {
            let first = versions.iter().rposition(|(seq, _)| *seq <= keep_from).unwrap_or(0);
            versions.drain(..first);
            !matches!(versions.as_slice(), [(seq, None)] if *seq <= keep_from)
        });
        Ok(inner.persisted)
    }
}

/// A log that is a list of records.
#[derive(Default)]
pub struct MemoryLog {
    records: Mutex<Vec<(LogClass, Vec<u8>)>>,
    synced: Mutex<Seq>,
    failure: Mutex<Option<LogError>>,
}

impl MemoryLog {
    /// Makes every append fail with `failure`, or work again.
    pub fn fail(&self, failure: Option<LogError>) {
        *self.failure.lock() = failure;
    }

    /// All records with their numbers.
    pub fn records(&self) -> Vec<(Seq, LogClass, Vec<u8>)> {
        let records = self.records.lock();
        (1..).map(Seq).zip(records.iter()).map(|(seq, (class, bytes))| (seq, *class, bytes.clone())).collect()
    }

    /// The last record.
    pub fn last(&self) -> Seq {
        Seq(self.records.lock().len() as u64)
    }

    /// The power goes: records that were not synced are gone.
    pub fn lose_power(&self) {
        self.records.lock().truncate(self.synced.lock().0 as usize);
    }
}

impl Log for MemoryLog {
    fn append(&self, class: LogClass, parts: &[&[u8]]) -> Result<Seq, LogError> {
        if let Some(failure) = &*self.failure.lock() {
            return Err(failure.clone());
        }
        let mut records = self.records.lock();
        records.push((class, parts.concat()));
        Ok(Seq(records.len() as u64))
    }

    fn ensure_synced(&self, seq: Seq) -> Result<(), LogError> {
        let mut synced = self.synced.lock();
        *synced = seq.max(*synced);
        Ok(())
    }

    fn synced(&self) -> Seq {
        *self.synced.lock()
    }
}
