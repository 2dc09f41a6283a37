//! Checkpoints, what fails and what then holds.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

fn put(store: &MetaStore, n: u64) -> Result<Committed<()>, MetaError> {
    store.transact(|txn| {
        txn.put(&key(b'i', n, b""), vec![7; 100]);
        txn.merge(b"n", add(1));
        Ok(())
    })
}

#[test]
fn a_log_that_is_full_leaves_no_trace() {
    let (store, tables, log) = memory();
    put(&store, 1).expect("put");
    let before = contents(&*tables, Seq(u64::MAX));
    for failure in [LogError::Full, LogError::DiskFull, LogError::Failed("gone".into())] {
        log.fail(Some(failure.clone()));
        let error = put(&store, 2).unwrap_err();
        assert!(matches!(&error, MetaError::Log(same) if *same == failure), "{error}");
        assert_eq!((contents(&*tables, Seq(u64::MAX)), log.last(), store.visible()), (before.clone(), Seq(1), Seq(1)));
    }
    log.fail(None);
    assert_eq!(put(&store, 2).expect("put").seq, Seq(2));
}

#[test]
fn old_versions_are_kept_while_a_snapshot_reads_them() {
    let (store, tables, _) = memory();
    put(&store, 1).expect("put");
    let snapshot = store.snapshot();
    (0..20).for_each(|_| put(&store, 1).map(drop).expect("put"));
    store.checkpoint().expect("checkpoint");
    assert_eq!(count(snapshot.get(b"n").expect("get").as_deref()), 1);
    drop(snapshot);
    store.checkpoint().expect("checkpoint");
    assert_eq!(tables.versions(), 2);
    assert_eq!(count(store.snapshot().get(b"n").expect("get").as_deref()), 21);
}

#[test]
fn the_checkpointer_persists_behind_the_log_and_bounds_the_memtable() {
    let dir = tempfile::tempdir().expect("directory");
    let tables = Arc::new(LsmTables::open(dir.path(), LsmOptions::default()).expect("open"));
    let log = Arc::new(MemoryLog::default());
    let options = Options { memtable_bytes: 30_000, ..Options::default() };
    let store = Arc::new(MetaStore::new(tables.clone(), log.clone(), Seq(0), options));
    let (reported, synced) = (Arc::new(AtomicU64::new(0)), log.clone());
    let report = reported.clone();
    let on_persisted = move |seq: Seq| {
        assert!(seq <= synced.synced(), "the tables are ahead of the log");
        report.store(seq.0, Ordering::SeqCst);
    };
    let checkpointer = Checkpointer::start(store.clone(), Box::new(on_persisted)).expect("thread");
    for n in 0..5000 {
        put(&store, n).expect("put");
        assert!(tables.memtable_bytes() <= 2 * options.memtable_bytes + 1000);
    }
    assert!(reported.load(Ordering::SeqCst) > 0);
    assert_eq!(checkpointer.shutdown().expect("shutdown"), Seq(5000));
    let applied = contents(&*tables, Seq(5000));
    drop((store, tables));
    let reopened = LsmTables::open(dir.path(), LsmOptions::default()).expect("open");
    assert_eq!((reopened.persisted(), contents(&reopened, Seq(5000))), (Seq(5000), applied));
}

#[test]
fn a_failing_checkpoint_shows_and_holds_writers_back_until_it_works_again() {
    let (tables, log) = (Arc::new(MemoryTables::default()), Arc::new(MemoryLog::default()));
    let options = Options { memtable_bytes: 1000, ..Options::default() };
    let store = Arc::new(MetaStore::new(tables.clone(), log, Seq(0), options));
    let checkpointer = Checkpointer::start(store.clone(), Box::new(|_| ())).expect("thread");
    tables.fail_flush(true);
    let error = (0..1000).find_map(|n| put(&store, n).err()).expect("writers are held back");
    assert!(matches!(error, MetaError::Checkpoint(_)), "{error}");
    assert!(store.health().is_err());
    let accepted = store.visible();
    assert!(accepted < Seq(100), "memory is bounded: {accepted:?}");

    tables.fail_flush(false);
    assert_eq!(store.checkpoint().expect("checkpoint"), accepted);
    assert!(store.health().is_ok());
    put(&store, 1).expect("put");
    assert_eq!(checkpointer.shutdown().expect("shutdown"), Seq(accepted.0 + 1));
}

#[test]
fn power_loss_keeps_what_a_checkpoint_returned() {
    let (store, tables, log) = memory();
    (0..10).for_each(|n| put(&store, n).map(drop).expect("put"));
    assert_eq!(store.checkpoint().expect("checkpoint"), Seq(10));
    let persisted = contents(&*tables, Seq(10));
    (5..15).for_each(|n| put(&store, n).map(drop).expect("put"));
    let all = contents(&*tables, Seq(20));
    tables.lose_power();
    assert_eq!((tables.applied(), contents(&*tables, Seq(20))), (Seq(10), persisted));
    for (seq, _, record) in log.records() {
        replay(&*tables, seq, &record, &mut |_, _, _| ()).expect("replay");
    }
    assert_eq!(contents(&*tables, Seq(20)), all);
}
