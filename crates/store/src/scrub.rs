//! The scrubber: reads what the cache holds, slot by slot, at a set rate and behind all other use of the disk, so that rot is found
//! before a reader is sent it. A slot with a bad segment is given up; the store has the object.
//!
//! A *pass* goes through all slots once. Where it stands is kept with the cache after each slot, so that a restart, or a kill, does not
//! begin again. The disk is read past the page cache (O_DIRECT, where its file system has that), by one thread of the idle I/O
//! class (ioprio_set(2); a disk without a scheduler does not heed it, which is what the rate is for).
//!
//! **Rot or an old table.** After a kill or a power loss the slot table may name bytes that later tenants have replaced. So a slot of an
//! earlier run, of which no segment is right, is no rot if that run did not end well.

mod slot;
mod state;

pub use state::ScrubCounts;

use crate::{Cache, cache::Inner, entry::Entry};
use slot::{Reader, scrub_slot};
use sluice_base::{Clock, ioprio};
use sluice_run::{
    lock::{Condvar, Mutex},
    thread::{Builder, JoinHandle},
};
use state::{State, StateFile};
use std::{
    io,
    sync::{Arc, Weak},
    time::Duration,
};

/// Bad segments in the latest two passes from which on a disk counts as rotting. One is a cosmic ray.
const ROTTEN_SEGMENTS_MIN: u64 = 8;
/// The longest sleep of a thread that waits for the next pass.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// What a scrub that was held up may catch up with: it does not read faster than asked for longer than this.
const CATCH_UP_MAX: Duration = Duration::from_millis(100);

/// When and how fast a cache is scrubbed.
#[derive(Clone, Copy, Debug)]
pub struct ScrubOptions {
    /// Bytes a second; 0: only when somebody asks.
    pub rate: u64,
    /// From the end of a pass to the begin of the next.
    pub interval: Duration,
}

impl Default for ScrubOptions {
    /// A full terabyte in 17 hours, at a tenth of what a slow disk reads; then once a day.
    fn default() -> Self {
        Self { rate: 16 << 20, interval: Duration::from_secs(24 * 3600) }
    }
}

/// What a scrubber has done and found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubStatus {
    /// A pass is under way.
    pub running: bool,
    /// Bytes a second now; 0: no limit, or, while none runs, not by itself.
    pub rate: u64,
    /// Slots of the cache that the pass has behind it, and all of them; those without an object take no time.
    pub slots_done: u32,
    /// See `slots_done`.
    pub slots: u32,
    /// Passes that were completed, ever.
    pub passes: u32,
    /// When the latest pass began, in seconds of the wall clock; 0: never.
    pub began_secs: u64,
    /// When the last one was completed; 0: never.
    pub ended_secs: u64,
    /// Of the pass under way, or the latest.
    pub counts: ScrubCounts,
    /// Of the last one that was completed.
    pub last: ScrubCounts,
}

impl ScrubStatus {
    /// Whether so much was bad that the disk should be replaced.
    pub fn is_rotting(&self) -> bool {
        self.rotten() >= ROTTEN_SEGMENTS_MIN
    }

    /// Bad segments in the latest two passes.
    pub fn rotten(&self) -> u64 {
        if self.running { self.counts.rotten() + self.last.rotten() } else { self.last.rotten() }
    }
}

/// A scrubber, as the cache that it belongs to keeps it.
pub(crate) struct Scrubber {
    control: Mutex<Control>,
    changed: Condvar,
    clock: Arc<dyn Clock>,
    slots: u32,
    options: ScrubOptions,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Control {
    state: State,
    file: StateFile,
    /// A pass from the start is wanted, at this rate.
    asked: Option<u64>,
    /// A pass is being worked on. One that is merely begun was cut off, and waits.
    active: bool,
    /// Of the pass.
    rate: u64,
    stop: bool,
    /// Stays of an earlier generation are of a run that did not end well.
    unclean_before: u64,
}

impl Cache {
    /// Starts the scrubber of this cache, once. It ends with [`Cache::end_scrub`].
    pub fn start_scrub(&self, options: ScrubOptions) -> io::Result<()> {
        let inner = &self.0;
        let (file, mut state) = StateFile::open(&*inner.slabs.disk, &inner.slabs.dir)?;
        let unclean_before = if state.clean { 0 } else { inner.first_generation };
        state.clean = false;
        file.write(&state, true)?;
        let (asked, active, rate, stop) = (None, false, options.rate, false);
        let control = Control { state, file, asked, active, rate, stop, unclean_before };
        let scrubber = Arc::new(Scrubber {
            control: Mutex::new(control),
            changed: Condvar::new(),
            clock: inner.clock.clone(),
            slots: inner.slots(),
            options,
            thread: Mutex::default(),
        });
        if inner.scrubber.set(scrubber.clone()).is_err() {
            return Ok(());
        }
        let (cache, working) = (Arc::downgrade(inner), scrubber.clone());
        let thread = Builder::new().name("sluice-scrub".into()).spawn(move || working.work(&cache))?;
        *scrubber.thread.lock() = Some(thread);
        Ok(())
    }

    /// Begins a pass now, from the start, at most so many bytes a second; 0: as fast as the disk gives them. Returns the number of
    /// passes that will have been completed with it; `None` without a scrubber.
    pub fn scrub_now(&self, rate: u64) -> Option<u32> {
        let scrubber = self.0.scrubber.get()?;
        let mut control = scrubber.control.lock();
        control.asked = Some(rate);
        scrubber.changed.notify_all();
        Some(control.state.passes + 1)
    }

    /// What the scrubber has done and found; `None` without one.
    pub fn scrub_status(&self) -> Option<ScrubStatus> {
        Some(self.0.scrubber.get()?.status())
    }

    /// Ends the scrubber's work, so that it changes no slot any more.
    pub fn stop_scrub(&self) {
        let Some(scrubber) = self.0.scrubber.get() else { return };
        scrubber.control.lock().stop = true;
        scrubber.changed.notify_all();
        let thread = scrubber.thread.lock().take();
        if let Some(Err(_)) = thread.map(JoinHandle::join) {
            tracing::error!("the scrubber had panicked");
        }
    }

    /// Ends the scrubber. With `clean` the slot table has been written since the last change of the slabs.
    pub fn end_scrub(&self, clean: bool) {
        self.stop_scrub();
        let Some(scrubber) = self.0.scrubber.get() else { return };
        let mut control = scrubber.control.lock();
        control.state.clean = clean;
        control.save(true);
    }
}

impl Control {
    /// A state that is not kept costs a scrub from an earlier place.
    fn save(&self, durable: bool) {
        if let Err(error) = self.file.write(&self.state, durable) {
            tracing::warn!(%error, "where the scrub stands was not kept");
        }
    }

    fn begin(&mut self, now_secs: u64) {
        self.state =
            State { running: true, next_slot: 0, began_secs: now_secs, counts: ScrubCounts::default(), ..self.state };
        self.save(true);
    }

    fn complete(&mut self, now_secs: u64) {
        let State { passes, counts, .. } = self.state;
        self.state = State { running: false, passes: passes + 1, ended_secs: now_secs, last: counts, ..self.state };
        self.active = false;
        self.save(true);
        let ScrubCounts { bytes, bad_segments, unreadable_segments, stale_slots, .. } = counts;
        tracing::info!(bytes, bad_segments, unreadable_segments, stale_slots, "a scrub of the cache is complete");
    }
}

impl Scrubber {
    fn status(&self) -> ScrubStatus {
        let control = self.control.lock();
        let State { next_slot, passes, began_secs, ended_secs, counts, last, .. } = control.state;
        ScrubStatus {
            running: control.active || control.asked.is_some(),
            rate: control.rate,
            slots_done: next_slot,
            slots: self.slots,
            passes,
            began_secs,
            ended_secs,
            counts,
            last,
        }
    }

    fn work(&self, cache: &Weak<Inner>) {
        if let Err(error) = ioprio::set_idle() {
            tracing::debug!(%error, "the scrubber reads with the priority of everybody else");
        }
        let mut reader = Reader::new();
        let mut due = self.clock.monotonic();
        while let Some((slot, unclean_before)) = self.next() {
            let Some(inner) = cache.upgrade() else { return };
            let mut pace = |bytes| self.pace(bytes, &mut due);
            let is_inherited = |entry: &Entry| entry.at.generation < unclean_before;
            if let Some(counts) = scrub_slot(&inner, slot, &mut reader, is_inherited, &mut pace) {
                self.done(slot, counts);
            }
        }
    }

    /// The slot to be looked at, once there is one, and what is not known to have ended well; `None` at the end.
    fn next(&self) -> Option<(u32, u64)> {
        let mut control = self.control.lock();
        loop {
            let now_secs = u64::try_from(self.clock.wall().secs).unwrap_or(0);
            if control.stop {
                return None;
            }
            if let Some(rate) = control.asked.take() {
                (control.rate, control.active) = (rate, true);
                control.begin(now_secs);
            }
            if control.active && control.state.next_slot < self.slots {
                return Some((control.state.next_slot, control.unclean_before));
            }
            if control.active {
                control.complete(now_secs);
            }
            let State { running, passes, ended_secs, .. } = control.state;
            let is_due = passes == 0 || now_secs.saturating_sub(ended_secs) >= self.options.interval.as_secs();
            if self.options.rate != 0 && (running || is_due) {
                (control.rate, control.active) = (self.options.rate, true);
                if !running {
                    control.begin(now_secs);
                }
                continue;
            }
            let _ = self.changed.wait_for(&mut control, LOOK_INTERVAL);
        }
    }

    fn done(&self, slot: u32, counts: ScrubCounts) {
        let mut control = self.control.lock();
        if control.asked.is_some() {
            return;
        }
        let was_rotting = is_rotting(&control.state);
        control.state.counts.add(&counts);
        control.state.next_slot = slot + 1;
        if is_rotting(&control.state) && !was_rotting {
            let (bad, read) = (control.state.counts.rotten(), control.state.counts.segments);
            tracing::error!(bad, read, "the cache disk is rotting: replace it. Reads are right, as each is checked");
        }
        // Slots without an object come by the thousand.
        if counts.bytes > 0 {
            control.save(false);
        }
    }

    /// Waits until so many more bytes are due. False when the pass is to stop.
    fn pace(&self, bytes: u64, due: &mut Duration) -> bool {
        let mut control = self.control.lock();
        let now = self.clock.monotonic();
        *due = (*due).max(now.saturating_sub(CATCH_UP_MAX));
        if let Some(nanos) = bytes.saturating_mul(1_000_000_000).checked_div(control.rate) {
            *due += Duration::from_nanos(nanos);
        }
        while !control.stop && control.asked.is_none() {
            let left = due.saturating_sub(self.clock.monotonic());
            if left.is_zero() {
                return true;
            }
            let _ = self.changed.wait_for(&mut control, left);
        }
        false
    }
}

fn is_rotting(state: &State) -> bool {
    state.counts.rotten() + state.last.rotten() >= ROTTEN_SEGMENTS_MIN
}
