//! Threads.

use super::{
    scheduler::{Number, lock},
    task,
};
use std::{
    any::Any,
    io,
    sync::{Arc, Mutex},
    task::Waker,
};

/// As `std::thread::Builder`.
#[derive(Default)]
pub struct Builder {
    name: Option<String>,
}

/// As `std::thread::ThreadId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadId {
    /// Of the process.
    Real(std::thread::ThreadId),
    /// Of a simulation.
    Simulated(usize),
}

/// As `std::thread::Thread`.
#[derive(Clone, Copy, Debug)]
pub struct Thread(ThreadId);

impl Thread {
    /// Who it is.
    pub fn id(&self) -> ThreadId {
        self.0
    }
}

/// This thread.
pub fn current() -> Thread {
    Thread(match super::current() {
        Some((_, number)) => ThreadId::Simulated(number),
        None => ThreadId::Real(std::thread::current().id()),
    })
}

/// As `std::thread::JoinHandle`.
pub struct JoinHandle<T>(Inner<T>);

enum Inner<T> {
    Real(std::thread::JoinHandle<T>),
    Simulated(Number, Arc<End<T>>),
}

struct End<T> {
    value: Mutex<Option<T>>,
    waiter: Mutex<Option<Waker>>,
}

impl Builder {
    /// A thread without a name.
    pub fn new() -> Self {
        Self::default()
    }

    /// What it is called.
    pub fn name(self, name: String) -> Self {
        Self { name: Some(name) }
    }

    /// Starts it.
    pub fn spawn<T: Send + 'static>(self, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        let name = self.name.unwrap_or_default();
        let Some((scheduler, me)) = super::current() else {
            return Ok(JoinHandle(Inner::Real(std::thread::Builder::new().name(name).spawn(body)?)));
        };
        let end = Arc::new(End { value: Mutex::new(None), waiter: Mutex::new(None) });
        let own = end.clone();
        let number = scheduler.start(scheduler.process_of(me), name, move || {
            let value = body();
            *lock(&own.value) = Some(value);
            let waiter = lock(&own.waiter).take();
            waiter.into_iter().for_each(Waker::wake);
        });
        Ok(JoinHandle(Inner::Simulated(number, end)))
    }
}

impl<T> JoinHandle<T> {
    /// Waits for its end.
    pub fn join(self) -> Result<T, Box<dyn Any + Send + 'static>> {
        match self.0 {
            Inner::Real(thread) => thread.join(),
            Inner::Simulated(_, end) => Ok(task::block_on(std::future::poll_fn(|context| {
                *lock(&end.waiter) = Some(context.waker().clone());
                lock(&end.value).take().map_or(std::task::Poll::Pending, std::task::Poll::Ready)
            }))),
        }
    }

    /// The thread.
    pub fn thread(&self) -> Thread {
        Thread(match &self.0 {
            Inner::Real(thread) => ThreadId::Real(thread.thread().id()),
            Inner::Simulated(number, _) => ThreadId::Simulated(*number),
        })
    }
}
