//! What every backend promises, held against every backend: memory, files, S3 over HTTP in this process, and versitygw.

mod contract;
mod s3s_server;
mod versitygw;

use sluice_object::{AwsSettings, FaultyBackend, FileBackend, MemoryBackend, StoreOptions, StoreUrl};
use std::time::Duration;

#[tokio::test]
async fn memory() {
    contract::backend(&MemoryBackend::default()).await;
    contract::store("memory:", StoreOptions::default()).await;
}

#[tokio::test]
async fn faulty_without_faults() {
    contract::backend(&FaultyBackend::new(MemoryBackend::default(), 1)).await;
}

#[tokio::test]
async fn files() {
    let dir = tempfile::tempdir().unwrap();
    contract::backend(&FileBackend::open(&dir.path().join("a")).unwrap()).await;
    contract::store(&format!("file:{}", dir.path().join("b").display()), StoreOptions::default()).await;
}

const ACCESS_KEY: &str = "sluice-test-key";
const SECRET_KEY: &str = "sluice-test-secret";
const BUCKET: &str = "bucket";

fn options(access_key: &str, secret_key: &str) -> StoreOptions {
    let aws = AwsSettings::from_variables([("AWS_ACCESS_KEY_ID", access_key), ("AWS_SECRET_ACCESS_KEY", secret_key)]);
    StoreOptions { aws, attempts_max: 2, backoff_base: Duration::from_millis(5), ..StoreOptions::default() }
}

fn right_options() -> StoreOptions {
    options(ACCESS_KEY, SECRET_KEY)
}

fn s3_backend(url: &str) -> sluice_object::S3Backend {
    let StoreUrl::S3(url) = url.parse().unwrap() else { panic!("not s3") };
    sluice_object::S3Backend::open(&url, &right_options().aws, Duration::from_secs(5)).unwrap()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
