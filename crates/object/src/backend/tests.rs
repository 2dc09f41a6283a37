use super::*;
use std::fs;

#[test]
fn keys() {
    for good in ["a", "meta/log-1", "objects/ab/0123", "x.json", &"k".repeat(255)] {
        check_key(good).unwrap();
    }
    for bad in ["", "/", "a/", "/a", "a//b", ".", "..", "a/../b", ".tmp/x", "a b", "ä", "a\0", "a%20", &"k".repeat(256)]
    {
        assert!(check_key(bad).is_err(), "{bad}");
    }
    assert!(check_key(&["k"; 600].join("/")).is_err());
}

#[tokio::test]
async fn files_leave_nothing_unfinished_behind() {
    let dir = tempfile::tempdir().unwrap();
    let backend = FileBackend::open(&dir.path().join("deep/store")).unwrap();
    let temp = backend.root().join(".tmp");
    backend.put("a/b", vec![Bytes::from_static(b"1")], PutMode::Create).await.unwrap();
    backend.put("a/b", vec![Bytes::from_static(b"2")], PutMode::Overwrite).await.unwrap();
    assert!(backend.put("a/b", vec![], PutMode::Create).await.is_err());
    assert!(matches!(backend.put("a/b/c", vec![], PutMode::Create).await, Err(StoreError::Invalid { .. })));
    assert_eq!(fs::read_dir(&temp).unwrap().count(), 0);

    fs::write(temp.join("young"), "x").unwrap();
    let old = fs::File::create(temp.join("old")).unwrap();
    old.set_modified(std::time::UNIX_EPOCH).unwrap();
    FileBackend::open(backend.root()).unwrap();
    assert!(temp.join("young").exists() && !temp.join("old").exists());
}

#[tokio::test]
async fn a_directory_that_is_gone_is_not_an_empty_store() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let backend = FileBackend::open(&root).unwrap();
    backend.put("a/b", vec![], PutMode::Create).await.unwrap();
    for leave_mount_point in [false, true] {
        fs::remove_dir_all(&root).unwrap();
        if leave_mount_point {
            fs::create_dir(&root).unwrap();
        }
        assert!(backend.get("a/b").await.unwrap_err().is_retryable());
        assert!(backend.put("a/c", vec![], PutMode::Create).await.unwrap_err().is_retryable());
        assert!(backend.delete("a/b").await.unwrap_err().is_retryable());
        assert!(futures::StreamExt::next(&mut backend.list("a")).await.unwrap().is_err());
        fs::create_dir_all(&root).unwrap();
    }
    // Mounted again.
    FileBackend::open(&root).unwrap();
    backend.put("a/c", vec![], PutMode::Create).await.unwrap();
}

#[tokio::test]
async fn of_many_that_create_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let backend = FileBackend::open(dir.path()).unwrap();
    let puts = (0..16u8).map(|n| backend.put("a/key", vec![Bytes::from(vec![n; 1000])], PutMode::Create));
    let done = futures::future::join_all(puts).await;
    assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1);
    assert!(done.iter().all(|done| matches!(done, Ok(()) | Err(StoreError::Exists { .. }))));
    let winner = done.iter().position(Result::is_ok).unwrap() as u8;
    assert_eq!(backend.get("a/key").await.unwrap(), vec![winner; 1000]);
}

#[tokio::test]
async fn readers_see_all_of_one_version() {
    let dir = tempfile::tempdir().unwrap();
    let backend = FileBackend::open(dir.path()).unwrap();
    let body = |n: u8| vec![Bytes::from(vec![n; 50_000]), Bytes::from(vec![n; 50_000])];
    backend.put("key", body(0), PutMode::Overwrite).await.unwrap();
    let write = async {
        for n in 1..20 {
            backend.put("key", body(n), PutMode::Overwrite).await.unwrap();
        }
    };
    let read = async {
        for _ in 0..100 {
            let found = backend.get("key").await.unwrap();
            assert!(found.len() == 100_000 && found.iter().all(|&byte| byte == found[0]));
        }
    };
    futures::future::join(write, read).await;
}
