use super::*;
use futures::future::join_all;
use sluice_base::SeededEntropy;
use sluice_object::{FaultyBackend, MemoryBackend, StoreOptions, backend::Faults};
use std::{sync::Arc, time::Duration};

fn fence_at(number: u64, line: u64) -> About {
    let (first, last, since, whole, start, fence, base, there) = (1, 0, 0, 0, 0, number, 0, 0);
    About { kind: Kind::Fence, first, last, since, whole, start, fence, base, there, line: Line(line), wall_secs: 0 }
}

/// Takes over, and ships blobs until it finds that somebody else does; returns what it was told that the store has.
async fn take_over(store: Store, line: u64) -> Vec<(String, bytes::Bytes)> {
    let mut next = loop {
        let found = find(&store).await.expect("a store");
        if let Some(next) = fence(&store, fence_at(found.next, line)).await.expect("a store") {
            break next;
        }
    };
    let (number, mut acked) = (next - BLOBS_MAX as u64, Vec::new());
    while acked.len() < 5 {
        let about = About { kind: Kind::Log, last: 1, ..fence_at(number, line) };
        let (key, body) = (names::log(next), blob::encode(about, &[b"a record"]));
        match store.put_blob(&key, body.clone(), PutMode::Create).await {
            Ok(()) => acked.push((key, body)),
            Err(StoreError::Exists { .. }) => break,
            Err(error) => panic!("{error}"),
        }
        next += 1;
    }
    acked
}

/// However those who take over at the same time come between each other, what one was told to be there stays.
#[tokio::test(start_paused = true)]
async fn nobody_replaces_what_counts() {
    for seed in 0..500 {
        let backend = Arc::new(FaultyBackend::new(MemoryBackend::default(), seed));
        let delay_max = Duration::from_millis(50);
        backend.set_faults(Faults { delay: 900, delay_max, lost_answer: 30, ..Faults::default() });
        let store =
            Store::with_backend(backend, "memory:", StoreOptions::default(), Arc::new(SeededEntropy::new(seed)));
        // What somebody had under way, with a gap before it.
        for number in [0, 2, 3] {
            let about = About { kind: Kind::Log, last: 1, ..fence_at(0, 9) };
            let body = blob::encode(about, &[b"a record"]);
            store.put_blob(&names::log(number), body, PutMode::Create).await.expect("put");
        }
        let head = Head {
            format_version: crate::head::FORMAT_VERSION,
            begin: 0,
            end: 0,
            log: 0,
            fence: 0,
            line: Line(9),
            run: 1,
            parts: 0,
            bytes: 0,
        };
        store.put_blob(&names::head(0, 1), head.to_json(), PutMode::Create).await.expect("put");
        let acked = join_all((0..4).map(|line| take_over(store.clone(), line))).await;
        for (key, body) in acked.into_iter().flatten() {
            assert!(store.get_blob(&key).await.expect("it is there") == body, "seed {seed}: {key} was replaced");
        }
    }
}
