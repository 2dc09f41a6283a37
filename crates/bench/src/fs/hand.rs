//! Threads that do operations, and what they count.

use super::times::Times;
use anyhow::{Context, anyhow, bail};
use sluice_base::Clock;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// After so many errors a thread gives up: what fails at once would fail for the whole time.
const ERRORS_MAX: u64 = 1000;

/// Who looks on.
pub struct Watch {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// True ends everything soon, with an error.
    pub stop: Arc<AtomicBool>,
    /// What begins now.
    pub begins: Box<dyn Fn(String) + Sync>,
    /// How much of it is done, 0 to 1.
    pub part: Box<dyn Fn(f64) + Sync>,
}

impl Watch {
    /// An error once everything is to end.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.is_stopped() {
            bail!("interrupted");
        }
        Ok(())
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// What came of operations.
#[derive(Default)]
pub(super) struct Tally {
    pub times: Times,
    pub bytes: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    /// From the begin of the first to the end of the last, of all phases.
    pub took: Duration,
}

impl Tally {
    /// Adds a later phase.
    pub(super) fn then(&mut self, later: Self) {
        self.beside(&later);
        self.took += later.took;
        self.first_error = self.first_error.take().or(later.first_error);
    }

    /// Adds what was done at the same time.
    fn beside(&mut self, other: &Self) {
        self.times.merge(&other.times);
        self.bytes += other.bytes;
        self.errors += other.errors;
    }

    pub(super) fn failed(&mut self, why: impl ToString) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| why.to_string());
    }
}

/// A thread at work.
pub(super) struct Hand<'a> {
    /// Its number, from 0.
    pub at: usize,
    tally: Tally,
    began: Duration,
    watch: &'a Watch,
}

impl Hand<'_> {
    /// Does an operation and takes its time; it tells the bytes that it moved.
    pub(super) fn does(&mut self, operation: impl FnOnce() -> io::Result<u64>) {
        let began = self.watch.clock.monotonic();
        let done = operation();
        self.tally.times.add(self.watch.clock.monotonic().saturating_sub(began));
        match done {
            Ok(bytes) => self.tally.bytes += bytes,
            Err(error) => self.tally.failed(error),
        }
    }

    /// Notes whether something was right that is no operation of its own.
    pub(super) fn notes(&mut self, done: io::Result<()>) {
        if let Err(error) = done {
            self.tally.failed(error);
        }
    }

    /// Whether there is a sense in the next one.
    pub(super) fn goes_on(&self) -> bool {
        self.tally.errors < ERRORS_MAX && !self.watch.is_stopped()
    }

    /// The same until `end`, counted from the begin; tells how far that is.
    pub(super) fn goes_on_until(&self, end: Duration) -> bool {
        let past = self.watch.clock.monotonic().saturating_sub(self.began);
        self.is_at(past.as_secs_f64() / end.as_secs_f64());
        past < end && self.goes_on()
    }

    /// Tells how far it is, of all hands if they are about equal.
    pub(super) fn is_at(&self, part: f64) {
        // One speaks for all; not with each operation, which may take a microsecond.
        if self.at == 0 && self.tally.times.count().is_multiple_of(16) {
            (self.watch.part)(part);
        }
    }
}

/// Sets `count` hands to work and waits for all of them.
pub(super) fn together(watch: &Watch, count: usize, work: impl Fn(&mut Hand<'_>) + Sync) -> anyhow::Result<Tally> {
    let began = watch.clock.monotonic();
    let mut all = Tally::default();
    std::thread::scope(|scope| {
        let begin = |at| {
            let work = &work;
            let thread = std::thread::Builder::new().name(format!("hand-{at}"));
            thread.spawn_scoped(scope, move || {
                let mut hand = Hand { at, tally: Tally::default(), began, watch };
                work(&mut hand);
                hand.tally
            })
        };
        let begun: Vec<_> = (0..count).map(begin).collect();
        for thread in begun {
            let thread = thread.context("starting a thread: take fewer --threads")?;
            let tally = thread.join().map_err(|_| anyhow!("a thread panicked"))?;
            all.beside(&tally);
            all.first_error = all.first_error.take().or(tally.first_error);
        }
        anyhow::Ok(())
    })?;
    all.took = watch.clock.monotonic().saturating_sub(began);
    watch.check()?;
    Ok(all)
}
