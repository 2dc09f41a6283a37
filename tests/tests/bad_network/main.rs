//! Mounts whose network fails them. What is wrong on the wire itself is in `crates/net/tests/loopback/hostile.rs` and
//! `crates/node/tests/group/hostile.rs`.

mod lost_replies;
mod partition;

use sluice_tests::{Mount, Proxy, Server};

/// A served volume, mounted behind a proxy and beside it.
struct Net {
    behind: Mount,
    beside: Mount,
    proxy: Proxy,
    server: Server,
}

impl Net {
    fn new(lease: &str) -> Self {
        let server = Server::with(&["--lease", lease]);
        let proxy = Proxy::new(server.port());
        let behind = server.try_mount_by(proxy.port(), "behind", &[]).unwrap();
        let beside = server.mount("beside");
        Self { behind, beside, proxy, server }
    }
}
