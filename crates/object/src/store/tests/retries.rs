//! Requests that fail, hang or lose their answer.

use super::*;

#[tokio::test(start_paused = true)]
async fn waits_between_tries_are_bounded_and_tries_are_too() {
    let (store, backend) = plain();
    for _ in 0..20 {
        backend.plan(RequestKind::Put, Fault::Unavailable);
    }
    let start = Instant::now();
    let error = store.put_object(id(1), &full(1)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("try 5"), "{error}");
    assert_eq!(backend.count(RequestKind::Put), 5);
    assert!(start.elapsed() <= Duration::from_millis(100 + 200 + 400 + 800 + 10), "{:?}", start.elapsed());
    let options = StoreOptions::default();
    assert!((0..100).all(|tries| options.backoff(tries) <= options.backoff_max));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_is_given_up_in_time() {
    let options = StoreOptions {
        attempts_max: 100,
        deadline: Duration::from_secs(40),
        attempt_timeout: Duration::from_secs(15),
        ..StoreOptions::default()
    };
    let (store, backend) = faulty(1, options);
    for _ in 0..100 {
        backend.plan(RequestKind::Get, Fault::Hang);
    }
    let start = Instant::now();
    let object = StoredObject::new(id(1), 1, 196).unwrap();
    let error = store.read_table(&object).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable { detail, .. } if detail.contains("no answer in time")),
        "{error}"
    );
    assert!(start.elapsed() >= Duration::from_secs(30) && start.elapsed() <= Duration::from_secs(41));
    assert_eq!(backend.count(RequestKind::Get), 3);
    assert_eq!(store.stats().of(RequestKind::Get).in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_hang_costs_one_try() {
    let (store, backend) = plain();
    backend.plan(RequestKind::Put, Fault::Hang);
    store.put_object(id(1), &full(1)).await.unwrap();
    assert_eq!(backend.count(RequestKind::Put), 2);
}

#[tokio::test(start_paused = true)]
async fn a_put_whose_answer_is_lost_succeeds() {
    let (store, backend) = plain();
    backend.plan(RequestKind::Put, Fault::LostAnswer);
    let object = store.put_object(id(1), &full(3)).await.unwrap();
    assert_eq!(backend.count(RequestKind::Put), 1, "its bytes are not sent again");
    assert_eq!(store.read_segments(&object, None, 0..3).await.unwrap().segments, expected(&full(3)));

    backend.plan(RequestKind::Put, Fault::LostAnswer);
    store.put_blob("marker", Bytes::from_static(b"mine"), PutMode::Create).await.unwrap();
    backend.plan(RequestKind::Put, Fault::Unavailable);
    let taken = store.put_blob("marker", Bytes::from_static(b"other"), PutMode::Create).await;
    assert!(matches!(taken, Err(StoreError::Exists { .. })));
}

#[tokio::test(start_paused = true)]
async fn lost_at_every_try_is_an_error_and_the_next_call_finds_it_done() {
    let (store, backend) = plain();
    backend.plan(RequestKind::Put, Fault::LostAnswer);
    for _ in 0..4 {
        backend.plan(RequestKind::Head, Fault::Unavailable);
    }
    assert!(store.put_object(id(1), &full(1)).await.unwrap_err().is_retryable());
    store.put_object(id(1), &full(1)).await.unwrap();
}

#[tokio::test]
async fn an_id_taken_by_other_bytes_is_an_error() {
    let (store, _) = plain();
    store.put_object(id(1), &segments(&[true, false, true], 100)).await.unwrap();
    // Same length, other segment absent.
    let same_length = store.put_object(id(1), &segments(&[false, true, true], 100)).await;
    assert!(matches!(same_length, Err(StoreError::Exists { .. })));
    let other_length = store.put_object(id(1), &segments(&[true, false, true], 101)).await;
    assert!(matches!(other_length, Err(StoreError::Exists { .. })));
}

#[tokio::test]
async fn what_only_the_operator_can_change_is_not_tried_again() {
    let (store, backend) = plain();
    for fault in [Fault::Denied(Denied::Expired), Fault::Full] {
        let before = backend.count(RequestKind::Put);
        backend.plan(RequestKind::Put, fault);
        assert!(store.put_object(id(1), &full(1)).await.is_err());
        assert_eq!(backend.count(RequestKind::Put), before + 1);
    }
    let (before, broken) = (backend.count(RequestKind::Put), vec![Some(Bytes::new())]);
    assert!(matches!(store.put_object(id(1), &broken).await, Err(StoreError::Invalid { .. })));
    assert!(matches!(store.put_object(id(1), &[]).await, Err(StoreError::Invalid { .. })));
    assert_eq!(backend.count(RequestKind::Put), before);
}

#[tokio::test(start_paused = true)]
async fn down_and_up_again() {
    let (store, backend) = plain();
    backend.set_down(true);
    assert!(store.put_object(id(1), &full(1)).await.unwrap_err().is_retryable());
    backend.set_down(false);
    store.put_object(id(1), &full(1)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_leaves_no_slot_taken() {
    let options = StoreOptions { gets_max: 1, ..StoreOptions::default() };
    let (store, backend) = faulty(1, options);
    let object = store.put_object(id(1), &full(1)).await.unwrap();
    backend.plan(RequestKind::Get, Fault::Hang);
    let gone = tokio::time::timeout(Duration::from_secs(1), store.read_table(&object)).await;
    assert!(gone.is_err());
    store.read_table(&object).await.unwrap();
    assert_eq!(store.stats().of(RequestKind::Get).in_flight, 0);
}
