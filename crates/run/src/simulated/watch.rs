//! As `tokio::sync::watch`, with one difference: those who wait are woken in the order in which they began to. tokio's own rolls dice
//! for it, which is felt where one task waits several times at once.

use std::{pin::pin, sync::Arc};
use tokio::sync::{
    Notify,
    watch::{self, error},
};

pub use watch::Ref;

/// As tokio's.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

/// As tokio's.
pub struct Sender<T> {
    inner: watch::Sender<T>,
    /// Behind it, so that at the end those who wait find it gone.
    changed: NotifyAtEnd,
}

struct NotifyAtEnd(Arc<Notify>);

impl Drop for NotifyAtEnd {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

impl<T> Sender<T> {
    /// As tokio's.
    pub fn new(value: T) -> Self {
        Self { inner: watch::Sender::new(value), changed: NotifyAtEnd(Arc::default()) }
    }

    /// Another who sees what is sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver { inner: self.inner.subscribe(), changed: self.changed.0.clone() }
    }

    /// Sends, if there is anybody.
    pub fn send(&self, value: T) -> Result<(), error::SendError<T>> {
        let sent = self.inner.send(value);
        self.changed.0.notify_waiters();
        sent
    }

    /// Changes the value.
    pub fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.inner.send_modify(modify);
        self.changed.0.notify_waiters();
    }

    /// Sends, whether there is anybody or not; returns what was there.
    pub fn send_replace(&self, value: T) -> T {
        let before = self.inner.send_replace(value);
        self.changed.0.notify_waiters();
        before
    }

    /// What was sent last.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.inner.borrow()
    }
}

/// As tokio's.
pub struct Receiver<T> {
    inner: watch::Receiver<T>,
    changed: Arc<Notify>,
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), changed: self.changed.clone() }
    }
}

impl<T> Receiver<T> {
    /// What was sent last.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.inner.borrow()
    }

    /// What was sent last, which is seen from now on.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.inner.borrow_and_update()
    }

    /// What was sent last is seen.
    pub fn mark_unchanged(&mut self) {
        self.inner.mark_unchanged();
    }

    /// Waits for what is not seen yet, which is seen then.
    pub async fn changed(&mut self) -> Result<(), error::RecvError> {
        let changed = self.changed.clone();
        loop {
            let mut told = pin!(changed.notified());
            // Before the look: a change between it and the wait must not be missed.
            told.as_mut().enable();
            let closed = self.inner.has_changed();
            if self.inner.borrow_and_update().has_changed() {
                return Ok(());
            }
            closed?;
            told.await;
        }
    }

    /// Waits for a value that is `wanted`.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, error::RecvError> {
        let mut open = Ok(());
        // The value that is there counts, also when nobody sends any more.
        while !wanted(&self.inner.borrow_and_update()) {
            open?;
            open = self.changed().await;
        }
        Ok(self.inner.borrow())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, stream::FuturesUnordered};
    use std::{
        future::Future,
        task::{Context, Poll, Waker},
    };

    #[test]
    fn those_who_wait_at_once_are_woken_in_their_order() {
        for _ in 0..20 {
            let sender = Sender::new(0);
            let mut waiting: FuturesUnordered<_> = (0..8)
                .map(|number| {
                    let mut receiver = sender.subscribe();
                    async move {
                        receiver.changed().await.unwrap();
                        number
                    }
                })
                .collect();
            let mut context = Context::from_waker(Waker::noop());
            assert_eq!(waiting.poll_next_unpin(&mut context), Poll::Pending);
            sender.send(1).unwrap();
            let mut order = Vec::new();
            while let Poll::Ready(Some(number)) = waiting.poll_next_unpin(&mut context) {
                order.push(number);
            }
            assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }

    #[test]
    fn what_was_sent_last_is_seen_before_the_end() {
        let (sender, mut receiver) = channel(0);
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(receiver.changed()).poll(&mut context).is_pending());
        sender.send_modify(|value| *value = 1);
        let mut other = receiver.clone();
        drop(sender);
        assert!(matches!(pin!(receiver.changed()).poll(&mut context), Poll::Ready(Ok(()))));
        assert!(matches!(pin!(receiver.changed()).poll(&mut context), Poll::Ready(Err(_))));
        assert!(matches!(pin!(other.wait_for(|value| *value == 1)).poll(&mut context), Poll::Ready(Ok(_))));
        assert!(matches!(pin!(other.wait_for(|value| *value == 2)).poll(&mut context), Poll::Ready(Err(_))));
    }
}
