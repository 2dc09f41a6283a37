//! The memory that a mount keeps for reads, by one account.
//!
//! Who answers a read takes the room of its bytes before they are fetched, once for the whole answer, and has it until the answer is
//! with the kernel: so nobody holds room while it waits for more, and all who wait get theirs. What is read ahead, or stays for
//! whatever else nobody can tell the end of, takes room only if there is some, and never the last quarter, so that a reader who waits
//! for room waits for other answers, not for somebody who may never read on.

use bytes::Bytes;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit of the account, in bytes.
const UNIT_BYTES: usize = 4 << 10;
/// Buffers of this size and more have capacities in multiples of it ([`sluice_base::Pages`]), and are filled by a message that is a
/// little longer than its bytes.
const STEP_BYTES: usize = 64 << 10;

/// A thread with lanes of its own takes room in steps of this part of all, so that few of its answers have to ask, and keeps up to two
/// of them: sixteen threads an eighth.
const STEPS: usize = 256;
/// Of the account one thread may keep this part for buffers that are idle...
const IDLE_SHARE: usize = 32;
/// ... and all threads this one.
const IDLE_SHARE_OF_ALL: usize = 8;

/// Room for bytes of reads.
#[derive(Clone)]
pub(crate) struct Budget {
    all: Arc<Semaphore>,
    ahead: Arc<Semaphore>,
    units: usize,
    /// Threads that have a [`Share`].
    threads: Arc<AtomicUsize>,
}

/// Room that somebody has, until this is dropped.
pub(crate) struct Room {
    all: OwnedSemaphorePermit,
    ahead: Option<OwnedSemaphorePermit>,
}

/// Bytes, and the room of the answer that they are part of.
struct Held {
    bytes: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Budget {
    /// An account of so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let units = (bytes as usize / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS / 2);
        let of = |units| Arc::new(Semaphore::new(units));
        Self { all: of(units), ahead: of(units / 4 * 3), units, threads: Arc::default() }
    }

    /// All of it, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.units * UNIT_BYTES
    }

    /// Bytes of it that are taken.
    pub(crate) fn taken_bytes(&self) -> usize {
        (self.units - self.all.available_permits().min(self.units)) * UNIT_BYTES
    }

    fn units_of(&self, bytes: usize) -> u32 {
        let charged = if bytes < STEP_BYTES { bytes } else { bytes.next_multiple_of(STEP_BYTES) + STEP_BYTES };
        // One that is larger than everything has everything.
        charged.div_ceil(UNIT_BYTES).clamp(1, self.units).try_into().unwrap_or(u32::MAX)
    }

    /// Room for an answer, if there is some.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Room> {
        let all = self.all.clone().try_acquire_many_owned(self.units_of(bytes)).ok()?;
        Some(Room { all, ahead: None })
    }

    /// Room for an answer, when there is some. `None` once nobody gets any.
    pub(crate) async fn take(&self, bytes: usize) -> Option<Room> {
        let all = self.all.clone().acquire_many_owned(self.units_of(bytes)).await.ok()?;
        Some(Room { all, ahead: None })
    }

    /// Room for what nobody has asked for yet, or may stay, if there is some.
    pub(crate) fn try_take_ahead(&self, bytes: usize) -> Option<Room> {
        self.try_take_units(self.units_of(bytes).min(self.ahead_units()))
    }

    fn ahead_units(&self) -> u32 {
        (self.units / 4 * 3).try_into().unwrap_or(u32::MAX)
    }

    fn try_take_units(&self, units: u32) -> Option<Room> {
        let ahead = self.ahead.clone().try_acquire_many_owned(units).ok()?;
        let all = self.all.clone().try_acquire_many_owned(units).ok()?;
        Some(Room { all, ahead: Some(ahead) })
    }

    /// A part of the account for one thread, nothing at first.
    pub(crate) fn share(&self) -> Share {
        self.threads.fetch_add(1, Relaxed);
        Share { budget: self.clone(), room: None, units: 0, step: (self.units / STEPS).max(STEP_BYTES / UNIT_BYTES) }
    }
}

/// What one thread has of the account for all that it has under way and keeps. It never waits.
pub(crate) struct Share {
    budget: Budget,
    room: Option<Room>,
    units: usize,
    step: usize,
}

impl Share {
    /// Whether it has room for `bytes` in all from now on.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let units = bytes.div_ceil(UNIT_BYTES);
        let Some(missing) = units.checked_sub(self.units).filter(|missing| *missing > 0) else { return true };
        let take = |units: usize| Some((self.budget.try_take_units(units.try_into().ok()?)?, units));
        let Some((more, taken)) = take(missing.max(self.step)).or_else(|| take(missing)) else { return false };
        self.units += taken;
        match &mut self.room {
            Some(room) => room.merge(more),
            None => self.room = Some(more),
        }
        true
    }

    /// It needs room for `bytes` in all; gives back most of what is above that.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let kept = bytes.div_ceil(UNIT_BYTES) + self.step;
        if self.units > kept + self.step {
            let freed = self.room.as_mut().and_then(|room| room.split((self.units - kept) * UNIT_BYTES));
            self.units -= if freed.is_some() { self.units - kept } else { 0 };
        }
    }

    /// Bytes that this thread may keep idle: it has a 32nd of the account, and all threads together not more than an eighth.
    pub(crate) fn idle_bytes_max(&self) -> usize {
        let threads = self.budget.threads.load(Relaxed).max(1);
        self.budget.bytes() / IDLE_SHARE.max(IDLE_SHARE_OF_ALL * threads)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.threads.fetch_sub(1, Relaxed);
    }
}

impl Room {
    /// Keeps the room with the answer's bytes: it is given back when they are dropped.
    pub(crate) fn keep_with(self, pieces: &mut [Bytes]) {
        if let Some(last) = pieces.last_mut() {
            *last = Bytes::from_owner(Held { bytes: std::mem::take(last), _room: self });
        }
    }

    fn merge(&mut self, more: Self) {
        self.all.merge(more.all);
        match (&mut self.ahead, more.ahead) {
            (Some(ahead), Some(more)) => ahead.merge(more),
            (ahead, more) => *ahead = ahead.take().or(more),
        }
    }

    /// Takes room for `bytes` out of this one, unless there is less.
    pub(crate) fn split(&mut self, bytes: usize) -> Option<Self> {
        let units = bytes.div_ceil(UNIT_BYTES);
        let all = self.all.split(units)?;
        Some(Self { all, ahead: self.ahead.as_mut().and_then(|ahead| ahead.split(units)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    const M: usize = 1 << 20;

    #[test]
    fn what_nobody_asked_for_leaves_room_for_who_asks() {
        let budget = Budget::new(16 * M as u64);
        let ahead: Vec<_> = (0..100).map_while(|_| budget.try_take_ahead(M)).collect();
        assert_eq!(ahead.len(), 11, "each a step more than its bytes, and three quarters of all");
        let mut answers: Vec<_> = (0..100).map_while(|_| budget.try_take(M)).collect();
        assert_eq!((answers.len(), budget.taken_bytes()), (4, 15 * (M + STEP_BYTES)));
        assert!(budget.take(M).now_or_never().is_none());
        answers.pop();
        assert!(budget.take(M).now_or_never().is_some());
        drop((ahead, answers));
        assert_eq!(budget.taken_bytes(), 0);
        assert!(budget.try_take(100 * M).is_some(), "alone, one of any size");
    }

    #[test]
    fn a_thread_s_share_grows_and_shrinks_and_leaves_the_last_quarter() {
        let budget = Budget::new(16 * M as u64);
        let (mut one, mut other) = (budget.share(), budget.share());
        assert!(one.grow(10_000));
        assert_eq!(budget.taken_bytes(), STEP_BYTES, "a step at once");
        assert!(one.grow(STEP_BYTES) && one.grow(8 * M));
        assert_eq!(budget.taken_bytes(), 8 * M);
        assert!(!other.grow(5 * M), "the last quarter is for those who wait");
        assert!(other.grow(4 * M) && budget.try_take_ahead(4096).is_none() && budget.try_take(3 * M).is_some());
        one.shrink(8 * M - 2 * STEP_BYTES);
        assert_eq!(budget.taken_bytes(), 12 * M, "too little to give back");
        one.shrink(0);
        assert_eq!(budget.taken_bytes(), 4 * M + STEP_BYTES);
        assert!(other.grow(5 * M));
        drop((one, other));
        assert_eq!(budget.taken_bytes(), 0);
    }

    #[test]
    fn many_threads_keep_less_each() {
        let budget = Budget::new(64 * M as u64);
        let mut shares = vec![budget.share()];
        assert_eq!(shares[0].idle_bytes_max(), 2 * M);
        shares.extend((1..4).map(|_| budget.share()));
        assert_eq!(shares[0].idle_bytes_max(), 2 * M);
        shares.extend((4..16).map(|_| budget.share()));
        assert_eq!(shares[0].idle_bytes_max(), M / 2);
        shares.truncate(8);
        assert_eq!(shares[0].idle_bytes_max(), M, "those that are gone keep nothing");
    }

    #[test]
    fn the_room_goes_with_the_bytes() {
        let budget = Budget::new(16 * M as u64);
        let mut answer = vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")];
        let mut room = budget.try_take(100 << 10).unwrap();
        assert!(room.split(200 << 10).is_none());
        let part = room.split(40 << 10);
        room.keep_with(&mut answer);
        assert_eq!((&answer[1][..], budget.taken_bytes()), (&b"two"[..], 192 << 10));
        drop(part);
        assert_eq!(budget.taken_bytes(), 152 << 10);
        let rest = answer.pop();
        drop(answer);
        assert_eq!(budget.taken_bytes(), 152 << 10);
        drop(rest);
        assert_eq!(budget.taken_bytes(), 0);
    }
}
