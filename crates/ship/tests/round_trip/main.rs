//! What is shipped comes back: under faults of the store, with processes that end anywhere, with and without what their journal had.

mod missing;
mod objects;
mod rig;
mod taken;
mod told;

use rig::{LONG, Rig, taking};
use sluice_base::{SeededEntropy, Seq};
use sluice_meta::store::{Log, LsmOptions, LsmTables, MetaError, MetaStore, Options, Tables};
use sluice_object::{
    Store, StoreOptions,
    backend::{Fault, Faults, RequestKind},
};
use sluice_ship::{RestoreError, restore};
use std::{ops::ControlFlow, sync::Arc};

#[tokio::test(flavor = "multi_thread")]
async fn all_of_it_comes_back_from_a_store_with_faults() {
    for seed in 0..150 {
        let mut rig = Rig::new(seed);
        let faults = Faults { unavailable: 50, lost_answer: 50, ..Faults::default() };
        rig.backend.set_faults(faults);
        for _ in 0..4 {
            // With all of its records, some, or none.
            let process = rig.start(Seq(rig.below(rig.log.last().0 + 2)));
            let (count, finishes) = (rig.below(30), rig.below(3) != 0);
            rig.write(&process, count);
            if finishes {
                process.shipper.finish(LONG).await.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            }
            rig.write(&process, 3);
            process.end().await;
            match rig.restored().await {
                Ok((keys, seq)) => {
                    assert!(rig.history[seq.0 as usize] == keys, "seed {seed}: not what was there at {seq:?}");
                    assert!(!finishes || seq.0 + 3 >= rig.log.last().0, "seed {seed}: {seq:?} is too little");
                }
                Err(RestoreError::Nothing(_)) if !finishes => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_on_the_way_is_read_again_and_lasting_damage_is_told() {
    let mut rig = Rig::new(7);
    let process = rig.start(Seq(0));
    rig.write(&process, 20);
    process.shipper.finish(LONG).await.expect("shipped");
    rig.write(&process, 20);
    process.shipper.finish(LONG).await.expect("shipped");
    process.end().await;
    assert_eq!(process.shipper.status().behind_records, 0);
    let entry = rig.store.list_blobs("meta/log").await.expect("listed").pop().expect("a blob");
    let body = rig.store.get_blob(&entry.key).await.expect("a body");
    let mut bad = body.to_vec();
    let at = bad.len() / 2;
    bad[at] ^= 1;
    rig.store.put_blob(&entry.key, bad.into(), sluice_object::PutMode::Overwrite).await.expect("put");
    let error = rig.restored().await.expect_err("damaged").to_string();
    assert!(error.contains(&entry.key) && error.contains("checksum"), "{error}");
    rig.store.put_blob(&entry.key, body, sluice_object::PutMode::Overwrite).await.expect("put");
    assert_eq!(rig.restored().await.expect("sound").1, rig.log.last());
    // What the checkpoint needs is missing.
    let parts = rig.store.list_blobs("meta/checkpoint").await.expect("listed");
    for entry in parts.iter().filter(|entry| !entry.key.ends_with("/head")) {
        rig.store.delete_blob(&entry.key).await.expect("deleted");
    }
    let error = rig.restored().await.expect_err("incomplete").to_string();
    assert!(error.contains("meta/checkpoint/") && error.contains("missing"), "{error}");
}

/// A blob may be there although its answer was lost and the store then away for longer than a request lasts: it is not somebody else's.
#[tokio::test(flavor = "multi_thread")]
async fn a_blob_whose_answer_was_lost_is_known_again() {
    let mut rig = Rig::new(3);
    let options = StoreOptions { attempts_max: 1, ..StoreOptions::default() };
    rig.store = Store::with_backend(rig.backend.clone(), "memory:", options, Arc::new(SeededEntropy::new(3)));
    let process = rig.start(Seq(0));
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    rig.backend.plan(RequestKind::Put, Fault::LostAnswer);
    rig.write(&process, 5);
    process.shipper.shipped(rig.log.last()).await.expect("shipped");
    assert!(!process.shipper.status().stopped);
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    process.end().await;
    let (keys, seq) = rig.restored().await.expect("restored");
    assert!(seq == rig.log.last() && rig.history[seq.0 as usize] == keys);
}

/// A checkpoint larger than what tables keep in memory, which are written while it is read; with nothing behind it in the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_larger_than_memory_comes_back_whole() {
    // Small values, which take more memory than room in a part: it is full in the midst of one part or another, the last one included.
    const VALUE: [u8; 64] = [7; 64];
    for thousands in (200..325_u64).step_by(25) {
        let mut rig = Rig::new(thousands);
        // From before there was anybody who ships.
        let meta = MetaStore::new(rig.tables.clone(), rig.log.clone(), Seq(0), Options::default());
        for thousand in 0..thousands {
            let put = |txn: &mut sluice_meta::store::Txn<'_>| {
                let keys = thousand * 1000..(thousand + 1) * 1000;
                keys.for_each(|key| txn.put(&[b"x", &key.to_be_bytes()[..]].concat(), VALUE.to_vec()));
                Ok::<_, MetaError>(())
            };
            meta.transact(put).expect("committed");
        }
        rig.log.ensure_synced(rig.log.last()).expect("memory");
        rig.history.clear();
        let process = rig.start(rig.log.last());
        process.shipper.finish(LONG).await.expect("shipped");
        process.end().await;
        let dir = tempfile::tempdir().expect("a directory");
        let tables = LsmTables::open(dir.path(), LsmOptions::default()).expect("tables");
        let restored = restore(&rig.store, &tables, taking(9), |_, _| {}).await.expect("restored");
        drop(tables);
        let tables = LsmTables::open(dir.path(), LsmOptions::default()).expect("tables");
        assert_eq!((restored.seq, tables.persisted()), (rig.log.last(), rig.log.last()));
        let mut count = 0;
        let mut visit = |_: &[u8], found: &[u8]| {
            assert!(found == VALUE);
            count += 1;
            ControlFlow::Continue(())
        };
        tables.scan(&[1], &[0xff], tables.applied(), &mut visit).expect("read");
        assert_eq!(count, thousands * 1000);
    }
}
