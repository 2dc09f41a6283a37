//! Who runs. Every thread and every task of a simulation is a thread of this process that runs only while it has the baton; it gives
//! the baton on when it waits, now and then when it takes a lock, and at its end. So one runs at a time, and everything follows
//! from the seed. A thread of a killed process never gets the baton again: nothing of it runs, no destructor either, as after
//! kill -9. Such threads stay until the process ends, which is why many seeds are spread over several processes.

use super::{net::Network, worker::Worker};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
    time::Duration,
};

/// A thread's place in the table.
pub(super) type Number = usize;

/// Of how many times that a lock is taken another thread may come first, one.
const PREEMPTIONS: u32 = 24;

/// Whether each step is told on standard error.
pub(super) static STEPS_TOLD: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: RefCell<Option<(Arc<Scheduler>, Number)>> = const { RefCell::new(None) };
}

/// This thread's simulation and its number there, if it is in one.
pub(super) fn current() -> Option<(Arc<Scheduler>, Number)> {
    // While thread-local values are destroyed there is none.
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

pub(super) struct Scheduler {
    inner: Mutex<Inner>,
    finished: Condvar,
    pub(super) network: Mutex<Network>,
}

struct Inner {
    now: Duration,
    rng: SmallRng,
    threads: Vec<Thread>,
    ready: Vec<Number>,
    timers: BTreeMap<(Duration, u64), Waker>,
    timers_made: u64,
    locks: HashMap<usize, Vec<Number>>,
    steps: u64,
    steps_max: u64,
    trace: u64,
    outcome: Option<Result<(), String>>,
}

struct Thread {
    name: String,
    process: u32,
    state: State,
    /// Woken while it ran: its next wait returns at once.
    token: bool,
    worker: Arc<Worker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Ready,
    Waiting,
    Gone,
}

/// What a simulation came to.
pub struct Outcome {
    /// `Err`: what went wrong.
    pub result: Result<(), String>,
    /// Choices of the scheduler.
    pub steps: u64,
    /// Differs when any choice, time, or byte sent differed.
    pub trace: u64,
    /// Virtual time that has passed.
    pub time: Duration,
}

/// A lock of std, whatever happened to its last holder.
pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scheduler {
    /// Runs `root` as process 0 and everything that it starts, to its end.
    pub(super) fn run(seed: u64, steps_max: u64, root: impl FnOnce() + Send + 'static) -> Outcome {
        let inner = Inner {
            now: Duration::from_secs(1),
            rng: SmallRng::seed_from_u64(seed),
            threads: Vec::new(),
            ready: Vec::new(),
            timers: BTreeMap::new(),
            timers_made: 0,
            locks: HashMap::new(),
            steps: 0,
            steps_max,
            trace: 0,
            outcome: None,
        };
        let network = Mutex::new(Network::new(seed));
        let scheduler = Arc::new(Self { inner: Mutex::new(inner), finished: Condvar::new(), network });
        let first = scheduler.clone();
        scheduler.start(0, "root".into(), move || {
            root();
            first.finish(Ok(()));
        });
        scheduler.hand_on(None);
        let mut inner = lock(&scheduler.inner);
        while inner.outcome.is_none() {
            inner = scheduler.finished.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        let result = inner.outcome.clone().expect("it is there");
        Outcome { result, steps: inner.steps, trace: inner.trace, time: inner.now }
    }

    /// A new thread, ready to run.
    pub(super) fn start(self: &Arc<Self>, process: u32, name: String, body: impl FnOnce() + Send + 'static) -> Number {
        let worker = Worker::take();
        let number = {
            let mut inner = lock(&self.inner);
            let number = inner.threads.len();
            let thread =
                Thread { name: name.clone(), process, state: State::Ready, token: false, worker: worker.clone() };
            inner.threads.push(thread);
            inner.is_ready(number);
            number
        };
        let scheduler = self.clone();
        worker.give_work(move |worker| {
            CURRENT.set(Some((scheduler.clone(), number)));
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            if let Err(panic) = done {
                scheduler.finish(Err(format!("thread `{name}` panicked: {}", words(&*panic))));
            }
            CURRENT.set(None);
            worker.put_back();
            scheduler.end(number);
        });
        number
    }

    fn end(&self, number: Number) {
        lock(&self.inner).threads[number].state = State::Gone;
        self.hand_on(None);
    }

    /// Ends the simulation; the first word counts.
    pub(super) fn finish(&self, result: Result<(), String>) {
        let mut inner = lock(&self.inner);
        inner.outcome.get_or_insert(result);
        self.finished.notify_all();
    }

    /// Gives the baton to whoever is chosen, and returns when it is `me` again.
    fn hand_on(&self, me: Option<Number>) {
        let Some(next) = self.choose() else {
            // It is over: nobody runs any more.
            if me.is_some() {
                loop {
                    std::thread::park();
                }
            }
            return;
        };
        if Some(next) == me {
            return;
        }
        let (give, own) = {
            let inner = lock(&self.inner);
            (inner.threads[next].worker.clone(), me.map(|me| inner.threads[me].worker.clone()))
        };
        give.give_baton();
        if let Some(own) = own {
            own.take_baton();
        }
    }

    /// The next to run; time passes while there is none.
    fn choose(&self) -> Option<Number> {
        loop {
            let due: Vec<Waker> = {
                let mut inner = lock(&self.inner);
                if inner.outcome.is_some() {
                    return None;
                }
                if let Some(next) = inner.next_ready() {
                    if inner.outcome.is_none() {
                        return Some(next);
                    }
                    self.finished.notify_all();
                    return None;
                }
                let Some((&(at, _), _)) = inner.timers.first_key_value() else {
                    let waiting: Vec<_> =
                        inner.threads.iter().filter(|thread| thread.state == State::Waiting).collect();
                    let names: Vec<_> = waiting.iter().map(|thread| thread.name.as_str()).collect();
                    let why = format!("nobody can go on; waiting: {}", names.join(", "));
                    inner.outcome = Some(Err(why));
                    self.finished.notify_all();
                    return None;
                };
                inner.now = inner.now.max(at);
                let later = inner.timers.split_off(&(at, u64::MAX));
                std::mem::replace(&mut inner.timers, later).into_values().collect()
            };
            // They take the lock themselves.
            due.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits for [`Self::wake`].
    pub(super) fn wait(&self, me: Number) {
        {
            let mut inner = lock(&self.inner);
            let thread = &mut inner.threads[me];
            if std::mem::take(&mut thread.token) {
                return;
            }
            thread.state = State::Waiting;
        }
        self.hand_on(Some(me));
    }

    /// Lets others run first.
    pub(super) fn pause(&self, me: Number) {
        {
            let mut inner = lock(&self.inner);
            inner.threads[me].state = State::Ready;
            inner.is_ready(me);
        }
        self.hand_on(Some(me));
    }

    /// Now and then lets others run first.
    pub(super) fn maybe_pause(&self, me: Number) {
        let pause = {
            let mut inner = lock(&self.inner);
            !inner.ready.is_empty() && inner.rng.random_ratio(1, PREEMPTIONS)
        };
        if pause {
            self.pause(me);
        }
    }

    pub(super) fn wake(&self, number: Number) {
        let mut inner = lock(&self.inner);
        match inner.threads[number].state {
            State::Waiting => {
                inner.threads[number].state = State::Ready;
                inner.is_ready(number);
            }
            State::Running | State::Ready => inner.threads[number].token = true,
            State::Gone => {}
        }
    }

    pub(super) fn now(&self) -> Duration {
        lock(&self.inner).now
    }

    /// Wakes `waker` at `at`; the key takes it back.
    pub(super) fn timer(&self, at: Duration, waker: Waker) -> (Duration, u64) {
        let mut inner = lock(&self.inner);
        inner.timers_made += 1;
        let key = (at, inner.timers_made);
        inner.timers.insert(key, waker);
        key
    }

    pub(super) fn forget_timer(&self, key: (Duration, u64)) {
        let gone = lock(&self.inner).timers.remove(&key);
        drop(gone);
    }

    /// Waits until the lock at `address` is given back.
    pub(super) fn wait_for_lock(&self, me: Number, address: usize) {
        lock(&self.inner).locks.entry(address).or_default().push(me);
        self.wait(me);
    }

    pub(super) fn lock_is_free(&self, address: usize) {
        let waiting = lock(&self.inner).locks.remove(&address);
        waiting.into_iter().flatten().for_each(|number| self.wake(number));
    }

    pub(super) fn process_of(&self, number: Number) -> u32 {
        lock(&self.inner).threads[number].process
    }

    pub(super) fn waker(self: &Arc<Self>, number: Number) -> Waker {
        Arc::new(ThreadWaker { scheduler: self.clone(), number }).into()
    }

    /// No thread of `process` ever runs again.
    pub(super) fn kill(&self, process: u32) {
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        inner
            .threads
            .iter_mut()
            .filter(|thread| thread.process == process)
            .for_each(|thread| thread.state = State::Gone);
        let threads = &inner.threads;
        inner.ready.retain(|number| threads[*number].process != process);
    }

    /// Makes `what` part of the trace; `told` is its line in the log of steps.
    pub(super) fn note(&self, what: u64, told: impl FnOnce() -> String) {
        let mut inner = lock(&self.inner);
        inner.mix(what);
        if STEPS_TOLD.load(Ordering::Relaxed) {
            eprintln!("step {:>6}   {} {what:016x}", inner.steps, told());
        }
    }
}

impl Inner {
    /// In the order of their numbers, as channels may wake their waiters in any (tokio's `watch` rolls dice).
    fn is_ready(&mut self, number: Number) {
        let at = self.ready.partition_point(|other| *other < number);
        self.ready.insert(at, number);
    }

    fn next_ready(&mut self) -> Option<Number> {
        let at = match self.ready.len() {
            0 => return None,
            1 => 0,
            many => self.rng.random_range(0..many),
        };
        let next = self.ready.remove(at);
        self.threads[next].state = State::Running;
        self.steps += 1;
        if self.steps > self.steps_max {
            let (name, steps_max, now) = (&self.threads[next].name, self.steps_max, self.now);
            let why = format!("not over after {steps_max} steps and {now:?}; `{name}` is the next to run");
            self.outcome = Some(Err(why));
        }
        self.mix(next as u64);
        self.mix(self.now.as_nanos() as u64);
        if STEPS_TOLD.load(Ordering::Relaxed) {
            let Thread { name, process, .. } = &self.threads[next];
            eprintln!("step {:>6} {:?} {process}: {next} {name}", self.steps, self.now);
        }
        Some(next)
    }

    fn mix(&mut self, what: u64) {
        self.trace = (self.trace.rotate_left(7) ^ what).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

struct ThreadWaker {
    scheduler: Arc<Scheduler>,
    number: Number,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.scheduler.wake(self.number);
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}
