//! A node's end of the socket.

use super::{
    Ask, Told,
    listen::{Asker, Socket},
    scrub,
};
use serde_json::json;
use sluice_node::{Membership, Node};
use sluice_vfs::CacheStatus;
use std::sync::Arc;

/// What the answers come from.
#[derive(Clone)]
pub struct NodeServer {
    pub node: Arc<Node>,
    pub membership: Arc<Membership>,
    pub name: String,
    /// Where it listens.
    pub at: String,
    /// The volume's server.
    pub server: String,
}

impl NodeServer {
    /// Answers on the runtime.
    pub fn listen(self, socket: &Socket) -> anyhow::Result<()> {
        socket.listen(move |asker, ask| {
            let server = self.clone();
            async move { server.answer(asker, ask).await }
        })
    }

    async fn answer(&self, mut asker: Asker, ask: Ask) -> anyhow::Result<()> {
        match ask {
            Ask::Status => asker.tell(&Told::Status { status: self.status() }).await,
            Ask::Scrub { rate } => scrub::answer(&mut asker, Some(self.node.cache()), rate).await,
            Ask::Umount { .. }
            | Ask::Flush
            | Ask::Dump
            | Ask::Warmup { .. }
            | Ask::Held
            | Ask::Evict
            | Ask::Learn
            | Ask::TakeOver { .. } => {
                let error = format!("this is the node `{}`, which mounts nothing", self.name);
                asker.tell(&Told::Failed { error }).await
            }
        }
    }

    /// What `sluice status --json` prints.
    fn status(&self) -> serde_json::Value {
        let numbers = self.node.numbers();
        json!({
            "node": self.name,
            "address": self.at,
            "server": self.server,
            "pid": std::process::id(),
            "running": true,
            "state": if self.membership.silence().is_some() { "not in the group" } else { "in the group" },
            "last_warning": crate::output::last_warning(),
            "numbers": {
                "hits": numbers.hits,
                "misses": numbers.misses,
                "failures": numbers.failures,
                "served_bytes": numbers.served_bytes,
                "filled_bytes": numbers.filled_bytes,
                "moved_bytes": numbers.moved_bytes,
                "cache": CacheStatus::of(self.node.cache()),
            },
        })
    }
}
