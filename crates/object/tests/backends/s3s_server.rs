//! S3 over real HTTP, served in this process by s3s-fs.

use super::*;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use sluice_object::Denied;
use tokio::{net::TcpListener, task::JoinHandle};

struct Server {
    endpoint: String,
    task: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Server {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(BUCKET)).unwrap();
        let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(dir.path()).unwrap());
        service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = service.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let service = service.clone();
                tokio::spawn(async move {
                    let http = Builder::new(TokioExecutor::new());
                    let _ = http.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { endpoint, task, _dir: dir }
    }

    fn url(&self, place: &str, options: &str) -> String {
        format!("s3://{place}?endpoint={}{options}", self.endpoint)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn backend_contract() {
    let server = Server::start().await;
    contract::backend(&s3_backend(&server.url("bucket", ""))).await;
    contract::backend(&s3_backend(&server.url("bucket/a/prefix", "&region=eu-west-1"))).await;
}

#[tokio::test]
async fn store_contract() {
    let server = Server::start().await;
    contract::store(&server.url("bucket/volume", ""), right_options()).await;
    contract::store(&server.url("bucket/second", "&conditional_put=false"), right_options()).await;
}

#[tokio::test]
async fn refusals_name_what_is_wrong() {
    let server = Server::start().await;
    let url = server.url("bucket", "");
    let error = contract::refusal(&url, options("unknown", "secret-that-is-wrong")).await;
    assert!(contract::is_denied(&error, Denied::AccessKey), "{error}");
    let error = contract::refusal(&url, options(ACCESS_KEY, "secret-that-is-wrong")).await;
    assert!(contract::is_denied(&error, Denied::SecretKey), "{error}");
    // s3s-fs makes the bucket that a put names; versitygw refuses it.
}

#[tokio::test]
async fn an_endpoint_where_nobody_listens() {
    let url = format!("s3://bucket?endpoint=http://127.0.0.1:{}", free_port());
    let error = contract::refusal(&url, right_options()).await;
    assert!(error.source.is_retryable());
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn without_credentials_opening_fails_at_once() {
    let url: StoreUrl = "s3://bucket".parse().unwrap();
    let error = sluice_object::Store::open(&url, StoreOptions::default()).unwrap_err().to_string();
    assert!(error.contains("AWS_ACCESS_KEY_ID"), "{error}");
}

#[tokio::test]
async fn https_is_spoken_and_does_not_fall_back() {
    let server = Server::start().await;
    let url = server.url("bucket", "").replace("http:", "https:");
    let error = contract::refusal(&url, right_options()).await;
    assert!(error.source.is_retryable(), "{error}");
    assert!(error.to_string().contains("corrupt message"), "rustls met clear text: {error}");
    // AWS itself, not contacted.
    sluice_object::Store::open(&"s3://bucket?region=eu-central-1".parse().unwrap(), right_options()).unwrap();
}
