use super::*;

#[tokio::test(start_paused = true)]
async fn connections_are_kept_open_while_there_are_reads() {
    let (store, backend) = plain();
    store.put_blob("one", Bytes::from_static(b"1"), PutMode::Create).await.unwrap();
    let asked = |backend: &Faulty| backend.count(RequestKind::Head);
    // Nobody's answer comes before all have asked: so each has a connection of its own.
    backend.set_faults(Faults { delay: 1000, delay_max: Duration::from_millis(30), ..Faults::default() });
    let keeping = tokio::spawn({
        let store = store.clone();
        async move { store.keep_connected().await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((asked(&backend), backend.in_flight_max()), (8, 8));
    tokio::time::sleep(Duration::from_secs(600)).await;
    let idle = asked(&backend);
    assert!(idle <= 8 * 60 / 4 + 8, "{idle}");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(asked(&backend), idle, "a store that nobody reads from is left alone");
    store.get_blob("one").await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(asked(&backend) >= idle + 4 * 8);
    backend.set_down(true);
    store.get_blob("one").await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!keeping.is_finished());
    keeping.abort();
}

#[tokio::test]
async fn where_there_are_no_connections_none_are_kept() {
    let backend = Arc::new(MemoryBackend::default());
    let store = Store::with_backend(backend, "memory:", StoreOptions::default(), Arc::new(SeededEntropy::new(1)));
    store.keep_connected().await;
    assert_eq!(store.stats().of(RequestKind::Head).requests, 0);
}
