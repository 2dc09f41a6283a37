//! Telling the kernel to forget what it caches.
//!
//! The kernel takes inode locks for a notification, and a request that holds the same lock may be waiting for a
//! reactor. So they are sent by a thread of their own, from a bounded queue.

use crate::abi::flags::{EXPIRE_ONLY, notify as code};
use crate::abi::outputs::{NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut};
use crate::device::Device;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;
use std::{io, thread};
use tokio::sync::{mpsc, oneshot};
use zerocopy::IntoBytes;

/// Sends notifications; clones share one queue.
#[derive(Clone)]
pub struct Notifier {
    queue: mpsc::Sender<Notice>,
    /// Held while the kernel is told.
    telling: Arc<Mutex<()>>,
    /// Notifications that the kernel has not been told of.
    untold: Arc<AtomicUsize>,
}

/// A notification that was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// The queue is full: the kernel is waiting for a lock. Wait with [`Notifier::flush`], or let time-outs expire.
    #[error("the queue of kernel notifications is full")]
    Full,
    /// The mount is gone, and its caches with it.
    #[error("the mount is gone")]
    Gone,
}

enum Notice {
    Inode { nodeid: u64, offset: i64, len: i64 },
    Entry { parent: u64, name: Box<[u8]>, expire: bool },
    Delete { parent: u64, child: u64, name: Box<[u8]> },
    Flush(oneshot::Sender<()>),
    Stop,
}

impl Notifier {
    /// Drops cached attributes, and cached data from `offset` on: `len` bytes, 0 for all to the end. A negative offset
    /// leaves the data alone.
    pub fn inval_inode(&self, nodeid: u64, offset: i64, len: i64) -> Result<(), NotifyError> {
        self.send(Notice::Inode { nodeid, offset, len })
    }

    /// Drops the name from the cache.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> Result<(), NotifyError> {
        self.send(Notice::Entry { parent, name: name.into(), expire: false })
    }

    /// Lets the name's time-out end now: the next use looks it up again, mounts below it stay.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> Result<(), NotifyError> {
        self.send(Notice::Entry { parent, name: name.into(), expire: true })
    }

    /// The name was removed elsewhere; inotify watchers hear of it.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Result<(), NotifyError> {
        self.send(Notice::Delete { parent, child, name: name.into() })
    }

    /// Resolves once the kernel has done everything queued before.
    pub async fn flush(&self) -> Result<(), NotifyError> {
        let (done, wait) = oneshot::channel();
        self.queue.send(Notice::Flush(done)).await.map_err(|_| NotifyError::Gone)?;
        wait.await.map_err(|_| NotifyError::Gone)
    }

    fn send(&self, notice: Notice) -> Result<(), NotifyError> {
        self.untold.fetch_add(1, SeqCst);
        self.queue.try_send(notice).map_err(|error| {
            self.untold.fetch_sub(1, SeqCst);
            match error {
                mpsc::error::TrySendError::Full(_) => NotifyError::Full,
                mpsc::error::TrySendError::Closed(_) => NotifyError::Gone,
            }
        })
    }

    /// Whether something is queued that the kernel was not told yet.
    pub(crate) fn has_more(&self) -> bool {
        self.untold.load(SeqCst) > 0
    }

    /// As long as this is held, nothing is told, and nobody is in the kernel. `None` when that is not so within `limit`: the kernel may wait
    /// for a lock whose holder waits for a reactor.
    pub(crate) fn hold(&self, limit: Duration) -> Option<MutexGuard<'_, ()>> {
        self.telling.try_lock_for(limit)
    }

    /// Ends the thread; with a full queue the thread sees `ended` instead.
    pub(crate) fn stop(&self) {
        let _ = self.queue.try_send(Notice::Stop);
    }
}

/// Starts the thread with a queue of `capacity`. It ends on [`Notifier::stop`] or once `ended` is set.
pub(crate) fn start(device: Arc<Device>, capacity: usize, ended: Arc<AtomicBool>) -> io::Result<Notifier> {
    let (queue, mut receiver) = mpsc::channel(capacity.max(1));
    let notifier = Notifier { queue, telling: Arc::default(), untold: Arc::default() };
    let (telling, untold) = (notifier.telling.clone(), notifier.untold.clone());
    thread::Builder::new().name("sluice-fuse-note".into()).spawn(move || {
        while let Some(notice) = receiver.blocking_recv() {
            let _turn = telling.lock();
            if ended.load(Relaxed) || matches!(notice, Notice::Stop) {
                break;
            }
            let is_news = !matches!(notice, Notice::Flush(_));
            tell(&device, notice);
            if is_news {
                untold.fetch_sub(1, SeqCst);
            }
        }
    })?;
    Ok(notifier)
}

fn tell(device: &Device, notice: Notice) {
    let result = match notice {
        Notice::Inode { nodeid, offset, len } => {
            let out = NotifyInvalInodeOut { ino: nodeid, off: offset, len };
            device.notify(code::INVAL_INODE, [out.as_bytes(), &[], &[]])
        }
        Notice::Entry { parent, name, expire } => {
            let flags = if expire { EXPIRE_ONLY } else { 0 };
            let out = NotifyInvalEntryOut { parent, namelen: name.len() as u32, flags };
            device.notify(code::INVAL_ENTRY, [out.as_bytes(), &name, &[0]])
        }
        Notice::Delete { parent, child, name } => {
            let out = NotifyDeleteOut { parent, child, namelen: name.len() as u32, padding: 0 };
            device.notify(code::DELETE, [out.as_bytes(), &name, &[0]])
        }
        Notice::Flush(done) => {
            let _ = done.send(());
            Ok(())
        }
        Notice::Stop => Ok(()),
    };
    match result {
        // ENOENT: not cached. ENODEV and ENOTCONN: unmounted. ENOTEMPTY and EBUSY: a directory still in use.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::NOTEMPTY | Errno::BUSY) => {}
        Err(error) => tracing::warn!(%error, "the kernel refused a cache notification"),
    }
}
