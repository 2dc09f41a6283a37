//! Locks of parking_lot, whose waiters in a simulation give the baton on.

use super::{
    current,
    scheduler::{Number, Scheduler, lock},
};
use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex as StdMutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Simulated threads that wait for a lock.
#[derive(Default)]
pub struct Waiters(AtomicUsize);

impl Waiters {
    fn address(&self) -> usize {
        &raw const *self as usize
    }

    /// Takes a lock: by `now` if it can, else when it is given back; outside a simulation by `wait`.
    fn take<G>(&self, now: impl Fn() -> Option<G>, wait: impl Fn() -> G) -> Guard<'_, G> {
        let Some((scheduler, me)) = current() else { return Guard::new(wait(), self) };
        scheduler.maybe_pause(me);
        loop {
            if let Some(guard) = now() {
                return Guard::new(guard, self);
            }
            self.wait(&scheduler, me);
        }
    }

    fn wait(&self, scheduler: &Arc<Scheduler>, me: Number) {
        self.0.fetch_add(1, Ordering::Relaxed);
        scheduler.wait_for_lock(me, self.address());
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// As [`Self::take`], for `time` at most; outside a simulation by `wait`.
    fn take_for<G>(
        &self,
        time: Duration,
        mut now: impl FnMut() -> Option<G>,
        wait: impl FnOnce() -> Option<G>,
    ) -> Option<Guard<'_, G>> {
        let Some((scheduler, me)) = current() else { return Some(Guard::new(wait()?, self)) };
        let until = scheduler.now().saturating_add(time);
        let timer = scheduler.timer(until, scheduler.waker(me));
        let taken = loop {
            let taken = now();
            if taken.is_some() || scheduler.now() >= until {
                break taken;
            }
            self.wait(&scheduler, me);
        };
        scheduler.forget_timer(timer);
        Some(Guard::new(taken?, self))
    }

    fn wake(&self) {
        if self.0.load(Ordering::Relaxed) > 0
            && let Some((scheduler, _)) = current()
        {
            scheduler.lock_is_free(self.address());
        }
    }
}

/// A lock that is held: one of parking_lot's guards, whose end wakes who waits.
pub struct Guard<'a, G> {
    /// `None` only for a moment: while a condition is waited for, and at the end.
    inner: Option<G>,
    waiters: &'a Waiters,
}

impl<'a, G> Guard<'a, G> {
    fn new(inner: G, waiters: &'a Waiters) -> Self {
        Self { inner: Some(inner), waiters }
    }

    /// The other kind of guard that `change` makes of it, which others may be able to share.
    fn into<H>(mut self, change: impl FnOnce(G) -> H) -> Guard<'a, H> {
        let changed = change(self.inner.take().expect("it is held"));
        self.waiters.wake();
        Guard::new(changed, self.waiters)
    }
}

impl<G: Deref> Deref for Guard<'_, G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        self.inner.as_ref().expect("it is held")
    }
}

impl<G: DerefMut> DerefMut for Guard<'_, G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        self.inner.as_mut().expect("it is held")
    }
}

impl<G> Drop for Guard<'_, G> {
    fn drop(&mut self) {
        if self.inner.take().is_some() {
            self.waiters.wake();
        }
    }
}

/// As `parking_lot::MutexGuard`.
pub type MutexGuard<'a, T> = Guard<'a, parking_lot::MutexGuard<'a, T>>;
/// As `parking_lot::RwLockReadGuard`.
pub type RwLockReadGuard<'a, T> = Guard<'a, parking_lot::RwLockReadGuard<'a, T>>;
/// As `parking_lot::RwLockWriteGuard`.
pub type RwLockWriteGuard<'a, T> = Guard<'a, parking_lot::RwLockWriteGuard<'a, T>>;
/// As `parking_lot::RwLockUpgradableReadGuard`.
pub type RwLockUpgradableReadGuard<'a, T> = Guard<'a, parking_lot::RwLockUpgradableReadGuard<'a, T>>;

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Lets other readers in.
    pub fn downgrade(held: Self) -> RwLockReadGuard<'a, T> {
        held.into(parking_lot::RwLockWriteGuard::downgrade)
    }

    /// Lets other readers in, and stays the one that may write.
    pub fn downgrade_to_upgradable(held: Self) -> RwLockUpgradableReadGuard<'a, T> {
        held.into(parking_lot::RwLockWriteGuard::downgrade_to_upgradable)
    }
}

impl<'a, T: ?Sized> RwLockUpgradableReadGuard<'a, T> {
    /// Lets another have the upgradable one.
    pub fn downgrade(held: Self) -> RwLockReadGuard<'a, T> {
        held.into(parking_lot::RwLockUpgradableReadGuard::downgrade)
    }

    /// Waits for the readers to go.
    pub fn upgrade(mut held: Self) -> RwLockWriteGuard<'a, T> {
        let waiters = held.waiters;
        let Some((scheduler, me)) = current() else {
            return held.into(parking_lot::RwLockUpgradableReadGuard::upgrade);
        };
        loop {
            let inner = held.inner.take().expect("it is held");
            match parking_lot::RwLockUpgradableReadGuard::try_upgrade(inner) {
                Ok(inner) => return Guard::new(inner, waiters),
                Err(inner) => held.inner = Some(inner),
            }
            waiters.wait(&scheduler, me);
        }
    }

    /// Waits for the readers to go, `time` at most.
    pub fn try_upgrade_for(mut held: Self, time: Duration) -> Result<RwLockWriteGuard<'a, T>, Self> {
        let waiters = held.waiters;
        let mut inner = held.inner.take();
        if current().is_none() {
            let tried =
                parking_lot::RwLockUpgradableReadGuard::try_upgrade_for(inner.take().expect("it is held"), time);
            return tried.map(|inner| Guard::new(inner, waiters)).map_err(|inner| Guard::new(inner, waiters));
        }
        let now = || match parking_lot::RwLockUpgradableReadGuard::try_upgrade(inner.take()?) {
            Ok(upgraded) => Some(upgraded),
            Err(left) => {
                inner = Some(left);
                None
            }
        };
        let taken = waiters.take_for(time, now, || None);
        taken.ok_or_else(|| Guard::new(inner.take().expect("it is held"), waiters))
    }
}

/// As `parking_lot::Mutex`.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    waiters: Waiters,
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    /// A free one.
    pub const fn new(value: T) -> Self {
        Self { waiters: Waiters(AtomicUsize::new(0)), inner: parking_lot::Mutex::new(value) }
    }

    /// What it held.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.waiters.take(|| self.inner.try_lock(), || self.inner.lock())
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Some(Guard::new(self.inner.try_lock()?, &self.waiters))
    }

    /// What it holds, for its only user.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// As `parking_lot::RwLock`.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    waiters: Waiters,
    inner: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    /// A free one.
    pub const fn new(value: T) -> Self {
        Self { waiters: Waiters(AtomicUsize::new(0)), inner: parking_lot::RwLock::new(value) }
    }

    /// What it held.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until nobody writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.waiters.take(|| self.inner.try_read(), || self.inner.read())
    }

    /// Waits until nobody else reads or writes.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.waiters.take(|| self.inner.try_write(), || self.inner.write())
    }

    /// Waits until nobody writes or may come to.
    pub fn upgradable_read(&self) -> RwLockUpgradableReadGuard<'_, T> {
        self.waiters.take(|| self.inner.try_upgradable_read(), || self.inner.upgradable_read())
    }

    /// As [`Self::upgradable_read`], for `time` at most.
    pub fn try_upgradable_read_for(&self, time: Duration) -> Option<RwLockUpgradableReadGuard<'_, T>> {
        let wait = || self.inner.try_upgradable_read_for(time);
        self.waiters.take_for(time, || self.inner.try_upgradable_read(), wait)
    }

    /// As [`Self::write`], for `time` at most.
    pub fn try_write_for(&self, time: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        self.waiters.take_for(time, || self.inner.try_write(), || self.inner.try_write_for(time))
    }

    /// Takes it if nobody else reads or writes.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        Some(Guard::new(self.inner.try_write()?, &self.waiters))
    }

    /// Takes it if nobody writes.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        Some(Guard::new(self.inner.try_read()?, &self.waiters))
    }

    /// What it holds, for its only user.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// As `parking_lot::Condvar`.
#[derive(Default)]
pub struct Condvar {
    inner: parking_lot::Condvar,
    waiting: StdMutex<Vec<(Number, u64)>>,
    waits: AtomicU64,
}

/// As `parking_lot::WaitTimeoutResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was over before anybody notified.
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Nobody waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until it is notified.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        match current() {
            None => self.inner.wait(guard.inner.as_mut().expect("it is held")),
            Some((scheduler, me)) => drop(self.wait_until(guard, &scheduler, me, None)),
        }
    }

    /// Waits until it is notified, `time` at most.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        match current() {
            None => {
                let inner = guard.inner.as_mut().expect("it is held");
                WaitTimeoutResult(self.inner.wait_for(inner, time).timed_out())
            }
            Some((scheduler, me)) => {
                let until = scheduler.now().saturating_add(time);
                WaitTimeoutResult(self.wait_until(guard, &scheduler, me, Some(until)))
            }
        }
    }

    /// Returns whether it was not notified.
    fn wait_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        scheduler: &Arc<Scheduler>,
        me: Number,
        until: Option<Duration>,
    ) -> bool {
        let ticket = self.waits.fetch_add(1, Ordering::Relaxed);
        lock(&self.waiting).push((me, ticket));
        let of = parking_lot::MutexGuard::mutex(guard.inner.as_ref().expect("it is held"));
        guard.inner = None;
        guard.waiters.wake();
        let timer = until.map(|until| scheduler.timer(until, scheduler.waker(me)));
        let waits = || lock(&self.waiting).iter().any(|entry| entry.1 == ticket);
        while waits() && until.is_none_or(|until| scheduler.now() < until) {
            scheduler.wait(me);
        }
        timer.into_iter().for_each(|timer| scheduler.forget_timer(timer));
        let in_vain = waits();
        lock(&self.waiting).retain(|entry| entry.1 != ticket);
        guard.inner = loop {
            if let Some(inner) = of.try_lock() {
                break Some(inner);
            }
            guard.waiters.wait(scheduler, me);
        };
        in_vain
    }

    /// Wakes one who waits, if there is one.
    pub fn notify_one(&self) {
        self.inner.notify_one();
        self.notify(1);
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.inner.notify_all();
        self.notify(usize::MAX);
    }

    fn notify(&self, most: usize) {
        let Some((scheduler, _)) = current() else { return };
        let woken: Vec<_> = {
            let mut waiting = lock(&self.waiting);
            let count = waiting.len().min(most);
            waiting.drain(..count).collect()
        };
        woken.into_iter().for_each(|(number, _)| scheduler.wake(number));
    }
}
