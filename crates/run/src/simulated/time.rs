//! Time for tasks.

use super::{current, scheduler::Scheduler};
use std::{
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};
pub use tokio::time::Instant;

/// The moment that virtual time is counted from; no result depends on it.
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Now, for deadlines of this module.
pub fn now() -> Instant {
    current().map_or_else(Instant::now, |(scheduler, _)| start() + scheduler.now())
}

/// It took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deadline has elapsed")
    }
}

impl std::error::Error for Elapsed {}

/// As `tokio::time::Sleep`.
pub struct Sleep(Inner);

enum Inner {
    Real(Pin<Box<tokio::time::Sleep>>),
    Simulated { scheduler: Arc<Scheduler>, at: Duration, timer: Option<(Duration, u64)> },
}

/// Resolves after `time`.
pub fn sleep(time: Duration) -> Sleep {
    Sleep(match current() {
        None => Inner::Real(Box::pin(tokio::time::sleep(time))),
        Some((scheduler, _)) => Inner::Simulated { at: scheduler.now().saturating_add(time), scheduler, timer: None },
    })
}

/// Resolves at `deadline`.
pub fn sleep_until(deadline: Instant) -> Sleep {
    match current() {
        None => Sleep(Inner::Real(Box::pin(tokio::time::sleep_until(deadline)))),
        Some(_) => sleep(deadline.saturating_duration_since(now())),
    }
}

impl Sleep {
    /// Another deadline.
    pub fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        match &mut self.0 {
            Inner::Real(sleep) => sleep.as_mut().reset(deadline),
            Inner::Simulated { scheduler, at, timer } => {
                timer.take().into_iter().for_each(|timer| scheduler.forget_timer(timer));
                *at = scheduler.now() + deadline.saturating_duration_since(start() + scheduler.now());
            }
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Inner::Real(sleep) => sleep.as_mut().poll(context),
            Inner::Simulated { scheduler, at, timer } => {
                timer.take().into_iter().for_each(|timer| scheduler.forget_timer(timer));
                if scheduler.now() >= *at {
                    return Poll::Ready(());
                }
                *timer = Some(scheduler.timer(*at, context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Inner::Simulated { scheduler, timer, .. } = &mut self.0 {
            timer.take().into_iter().for_each(|timer| scheduler.forget_timer(timer));
        }
    }
}

/// What `future` comes to, unless `time` is over before.
pub fn timeout<F: IntoFuture>(time: Duration, future: F) -> impl Future<Output = Result<F::Output, Elapsed>> {
    within(sleep(time), future.into_future())
}

/// What `future` comes to, unless it is `deadline` before.
pub fn timeout_at<F: IntoFuture>(deadline: Instant, future: F) -> impl Future<Output = Result<F::Output, Elapsed>> {
    within(sleep_until(deadline), future.into_future())
}

async fn within<F: Future>(sleep: Sleep, future: F) -> Result<F::Output, Elapsed> {
    let (mut sleep, mut future) = (pin!(sleep), pin!(future));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Ok(value)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| Err(Elapsed)),
    })
    .await
}
