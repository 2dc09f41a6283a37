//! The two pages over HTTP/1.1.

use crate::{Page, Source};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

/// Connections at once; more wait in the kernel until one of these has ended.
const CONNECTIONS_MAX: usize = 16;
/// Time for the header of a request.
const HEADER_TIME: Duration = Duration::from_secs(5);
/// Time for a connection, from when it was taken to the last byte of its answer.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Most bytes of a request's header, and of what waits to be sent.
const BUFFER_BYTES_MAX: usize = 16 << 10;
/// After the kernel had no connection to give, for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

type Answer = Response<Full<Bytes>>;

/// A socket that listens; who connects waits for [`Listener::serve`].
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens at `address`, where port 0 is any free one. Called on a runtime of tokio, as are the answers.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from `source`.
    pub fn serve(self, source: Arc<dyn Source>) -> Monitor {
        Monitor { accepting: tokio::spawn(accept(self.listener, source)) }
    }
}

/// Serves a [`Source`] until it is dropped.
#[derive(Debug)]
pub struct Monitor {
    accepting: JoinHandle<()>,
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, source: Arc<dyn Source>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Ends them with this task.
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = source.clone();
                connections.spawn(async move {
                    let _place = place;
                    if let Ok(Err(error)) = timeout(CONNECTION_TIME, serve(stream, source)).await {
                        tracing::debug!(%error, "a connection of the monitor ended");
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "the monitor has no connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, source: Arc<dyn Source>) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let source = source.clone();
        async move { Ok::<_, Infallible>(answer(&request, &source).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(BUFFER_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn answer(request: &Request<Incoming>, source: &Arc<dyn Source>) -> Answer {
    let path = request.uri().path();
    if !["/metrics", "/healthz"].contains(&path) {
        return text(StatusCode::NOT_FOUND, TEXT, "here are /metrics and /healthz\n".into());
    }
    // HEAD is GET without the body, which hyper leaves out.
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET or HEAD\n".into());
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    if path == "/healthz" {
        let troubles = source.troubles().await;
        return match troubles.is_empty() {
            true => text(StatusCode::OK, TEXT, "healthy\n".into()),
            false => text(StatusCode::SERVICE_UNAVAILABLE, TEXT, troubles.join("\n") + "\n"),
        };
    }
    let source = source.clone();
    let page = tokio::task::spawn_blocking(move || {
        let mut page = Page::default();
        source.metrics(&mut page);
        page.into_text()
    });
    match page.await {
        Ok(page) => text(StatusCode::OK, PROMETHEUS, page),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
mod tests;
