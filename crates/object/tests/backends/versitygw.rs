//! A real S3 server: `go install github.com/versity/versitygw/cmd/versitygw@v1.8.0`.

use super::*;
use sluice_object::Denied;
use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
};
use tokio::{net::TcpStream, time::sleep};

struct Server {
    child: Child,
    endpoint: String,
    _dir: tempfile::TempDir,
}

fn binary() -> PathBuf {
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<_> = std::env::split_paths(&in_path).collect();
    if let Ok(said) = Command::new("go").args(["env", "GOPATH"]).output() {
        dirs.push(PathBuf::from(String::from_utf8_lossy(&said.stdout).trim()).join("bin"));
    }
    dirs.extend(std::env::home_dir().map(|home| home.join("go/bin")));
    let found = dirs.into_iter().map(|dir| dir.join("versitygw")).find(|path| path.is_file());
    found.expect("versitygw is missing: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0")
}

impl Server {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(BUCKET)).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(binary());
        command.args(["--access", ACCESS_KEY, "--secret", SECRET_KEY, "--port", &address, "posix"]).arg(dir.path());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { child, endpoint: format!("http://{address}"), _dir: dir };
        for _ in 0..500 {
            if TcpStream::connect(&address).await.is_ok() {
                return server;
            }
            if let Some(status) = server.child.try_wait().unwrap() {
                panic!("versitygw ended: {status}");
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("versitygw does not listen");
    }

    fn url(&self, place: &str, options: &str) -> String {
        format!("s3://{place}?endpoint={}{options}", self.endpoint)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn backend_contract() {
    let server = Server::start().await;
    contract::backend(&s3_backend(&server.url("bucket", ""))).await;
    let backend = s3_backend(&server.url("bucket/a/prefix", ""));
    contract::backend(&backend).await;
    contract::long_listing(&backend).await;
}

#[tokio::test]
async fn store_contract() {
    let server = Server::start().await;
    contract::store(&server.url("bucket/volume", ""), right_options()).await;
}

#[tokio::test]
async fn refusals_name_what_is_wrong() {
    let server = Server::start().await;
    let url = server.url("bucket", "");
    let error = contract::refusal(&url, options("unknown", "secret-that-is-wrong")).await;
    assert!(contract::is_denied(&error, Denied::AccessKey), "{error}");
    let error = contract::refusal(&url, options(ACCESS_KEY, "secret-that-is-wrong")).await;
    assert!(contract::is_denied(&error, Denied::SecretKey), "{error}");
    let error = contract::refusal(&server.url("no-such-bucket", ""), right_options()).await;
    assert!(contract::is_denied(&error, Denied::Bucket), "{error}");
    let error = contract::refusal(&server.url("bucket", "&region=eu-west-3"), right_options()).await;
    assert!(contract::is_denied(&error, Denied::Region), "{error}");
}

/// Must be survived: the server dies in the middle and comes back empty-handed. No call hangs, none succeeds falsely.
#[tokio::test]
async fn a_server_that_dies() {
    let server = Server::start().await;
    let store = sluice_object::Store::open(&server.url("bucket", "").parse().unwrap(), right_options()).unwrap();
    let data = vec![Some(bytes::Bytes::from_static(b"data"))];
    let object = store.put_object(sluice_base::ObjectId([1; 16]), &data).await.unwrap();
    drop(server);
    assert!(store.put_object(sluice_base::ObjectId([2; 16]), &data).await.unwrap_err().is_retryable());
    assert!(store.read_segments(&object, None, 0..1).await.unwrap_err().is_retryable());
}
