//! What a restart finds.

use super::*;
use std::path::Path;

fn open(dir: &Path) -> Arc<LsmTables> {
    Arc::new(LsmTables::open(dir, LsmOptions::default()).expect("open"))
}

fn replay_all(tables: &dyn Tables, log: &MemoryLog) -> Vec<(Seq, Vec<u8>, Vec<u8>)> {
    let mut attachments = Vec::new();
    for (seq, _, record) in log.records() {
        replay(tables, seq, &record, &mut |seq, header, data| attachments.push((seq, header.to_vec(), data.to_vec())))
            .expect("replay");
    }
    attachments
}

/// Puts, merges and deletes over a few keys, so that versions and tombstones of one key meet in all tables.
fn churn(store: &MetaStore, from: u64, to: u64) {
    for i in from..to {
        let data = i.to_le_bytes();
        store
            .transact(|txn| {
                txn.put(&key(b'd', i % 7, &i.to_be_bytes()), vec![i as u8; (i % 50) as usize]);
                txn.delete(&key(b'd', (i + 3) % 7, &(i / 2).to_be_bytes()));
                txn.merge(&key(b's', i % 7, b""), add(i));
                if i % 10 == 0 {
                    txn.attach(vec![1], &data);
                }
                Ok::<_, MetaError>(())
            })
            .expect("transact");
    }
}

#[test]
fn replay_after_a_crash_gives_the_same_contents() {
    let dir = tempfile::tempdir().expect("directory");
    let log = Arc::new(MemoryLog::default());
    let mut tables = open(dir.path());
    for (round, flush) in [true, false, true, true, false, false, true, false].into_iter().enumerate() {
        let last = log.last();
        let store = MetaStore::new(tables.clone(), log.clone(), last, Options::default());
        let first = round as u64 * 300;
        churn(&store, first, first + 200);
        if flush {
            assert_eq!(store.checkpoint().expect("checkpoint"), log.last());
        }
        churn(&store, first + 200, first + 300);
        let (last, expected) = (log.last(), contents(&*tables, log.last()));
        drop((store, tables));

        tables = open(dir.path());
        assert_eq!(tables.applied(), tables.persisted());
        assert_ne!(tables.persisted(), last, "the last batches were not flushed");
        for _ in 0..2 {
            assert_eq!(replay_all(&*tables, &log).len(), (round + 1) * 30);
            assert_eq!((tables.applied(), contents(&*tables, last)), (last, expected.clone()));
        }
        let reference = MemoryTables::default();
        replay_all(&reference, &log);
        assert_eq!(contents(&reference, last), expected);
    }
}
