//! The threads of this process that the threads of simulations are. One whose work is over is used again: a seed has a thousand
//! tasks, most of which are short, and a new thread costs more than all that they do.

use super::scheduler::lock;
use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
};

/// Debug builds of the whole stack need some hundred KiB.
const STACK_BYTES: usize = 2 << 20;

/// Those without work.
static FREE: Mutex<Vec<Arc<Worker>>> = Mutex::new(Vec::new());

type Work = Box<dyn FnOnce(&Arc<Worker>) + Send>;

/// One thread, which runs only while it has the baton.
#[derive(Default)]
pub(super) struct Worker {
    baton: AtomicBool,
    work: Mutex<Option<Work>>,
    thread: OnceLock<Thread>,
}

impl Worker {
    /// One without work.
    pub(super) fn take() -> Arc<Self> {
        if let Some(free) = lock(&FREE).pop() {
            return free;
        }
        let worker = Arc::new(Self::default());
        let own = worker.clone();
        let started = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            loop {
                own.take_baton();
                let work = lock(&own.work).take().expect("who has no work is not given the baton");
                work(&own);
            }
        });
        let thread = started.expect("the host has a thread left").thread().clone();
        worker.thread.set(thread).expect("it is set here only");
        worker
    }

    /// What it does once it has the baton.
    pub(super) fn give_work(&self, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        *lock(&self.work) = Some(Box::new(work));
    }

    /// Its work is over, but for giving the baton on.
    pub(super) fn put_back(self: &Arc<Self>) {
        lock(&FREE).push(self.clone());
    }

    pub(super) fn give_baton(&self) {
        self.baton.store(true, Ordering::Release);
        self.thread.get().expect("it was started").unpark();
    }

    pub(super) fn take_baton(&self) {
        while !self.baton.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}
