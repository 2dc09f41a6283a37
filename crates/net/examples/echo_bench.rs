//! What one lane does on loopback, both ends in this process: shows gross slowness, no more.
//!
//!     cargo run --release -p sluice-net --example echo_bench

use bytes::Bytes;
use futures::{StreamExt, stream};
use sluice_base::{Clock, OsEntropy, SystemClock, VolumeId};
use sluice_net::{Client, ClientOptions, Failure, NoCallbacks, Peer, Refusal, Server, ServerOptions, Service};
use sluice_wire::{Hello, LaneClass, Payload, PeerKind, Request, Welcome};
use std::{net::SocketAddr, sync::Arc, time::Duration};

/// Method 0 answers with the body, method n with n MiB.
struct Echo(Bytes);

impl Service for Echo {
    async fn hello(&self, _: &Hello, _: SocketAddr) -> Result<Welcome, Refusal> {
        Ok(Welcome { volume: VolumeId([1; 16]), session: None, name: "echo".into() })
    }
    async fn call(&self, _: &Arc<Peer>, request: Request) -> Result<Payload, Failure> {
        let body = match request.method {
            0 => request.body.checked().map_err(|bad| Failure::new(1, bad.to_string()))?,
            mib => self.0.slice(..usize::from(mib) << 20),
        };
        Ok(body.into())
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> std::io::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let service = Arc::new(Echo(vec![7; 4 << 20].into()));
    let server = Server::bind(([127, 0, 0, 1], 0).into(), service, ServerOptions::default(), clock.clone()).await?;
    let hello =
        Hello { peer: PeerKind::Mount, lane: LaneClass::Small, volume: None, session: None, name: "bench".into() };
    let options = ClientOptions::default();
    let client =
        Client::new(vec![server.address()], hello, Arc::new(NoCallbacks), options, clock.clone(), Arc::new(OsEntropy));
    let cases = [("64 B echo", 0, 64, 1, 20_000), ("64 B echo", 0, 64, 64, 200_000), ("1 MiB read", 1, 64, 4, 2000)];
    for (name, method, bytes, under_way, count) in cases {
        let body = Bytes::from(vec![5; bytes]);
        let start = clock.monotonic();
        let calls = stream::iter(0..count).map(|_| client.call(method, body.clone(), Duration::from_secs(60)));
        let failed = calls.buffer_unordered(under_way).filter(|reply| std::future::ready(reply.is_err())).count().await;
        let seconds = (clock.monotonic() - start).as_secs_f64();
        let (rate, gbytes) = (f64::from(count) / seconds, f64::from(count) * f64::from(method) * 1.048576e-3 / seconds);
        println!("{name:10} {under_way:3} under way: {rate:9.0} requests/s {gbytes:6.2} GB/s, {failed} failed");
    }
    client.close().await;
    server.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
