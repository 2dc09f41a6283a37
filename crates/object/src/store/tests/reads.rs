//! Which requests a read sends, and that it returns right bytes or an error.

use super::*;

async fn gets<T>(backend: &Faulty, read: impl Future<Output = T>) -> (T, u64) {
    let before = backend.count(RequestKind::Get);
    let done = read.await;
    (done, backend.count(RequestKind::Get) - before)
}

/// A store that has read nothing yet.
fn again(backend: &Arc<Faulty>) -> Store {
    Store::with_backend(backend.clone(), "memory:", StoreOptions::default(), Arc::new(SeededEntropy::new(2)))
}

#[tokio::test]
async fn few_requests() {
    let (store, backend) = plain();
    let data = full(128);
    let object = store.put_object(id(1), &data).await.unwrap();
    let want = expected(&data);

    let (all, requests) = gets(&backend, store.read_segments(&object, None, 0..128)).await;
    let all = all.unwrap();
    assert_eq!((all.segments, requests), (want.clone(), 5), "four parts and the table");
    let (some, requests) = gets(&backend, store.read_segments(&object, Some(all.table.clone()), 3..5)).await;
    assert_eq!((some.unwrap().segments, requests), (want[3..5].to_vec(), 1));
    let (known, requests) = gets(&backend, store.read_segments(&object, None, 0..1)).await;
    assert_eq!((known.unwrap().segments, requests), (want[..1].to_vec(), 1), "the table was read lately");
    let another = || again(&backend);
    let (first, requests) = gets(&backend, another().read_segments(&object, None, 0..1)).await;
    assert_eq!((first.unwrap().segments, requests), (want[..1].to_vec(), 2));
    let (last, requests) = gets(&backend, another().read_segments(&object, None, 125..127)).await;
    assert_eq!((last.unwrap().segments, requests), (want[125..127].to_vec(), 1), "the table is near");
    let (store, parts) = (another(), (0..4).map(|n| 32 * n..32 * n + 16));
    let (all, requests) = gets(&backend, join_all(parts.map(|part| store.read_segments(&object, None, part)))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(requests, 5, "all who need the table at the same time read it once");

    let small = segments(&[true, true], 10);
    let object = store.put_object(id(2), &small).await.unwrap();
    let (both, requests) = gets(&backend, store.read_segments(&object, None, 0..2)).await;
    assert_eq!((both.unwrap().segments, requests), (expected(&small), 1));
}

#[tokio::test]
async fn absent_segments_are_empty_and_cost_nothing() {
    let (store, backend) = plain();
    let mut present = vec![false; 128];
    present[40] = true;
    present[127] = true;
    let data = segments(&present, 5);
    let object = store.put_object(id(1), &data).await.unwrap();
    assert_eq!(object.stored_bytes(), (SEGMENT_BYTES + 5 + tail_len(128)) as u64);
    assert!(!object.is_strided());
    let (all, requests) = gets(&backend, store.read_segments(&object, None, 0..128)).await;
    let all = all.unwrap();
    assert_eq!((all.segments, requests), (expected(&data), 1));
    let (none, requests) = gets(&backend, store.read_segments(&object, Some(all.table), 0..32)).await;
    assert_eq!((none.unwrap().segments, requests), (vec![Bytes::new(); 32], 0));

    present[..100].fill(true);
    let data = segments(&present, 5);
    let object = store.put_object(id(2), &data).await.unwrap();
    let (all, requests) = gets(&backend, store.read_segments(&object, None, 30..128)).await;
    assert_eq!(all.unwrap().segments, expected(&data)[30..]);
    assert_eq!(requests, 5, "the table first, then runs of at most 32 segments");
}

#[tokio::test]
async fn damage_on_the_way_is_read_again() {
    for fault in [Fault::Truncated, Fault::FlippedBit] {
        for count in [2, 128] {
            let (store, backend) = plain();
            let data = full(count);
            let object = store.put_object(id(1), &data).await.unwrap();
            backend.plan(RequestKind::Get, fault);
            let read = store.read_segments(&object, None, 0..count as u32).await.unwrap();
            assert_eq!(read.segments, expected(&data));
            assert_eq!(store.stats().corrupt_answers, 1);
        }
    }
}

#[tokio::test]
async fn damage_in_the_store_is_an_error_and_only_where_it_is() {
    let (store, backend) = plain();
    let data = full(64);
    let object = store.put_object(id(1), &data).await.unwrap();
    let table = Arc::new(store.read_table(&object).await.unwrap());
    assert!(backend.inner().damage(&object_key(id(1)), |bytes| bytes[5 * SEGMENT_BYTES + 9] ^= 4));
    let error = store.read_segments(&object, None, 0..64).await.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { detail, .. } if detail.contains("segment 5 ")), "{error}");
    assert!(store.read_segments(&object, Some(table.clone()), 5..6).await.is_err());
    assert_eq!(store.read_segments(&object, Some(table), 6..64).await.unwrap().segments, expected(&data)[6..]);

    backend.inner().damage(&object_key(id(1)), |bytes| bytes.truncate(1000));
    assert!(matches!(store.read_table(&object).await, Err(StoreError::Corrupt { .. })));
    assert!(matches!(store.read_segments(&object, None, 0..1).await, Err(StoreError::Corrupt { .. })));
}

#[tokio::test]
async fn records_and_tables_of_other_objects_are_refused() {
    let (store, backend) = plain();
    let object = store.put_object(id(1), &full(2)).await.unwrap();
    let shorter = StoredObject::new(id(1), 1, object.stored_bytes() - SEGMENT_BYTES as u64 - 32).unwrap();
    assert!(matches!(store.read_table(&shorter).await, Err(StoreError::Corrupt { .. })));
    let missing = StoredObject::new(id(2), 2, object.stored_bytes()).unwrap();
    assert!(matches!(store.read_segments(&missing, None, 0..2).await, Err(StoreError::NotFound { .. })));
    for range in [0..0, 0..3, 2..3, 3..u32::MAX] {
        assert!(matches!(store.read_segments(&object, None, range).await, Err(StoreError::Invalid { .. })));
    }
    // Another object's bytes under this id: every byte is sound, but in the wrong place.
    store.put_object(id(3), &full(2)).await.unwrap();
    let other = crate::Backend::get(&*backend, &object_key(id(3))).await.unwrap();
    backend.inner().damage(&object_key(id(1)), |bytes| *bytes = other.to_vec());
    assert!(matches!(store.read_segments(&object, None, 0..2).await, Err(StoreError::Corrupt { .. })));
}

/// Must be survived: any mix of refusals, lost answers, truncated and damaged bodies. A call returns right bytes or an error
/// that is retryable or names corruption; repeated while the faults last, it succeeds.
#[tokio::test(start_paused = true)]
async fn right_bytes_or_an_error_under_random_faults() {
    for seed in 0..40 {
        let options = StoreOptions { attempts_max: 3, part_bytes: 64 << 10, ..StoreOptions::default() };
        let (store, backend) = faulty(seed, options);
        let delay_max = Duration::from_secs(20);
        backend.set_faults(Faults {
            unavailable: 150,
            lost_answer: 150,
            truncated: 50,
            flipped_bit: 50,
            delay: 100,
            delay_max,
        });
        for n in 0..8u8 {
            let present: Vec<bool> =
                (0..=n as usize * 3).map(|i| (i as u64 * 31 + seed).wrapping_mul(0x9e37) >> 3 & 7 != 0).collect();
            let data = segments(&present, 1 + (seed as usize * 977) % SEGMENT_BYTES);
            let object = loop {
                match store.put_object(id(n), &data).await {
                    Ok(object) => break object,
                    Err(StoreError::Unavailable { .. } | StoreError::Corrupt { .. }) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            };
            let count = object.segment_count();
            let from = (seed as u32 * 7 + u32::from(n)) % count;
            let mut tries = 0;
            let read = loop {
                match store.read_segments(&object, None, from..count).await {
                    Ok(read) => break read,
                    Err(StoreError::Unavailable { .. } | StoreError::Corrupt { .. }) => tries += 1,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                assert!(tries < 200, "seed {seed}");
            };
            assert_eq!(read.segments, expected(&data)[from as usize..], "seed {seed}");
        }
    }
}
