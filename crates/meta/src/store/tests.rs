//! Tests of the layer as a whole.

use super::*;
use std::sync::Arc;

mod basics;
mod checkpoint;
mod crash;
mod record;
mod serial;

/// A store over fresh tables in memory, with its parts.
fn memory() -> (Arc<MetaStore>, Arc<MemoryTables>, Arc<MemoryLog>) {
    let (tables, log) = (Arc::new(MemoryTables::default()), Arc::new(MemoryLog::default()));
    let store = MetaStore::new(tables.clone(), log.clone(), Seq(0), Options::default());
    (Arc::new(store), tables, log)
}

/// A key in the group of `id`.
fn key(table: u8, id: u64, rest: &[u8]) -> Vec<u8> {
    [&[table], id.to_be_bytes().as_slice(), rest].concat()
}

/// Adds to a counter, by merge.
fn add(by: u64) -> Box<dyn Merge> {
    Box::new(move |current: Option<&[u8]>| Some((count(current) + by).to_le_bytes().to_vec()))
}

fn count(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("a counter")))
}

/// Everything visible, in order.
fn contents(tables: &dyn Tables, at: Seq) -> Vec<(Value, Value)> {
    let mut all = Vec::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        all.push((key.into(), value.into()));
        ControlFlow::Continue(())
    };
    tables.scan(&[1], &[0xff; 16], at, &mut visit).expect("scan");
    all
}
