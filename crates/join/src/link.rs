//! The connection of a mount: calls that block, what the server asks and says, and the way to other mounts' bytes.

use crate::methods::{self, Unstored, decode_pieces, encode_pieces};
use futures::future::{BoxFuture, FutureExt};
use sluice_base::{Errno, ObjectId, SessionId};
use sluice_meta::rpc::{LEASE, client, message::Invalidation};
use sluice_net::{CallError, Client, Failure};
use sluice_run::Bug;
use sluice_run::task::Handle;
use sluice_run::watch;
use sluice_vfs::{
    Others, Piece, Vfs,
    remote::{LOOK_INTERVAL, Link, LinkError, Remote},
};
use sluice_wire::{Payload, Push, Request};
use std::{
    ops::Range,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock, Semaphore};

/// One try of a call; then it is asked again.
const CALL_TIME: Duration = LEASE;
/// After a call without an answer, or with one that tells to come again.
const PAUSE: Duration = Duration::from_millis(100);
/// How often what nobody waits for is done, and the lease is renewed: a third of it would do.
pub const KEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Answers with bytes of this mount that are made at once, up to 4 MiB each. They are not of its memory for reads: whoever asks holds room
/// of his own, and two mounts that ask each other would wait for each other.
const UNSTORED_MAX: usize = 2;
/// Time for bytes of another mount, by way of the server.
const UNSTORED_TIME: Duration = Duration::from_secs(15);

/// Who keeps copies of what a mount answered, behind its back.
pub trait Kernel: Send + Sync + 'static {
    /// Drops what `items` name, as far as it can be waited for.
    fn tell<'a>(&'a self, items: &'a [Invalidation]) -> BoxFuture<'a, ()>;

    /// Resolves once it has dropped all that it was told to.
    fn settled(&self) -> BoxFuture<'static, ()>;
}

/// Nobody keeps copies.
pub struct NoKernel;

impl Kernel for NoKernel {
    fn tell<'a>(&'a self, _: &'a [Invalidation]) -> BoxFuture<'a, ()> {
        async {}.boxed()
    }

    fn settled(&self) -> BoxFuture<'static, ()> {
        async {}.boxed()
    }
}

/// Calls that block their thread.
pub struct NetLink {
    client: Arc<Client>,
    runtime: Handle,
}

impl NetLink {
    /// Over `client`, driven by `runtime`.
    pub fn new(client: Arc<Client>, runtime: Handle) -> Self {
        Self { client, runtime }
    }
}

impl Link for NetLink {
    fn call(&self, method: u16, body: Vec<u8>) -> Result<Vec<u8>, LinkError> {
        self.runtime.block_on(ask(&self.client, method, body, CALL_TIME))
    }

    fn call_later(
        &self,
        method: u16,
        body: Vec<u8>,
        within: Duration,
    ) -> BoxFuture<'static, Result<Vec<u8>, LinkError>> {
        let client = self.client.clone();
        async move { ask(&client, method, body, within).await }.boxed()
    }

    fn pause(&self) {
        self.runtime.block_on(sluice_run::time::sleep(PAUSE));
    }
}

async fn ask(client: &Client, method: u16, body: Vec<u8>, within: Duration) -> Result<Vec<u8>, LinkError> {
    let lost = match client.call(method, body, within).await {
        Ok(reply) => match reply.body.checked() {
            Ok(bytes) => return Ok(bytes.to_vec()),
            Err(error) => error.to_string(),
        },
        Err(CallError::Closed) => return Err(LinkError::Closed),
        Err(error) => error.to_string(),
    };
    sluice_run::time::sleep(PAUSE).await;
    Err(LinkError::Lost(lost))
}

/// Renews the lease and does what nobody waits for, for the first time after `first`.
pub async fn keep(metadata: Arc<Remote>, first: Duration) {
    let mut wait = first;
    loop {
        sluice_run::time::sleep(wait).await;
        wait = if metadata.looks_for_late_changes() { LOOK_INTERVAL } else { KEEP_INTERVAL };
        let work = metadata.clone();
        let kept = sluice_run::task::spawn_blocking(move || sluice_vfs::waiting(|| work.keep())).await;
        if let Ok(Err(error)) = kept {
            tracing::warn!(%error, "the server was not told what others need not wait for");
        }
    }
}

/// What the server asks and says. Its session speaks before [`Callbacks::start`], and its mount point may be in use then: what comes
/// before is kept waiting, as an ack would be a lie and a failure would be told to a program.
pub struct Callbacks {
    parts: watch::Sender<Option<Started>>,
    unstored: Semaphore,
    /// Held for reading while a push is taken.
    pushes: Arc<RwLock<()>>,
}

/// No push is being taken, nor will one be as long as this is held: none is acked that the kernel has not been told of.
pub struct Deaf(#[expect(dead_code, reason = "it is held")] OwnedRwLockWriteGuard<()>);

impl Default for Callbacks {
    fn default() -> Self {
        Self { parts: watch::channel(None).0, unstored: Semaphore::new(UNSTORED_MAX), pushes: Arc::default() }
    }
}

#[derive(Clone)]
struct Started {
    metadata: Weak<Remote>,
    vfs: Weak<Vfs>,
    kernel: Arc<dyn Kernel>,
}

impl Callbacks {
    /// From now on `metadata`, `vfs` and `kernel` hear of what others change.
    pub fn start(&self, metadata: &Arc<Remote>, vfs: &Arc<Vfs>, kernel: Arc<dyn Kernel>, runtime: Handle) {
        let started = Started { metadata: Arc::downgrade(metadata), vfs: Arc::downgrade(vfs), kernel };
        let lost = started.clone();
        metadata.on_lost(Box::new(move |items| {
            lost.vfs.upgrade().iter().for_each(|vfs| vfs.invalidated(&items));
            runtime.block_on(lost.kernel.tell(&items));
        }));
        let kernel = started.kernel.clone();
        metadata.on_locked(Box::new(move || kernel.settled()));
        self.parts.send_replace(Some(started));
    }

    /// Takes no more pushes, once those are taken that have come.
    pub async fn fall_deaf(&self) -> Deaf {
        Deaf(self.pushes.clone().write_owned().await)
    }

    /// Waits for the start; whoever asks has a deadline, and for a push that is not acked others wait no longer than the lease.
    async fn started(&self) -> Option<Started> {
        self.parts.subscribe().wait_for(Option::is_some).await.ok()?.clone()
    }
}

impl sluice_net::Callbacks for Callbacks {
    async fn call(&self, request: Request) -> Result<Payload, Failure> {
        let other = |text: String| Failure::new(methods::FAILED_OTHER, text);
        if request.method != methods::UNSTORED {
            return Err(other(format!("method {} is not known to a mount", request.method)));
        }
        let body = request.body.checked().map_err(|error| other(error.to_string()))?;
        let ask = Unstored::decode(&body).ok_or_else(|| other("the request does not parse".into()))?;
        let vfs = self.started().await.and_then(|parts| parts.vfs.upgrade());
        let vfs = vfs.ok_or_else(|| other("the mount has ended".into()))?;
        let _turn = self.unstored.acquire().await;
        let read = sluice_run::task::spawn_blocking(move || vfs.unstored_segments(ask.object, ask.range)).await;
        match read.unwrap_or(Err(Errno::EIO)) {
            Ok(pieces) => Ok(encode_pieces(&pieces).into()),
            Err(Errno::ENOENT) => Err(Failure::new(methods::FAILED_GONE, "stored, or given up")),
            Err(errno) => Err(other(format!("reading the journal's data failed: {errno}"))),
        }
    }

    async fn push(&self, push: Push) {
        let Ok((push, _)) = client::push(&push.body) else {
            tracing::error!("a push does not parse");
            return;
        };
        let Some(parts) = self.started().await else { return };
        let _turn = self.pushes.read().await;
        let Some(metadata) = parts.metadata.upgrade() else { return };
        if Bug::PushIgnored.is_planted() {
            return;
        }
        let told = metadata.take_push(push.number, &push.items);
        parts.vfs.upgrade().iter().for_each(|vfs| vfs.invalidated(&told));
        parts.kernel.tell(&told).await;
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
            match client.call(methods::UNSTORED, body, UNSTORED_TIME).await {
                Ok(reply) => reply.body.checked().ok().and_then(decode_pieces).ok_or(Errno::EIO),
                Err(CallError::Failed { code: methods::FAILED_GONE, .. }) => Err(Errno::ENOENT),
                Err(error) => {
                    tracing::error!(%object, %session, %error, "bytes that another mount has not stored");
                    Err(Errno::EIO)
                }
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_meta::rpc::message;
    use sluice_net::Callbacks as _;
    use sluice_wire::PushNumber;
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    #[test]
    fn what_the_server_says_before_the_start_waits_for_it() {
        let callbacks = Callbacks::default();
        let body = message::Push { number: 1, items: vec![Invalidation::Everything] }.encode().into();
        let mut told = pin!(callbacks.push(Push { number: PushNumber(1), epoch: 0, body }));
        let mut asked = pin!(callbacks.started());
        let mut context = Context::from_waker(Waker::noop());
        assert!(told.as_mut().poll(&mut context).is_pending() && asked.as_mut().poll(&mut context).is_pending());
        let started = Started { metadata: Weak::new(), vfs: Weak::new(), kernel: Arc::new(NoKernel) };
        callbacks.parts.send_replace(Some(started));
        assert!(matches!(told.poll(&mut context), Poll::Ready(())));
        assert!(matches!(asked.poll(&mut context), Poll::Ready(Some(_))));
    }
}
