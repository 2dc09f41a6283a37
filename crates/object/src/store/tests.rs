use super::*;
use crate::{
    Denied, FaultyBackend, PutMode,
    backend::{Fault, Faults, RequestKind},
    format::{StoredObject, tail_len},
};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future::join_all};
use sluice_base::{SeededEntropy, limits::SEGMENT_BYTES};
use std::time::Duration;
use tokio::time::Instant;

mod connected;
mod reads;
mod retries;

type Faulty = FaultyBackend<MemoryBackend>;

fn faulty(seed: u64, options: StoreOptions) -> (Store, Arc<Faulty>) {
    let backend = Arc::new(FaultyBackend::new(MemoryBackend::default(), seed));
    let entropy = Arc::new(SeededEntropy::new(seed ^ 0x5eed));
    (Store::with_backend(backend.clone(), "memory:", options, entropy), backend)
}

fn plain() -> (Store, Arc<Faulty>) {
    faulty(1, StoreOptions::default())
}

fn id(n: u8) -> ObjectId {
    ObjectId([n; 16])
}

/// Full segments with content that tells their place; `false` is an absent one; the last has `last` bytes.
fn segments(present: &[bool], last: usize) -> Vec<Option<Bytes>> {
    let n = present.len();
    let one = |i: usize| {
        let len = if i + 1 == n { last } else { SEGMENT_BYTES };
        (0..len).map(|at| (at * 7 + i * 13) as u8).collect::<Vec<_>>().into()
    };
    present.iter().enumerate().map(|(i, &yes)| yes.then(|| one(i))).collect()
}

fn full(count: usize) -> Vec<Option<Bytes>> {
    segments(&vec![true; count], SEGMENT_BYTES)
}

fn expected(segments: &[Option<Bytes>]) -> Vec<Bytes> {
    segments.iter().map(|segment| segment.clone().unwrap_or_default()).collect()
}

#[tokio::test]
async fn objects_are_listed_and_other_keys_are_not() {
    let (store, backend) = plain();
    let data = full(1);
    for n in 0..50 {
        store.put_object(id(n), &data).await.unwrap();
    }
    for stray in ["objects/aa/readme", "objects/ab/00000000000000000000000000000000"] {
        crate::Backend::put(&*backend, stray, vec![], PutMode::Create).await.unwrap();
    }
    store.put_blob("meta/one", Bytes::from_static(b"1"), PutMode::Create).await.unwrap();
    let mut found: Vec<_> = store.list_objects().try_collect().await.unwrap();
    found.sort_by_key(|object| object.id);
    assert_eq!(found.iter().map(|object| object.id).collect::<Vec<_>>(), (0..50).map(id).collect::<Vec<_>>());
    assert!(found.iter().all(|object| object.stored_bytes == (SEGMENT_BYTES + tail_len(1)) as u64));

    store.delete_object(id(7)).await.unwrap();
    store.delete_object(id(7)).await.unwrap();
    assert_eq!(store.list_objects().count().await, 49);
    backend.set_down(true);
    assert!(store.list_objects().try_collect::<Vec<_>>().await.unwrap_err().is_retryable());
}

#[tokio::test]
async fn blobs() {
    let (store, _) = plain();
    let body = Bytes::from_static(b"{}");
    store.put_blob(VOLUME_MARKER, body.clone(), PutMode::Create).await.unwrap();
    let again = store.put_blob(VOLUME_MARKER, body.clone(), PutMode::Create).await;
    assert!(matches!(again, Err(StoreError::Exists { .. })), "equal bytes of somebody else are not ours");
    store.put_blob(VOLUME_MARKER, Bytes::from_static(b"new"), PutMode::Overwrite).await.unwrap();
    assert_eq!(store.get_blob(VOLUME_MARKER).await.unwrap(), "new");
    for name in ["meta/log-2", "meta/log-1", "metadata"] {
        store.put_blob(name, body.clone(), PutMode::Create).await.unwrap();
    }
    let names: Vec<_> = store.list_blobs("meta").await.unwrap().into_iter().map(|entry| entry.key).collect();
    assert_eq!(names, ["meta/log-1", "meta/log-2"]);
    store.delete_blob(VOLUME_MARKER).await.unwrap();
    assert!(matches!(store.get_blob(VOLUME_MARKER).await, Err(StoreError::NotFound { .. })));
    for name in ["", "/a", "a/", "a//b", "../a", "objects/aa/x", "objects", ".hidden", "a b"] {
        assert!(matches!(store.get_blob(name).await, Err(StoreError::Invalid { .. })), "{name}");
    }
}

#[tokio::test]
async fn a_probe_leaves_nothing_and_names_the_step() {
    let (store, backend) = plain();
    store.probe().await.unwrap();
    assert_eq!(backend.inner().keys(), [""; 0]);
    backend.plan(RequestKind::Delete, Fault::Denied(Denied::Permission));
    let said = store.probe().await.unwrap_err().to_string();
    assert!(said.contains("memory:: cannot delete") && said.contains("permission"), "{said}");
    backend.plan(RequestKind::Get, Fault::FlippedBit);
    let said = store.probe().await.unwrap_err().to_string();
    assert!(said.contains("cannot read"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_at_once_than_allowed() {
    let options = StoreOptions { gets_max: 7, puts_max: 3, part_bytes: 32 << 10, ..StoreOptions::default() };
    let (store, backend) = faulty(1, options);
    backend.set_faults(Faults { delay: 1000, delay_max: Duration::from_millis(50), ..Faults::default() });
    let data = full(2);
    let objects = join_all((0..60).map(|n| store.put_object(id(n), &data))).await;
    assert_eq!(backend.in_flight_max(), 3);
    let objects: Vec<_> = objects.into_iter().map(Result::unwrap).collect();
    let reads = join_all(objects.iter().map(|object| store.read_segments(object, None, 0..2))).await;
    assert!(reads.iter().all(Result::is_ok));
    assert_eq!(backend.in_flight_max(), 7);
    assert_eq!(store.stats().of(RequestKind::Get).in_flight, 0);
    assert_eq!(store.stats().of(RequestKind::Get).requests, 60 * 3);
}

#[tokio::test]
async fn counters() {
    let (store, backend) = plain();
    backend.plan(RequestKind::Put, Fault::Unavailable);
    let object = store.put_object(id(1), &full(2)).await.unwrap();
    store.read_table(&object).await.unwrap();
    assert!(store.get_blob("missing").await.is_err());
    let stats = store.stats();
    let put = stats.of(RequestKind::Put);
    assert_eq!((put.requests, put.retries, put.errors, put.in_flight), (2, 1, 1, 0));
    let get = stats.of(RequestKind::Get);
    assert_eq!((get.requests, get.retries, get.errors), (2, 0, 0), "not found is an answer");
    assert_eq!(stats.sent_bytes, object.stored_bytes());
    assert_eq!(stats.received_bytes, tail_len(2) as u64);
}
