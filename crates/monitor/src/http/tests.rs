use super::*;
use futures::future::BoxFuture;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[derive(Default)]
struct Sick(AtomicBool);

impl Source for Sick {
    fn metrics(&self, page: &mut Page) {
        page.gauge("sick", "Whether it is.").is(self.0.load(Relaxed));
    }

    fn troubles(&self) -> BoxFuture<'_, Vec<String>> {
        let troubles = if self.0.load(Relaxed) { vec!["one".into(), "two".into()] } else { Vec::new() };
        Box::pin(async { troubles })
    }
}

async fn monitor() -> (SocketAddr, Monitor, Arc<Sick>) {
    let source = Arc::new(Sick::default());
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    (listener.address(), listener.serve(source.clone()), source)
}

/// The whole answer to some bytes.
async fn say(at: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(Duration::from_secs(60), stream.read_to_string(&mut answer)).await.expect("an end").unwrap();
    answer
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n")
}

#[tokio::test]
async fn pages_and_what_is_none() {
    let (at, _monitor, source) = monitor().await;
    let answer = say(at, &request("GET", "/metrics")).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("text/plain; version=0.0.4"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n# HELP sick Whether it is.\n# TYPE sick gauge\nsick 0\n"), "{answer}");
    let answer = say(at, &request("GET", "/healthz?x=y")).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nhealthy\n"), "{answer}");
    source.0.store(true, Relaxed);
    let answer = say(at, &request("GET", "/healthz")).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("\r\n\r\none\ntwo\n"), "{answer}");
    let answer = say(at, &request("HEAD", "/healthz")).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    for path in ["/", "/metrics/", "/healthz/x", "/Metrics"] {
        let answer = say(at, &request("GET", path)).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
    }
    let answer = say(at, &request("DELETE", "/metrics")).await;
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.to_lowercase().contains("allow: get, head"), "{answer}");
}

/// To be survived: noise, headers without an end, a body that nobody wants, and more connections than there are places.
#[tokio::test]
async fn strangers_shut_nobody_out() {
    let (at, _monitor, _source) = monitor().await;
    let answer = say(at, "\u{16}\u{3}\u{1}noise\r\n\r\n").await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
    let mut stream = TcpStream::connect(at).await.unwrap();
    // The rest of what is too long meets a closed connection.
    let _ = stream.write_all(long.as_bytes()).await;
    let answer = say(at, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS_MAX + 4 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(b"GET /met").await.unwrap();
        silent.push(stream);
    }
    // The silent ones are sent away after a while; then there is room.
    let answer = say(at, &request("GET", "/healthz")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
