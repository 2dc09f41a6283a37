use super::*;
use bytes::Bytes;
use sluice_base::{ManualClock, OsEntropy, VolumeId, disk::MemoryDisk};
use sluice_object::{FaultyBackend, MemoryBackend, Store, StoreOptions, backend::RequestKind};
use sluice_store::{Cache, CacheOptions};

/// Between a reader's look into the cache and its miss a fill may end: what it brought is not fetched again.
#[tokio::test]
async fn what_came_meanwhile_is_not_fetched_again() {
    let backend = Arc::new(FaultyBackend::new(MemoryBackend::default(), 1));
    let store = Store::with_backend(backend.clone(), "memory:", StoreOptions::default(), Arc::new(OsEntropy));
    let clock = Arc::new(ManualClock::default());
    let options = CacheOptions { dir: "/cache".into(), capacity_bytes: 4 << 20, volume: VolumeId([1; 16]) };
    let cache = Cache::open(Arc::new(MemoryDisk::default()), options, clock.clone()).unwrap();
    let segments = vec![Some(Bytes::from(vec![1; 32 << 10])); 3];
    let object = store.put_object(ObjectId([5; 16]), &segments).await.unwrap();
    let fills = Arc::new(Fills::new(NodeParts { cache, store, elsewhere: None, clock }, Arc::default()));
    let brought = |anyway| fills.fetch(object, 0b11, anyway);
    assert_eq!(brought(false).await.unwrap().map(|segments| segments.len()), Some(2));
    while !fills.active.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(brought(false).await, Ok(None));
    assert_eq!(backend.count(RequestKind::Get), 1);
    // The disk that has them does not give them.
    assert_eq!(brought(true).await.unwrap().map(|segments| segments.len()), Some(2));
}
