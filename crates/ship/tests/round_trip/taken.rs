//! One process ships after another, of which each may still have something under way.

use crate::rig::{Bytes, LONG, Rig, all_keys};
use sluice_base::{ObjectId, Seq};
use sluice_object::{
    PutMode,
    backend::{Fault, RequestKind},
};
use sluice_ship::{Line, RestoreError, survey};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::timeout;

/// The numbers of the log's blobs.
async fn numbers(rig: &Rig) -> Vec<u64> {
    let log = rig.store.list_blobs("meta/log").await.expect("listed");
    log.iter().map(|entry| u64::from_str_radix(&entry.key["meta/log/".len()..], 16).expect("a number")).collect()
}

/// Waits for a blob of the log.
async fn blob(rig: &Rig, number: u64) {
    let is_there = async {
        while !numbers(rig).await.contains(&number) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, is_there).await.expect("it was put");
}

/// Waits until the store was asked to put so many things.
async fn requests(rig: &Rig, count: u64) {
    let all_sent = async {
        while rig.backend.count(RequestKind::Put) < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, all_sent).await.expect("they were sent");
}

/// Of two blobs under way at a host's loss only the second arrived, and whoever restores is lost in turn, in the midst of its fence: what the second
/// blob says stays void, although it goes on where the log ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_was_half_made_holds() {
    let mut rig = Rig::new(5);
    let process = rig.start(Seq(0));
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    process.end().await;
    // The next one has bytes to store from before; once they are, it says so, in a blob without records.
    let bytes = Arc::new(Bytes::default());
    bytes.0.lock().objects.insert(ObjectId([1; 16]), rig.log.last().0 + 1);
    rig.write(&process, 2);
    let (next, end) = (numbers(&rig).await.into_iter().max().expect("some") + 1, rig.log.last());
    let process = rig.start_with(Seq(0), bytes.clone(), true);
    blob(&rig, next + 4).await;
    rig.backend.plan(RequestKind::Put, Fault::Hang);
    let (puts, shipper) = (rig.backend.count(RequestKind::Put), process.shipper.clone());
    bytes.0.lock().objects.clear();
    tokio::spawn(async move { shipper.shipped(end).await });
    requests(&rig, puts + 1).await;
    rig.write(&process, 3);
    let (shipper, last) = (process.shipper.clone(), rig.log.last());
    tokio::spawn(async move { shipper.shipped(last).await });
    blob(&rig, next + 6).await;
    process.end().await;

    rig.backend.plan(RequestKind::Put, Fault::None);
    rig.backend.plan(RequestKind::Put, Fault::Hang);
    assert!(timeout(Duration::from_millis(500), rig.restore_as(Line(2))).await.is_err(), "it was to be lost");
    assert_eq!(survey(&rig.store).await.expect("a store").line, Some(Line(2)), "its fence is there");
    for line in [3, 4] {
        let (tables, restored) = rig.restore_as(Line(line)).await.expect("restored");
        assert_eq!(restored.seq, end);
        assert!(all_keys(&tables) == rig.history[end.0 as usize]);
        rig.go_on(tables, end, Line(line));
    }
    let process = rig.start(Seq(0));
    rig.write(&process, 4);
    process.shipper.finish(LONG).await.expect("shipped");
    process.end().await;
    let (keys, seq) = rig.restored().await.expect("restored");
    assert!(seq == rig.log.last() && keys == *rig.history.last().expect("some"));
}

/// All that the store has.
async fn everything(rig: &Rig) -> BTreeMap<String, bytes::Bytes> {
    let mut all = BTreeMap::new();
    for key in rig.backend.inner().keys() {
        // What is of no use is being removed meanwhile.
        if let Ok(body) = rig.store.get_blob(&key).await {
            all.insert(key, body);
        }
    }
    all
}

/// A process that is believed to be lost finishes its checkpoint long after another one has gone on: the last request of it, for the head, was late.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_is_late_does_no_harm() {
    let mut rig = Rig::new(6);
    let process = rig.start(Seq(0));
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    process.end().await;
    let mut before = everything(&rig).await;
    // Without what was written before in its journal it needs another checkpoint.
    rig.write(&process, 1);
    let late = rig.start(rig.log.last());
    late.shipper.finish(LONG).await.expect("shipped");
    late.end().await;
    // The store as it was before the head; what comes behind that in the log is not there either.
    let mut added = everything(&rig).await;
    added.retain(|key, _| !before.contains_key(key));
    let head = added.keys().find(|key| key.ends_with("/head")).expect("a head").clone();
    let head_body = added.remove(&head).expect("a head");
    assert!(added.pop_last().expect("more").0.starts_with("meta/log/"));
    before.append(&mut added);
    for key in rig.backend.inner().keys() {
        rig.store.delete_blob(&key).await.expect("deleted");
    }
    for (key, body) in before {
        rig.store.put_blob(&key, body, PutMode::Create).await.expect("put");
    }

    let (tables, restored) = rig.restore_as(Line(2)).await.expect("restored");
    assert_eq!(restored.seq.0, 5, "what it left out of the log is not there");
    rig.go_on(tables, restored.seq, Line(2));
    let process = rig.start(rig.log.last());
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    rig.store.put_blob(&head, head_body, PutMode::Create).await.expect("put");
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    process.end().await;
    let (keys, seq) = rig.restored().await.expect("restored");
    assert!(seq == rig.log.last() && keys == *rig.history.last().expect("some"));
}

/// What is damaged in the store is told by whoever restores, and replaced by whoever has the volume.
#[tokio::test(flavor = "multi_thread")]
async fn damage_of_what_is_newest_is_replaced() {
    for directory in ["meta/checkpoint", "meta/log"] {
        let mut rig = Rig::new(8);
        let process = rig.start(Seq(0));
        rig.write(&process, 5);
        process.shipper.finish(LONG).await.expect("shipped");
        rig.write(&process, 5);
        process.shipper.finish(LONG).await.expect("shipped");
        process.end().await;
        let newest = rig.store.list_blobs(directory).await.expect("listed").pop().expect("a blob").key;
        let mut body = rig.store.get_blob(&newest).await.expect("a body").to_vec();
        body[20] ^= 0x81;
        rig.store.put_blob(&newest, body.into(), PutMode::Overwrite).await.expect("put");
        match rig.restored().await {
            Err(RestoreError::Bad { key, .. }) => assert_eq!(key, newest),
            other => panic!("{newest}: {other:?}"),
        }
        assert_eq!(survey(&rig.store).await.expect("a store").damage.expect("some").key, newest);
        // Even where its journal has everything that the store has not.
        let process = rig.start(Seq(5));
        process.shipper.finish(LONG).await.expect("shipped");
        rig.write(&process, 5);
        process.shipper.finish(LONG).await.expect("shipped");
        process.end().await;
        let (keys, seq) = rig.restored().await.expect("restored");
        assert!(seq == rig.log.last() && keys == *rig.history.last().expect("some"));
    }
}

/// Who has shipped another line's changes is not followed, however many there are.
#[tokio::test(flavor = "multi_thread")]
async fn another_line_is_left_alone() {
    let mut rig = Rig::new(9);
    let process = rig.start(Seq(0));
    rig.write(&process, 5);
    process.shipper.finish(LONG).await.expect("shipped");
    process.end().await;
    let (_, restored) = rig.restore_as(Line(2)).await.expect("restored");
    assert_eq!(restored.seq, rig.log.last());
    for _ in 0..2 {
        let keys = rig.backend.inner().keys();
        let old = rig.start(Seq(0));
        let why = old.shipper.finish(LONG).await.expect_err("it is not of that line");
        assert!(why.contains("another line of changes") && old.shipper.status().stopped, "{why}");
        assert_eq!(rig.backend.inner().keys(), keys);
        // Also with more than the store has.
        rig.write(&old, 5);
    }
}
