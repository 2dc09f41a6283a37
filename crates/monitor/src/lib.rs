//! How a process is watched over HTTP: `/metrics` in the text format of Prometheus, `/healthz` for load balancers and people.
//!
//! A [`Source`] says what there is to say; [`Page`] writes it down; [`Listener`] serves it. Who asks is not trusted: 16
//! connections at once, 5 s for a request's header, 10 s for all of it, one request for each connection, and the body of a
//! request is never read.
//!
//! This crate knows nothing of volumes and nodes: what is counted and what it is called is said elsewhere.

#![forbid(unsafe_code)]

mod http;
mod page;

pub use http::{Listener, Monitor};
pub use page::{Family, Number, Page, resident_bytes};

use futures::future::BoxFuture;

/// What is told of a process.
pub trait Source: Send + Sync + 'static {
    /// Writes the metrics of now. Called on a thread that may wait for local disks.
    fn metrics(&self, page: &mut Page);

    /// Why the process is not healthy, a line for each reason; nothing when it is. It must not take long.
    fn troubles(&self) -> BoxFuture<'_, Vec<String>>;
}
