//! The promises of `Backend` and `Store`, whatever is behind.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use sluice_base::ObjectId;
use sluice_object::{Backend, Denied, ProbeError, PutMode, Store, StoreError, StoreOptions, StoreUrl};

async fn keys(backend: &dyn Backend, prefix: &str) -> Vec<String> {
    let mut found: Vec<_> = backend.list(prefix).map_ok(|entry| entry.key).try_collect().await.unwrap();
    found.sort();
    found
}

/// Needs an empty backend.
pub async fn backend(backend: &dyn Backend) {
    assert_eq!(keys(backend, "").await, [""; 0]);
    assert!(matches!(backend.get("a/none").await, Err(StoreError::NotFound { .. })));
    assert!(matches!(backend.get_range("a/none", 0..1).await, Err(StoreError::NotFound { .. })));
    assert!(matches!(backend.head("a/none").await, Err(StoreError::NotFound { .. })));
    backend.delete("a/none").await.unwrap();

    let pieces = || vec![Bytes::from_static(b"hello "), Bytes::new(), Bytes::from_static(b"world")];
    backend.put("a/one", pieces(), PutMode::Create).await.unwrap();
    assert!(matches!(backend.put("a/one", pieces(), PutMode::Create).await, Err(StoreError::Exists { .. })));
    assert_eq!(backend.get("a/one").await.unwrap(), "hello world");
    assert_eq!(backend.head("a/one").await.unwrap(), 11);
    assert_eq!(backend.get_range("a/one", 6..11).await.unwrap(), "world");
    assert_eq!(backend.get_range("a/one", 0..1).await.unwrap(), "h");
    assert_eq!(backend.get_range("a/one", 6..100).await.unwrap(), "world", "cut at the end");
    assert_eq!(backend.get_range("a/one", 11..12).await.unwrap(), "", "past the end");
    backend.put("a/one", vec![Bytes::from_static(b"bye")], PutMode::Overwrite).await.unwrap();
    assert_eq!(backend.get("a/one").await.unwrap(), "bye");

    let big: Vec<u8> = (0..5_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let chunks = big.chunks(32 << 10).map(Bytes::copy_from_slice).collect();
    backend.put("a/big", chunks, PutMode::Create).await.unwrap();
    assert_eq!(backend.head("a/big").await.unwrap(), big.len() as u64);
    assert_eq!(backend.get_range("a/big", 1_000_000..3_000_001).await.unwrap(), big[1_000_000..3_000_001]);
    assert_eq!(backend.get("a/big").await.unwrap(), big);

    for key in ["a/b/c", "ab/c", "top"] {
        backend.put(key, vec![Bytes::from_static(b"x")], PutMode::Create).await.unwrap();
    }
    assert_eq!(keys(backend, "a").await, ["a/b/c", "a/big", "a/one"]);
    assert_eq!(keys(backend, "a/b").await, ["a/b/c"]);
    assert_eq!(keys(backend, "none").await, [""; 0]);
    assert_eq!(keys(backend, "").await, ["a/b/c", "a/big", "a/one", "ab/c", "top"]);
    let top: Vec<_> = backend.list("ab").try_collect().await.unwrap();
    assert_eq!((top.len(), top[0].bytes), (1, 1));

    backend.delete("a/one").await.unwrap();
    backend.delete("a/one").await.unwrap();
    assert!(matches!(backend.get("a/one").await, Err(StoreError::NotFound { .. })));
    assert_eq!(keys(backend, "a").await, ["a/b/c", "a/big"]);
    assert!(matches!(backend.get("../etc").await, Err(StoreError::Invalid { .. })));
}

fn open(url: &str, options: StoreOptions) -> Store {
    Store::open(&url.parse::<StoreUrl>().unwrap(), options).unwrap()
}

/// Needs an empty store.
pub async fn store(url: &str, options: StoreOptions) {
    let store = open(url, options);
    store.probe().await.unwrap();
    let segment =
        |n: usize| (n % 5 != 3).then(|| Bytes::from((0..32 << 10).map(|i| (i * n) as u8).collect::<Vec<_>>()));
    for (n, count) in [1, 7, 40, 128].into_iter().enumerate() {
        for offset in [0, 1] {
            let id = ObjectId([n as u8 * 16 + offset; 16]);
            let data: Vec<_> = (0..count).map(|i| segment(if offset == 0 { i * 5 } else { i })).collect();
            let object = store.put_object(id, &data).await.unwrap();
            assert_eq!(store.put_object(id, &data).await.unwrap(), object, "the same again is success");
            let read = store.read_segments(&object, None, 0..count as u32).await.unwrap();
            let expected: Vec<_> = data.iter().map(|segment| segment.clone().unwrap_or_default()).collect();
            assert_eq!(read.segments, expected);
            let part = store.read_segments(&object, Some(read.table), count as u32 / 2..count as u32).await.unwrap();
            assert_eq!(part.segments, expected[count / 2..]);
        }
    }
    let other = vec![Some(Bytes::from_static(b"other"))];
    assert!(matches!(store.put_object(ObjectId([0; 16]), &other).await, Err(StoreError::Exists { .. })));
    assert_eq!(store.list_objects().try_collect::<Vec<_>>().await.unwrap().len(), 8);
    store.delete_object(ObjectId([16; 16])).await.unwrap();
    assert_eq!(store.list_objects().count().await, 7);
    assert_eq!(store.list_blobs("sluice-probe").await.unwrap(), []);
}

/// More keys than one page of an S3 listing holds.
pub async fn long_listing(backend: &dyn Backend) {
    let keys: Vec<_> = (0..1003).map(|n| format!("many/key-{n:04}")).collect();
    let put = |key: &String| {
        backend.put(Box::leak(key.clone().into_boxed_str()), vec![Bytes::from_static(b"x")], PutMode::Create)
    };
    stream::iter(keys.iter().map(put)).buffered(16).try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(self::keys(backend, "many").await, keys);
}

pub async fn refusal(url: &str, options: StoreOptions) -> ProbeError {
    let error = open(url, options).probe().await.expect_err(url);
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("secret-that") && !shown.contains(super::SECRET_KEY), "{shown}");
    error
}

pub fn is_denied(error: &ProbeError, reason: Denied) -> bool {
    matches!(&error.source, StoreError::Denied { reason: found, .. } if *found == reason)
}
