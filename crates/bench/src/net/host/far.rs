//! What a node asks for what it misses.

use super::{super::case::STORE_TAKES, Counters};
use futures::future::{BoxFuture, FutureExt};
use sluice_base::limits::SEGMENT_BYTES;
use sluice_node::{Elsewhere, Group, message::Segment};
use sluice_object::StoredObject;
use sluice_store::Cache;
use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

/// The store does not answer: longer than anybody waits.
const HANGS: Duration = Duration::from_secs(60);

/// Other nodes, if they are asked, and then what stands for the store: the host's own objects, after as long as a store takes. It hangs on others.
pub(super) struct Far {
    pub(super) previous: Option<Arc<Group>>,
    pub(super) cache: Cache,
    pub(super) counters: Arc<Counters>,
}

impl Elsewhere for Far {
    fn segments(&self, object: StoredObject, range: Range<u32>) -> BoxFuture<'_, Option<Vec<Segment>>> {
        async move {
            if let Some(previous) = &self.previous
                && let Some(found) = previous.segments(object, range.clone()).await
            {
                self.counters.moved.fetch_add(1, Relaxed);
                return Some(found);
            }
            self.counters.fetched.fetch_add(1, Relaxed);
            if self.cache.pin(object.id()).is_none() {
                tokio::time::sleep(HANGS).await;
                return None;
            }
            tokio::time::sleep(STORE_TAKES).await;
            let cache = self.cache.clone();
            tokio::task::spawn_blocking(move || segments(&cache, object, range)).await.ok()?
        }
        .boxed()
    }
}

fn segments(cache: &Cache, object: StoredObject, range: Range<u32>) -> Option<Vec<Segment>> {
    let pin = cache.pin(object.id())?;
    let segment = |index: u32| {
        let sum = pin.sum(index);
        let mut bytes = vec![0; sum.len as usize];
        pin.read_at(index * SEGMENT_BYTES as u32, &mut bytes).ok()?;
        Some(Segment { index, bytes: bytes.into(), crc: sum.crc })
    };
    range.map(segment).collect()
}
