//! Tasks. In a simulation each is a thread that polls one future.

use super::{
    current,
    scheduler::{Number, Scheduler, lock},
};
use std::{
    fmt,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

/// Why a task has no value.
#[derive(Debug)]
pub struct JoinError(String);

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JoinError {}

/// As `tokio::runtime::Handle`.
#[derive(Clone, Debug)]
pub struct Handle(Option<tokio::runtime::Handle>);

/// The runtime of the process, for the parts that spawn on it.
pub fn handle(of: &tokio::runtime::Handle) -> Handle {
    Handle(Some(of.clone()))
}

impl Handle {
    /// The one that this thread is in.
    pub fn current() -> Self {
        Self(super::current().is_none().then(tokio::runtime::Handle::current))
    }

    /// Starts a task.
    pub fn spawn<F: Future<Output: Send> + Send + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        match &self.0 {
            Some(handle) => JoinHandle(Inner::Real(handle.spawn(future))),
            None => spawn(future),
        }
    }

    /// Waits for `future` on this thread.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.0 {
            Some(handle) => handle.block_on(future),
            None => block_on(future),
        }
    }
}

/// Waits for `future` on this thread of a simulation.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let (scheduler, me) = current().expect("this thread is in a simulation");
    let mut future = pin!(future);
    let waker = scheduler.waker(me);
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        scheduler.wait(me);
    }
}

/// As `tokio::task::JoinHandle`.
pub struct JoinHandle<T>(Inner<T>);

enum Inner<T> {
    Real(tokio::task::JoinHandle<T>),
    Simulated(Arc<Task<T>>),
}

struct Task<T> {
    scheduler: Arc<Scheduler>,
    thread: Mutex<Option<Number>>,
    aborted: AtomicBool,
    value: Mutex<Option<Result<T, JoinError>>>,
    waiter: Mutex<Option<Waker>>,
}

impl<T> Task<T> {
    fn end(&self, value: Result<T, JoinError>) {
        *lock(&self.value) = Some(value);
        let waiter = lock(&self.waiter).take();
        waiter.into_iter().for_each(Waker::wake);
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        if let Some(thread) = *lock(&self.thread) {
            self.scheduler.wake(thread);
        }
    }
}

/// Starts a task.
pub fn spawn<F: Future<Output: Send> + Send + 'static>(future: F) -> JoinHandle<F::Output> {
    if current().is_none() {
        return JoinHandle(Inner::Real(tokio::spawn(future)));
    }
    start("task", move |task: &Task<F::Output>| {
        let mut future = Box::pin(future);
        block_on(poll_fn(|context| {
            if task.aborted.load(Ordering::Acquire) {
                return Poll::Ready(Err(JoinError("the task was ended".into())));
            }
            future.as_mut().poll(context).map(Ok)
        }))
    })
}

/// Runs `work` on a thread that may wait.
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if current().is_none() {
        return JoinHandle(Inner::Real(tokio::task::spawn_blocking(work)));
    }
    start("work", move |_: &Task<T>| Ok(work()))
}

/// Runs `work`, which may wait, on the thread of a task.
pub fn block_in_place<T>(work: impl FnOnce() -> T) -> T {
    if current().is_some() { work() } else { tokio::task::block_in_place(work) }
}

fn start<T: Send + 'static>(
    name: &str,
    body: impl FnOnce(&Task<T>) -> Result<T, JoinError> + Send + 'static,
) -> JoinHandle<T> {
    let (scheduler, me) = current().expect("asked before");
    let (aborted, value, waiter) = Default::default();
    let task = Arc::new(Task { scheduler: scheduler.clone(), thread: Mutex::new(None), aborted, value, waiter });
    let own = task.clone();
    let number = scheduler.start(scheduler.process_of(me), name.into(), move || {
        // A panic is an error of the task, as with tokio, and the end of the simulation: no task may panic.
        match catch_unwind(AssertUnwindSafe(|| body(&own))) {
            Ok(value) => own.end(value),
            Err(panic) => {
                own.end(Err(JoinError("the task panicked".into())));
                std::panic::resume_unwind(panic);
            }
        }
    });
    *lock(&task.thread) = Some(number);
    JoinHandle(Inner::Simulated(task))
}

impl<T> JoinHandle<T> {
    /// Ends the task at its next wait.
    pub fn abort(&self) {
        match &self.0 {
            Inner::Real(task) => task.abort(),
            Inner::Simulated(task) => task.abort(),
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Real(task) => Pin::new(task).poll(context).map_err(|error| JoinError(error.to_string())),
            Inner::Simulated(task) => {
                *lock(&task.waiter) = Some(context.waker().clone());
                lock(&task.value).take().map_or(Poll::Pending, Poll::Ready)
            }
        }
    }
}

/// As `tokio::task::JoinSet`.
pub struct JoinSet<T>(Vec<JoinHandle<T>>);

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> JoinSet<T> {
    /// An empty one.
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// Starts a task of the set.
    pub fn spawn(&mut self, future: impl Future<Output = T> + Send + 'static)
    where
        T: Send + 'static,
    {
        self.0.push(spawn(future));
    }

    /// The value of one that ended; `None` when there is none left.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|context| {
            if self.0.is_empty() {
                return Poll::Ready(None);
            }
            for at in 0..self.0.len() {
                if let Poll::Ready(value) = Pin::new(&mut self.0[at]).poll(context) {
                    self.0.swap_remove(at);
                    return Poll::Ready(Some(value));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Ends all and waits for it.
    pub async fn shutdown(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
        while self.join_next().await.is_some() {}
    }

    /// Lets all go on by themselves.
    pub fn detach_all(&mut self) {
        self.0.clear();
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
