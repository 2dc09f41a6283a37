//! The group of a volume's nodes at its server: asked from memory, kept in the volume's metadata.

use crate::{MetaService, methods};
use sluice_base::{Clock, Seq};
use sluice_meta::Namespace;
use sluice_net::{Failure, Peer};
use sluice_node::{Registry, message as group};
use sluice_run::lock::Mutex;
use sluice_wire::{Payload, Request};
use std::sync::Arc;

/// The group, and its place in the metadata.
pub(crate) struct Nodes {
    pub registry: Mutex<Registry>,
    names: Arc<Namespace>,
    /// The record that has the list; held while one is written, so that the newest is the last.
    kept: Mutex<Seq>,
}

impl Nodes {
    /// As an earlier run left them.
    pub fn open(names: &Arc<Namespace>, clock: &dyn Clock) -> Arc<Self> {
        let registry = Mutex::new(restore(names, clock));
        Arc::new(Self { registry, names: names.clone(), kept: Mutex::new(Seq(0)) })
    }

    /// Keeps the list if it has changed; tells up to which record the log has it. Waits for a disk.
    pub fn keep(&self) -> Result<Seq, String> {
        let mut kept = self.kept.lock();
        let unsaved = self.registry.lock().unsaved();
        if let Some(saved) = unsaved {
            match self.names.keep_nodes(&saved) {
                Ok(committed) => *kept = committed.seq,
                Err(error) => {
                    self.registry.lock().not_saved();
                    return Err(error.to_string());
                }
            }
        }
        Ok(*kept)
    }
}

fn restore(names: &Namespace, clock: &dyn Clock) -> Registry {
    let now = clock.monotonic();
    // The seconds of the day it was begun: lists of earlier runs had smaller numbers.
    let epoch = u32::try_from(clock.wall().secs).unwrap_or(1);
    let kept = names.kept_nodes().unwrap_or_else(|error| {
        tracing::error!(%error, "the list of nodes was not read; nodes join anew, and none is drained");
        None
    });
    let restored = kept.map(|saved| Registry::restore(now, epoch, &saved));
    match restored {
        Some(Ok(registry)) => registry,
        Some(Err(error)) => {
            tracing::error!(%error, "the list of nodes is damaged; nodes join anew, and none is drained");
            Registry::new(now, epoch)
        }
        None => Registry::new(now, epoch),
    }
}

impl MetaService {
    /// Of nodes and their list. Answered from memory, so that heartbeats wait for nothing; but a drain is answered when it is kept.
    pub(crate) async fn group(&self, from: &Arc<Peer>, request: Request) -> Result<Payload, Failure> {
        let malformed = |text: String| Failure::new(group::FAILED_MALFORMED, text);
        let body = request.body.checked().map_err(|error| malformed(error.to_string()))?;
        let now = self.clock.monotonic();
        let answer = self.nodes.registry.lock().handle(now, from.address().ip(), request.method, &body);
        let answer = answer.unwrap_or_else(|| Ok(Vec::new()));
        let answer = answer.map_err(|error| Failure::new(error.code(), error.to_string()))?;
        match request.method {
            group::DRAIN => self.drained().await?,
            group::HEARTBEAT | group::MEMBERS | group::GROUP => {}
            _ => self.due.notify_one(),
        }
        Ok(answer.into())
    }

    async fn drained(&self) -> Result<(), Failure> {
        let kept = match self.keep_nodes().await {
            Ok(seq) => self.committer.wait_synced(seq).await.map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        kept.map_err(|error| Failure::new(methods::FAILED_OTHER, format!("the list of nodes was not kept: {error}")))
    }

    /// [`Nodes::keep`] on a thread that may wait. It goes on when the caller goes away.
    pub(crate) async fn keep_nodes(&self) -> Result<Seq, String> {
        let nodes = self.nodes.clone();
        let kept = sluice_run::task::spawn_blocking(move || nodes.keep()).await;
        kept.unwrap_or_else(|_| Err("it was given up".into()))
    }
}
