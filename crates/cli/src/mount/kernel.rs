//! What the kernel keeps of a mount's answers, and is told to drop.

use futures::future::{BoxFuture, FutureExt};
use sluice_fuse::{Notifier, NotifyError};
use sluice_join::Kernel;
use sluice_meta::rpc::message::Invalidation;
use std::time::Duration;

/// How long an ack waits for the kernel to drop pages. It may have to wait for a read of ours that waits for the store; then the
/// next open drops them.
const FLUSH_TIME: Duration = Duration::from_millis(200);
/// How long a lock that was given waits for the kernel to drop what others changed before it. Its pages may wait for a read of ours
/// that waits for the store; the program that has the lock must not see older ones.
const SETTLE_TIME: Duration = Duration::from_secs(30);

/// The kernel of a mount.
pub struct MountKernel(pub Notifier);

impl Kernel for MountKernel {
    fn tell<'a>(&'a self, items: &'a [Invalidation]) -> BoxFuture<'a, ()> {
        tell_kernel(&self.0, items).boxed()
    }

    fn settled(&self) -> BoxFuture<'static, ()> {
        let notifier = self.0.clone();
        async move { drop(tokio::time::timeout(SETTLE_TIME, notifier.flush()).await) }.boxed()
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
            Invalidation::Extents(_) | Invalidation::Everything => Ok(()),
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
