//! The connection of a mount: calls that block, what the server asks and says, and the way to other mounts' bytes.

use crate::volume_rpc::{self, Unstored, decode_pieces, encode_pieces};
use futures::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use sluice_base::{Errno, ObjectId, SessionId};
use sluice_fuse::{Notifier, NotifyError};
use sluice_meta::rpc::{LEASE, client, message::Invalidation};
use sluice_net::{CallError, Client, Failure, LaneState};
use sluice_vfs::{
    Others, Piece, Vfs,
    remote::{Link, LinkError, Remote},
};
use sluice_wire::{Payload, Push, Request};
use std::{
    ops::Range,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::runtime::Handle;

/// One try of a call; then it is asked again.
const CALL_TIME: Duration = LEASE;
/// After a call without an answer.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an ack waits for the kernel to drop pages. It may have to wait for a read of ours that waits for the store; then the
/// next open drops them.
const FLUSH_TIME: Duration = Duration::from_millis(200);
/// Time for bytes of another mount, by way of the server.
const UNSTORED_TIME: Duration = Duration::from_secs(15);

/// Calls that block their thread.
pub struct NetLink {
    client: Arc<Client>,
    runtime: Handle,
}

impl NetLink {
    pub fn new(client: Arc<Client>, runtime: Handle) -> Self {
        Self { client, runtime }
    }
}

impl Link for NetLink {
    fn call(&self, method: u16, body: Vec<u8>) -> Result<Vec<u8>, LinkError> {
        self.runtime.block_on(async {
            let lost = match self.client.call(method, body, CALL_TIME).await {
                Ok(reply) => match reply.body.checked() {
                    Ok(bytes) => return Ok(bytes.to_vec()),
                    Err(error) => error.to_string(),
                },
                Err(CallError::Closed) => return Err(LinkError::Closed),
                Err(error) => error.to_string(),
            };
            tokio::time::sleep(PAUSE).await;
            Err(LinkError::Lost(lost))
        })
    }
}

/// Why there is no connection, behind a message that says so.
pub fn describe(state: &LaneState) -> String {
    match state {
        LaneState::Refused(refused) => format!(" ({refused})"),
        LaneState::Disconnected(why) => format!(" ({why})"),
        LaneState::Connecting | LaneState::Connected(_) => String::new(),
    }
}

/// What the server asks and says. Before [`Callbacks::start`] there is nothing to ask, and nothing cached.
#[derive(Default)]
pub struct Callbacks {
    parts: Mutex<Option<Started>>,
}

#[derive(Clone)]
struct Started {
    metadata: Weak<Remote>,
    vfs: Weak<Vfs>,
    notifier: Notifier,
}

impl Callbacks {
    pub fn start(&self, metadata: &Arc<Remote>, vfs: &Arc<Vfs>, notifier: Notifier, runtime: Handle) {
        let started = Started { metadata: Arc::downgrade(metadata), vfs: Arc::downgrade(vfs), notifier };
        let lost = started.clone();
        metadata.on_lost(Box::new(move |items| {
            lost.vfs.upgrade().iter().for_each(|vfs| vfs.invalidated(&items));
            runtime.block_on(tell_kernel(&lost.notifier, &items));
        }));
        *self.parts.lock() = Some(started);
    }

    fn parts(&self) -> Option<Started> {
        self.parts.lock().clone()
    }
}

/// Queues what the kernel is to drop. Of names nobody waits for the end: the kernel takes the directory's lock for them, which one
/// of our own requests may hold while it waits for the server, which may wait for this ack.
async fn tell_kernel(notifier: &Notifier, items: &[Invalidation]) {
    let mut pages = false;
    for what in items {
        let tell = || match what {
            Invalidation::Attr(ino) => notifier.inval_inode(ino.0, -1, 0),
            Invalidation::Data(ino) | Invalidation::Unlinked(ino) | Invalidation::Inode(ino) => {
                notifier.inval_inode(ino.0, 0, 0)
            }
            Invalidation::Entry(dir, name) => notifier.inval_entry(dir.0, name),
            Invalidation::Everything => Ok(()),
        };
        pages |= matches!(what, Invalidation::Data(_));
        while tell() == Err(NotifyError::Full) {
            if tokio::time::timeout(FLUSH_TIME, notifier.flush()).await.is_err() {
                tracing::warn!("the kernel does not take what it is to drop; it will ask again within the lease");
                return;
            }
        }
    }
    if pages {
        let _ = tokio::time::timeout(FLUSH_TIME, notifier.flush()).await;
    }
}

impl sluice_net::Callbacks for Callbacks {
    async fn call(&self, request: Request) -> Result<Payload, Failure> {
        let other = |text: String| Failure::new(volume_rpc::FAILED_OTHER, text);
        if request.method != volume_rpc::UNSTORED {
            return Err(other(format!("method {} is not known to a mount", request.method)));
        }
        let body = request.body.checked().map_err(|error| other(error.to_string()))?;
        let ask = Unstored::decode(&body).ok_or_else(|| other("the request does not parse".into()))?;
        let vfs = self.parts().and_then(|parts| parts.vfs.upgrade()).ok_or_else(|| other("starting".into()))?;
        let read = tokio::task::spawn_blocking(move || vfs.unstored_segments(ask.object, ask.range)).await;
        match read.unwrap_or(Err(Errno::EIO)) {
            Ok(pieces) => Ok(encode_pieces(&pieces).into()),
            Err(Errno::ENOENT) => Err(Failure::new(volume_rpc::FAILED_GONE, "stored, or given up")),
            Err(errno) => Err(other(format!("reading the journal's data failed: {errno}"))),
        }
    }

    async fn push(&self, push: Push) {
        let Ok((push, _)) = client::push(&push.body) else {
            tracing::error!("a push does not parse");
            return;
        };
        let Some(parts) = self.parts() else { return };
        let Some(metadata) = parts.metadata.upgrade() else { return };
        let told = metadata.take_push(push.number, &push.items);
        parts.vfs.upgrade().iter().for_each(|vfs| vfs.invalidated(&told));
        tell_kernel(&parts.notifier, &told).await;
    }
}

/// Other mounts' bytes, by way of the server.
pub struct Peers(pub Arc<Client>);

impl Others for Peers {
    fn segments(
        &self,
        session: SessionId,
        object: ObjectId,
        range: Range<u32>,
    ) -> BoxFuture<'static, Result<Vec<Piece>, Errno>> {
        let client = self.0.clone();
        let body = Unstored { session, object, range }.encode();
        async move {
            match client.call(volume_rpc::UNSTORED, body, UNSTORED_TIME).await {
                Ok(reply) => reply.body.checked().ok().and_then(decode_pieces).ok_or(Errno::EIO),
                Err(CallError::Failed { code: volume_rpc::FAILED_GONE, .. }) => Err(Errno::ENOENT),
                Err(error) => {
                    tracing::error!(%object, %session, %error, "bytes that another mount has not stored");
                    Err(Errno::EIO)
                }
            }
        }
        .boxed()
    }
}
