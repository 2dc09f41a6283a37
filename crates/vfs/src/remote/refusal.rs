//! The time after a loss in which nothing is changed. What was asked for before it may still come: the kernel lets the changes of a directory, or
//! of a file, wait for each other, and does not say since when.
//!
//! The time is counted in looks by a thread of this process, so that a while in which it was stopped does not count, and goes on as long as
//! changes come one upon the other, as they do while the kernel's queue is long. Programs that try again now and then do not hold it up, and those
//! that do so without a pause not for ever.

use sluice_run::lock::Mutex;
use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    time::Duration,
};

/// Between two looks.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The time takes so many at least: 2 s.
pub const LOOKS_MIN: u32 = 20;
/// With so few changes between two of them that nothing waits in the kernel: some program tries again. Its queue brings hundreds, but some ten beside
/// programs that take all processors: with 20 here a third of 300 renames were done there. Four programs that try every 80 ms are more than 5.
const QUIET_LOOKS: u32 = 5;
const QUIET_CHANGES: u32 = 5;
/// The time takes no more than so many: 30 s.
const LOOKS_MAX: u32 = 300;

/// See the module.
#[derive(Debug, Default)]
pub struct Refusal {
    is_on: AtomicBool,
    /// Changes that came since the last look.
    came: AtomicU32,
    looks: Mutex<Looks>,
}

#[derive(Debug, Default)]
struct Looks {
    done: u32,
    quiet: u32,
}

impl Refusal {
    /// Something was lost.
    pub fn begin(&self) {
        let mut looks = self.looks.lock();
        *looks = Looks::default();
        self.is_on.store(true, SeqCst);
    }

    /// Whether it is that time.
    pub fn is_on(&self) -> bool {
        self.is_on.load(SeqCst)
    }

    /// Whether a change that comes now is refused.
    pub fn refuses(&self) -> bool {
        let refuses = self.is_on();
        if refuses {
            self.came.fetch_add(1, SeqCst);
        }
        refuses
    }

    /// Whether it is that time still. To be called every [`LOOK_INTERVAL`] while it is.
    pub fn look(&self) -> bool {
        if !self.is_on() {
            return false;
        }
        let mut looks = self.looks.lock();
        looks.done += 1;
        looks.quiet = if self.came.swap(0, SeqCst) > QUIET_CHANGES { 0 } else { looks.quiet + 1 };
        if looks.done >= LOOKS_MAX || looks.done >= LOOKS_MIN && looks.quiet >= QUIET_LOOKS {
            self.is_on.store(false, SeqCst);
        }
        self.is_on()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until it is over; before each of the first `busy` come `changes`.
    fn looks(busy: u32, changes: u32) -> u32 {
        let refusal = Refusal::default();
        assert!(!refusal.refuses());
        refusal.begin();
        let mut looks = 0;
        loop {
            if looks < busy {
                (0..changes).for_each(|_| assert!(refusal.refuses()));
            }
            looks += 1;
            if !refusal.look() {
                assert!(!refusal.refuses());
                return looks;
            }
        }
    }

    #[test]
    fn it_lasts_as_long_as_changes_come_one_upon_the_other_but_not_for_ever() {
        assert_eq!(looks(0, 0), LOOKS_MIN);
        assert_eq!(looks(LOOKS_MIN - QUIET_LOOKS, QUIET_CHANGES + 1), LOOKS_MIN);
        assert_eq!(looks(100, QUIET_CHANGES + 1), 100 + QUIET_LOOKS);
        assert_eq!(looks(u32::MAX, QUIET_CHANGES + 1), LOOKS_MAX);
        assert_eq!(looks(u32::MAX, QUIET_CHANGES), LOOKS_MIN);
    }

    #[test]
    fn a_second_loss_begins_it_anew() {
        let refusal = Refusal::default();
        refusal.begin();
        (1..LOOKS_MIN).for_each(|_| assert!(refusal.look()));
        refusal.begin();
        (1..LOOKS_MIN).for_each(|_| assert!(refusal.look()));
        assert!(!refusal.look());
    }
}
