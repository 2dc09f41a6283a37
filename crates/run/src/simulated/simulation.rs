//! A simulation, from outside and from its root.

pub use super::scheduler::Outcome;
use super::{
    current,
    scheduler::{STEPS_TOLD, Scheduler, lock},
    task, time,
};
use std::{sync::atomic::Ordering, time::Duration};

/// Runs `root`, which is process 0, and all that it starts, by `seed`. An end without [`Outcome::result`] being `Ok`: a panic, nobody
/// able to go on, or more than `steps_max` steps. The threads of a simulation that is over stay asleep until this process ends.
pub fn run(seed: u64, steps_max: u64, root: impl FnOnce() + Send + 'static) -> Outcome {
    Scheduler::run(seed, steps_max, root)
}

/// Starts `body` as the first thread of `process`; what it starts belongs to the process too.
pub fn start(process: u32, name: &str, body: impl FnOnce() + Send + 'static) {
    let (scheduler, _) = inside();
    scheduler.start(process, name.into(), body);
}

/// `process` ends in the middle of whatever it does. Its peers see its connections end, or, when the whole host is gone, hear
/// nothing any more.
pub fn kill(process: u32, host_too: bool) {
    let (scheduler, _) = inside();
    scheduler.kill(process);
    let (wakers, gone) = lock(&scheduler.network).kill(process, host_too, scheduler.now());
    drop(gone);
    wakers.into_iter().for_each(std::task::Waker::wake);
}

/// Between `a` and `b` nothing arrives any more; connections stay.
pub fn part(a: u32, b: u32) {
    let (scheduler, _) = inside();
    lock(&scheduler.network).part(a, b);
}

/// Between `a` and `b` everything arrives again, also what was sent meanwhile.
pub fn heal(a: u32, b: u32) {
    let (scheduler, _) = inside();
    let wakers = lock(&scheduler.network).heal(a, b, scheduler.now());
    wakers.into_iter().for_each(std::task::Waker::wake);
}

/// All connections between `a` and `b` are reset; what is on its way is lost.
pub fn cut(a: u32, b: u32) {
    let (scheduler, _) = inside();
    let wakers = lock(&scheduler.network).cut(a, b);
    wakers.into_iter().for_each(std::task::Waker::wake);
}

/// The longest time on the way for what is sent from now on.
pub fn set_latency(max: Duration) {
    let (scheduler, _) = inside();
    lock(&scheduler.network).set_latency(max);
}

/// Virtual time since some moment before the beginning.
pub fn now() -> Duration {
    inside().0.now()
}

/// Makes `what` part of the trace.
pub fn note(what: u64) {
    inside().0.note(what, || "noted".into());
}

/// Tells each step of all simulations from now on, on standard error: what two runs of one seed are compared by when they differ.
pub fn tell_steps() {
    STEPS_TOLD.store(true, Ordering::Relaxed);
}

/// Ends the simulation with an error.
pub fn fail(why: String) -> ! {
    let (scheduler, me) = inside();
    scheduler.finish(Err(why));
    scheduler.pause(me);
    unreachable!("nobody runs after the end")
}

/// Blocks this thread for `time`.
pub fn sleep(time: Duration) {
    task::block_on(time::sleep(time));
}

/// Lets other threads run first, now and then.
pub fn pause() {
    let (scheduler, me) = inside();
    scheduler.maybe_pause(me);
}

/// Waits for `future` on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    task::block_on(future)
}

/// Whether this thread is in a simulation.
pub fn is_inside() -> bool {
    current().is_some()
}

fn inside() -> (std::sync::Arc<Scheduler>, usize) {
    current().expect("this is called inside a simulation")
}
