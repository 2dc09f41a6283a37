//! Something is deleted in the store that is needed there: that is damage, which the next process makes good.

use crate::rig::{LONG, Rig};
use sluice_base::Seq;
use sluice_object::{
    PutMode,
    backend::{Fault, RequestKind},
};
use sluice_ship::{BadBlob, RestoreError, survey, verify};

/// A volume whose log has some blobs behind the checkpoint.
async fn shipped(seed: u64) -> Rig {
    let mut rig = Rig::new(seed);
    let process = rig.start(Seq(0));
    for _ in 0..8 {
        rig.write(&process, 2);
        process.shipper.shipped(rig.log.last()).await.expect("shipped");
    }
    process.end().await;
    rig
}

async fn keys(rig: &Rig, directory: &str) -> Vec<String> {
    let mut keys: Vec<_> =
        rig.store.list_blobs(directory).await.expect("listed").into_iter().map(|entry| entry.key).collect();
    keys.sort();
    keys
}

/// What is at `key` is missing: whoever looks says so, and the next process puts it right.
async fn is_damage(mut rig: Rig, key: &str) {
    let damage = survey(&rig.store).await.expect("a store").damage.unwrap_or_else(|| panic!("{key}: not noticed"));
    assert_eq!((damage.key.as_str(), damage.source), (key, BadBlob::Missing));
    assert!(verify(&rig.store, |_, _| {}).await.is_err(), "{key}");
    match rig.restored().await {
        Err(RestoreError::Bad { key: named, source: BadBlob::Missing }) => assert_eq!(named, key),
        other => panic!("{key}: {:?}", other.map(|(_, seq)| seq)),
    }
    for _ in 0..2 {
        // Even where its journal has nothing of before.
        let process = rig.start(rig.log.last());
        process.shipper.finish(LONG).await.unwrap_or_else(|why| panic!("{key}: {why}"));
        rig.write(&process, 3);
        process.shipper.shipped(rig.log.last()).await.unwrap_or_else(|why| panic!("{key}: {why}"));
        process.end().await;
        assert_eq!(survey(&rig.store).await.expect("a store").damage, None, "{key}");
    }
    let (found, seq) = rig.restored().await.expect("restored");
    assert!(seq == rig.log.last() && found == *rig.history.last().expect("some"), "{key}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_of_the_log_that_was_deleted() {
    let count = keys(&shipped(1).await, "meta/log").await.len();
    // Fences of before the checkpoint may go; behind the last one nothing tells that there was another.
    for from_end in 1..count {
        let rig = shipped(1).await;
        let head = keys(&rig, "meta/checkpoint").await.pop().expect("a head");
        let first = &head["meta/checkpoint/".len()..][..16];
        let log = keys(&rig, "meta/log").await;
        let key = &log[log.len() - 1 - from_end];
        if &key["meta/log/".len()..] < first {
            break;
        }
        rig.store.delete_blob(key).await.expect("deleted");
        is_damage(rig, key).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_was_deleted() {
    for is_whole in [false, true] {
        let rig = shipped(2).await;
        let parts = keys(&rig, "meta/checkpoint").await;
        let head = parts.last().expect("a head");
        for key in parts.iter().filter(|key| is_whole || *key == head) {
            rig.store.delete_blob(key).await.expect("deleted");
        }
        let named = if is_whole { format!("{}-*/head", &head[.."meta/checkpoint/".len() + 16]) } else { head.clone() };
        is_damage(rig, &named).await;
    }
}

/// All of it: nothing tells what there was, and the next process ships it whole.
#[tokio::test(flavor = "multi_thread")]
async fn everything_that_was_deleted() {
    let mut rig = shipped(3).await;
    for key in keys(&rig, "meta").await {
        rig.store.delete_blob(&key).await.expect("deleted");
    }
    let process = rig.start(rig.log.last());
    process.shipper.finish(LONG).await.expect("shipped");
    rig.write(&process, 3);
    process.shipper.finish(LONG).await.expect("shipped");
    process.end().await;
    let (found, seq) = rig.restored().await.expect("restored");
    assert!(seq == rig.log.last() && found == *rig.history.last().expect("some"));
}

/// A process ended with a few blobs under way, of which the first did not arrive: nobody was told that they are there.
#[tokio::test(flavor = "multi_thread")]
async fn what_never_arrived_is_not_missing() {
    let mut rig = shipped(4).await;
    let process = rig.start(Seq(0));
    process.shipper.finish(LONG).await.expect("shipped");
    let acked = rig.log.last();
    // The next put does not arrive, those behind it do.
    rig.backend.plan(RequestKind::Put, Fault::Hang);
    for _ in 0..3 {
        rig.write(&process, 1);
        let (shipper, last) = (process.shipper.clone(), rig.log.last());
        let puts = rig.backend.count(RequestKind::Put);
        tokio::spawn(async move { shipper.shipped(last).await });
        rig.until(|rig| rig.backend.count(RequestKind::Put) > puts).await;
    }
    process.end().await;
    let found = survey(&rig.store).await.expect("a store");
    assert_eq!((found.damage, found.end), (None, Some(acked)));
    let (_, seq) = rig.restored().await.expect("restored");
    assert_eq!(seq, acked);
}

/// A store in which somebody put another blob in the place of one, with the log's end far behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_blob_of_another_kind_is_damage_too() {
    let rig = shipped(5).await;
    let log = keys(&rig, "meta/log").await;
    let key = &log[log.len() - 2];
    rig.store.put_blob(key, bytes::Bytes::from_static(b"text"), PutMode::Overwrite).await.expect("put");
    assert_eq!(survey(&rig.store).await.expect("a store").damage.expect("some").key, *key);
}
